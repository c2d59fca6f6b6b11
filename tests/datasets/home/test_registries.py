"""The list of registries, and the memory of the newest index of each."""

import contextlib
import json
import multiprocessing

import pytest

from orlog.datasets.home.registries import (
    Registry,
    add_registry,
    check_serial,
    read_registries,
    registries_file,
    remove_registry,
    seen_file,
)
from orlog.errors import FormatVersionError, ManifestError, NotFoundError, SignatureError

URL = "https://data.example.org/registry"
KEY = f"ed25519:{'ab' * 32}"
LAB = Registry(name="lab", url=URL)
OLD, NEW = "a" * 64, "b" * 64


def write(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body), "utf-8")


def test_what_is_added_is_read_in_order_and_removed(home, tmp_path, monkeypatch):
    added = add_registry("lab", f"{URL}/", mirrors=["s3://bucket/data", str(tmp_path)], keys=[KEY])
    assert added == Registry(name="lab", url=URL, mirrors=("s3://bucket/data", str(tmp_path)), keys=(KEY,))
    second = add_registry("hub", "hf://datasets/lab/data")
    third = add_registry("near", "HTTP://localhost:8000", first=True)
    assert third.url == "http://localhost:8000"
    assert read_registries() == [third, added, second]
    assert json.loads((home / "registries.json").read_text("utf-8"))["registries"][1] == {
        "name": "lab",
        "url": URL,
        "mirrors": ["s3://bucket/data", str(tmp_path)],
        "keys": [KEY],
    }
    for name, url, others in (
        ("lab", "s3://bucket", {}),
        ("other", f"{URL}//", {}),
        ("other", "s3://bucket", {"mirrors": ["s3://bucket/"]}),
        ("other", "s3://bucket", {"keys": [KEY, KEY]}),
    ):
        with pytest.raises(ValueError, match=r"exists already|listed twice"):
            add_registry(name, url, **others)
    assert remove_registry("lab") == added
    assert read_registries() == [third, second]
    with pytest.raises(NotFoundError, match="did you mean near"):
        remove_registry("neer")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    assert add_registry("here", "../data/").url == str(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match="exists already"):
        add_registry("again", "~/data")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((url, "one line") for url in ("", "  ", "https://data.example.org/\n", "https://x/\x1b[2J", "a" * 2001)),
        ("htps://data.example.org", "did you mean https"),
        ("simplecache::s3://bucket", "no transport"),
        *((f"https://{rest}", "a URL such as") for rest in ("", "/data", "data example.org", "x:http", "[::1/data")),
        *((f"https://data.example.org/{rest}", "a URL such as") for rest in ("?", "#top")),
        ("https://me:secret@data.example.org", "leave user and password out"),
        ("file://data", "a URL such as"),
        ("s3:///", "a URL such as"),
    ],
)
def test_a_nonsense_url_is_refused(url, message, home):
    for arguments in ({"url": url}, {"url": URL, "mirrors": [url]}):
        with pytest.raises(ValueError, match=message) as caught:
            add_registry("lab", **arguments)
        assert "secret" not in str(caught.value)
    assert not home.exists()


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ({"registries": [{"name": "Lab", "url": URL}]}, ManifestError, "not a name for a registry"),
        ({"registries": [{"name": "lab", "url": f"{URL}/"}]}, ManifestError, "slash"),
        ({"registries": [{"name": "lab", "url": URL, "keys": ["ed25519:ab"]}]}, ManifestError, "not a public key"),
        ({"registries": [{"name": "lab", "url": URL}, {"name": "lab", "url": "s3://x"}]}, ManifestError, "twice"),
        ({"registries": {}}, ManifestError, "registries"),
        ({"registries_version": 2, "registries": []}, FormatVersionError, "registries_version 2"),
    ],
)
def test_an_edited_file_is_refused_and_stays(body, error, message):
    write(registries_file(), {"registries_version": 1, **body})
    before = registries_file().read_bytes()
    for call in (read_registries, lambda: add_registry("new", "s3://new"), lambda: remove_registry("lab")):
        with pytest.raises(error, match=message):
            call()
    assert registries_file().read_bytes() == before


def test_an_older_index_is_refused_and_a_newer_one_remembered(home):
    for _ in range(2):
        check_serial(LAB, 7, OLD)
    for serial, sha256, expected, found in ((6, NEW, "7", "6"), (7, NEW, OLD, NEW)):
        with pytest.raises(SignatureError) as caught:
            check_serial(LAB, serial, sha256)
        assert (caught.value.expected, caught.value.found) == (expected, found)
    check_serial(LAB, 8, NEW)
    check_serial(Registry(name="other", url="s3://bucket"), 1, OLD)
    # The memory is of the URL, and outlives the registry.
    add_registry("lab", URL)
    remove_registry("lab")
    with pytest.raises(SignatureError, match=r"registries-seen\.json"):
        check_serial(add_registry("again", f"{URL}/", mirrors=["s3://mirror"]), 7, OLD)
    assert json.loads((home / "registries-seen.json").read_text("utf-8"))["indexes"] == {
        URL: {"serial": 8, "sha256": NEW},
        "s3://bucket": {"serial": 1, "sha256": OLD},
    }
    write(seen_file(), {"seen_version": 2, "indexes": {}})
    with pytest.raises(FormatVersionError, match="seen_version 2"):
        check_serial(LAB, 1, OLD)


def test_a_home_that_cannot_be_written_warns_and_still_refuses(home):
    home.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="registry lab: serial 7 .* cannot be remembered"):
        check_serial(LAB, 7, OLD)
    home.unlink()
    check_serial(LAB, 7, OLD)
    (home / ".registries-seen.json.lock").unlink()
    (home / ".registries-seen.json.lock").mkdir()
    check_serial(LAB, 7, OLD)
    with pytest.raises(SignatureError, match="expected serial 7 or more, found 6"):
        check_serial(LAB, 6, NEW)
    with pytest.warns(UserWarning, match="cannot be remembered"):
        check_serial(LAB, 8, NEW)


def see_and_add(name):
    mine = Registry(name="mine", url=f"s3://{name}")
    for serial in range(1, 31):
        check_serial(mine, serial, f"{serial:064x}")
        with contextlib.suppress(SignatureError):  # the other may be ahead
            check_serial(LAB, serial, f"{serial:064x}")
        if serial % 10 == 0:
            add_registry(f"{name}-{serial}", f"s3://{name}/{serial}")


def test_processes_at_once_lose_nothing():
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=see_and_add, args=(name,)) for name in ("first", "second")]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0, 0]
    seen = json.loads(seen_file().read_text("utf-8"))["indexes"]
    assert {url: index["serial"] for url, index in seen.items()} == {URL: 30, "s3://first": 30, "s3://second": 30}
    assert len(read_registries()) == 6
