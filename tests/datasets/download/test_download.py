"""Versions from real servers with faults, whole or in part: right bytes, or a typed error that says who did what."""

import contextlib
import functools
import json
import multiprocessing
import shutil
import urllib.parse

import numpy as np
import pytest

import orlog
from orlog import download_dataset, publish_dataset, repair_dataset
from orlog.datasets.download.download import download_version
from orlog.datasets.download.http import Patience
from orlog.datasets.download.sources import BRIEF, confirm_version, find_source, source_of_url
from orlog.datasets.download.transfer import Limiter, TransferOptions, read_small
from orlog.datasets.home.folders import datasets_folder, installed_versions, is_partial, partial_versions
from orlog.datasets.home.registries import add_registry, remove_registry
from orlog.datasets.reading.finding import folders_to_repair, folders_to_verify
from orlog.errors import IntegrityError, LockError, NotFoundError, SignatureError, TransferError
from orlog.manifests.lock import LockedDataset, write_lock
from orlog.manifests.manifest import read_manifest
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import new_key, sign
from tests.datasets.conftest import MINI
from tests.datasets.store.test_version import random_parts, record
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import COMES, Fault, FileServer
from tests.stored_objects import flip

QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.01, longest_wait=0.1)
RETURNS = "episodes/returns/c.0"
PARTS, VERSION = "lab/parts-v1", "1.2.0"


def quickly(url):
    return download_version(source_of_url(url), TransferOptions(patience=QUICK))


def beside(name):
    """Return what lies beside versions, but for locks."""
    return sorted(path.name for path in (datasets_folder() / name).glob(".*") if path.suffix != ".lock")


def is_right(folder):
    return orlog.verify_store(folder)[1] == []


# --- whole versions


@pytest.mark.parametrize("end", ["", "/", "/manifest.json"])
def test_a_version_is_downloaded_by_url_and_then_opened_by_name(served, built_mini, end):
    seen = []
    ds = orlog.load_dataset(served.url + end, progress=lambda done, total: seen.append((done, total)))
    assert ds.digest == orlog.load_dataset(built_mini).digest
    assert ds.folder == datasets_folder() / MINI / "1.0.0"
    total = sum({item.sha256: item.size_bytes for item in ds.manifest.objects}.values())
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert orlog.load_dataset(MINI).digest == ds.digest
    assert is_right(ds.folder)
    assert beside(MINI) == [".1.0.0.origin.json"]


def test_a_name_is_downloaded_from_a_registry(served):
    with pytest.raises(NotFoundError):
        orlog.load_dataset(MINI)
    ds = orlog.load_dataset(MINI, download=True)
    assert is_right(ds.folder)
    asked = len(served.server.requests)
    assert download_dataset(f"{MINI}@1.0.0") == ds.folder
    assert download_dataset(f"{MINI}@{ds.digest}") == ds.folder
    assert len(served.server.requests) == asked
    assert download_dataset(MINI) == ds.folder  # asks whether there is a newer version
    assert len(served.server.requests) == asked + 2  # index and manifest


def test_other_bytes_under_the_same_version_are_refused(served, reseal, built_mini):
    folder = datasets_folder() / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    reseal(folder, lambda body: body.update(description="another"))
    here = orlog.load_dataset(folder).digest
    with pytest.raises(IntegrityError, match="a version never changes"):
        orlog.load_dataset(served.url)
    assert orlog.load_dataset(folder).digest == here


def test_the_lock_holds_for_names_and_urls(served, tmp_path, monkeypatch):
    pin = LockedDataset(version="1.0.0", digest="sha256:" + "0" * 64)
    write_lock(tmp_path / "orlog.lock", {MINI: pin})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LockError, match="orlog lock --update"):
        orlog.load_dataset(served.url)
    with pytest.raises(NotFoundError, match=r"lab has 1\.0\.0 of it"):
        download_dataset(MINI)
    assert installed_versions(MINI) == []


def download_in_child(url):
    """Download in a process of its own, slowly."""
    download_version(source_of_url(url), TransferOptions(limiter=Limiter(4_000_000)))


def test_eight_processes_fetch_every_byte_once(served):
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=download_in_child, args=(served.url,)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    ds = orlog.load_dataset(MINI)
    assert is_right(ds.folder)
    manifests = 8 * len((ds.folder / "manifest.json").read_bytes())
    assert served.server.sent_bytes <= ds.manifest.size_bytes + manifests


def test_what_a_killed_download_left_is_read_again_before_it_is_used(served):
    folder = quickly(served.url)
    item = next(one for one in orlog.load_dataset(folder).manifest.objects if one.path == RETURNS)
    kept = folder.with_name(f".{folder.name}.download") / item.sha256
    kept.parent.mkdir()
    data = bytearray((folder / item.path).read_bytes())
    kept.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    shutil.rmtree(folder)
    assert quickly(served.url) == folder
    assert is_right(folder)


# --- repair


def damage(folder):
    """Do every kind of damage to a version; return the paths and what was done."""
    flip(folder / "rewards/c.0")
    (folder / "actions/c.0.0").unlink()
    shutil.rmtree(folder / "infos")
    with (folder / "terminations/c.0").open("r+b") as file:
        file.truncate(10)
    (folder / "truncations/c.0").unlink()
    (folder / "truncations/c.0").symlink_to(folder / "terminations/c.0")
    (folder / "notes.txt").write_text("mine", "utf-8")
    return {
        "rewards/c.0": "damaged",
        "actions/c.0.0": "missing",
        "terminations/c.0": "wrong size",
        "truncations/c.0": "a link",
        "notes.txt": "not in the manifest",
    }


def test_repair_brings_what_is_damaged_and_nothing_else(served):
    folder = download_dataset(MINI)
    done = damage(folder)
    broken = {problem.file: problem.kind for problem in orlog.verify_store(folder)[1]}
    assert done.items() <= broken.items()
    served.server.requests.clear()
    problems = repair_dataset(folder)
    assert {problem.file: problem.kind for problem in problems} == broken
    assert is_right(folder)
    asked = {request.path.removeprefix(f"/{MINI}/1.0.0/") for request in served.server.requests}
    assert asked == set(broken) - {"notes.txt"}
    strange = folder.with_name(".1.0.0.strange") / "notes.txt"
    assert strange.read_text("utf-8") == "mine"
    assert repair_dataset(folder) == []


def test_a_damaged_or_missing_manifest_is_brought_again_and_another_is_not_taken_for_it(served, reseal):
    folder = download_dataset(MINI)
    good = (folder / "manifest.json").read_bytes()
    for damaged in (good[:-9], b"", None):
        (folder / "manifest.json").unlink()
        if damaged is not None:
            (folder / "manifest.json").write_bytes(damaged)
        assert folders_to_repair(MINI) == [folder]
        (problem,) = repair_dataset(folder)
        assert problem.file == "manifest.json"
        assert is_right(folder)
    reseal(served.registry / MINI / "1.0.0", lambda body: body.update(description="another"))
    (folder / "manifest.json").write_text("{", "utf-8")
    with pytest.raises(IntegrityError, match="was downloaded; nothing was changed"):
        repair_dataset(folder)
    assert (folder / "manifest.json").read_text("utf-8") == "{"


# --- registries


@pytest.mark.usefixtures("served")
def test_a_registry_that_does_not_answer_ends_the_search_unless_the_digest_is_known(built_mini, monkeypatch):
    def quick(url, limit, **_):
        return read_small(url, limit, patience=QUICK)

    monkeypatch.setattr("orlog.datasets.download.sources.read_small", quick)
    add_registry("first", "http://127.0.0.1:9", first=True)
    with pytest.raises(TransferError, match="registry first does not answer"):
        download_dataset(MINI)
    digest = orlog.load_dataset(built_mini).digest
    assert download_dataset(f"{MINI}@{digest}").is_dir()


def test_a_registry_with_a_key_refuses_what_is_unsigned_altered_or_older(served, built_mini, tmp_path, monkeypatch):
    monkeypatch.setattr("orlog.datasets.download.sources.PAUSE", 0.0)
    public = new_key(tmp_path / "lab.key")
    new_key(tmp_path / "other.key")
    remove_registry("lab")
    add_registry("lab", served.server.url, keys=(public,))
    with pytest.raises(SignatureError):
        download_dataset(MINI)

    def publish(folder, key):
        signer = functools.partial(sign, key_file=tmp_path / key)
        publish_dataset(folder, str(served.registry), sign=signer)

    shutil.rmtree(served.registry)
    publish(built_mini, "lab.key")
    first = orlog.load_dataset(MINI, download=True)
    assert find_source(parse_name(MINI)).signed_by == public
    older = {path.name: path.read_bytes() for path in served.registry.glob("index.json*")}
    with orlog.DatasetWriter.append(first) as writer:
        writer.add_episode(first[0])
    newer = orlog.load_dataset(MINI).folder
    publish(newer, "lab.key")
    assert find_source(parse_name(MINI)).manifest.version == "1.1.0"
    for name, data in older.items():
        (served.registry / name).write_bytes(data)
    with pytest.raises(SignatureError, match="expected serial 2 or more, found 1"):
        find_source(parse_name(MINI))
    publish(newer, "lab.key")
    signature = served.registry / MINI / "1.1.0" / "manifest.json.sig"
    signature.write_bytes(sign(b"another", "manifest", tmp_path / "lab.key"))
    with pytest.raises(SignatureError, match=r"manifest\.json"):
        find_source(parse_name(MINI))
    for path in served.registry.glob("index.json*"):
        path.unlink()
    publish(newer, "other.key")
    with pytest.raises(SignatureError, match="ed25519"):
        find_source(parse_name(MINI))


@pytest.mark.parametrize("by_name", [True, False])
def test_what_the_origin_says_of_a_version_is_told(served, reseal, by_name):
    assert BRIEF.attempts == 1
    folder = download_dataset(MINI if by_name else served.url)
    manifest = read_manifest(folder / "manifest.json")
    other = read_manifest(reseal(served.registry / MINI / "1.0.0", lambda body: body.update(description="other")))
    index_path = served.registry / "index.json"
    index = json.loads(index_path.read_text())
    index["serial"] += 1
    index["datasets"][MINI]["1.0.0"]["digest"] = other.digest
    index_path.write_text(json.dumps(index))
    confirmed = confirm_version(folder, manifest)
    assert (confirmed.state, f"offers {other.digest}" in confirmed.text) == ("other", True)
    served.server.faults.append(Fault(path="index.json" if by_name else "manifest.json", status=503))
    confirmed = confirm_version(folder, manifest)
    assert (confirmed.state, "does not answer" in confirmed.text) == ("unknown", True)
    if by_name:
        served.server.faults.clear()
        del index["datasets"][MINI]
        index["serial"] += 1
        index_path.write_text(json.dumps(index))
        assert "does not list it any more" in confirm_version(folder, manifest).text
        remove_registry("lab")
        assert "not known any more" in confirm_version(folder, manifest).text


# --- parts of a version: what is wanted is right or not there, and the rest comes later


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return a registry and the version in it: three parts, small shards, texts and frames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("author")))
        dataset = record(PARTS, random_parts())
        registry = tmp_path_factory.mktemp("registry")
        publish_dataset(dataset.folder, str(registry))
        return registry, dataset


@pytest.fixture
def whole(published):
    """Return the version as its author has it."""
    return published[1]


@pytest.fixture
def server(published, home):
    """Serve the registry, known on this machine as `lab`."""
    home.mkdir()
    with FileServer(published[0]) as server:
        add_registry("lab", server.url)
        yield server


def assert_same(view, expected):
    assert view.digest == expected.digest
    assert view.columns == expected.columns
    for one, other in zip(view.blocks(), expected.blocks(), strict=True):
        assert one[0].keys() == other[0].keys()
        for name, values in one[0].items():
            np.testing.assert_array_equal(values, other[0][name], name)


def choices(whole, count):
    rng = np.random.default_rng(3)
    optional = ["infos/said", "infos/level", "episodes/task", "episodes/score"]
    keys = ["observations/camera", "observations/say", "observations/speed"]
    for _ in range(count):
        size = int(rng.integers(1, whole.total_episodes + 1))
        episodes = rng.permutation(whole.total_episodes)[:size].tolist()
        columns = [name for name in optional + keys if rng.random() < 0.4]
        kind = rng.integers(3)
        yield {"episodes": episodes if kind else None, "columns": columns if kind < 2 else None}


def objects_asked(server):
    start = f"/{PARTS}/{VERSION}/"
    paths = [urllib.parse.unquote(request.path) for request in server.requests]
    inside = [path.removeprefix(start) for path in paths if path.startswith(start)]
    return [path for path in inside if path != "manifest.json"]


@pytest.mark.scaled
@pytest.mark.usefixtures("server")
def test_any_choice_is_equal_to_the_same_choice_of_the_whole(whole):
    for number, choice in enumerate(choices(whole, scaled(12, 6))):
        if number % 3 == 0:  # else what came before is there already
            shutil.rmtree(datasets_folder(), ignore_errors=True)
        expected = whole if choice["columns"] is None else whole.select_columns(choice["columns"])
        expected = expected if choice["episodes"] is None else expected[choice["episodes"]]
        assert_same(orlog.load_dataset(PARTS, download=True, **choice), expected)
        assert_same(orlog.load_dataset(f"{PARTS}@{VERSION}", **choice), expected)
        # A part, or the version once every object is here, never both.
        assert [*partial_versions(PARTS), *installed_versions(PARTS)] == [VERSION]


def test_only_what_is_wanted_is_brought_then_the_rest_and_nothing_twice(server, whole):
    first = download_dataset(PARTS, episodes=[0], columns=["infos/level"])
    assert is_partial(first)
    wanted = objects_asked(server)
    assert len(wanted) < len(whole.manifest.objects) / 2
    assert not any("infos/said/c" in path or "parts/2/rewards/c" in path for path in wanted)
    assert download_dataset(PARTS, episodes=range(3, whole.total_episodes)) == first
    folder = download_dataset(PARTS)
    assert folder == datasets_folder() / PARTS / VERSION
    assert is_right(folder)
    sums = {item.path: item.sha256 for item in whole.manifest.objects}
    brought = [sums[path] for path in objects_asked(server)]
    assert sorted(brought) == sorted(set(brought)) == sorted(set(sums.values()))
    assert beside(PARTS) == [f".{VERSION}.origin.json"]


@pytest.mark.usefixtures("server")
def test_a_part_is_not_taken_for_the_whole(whole):
    download_dataset(PARTS, episodes=range(2))
    assert installed_versions(PARTS) == []
    with pytest.raises(NotFoundError, match=r"only a part.*orlog download lab/parts-v1"):
        orlog.load_dataset(PARTS)
    with pytest.raises(NotFoundError, match=r"more are wanted.*orlog download"):
        orlog.load_dataset(PARTS, episodes=range(whole.total_episodes))
    with pytest.raises(NotFoundError):
        orlog.load_dataset(f"{PARTS}@1.0.0", episodes=range(2))
    assert orlog.load_dataset(PARTS, episodes=[1]).total_episodes == 1
    assert orlog.load_dataset(PARTS, download=True).digest == whole.digest


def test_a_part_is_verified_and_only_what_is_damaged_is_brought_again(server, whole):
    folder = download_dataset(PARTS, episodes=range(2))
    assert is_right(folder)
    assert folders_to_verify(PARTS) == folders_to_repair(PARTS) == [folder]
    objects = sorted(path for path in folder.rglob("c.*") if path.is_file())
    flip(objects[0])
    objects[-1].unlink()
    (folder / "partial.json.bak").write_text("{}")
    damaged = [path.relative_to(folder).as_posix() for path in (objects[0], objects[-1])]
    problems = {problem.file: problem.kind for problem in orlog.verify_store(folder)[1]}
    assert problems == {damaged[0]: "damaged", damaged[1]: "missing", "partial.json.bak": "not in the manifest"}
    server.requests.clear()
    assert len(repair_dataset(folder)) == 3
    assert set(objects_asked(server)) == set(damaged)
    assert is_right(folder)
    for path in objects[:: len(objects) // 15]:
        good = path.read_bytes()
        flip(path)
        with contextlib.suppress(IntegrityError):  # damage may lie in another episode's chunk
            assert_same(orlog.load_dataset(PARTS, episodes=range(2)), whole[:2])
        path.write_bytes(good)
    (folder / "partial.json").write_text('{"partial_version": 1, "digest": "x", "objects": ["../a"]}')
    with pytest.raises(IntegrityError, match=r"partial\.json"):
        orlog.load_dataset(PARTS, episodes=range(2))


# --- kills


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.parametrize("what", ["download", "repair", "part"])
def test_what_is_killed_at_any_instant_goes_on(what, request):
    """Killed for real, again and again, until one comes to its end; then once more from the start."""
    places, kills, allowed = datasets_folder(), 0, scaled(100, 12)
    if what == "part":
        request.getfixturevalue("server")
        name, whole = PARTS, request.getfixturevalue("whole")
    else:
        name, url = MINI, request.getfixturevalue("served").url
    folder = places / name / (VERSION if what == "part" else "1.0.0")

    def work(step, choice={}):  # noqa: B006
        if what == "repair":
            repair_dataset(folder, progress=lambda *_: step())
        elif what == "part":
            orlog.load_dataset(name, download=True, progress=lambda *_: step(), **choice)
        else:
            download_version(source_of_url(url), TransferOptions(progress=lambda *_: step()))

    def begin():
        if what == "repair":
            download_dataset(name)
            shutil.rmtree(folder.with_name(".1.0.0.strange"), ignore_errors=True)
            damage(folder)
        else:
            shutil.rmtree(places, ignore_errors=True)

    begin()
    _, total = killed_at(work, 0, places)
    rng = np.random.default_rng(0)
    interrupted = 0
    while kills < allowed:
        begin()
        for choice in [*choices(whole, 6), {}] if what == "part" else [{}]:
            some = functools.partial(work, choice=choice)
            while kills < allowed and killed_at(some, int(rng.integers(1, total + 1)), places)[0]:
                kills += 1
                interrupted += bool(partial_versions(name))
                if what != "repair":
                    there = [
                        *partial_versions(name).values(),
                        *(places / name / one for one in installed_versions(name)),
                    ]
                    assert all(map(is_right, there))
        was_in_place = bool(installed_versions(name))
        work(lambda: None)
        assert is_right(folder)
        # Only a kill after the version was put in place leaves the folder of its download, which
        # `orlog cache gc` removes.
        assert what != "download" or was_in_place or beside(name) == [".1.0.0.origin.json"]
    assert partial_versions(name) == {}
    assert interrupted > 0 or what != "part"
