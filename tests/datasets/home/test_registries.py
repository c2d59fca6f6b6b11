import contextlib
import json
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.levels import scaled

URL = "https://data.example.org/registry"
KEY = f"ed25519:{'ab' * 32}"
LAB = Registry(name="lab", url=URL)
OLD, NEW = "a" * 64, "b" * 64


def write(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body), "utf-8")


def run_at_once(*codes):
    """Run pieces of Python in processes of their own, side by side."""
    running = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    assert [one.wait(timeout=120) for one in running] == [0] * len(codes)


def test_what_is_added_is_read_in_order_and_removed(home, tmp_path):
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
    assert remove_registry("lab") == added
    assert read_registries() == [third, second]
    with pytest.raises(NotFoundError, match="did you mean near"):
        remove_registry("neer")


def test_a_folder_is_kept_by_its_absolute_path(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    assert add_registry("here", "../data/").url == str(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"here with URL .* exists already"):
        add_registry("again", "~/data")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "one line"),
        ("  ", "one line"),
        ("https://data.example.org/\n", "one line"),
        ("https://data.example.org/\x1b[2J", "one line"),
        (f"https://{'a' * 2000}", "one line"),
        ("htps://data.example.org", "did you mean https"),
        ("simplecache::s3://bucket", "no transport"),
        ("https://", "a URL such as"),
        ("https:///data", "a URL such as"),
        ("https://data example.org", "a URL such as"),
        ("https://data.example.org:http", "a URL such as"),
        ("https://[::1/data", "a URL such as"),
        ("https://data.example.org/?", "a URL such as"),
        ("https://data.example.org/#top", "a URL such as"),
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


def test_what_is_there_already_is_refused():
    added = add_registry("lab", URL)
    with pytest.raises(ValueError, match=r"registry lab with URL .* orlog registry remove lab"):
        add_registry("lab", "s3://bucket")
    with pytest.raises(ValueError, match="exists already"):
        add_registry("other", f"{URL}//")
    with pytest.raises(ValueError, match="is listed twice"):
        add_registry("other", "s3://bucket", mirrors=["s3://bucket/"])
    with pytest.raises(ValueError, match="is listed twice"):
        add_registry("other", "s3://bucket", keys=[KEY, KEY])
    assert read_registries() == [added]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"name": "Lab", "url": URL}], "not a name for a registry"),
        ([{"name": "lab", "url": f"{URL}/"}], "slash"),
        ([{"name": "lab", "url": URL, "keys": ["ed25519:ab"]}], "not a public key"),
        ([{"name": "lab", "url": URL}, {"name": "lab", "url": "s3://bucket"}], "twice"),
        ({}, "registries"),
    ],
)
def test_an_edited_file_is_refused_and_stays(entries, message):
    write(registries_file(), {"registries_version": 1, "registries": entries})
    before = registries_file().read_bytes()
    calls = [read_registries, lambda: add_registry("new", "s3://new"), lambda: remove_registry("lab")]
    for call in calls:
        with pytest.raises(ManifestError, match=message):
            call()
    assert registries_file().read_bytes() == before


def test_files_of_a_newer_orlog_are_refused():
    write(registries_file(), {"registries_version": 2, "registries": []})
    write(seen_file(), {"seen_version": 2, "indexes": {}})
    with pytest.raises(FormatVersionError, match="registries_version 2"):
        read_registries()
    with pytest.raises(FormatVersionError, match="seen_version 2"):
        check_serial(LAB, 1, OLD)


@settings(max_examples=scaled(200), deadline=None)
@given(place=st.integers(0))
def test_a_flipped_bit_gives_a_typed_error_or_another_file_that_is_right(place):
    entry = {"name": "lab", "url": URL, "mirrors": ["s3://bucket"], "keys": [KEY]}
    write(registries_file(), {"registries_version": 1, "registries": [entry]})
    write(seen_file(), {"seen_version": 1, "indexes": {URL: {"serial": 7, "sha256": OLD}}})
    for path in (registries_file(), seen_file()):
        data = bytearray(path.read_bytes())
        bit = place % (len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
    with contextlib.suppress(ManifestError, FormatVersionError):
        assert read_registries() != [msgspec.convert(entry, Registry)]
    with contextlib.suppress(ManifestError, FormatVersionError, SignatureError):
        check_serial(LAB, 6, NEW)


def test_an_older_index_is_refused_and_a_newer_one_remembered(home):
    check_serial(LAB, 7, OLD)
    check_serial(LAB, 7, OLD)
    with pytest.raises(SignatureError, match="expected serial 7 or more, found 6") as caught:
        check_serial(LAB, 6, NEW)
    assert (caught.value.expected, caught.value.found) == ("7", "6")
    with pytest.raises(SignatureError, match="two indexes have serial 7") as caught:
        check_serial(LAB, 7, NEW)
    assert (caught.value.expected, caught.value.found) == (OLD, NEW)
    check_serial(LAB, 8, NEW)
    with pytest.raises(SignatureError, match="expected serial 8 or more, found 7"):
        check_serial(LAB, 7, OLD)
    check_serial(Registry(name="other", url="s3://bucket"), 1, OLD)
    assert json.loads((home / "registries-seen.json").read_text("utf-8"))["indexes"] == {
        URL: {"serial": 8, "sha256": NEW},
        "s3://bucket": {"serial": 1, "sha256": OLD},
    }


def test_the_memory_is_of_the_url_and_outlives_the_registry():
    check_serial(add_registry("lab", URL), 7, OLD)
    remove_registry("lab")
    again = add_registry("again", f"{URL}/", mirrors=["s3://bucket"])
    with pytest.raises(SignatureError, match=r"registries-seen\.json"):
        check_serial(again, 6, NEW)


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


def test_processes_at_once_lose_nothing():
    code = """
from orlog.datasets.home.registries import Registry, add_registry, check_serial
from orlog.errors import SignatureError
lab = Registry(name="lab", url="https://data.example.org/registry")
mine = Registry(name="mine", url="s3://{0}")
for serial in range(1, 31):
    check_serial(mine, serial, f"{{serial:064x}}")
    try:
        check_serial(lab, serial, f"{{serial:064x}}")
    except SignatureError as error:
        assert "or more" in str(error), error
    if serial % 10 == 0:
        add_registry(f"{0}-{{serial}}", f"s3://{0}/{{serial}}")
"""
    run_at_once(code.format("first"), code.format("second"))
    seen = json.loads(seen_file().read_text("utf-8"))["indexes"]
    assert {url: index["serial"] for url, index in seen.items()} == {URL: 30, "s3://first": 30, "s3://second": 30}
    assert len(read_registries()) == 6
