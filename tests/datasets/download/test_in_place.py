"""Versions that are read where they are: what comes is right, whatever servers, disks and others do."""

import contextlib
import itertools
import json
import multiprocessing
import os
import pickle
import random
import shutil

import google_crc32c
import numpy as np
import pytest

import orlog
from orlog import OrlogError, publish_dataset
from orlog.datasets.download import in_place
from orlog.datasets.download.http import Patience
from orlog.datasets.download.in_place import in_place_folder, kept_versions, make_room, open_in_place
from orlog.datasets.home.registries import add_registry, remove_registry
from orlog.datasets.reading.selection import LazyRows
from orlog.datasets.recording.saving import convert_dataset
from orlog.datasets.store import chunk_hashes
from orlog.datasets.store.chunk_hashes import CHUNKS_FILE, HASH_BYTES, SHARDS_FILE
from orlog.datasets.store.shards import Shard, check_bytes, index_bytes_of
from orlog.errors import IntegrityError, NotFoundError, SchemaError, StorageError, TransferError
from tests.command_line import orlog as run
from tests.datasets.store.test_version import random_parts, record
from tests.levels import most, scaled
from tests.servers import COMES, Fault, FileServer
from tests.small_disks import fill

pytest_plugins = ["tests.s3_fixtures"]

NAME = "lab/parts-v1"
SHORT = Patience(timeout=COMES, attempts=4, idle=0.0, first_wait=0.01, longest_wait=0.02)


@pytest.fixture(scope="module", params=["by ranges", "small ones whole", "whole files"])
def published(request, tmp_path_factory):
    """Return a registry and the version in it: three parts, small shards, texts and frames.

    With hashes of its chunks, which are fetched by ranges, or with their whole shards where these are small; or
    without hashes, so that all shards are fetched whole.
    """
    registry = tmp_path_factory.mktemp("registry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("author")))
        if request.param != "whole files":
            patch.setattr(chunk_hashes, "LARGE_BYTES", 0)
        dataset = record(NAME, random_parts())
        publish_dataset(dataset.folder, str(registry))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "by ranges":
            patch.setattr(in_place, "WHOLE_BYTES", 0)
        yield registry, dataset


BY_RANGES = pytest.mark.parametrize("published", ["by ranges"], indirect=True)
"""For what does not depend on how chunks are checked."""
BOTH = pytest.mark.parametrize("published", ["by ranges", "whole files"], indirect=True)


@pytest.fixture
def whole(published):
    """Return the version as its author has it."""
    return published[1]


@pytest.fixture
def served(published, tmp_path):
    """Return a server of a copy of the registry."""
    copy = shutil.copytree(published[0], tmp_path / "copy")
    with FileServer(copy) as server:
        yield server


def opened(served, whole, mirrors=()):
    url = f"{served.url}/{whole.name}/{whole.manifest.version}"
    return open_in_place(url, mirrors, patience=SHORT)


def assert_equal(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        np.testing.assert_array_equal(found, expected)


def assert_episode(ds, whole, index):
    found, expected = ds[index], whole[index]
    for field in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
        assert_equal(getattr(found, field), getattr(expected, field))


def test_every_column_episode_and_view_is_that_of_the_whole_version(served, whole):
    ds = opened(served, whole)
    assert ds.in_place
    assert ds.digest == whole.digest
    for index in random.Random(0).sample(range(len(whole)), len(whole)):
        assert_episode(ds, whole, index)
    for name in whole.columns:
        assert_equal(ds.column(name), whole.column(name))
        count = whole.selection().versions[0].rows(name)
        some = np.random.default_rng(0).integers(0, count, 20) if count else np.arange(0)
        assert_equal(ds.rows(name, some), whole.rows(name, some))
    view, same = ds[::-2].filter_episodes("lengths > 2"), whole[::-2].filter_episodes("lengths > 2")
    assert view.digest == same.digest
    assert_equal(view.to_dict()["rewards"], same.to_dict()["rewards"])
    again = pickle.loads(pickle.dumps(ds))
    assert_episode(again, whole, 0)


@BY_RANGES
def test_indexes_of_large_columns_of_an_episode_come_with_those_of_all_others(served, whole, monkeypatch):
    monkeypatch.setattr("orlog.datasets.reading.selection.LARGE_BYTES", 0)
    ds = opened(served, whole)
    _ = ds.episode_lengths
    episode = ds[3]
    before = len(served.requests)
    flat = episode.observations["camera"]
    assert isinstance(flat, LazyRows)
    assert_equal(np.asarray(flat), whole[3].observations["camera"])
    # Nothing but chunks is asked for now, in one go.
    places = [one.headers["Range"] for one in served.requests[before:]]
    assert places
    assert len(set(places)) == len(places)
    shard = next(one for one in whole.manifest.objects if "camera/c" in one.path)
    assert not any(one.endswith(f"-{shard.size_bytes - 1}") for one in places)
    frames = whole[3].observations["camera"]
    assert flat.mean() == frames.mean()
    for found, expected in (
        (flat / 255.0, frames / 255.0),
        (1 - flat, 1 - frames),
        (flat == frames, np.ones_like(frames, bool)),
        (np.maximum(flat, 3), np.maximum(frames, 3)),
        (flat.astype(np.float32), frames.astype(np.float32)),
        (flat.reshape(len(flat), -1), frames.reshape(len(frames), -1)),
    ):
        assert_equal(found, expected)
    with pytest.raises(AttributeError):
        _ = flat.frames


def test_what_was_read_is_kept_and_not_asked_for_again(served, whole):
    first = opened(served, whole)
    for name in whole.columns:
        first.column(name)
    before = len(served.requests)
    second = opened(served, whole)
    for name in whole.columns:
        assert_equal(second.column(name), whole.column(name))
    assert len(served.requests) - before == 1  # the manifest, by its URL
    (kept,) = kept_versions()
    assert kept.manifest.digest == whole.digest


@BY_RANGES
def test_only_what_an_episode_needs_is_fetched(served, whole):
    ds = opened(served, whole)
    _ = ds.episode_lengths
    before = served.sent_bytes
    assert_episode(ds, whole, 3)
    assert served.sent_bytes - before < whole.manifest.size_bytes / 3
    assert any("Range" in one.headers for one in served.requests)


FAULTS = (
    lambda rng: Fault(drop_after=rng.randrange(60)),
    lambda rng: Fault(drop_after=rng.randrange(60), resets=True),
    lambda _rng: Fault(status=503, headers={"Retry-After": "0"}),
    lambda _rng: Fault(status=429),
    lambda _rng: Fault(status=500),
    lambda _rng: Fault(ignores_ranges=True),
    lambda _rng: Fault(headers={"Content-Range": "bytes 0-9/10"}),
    lambda _rng: Fault(headers={"Content-Range": None}),
    lambda _rng: Fault(headers={"Content-Encoding": "gzip"}),
    lambda rng: Fault(change=lambda data: _flipped(data, rng)),
    lambda rng: Fault(change=lambda data: data[: rng.randrange(len(data) + 1)]),
    lambda rng: Fault(change=lambda data: bytes(len(data)) if rng.random() < 0.5 else data[::-1]),
    lambda _rng: Fault(chunked=True),
    lambda rng: Fault(change=lambda data: _swapped(data, rng)),
)


def _flipped(data, rng):
    """Return bytes of which some are others, so that most ranges have one."""
    changed = bytearray(data)
    for _ in range(max(1, len(data) // 50)):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _swapped(data, rng):
    """Return a shard that gives two of its chunks for each other, with checksums that are right."""
    for room in range(1, len(data) // 16):
        start = len(data) - index_bytes_of(room)
        with contextlib.suppress(IntegrityError):
            check_bytes(data[start:], "", "")
            index = np.frombuffer(data[start:-4], "<u8").reshape(-1, 2).copy()
            held = int((index[:, 0] < len(data)).sum())
            if held < 2:
                break
            one, other = rng.sample(range(held), 2)
            index[[one, other]] = index[[other, one]]
            table = index.tobytes()
            return data[:start] + table + int(google_crc32c.value(table)).to_bytes(4, "little")
    return data


@pytest.mark.scaled
def test_faults_of_servers_give_right_values_or_an_error_that_names_the_object(served, whole):
    rng = random.Random(f"{whole.digest}{in_place.WHOLE_BYTES}")
    ds = opened(served, whole)
    met, errors = 0, list[str]()
    while met < scaled(most(2_500, 600), 40):
        for path in in_place_folder().rglob("c.*"):
            path.unlink()
        ds = pickle.loads(pickle.dumps(ds))
        count = rng.randint(1, 6)
        served.faults = [rng.choice(FAULTS)(rng) for _ in range(count)]
        for fault in served.faults:
            fault.times = rng.randint(1, 3)
            fault.path = rng.choice(["", "c.0", "c.1.0", CHUNKS_FILE])
        planned = sum(one.times or 0 for one in served.faults)
        index = rng.randrange(len(whole))
        try:
            assert_episode(ds, whole, index)
        except (IntegrityError, TransferError) as error:
            errors.append(str(error))
        met += planned - sum(one.times or 0 for one in served.faults)
        served.faults = []
        assert_episode(ds, whole, index)  # it goes on where it stopped
    assert errors
    assert [one for one in errors if served.url not in one] == []
    assert [one for one in errors if "/c." not in one and CHUNKS_FILE not in one] == []


@BOTH
def test_a_chunk_that_was_forged_with_its_checksum_is_found_by_its_hash(served, whole):
    path = "rewards/c.0"
    file = served.folder / whole.name / whole.manifest.version / path
    room = whole.selection().versions[0].chunks_of_shards()[path][1]
    item = next(one for one in whole.manifest.objects if one.path == path)
    offset, size = Shard(file, room, item.size_bytes, name=path).place(0)
    data = bytearray(file.read_bytes())
    chunk = data[offset : offset + size - 4]
    chunk[-1] ^= 1
    crc = int(google_crc32c.value(bytes(chunk))).to_bytes(4, "little")
    data[offset : offset + size] = chunk + crc
    file.write_bytes(bytes(data))
    ds = opened(served, whole)
    paths = {one.path for one in whole.manifest.objects}
    said = ", chunk 0: other bytes" if CHUNKS_FILE in paths else ": sha256: expected"
    with pytest.raises(IntegrityError, match=f"rewards/c.0{said}"):
        ds.column("rewards", 0, 1)
    url = f"{served.url}/{whole.name}/{whole.manifest.version}"
    assert run("verify", url, "--in-place").returncode == 3


@BOTH
def test_a_large_version_without_hashes_is_opened_by_an_option_only(served, whole, monkeypatch):
    monkeypatch.setattr(chunk_hashes, "LARGE_BYTES", 0)
    url = f"{served.url}/{whole.name}/{whole.manifest.version}"
    if CHUNKS_FILE in [one.path for one in whole.manifest.objects]:
        assert orlog.load_dataset(url, in_place=True).in_place
        return
    with pytest.raises(SchemaError, match=f"no hashes of its chunks.* run: orlog download {url},"):
        orlog.load_dataset(url, in_place=True)
    assert_episode(orlog.load_dataset(url, in_place=True, whole_files=True), whole, 3)
    add_registry("lab", served.url, in_place=True)
    with pytest.raises(SchemaError, match=f"run: orlog download {NAME},"):
        orlog.load_dataset(NAME)
    assert_episode(orlog.load_dataset(NAME, whole_files=True), whole, 3)
    remove_registry("lab")
    assert run("registry", "add", "lab", served.url, "--whole-files").returncode == 2
    assert "read in place" in run("registry", "add", "lab", served.url, "--in-place", "--whole-files").stdout
    assert_episode(orlog.load_dataset(NAME), whole, 3)


def _flip(path, rng):
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def _put_a_folder(path, _rng):
    path.unlink()
    (path / "within").mkdir(parents=True)


def _put_a_link(path, rng):
    path.unlink()
    path.symlink_to(rng.choice([path.name, "nothing", str(path.parent), os.devnull, __file__]))


def _put_a_file_for_its_folder(path, _rng):
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")


def _put_a_pipe(path, _rng):
    path.unlink()
    os.mkfifo(path)


EDITS = (
    _flip,
    lambda path, rng: os.truncate(path, rng.randrange(path.stat().st_size + 1)),
    lambda path, rng: os.truncate(path, path.stat().st_size + rng.randrange(1, 99)),
    lambda path, _rng: path.unlink(),
    lambda path, _rng: path.chmod(0),
    _put_a_pipe,
    _put_a_folder,
    _put_a_link,
    _put_a_file_for_its_folder,
)


@pytest.mark.scaled
def test_whatever_was_done_to_what_is_kept_the_next_opening_reads_right_values(served, whole):
    rng = random.Random(f"{whole.digest}{in_place.WHOLE_BYTES}")
    for name in whole.columns:
        opened(served, whole).column(name)
    for edit in itertools.islice(itertools.cycle(EDITS), scaled(200, 9)):
        root = in_place_folder()
        path = rng.choice(sorted(one for one in root.rglob("*") if one.is_file()))
        if path.parent != root or edit is not _put_a_file_for_its_folder:
            edit(path, rng)
        ds = opened(served, whole)
        for name in whole.columns:
            assert_equal(ds.column(name), whole.column(name))
        assert [one.manifest.digest for one in kept_versions()] == [whole.digest], path


@BOTH
def test_what_is_damaged_while_it_is_read_is_fetched_once_more(served, whole):
    ds = opened(served, whole)
    for name in whole.columns:
        ds.column(name)
    for path in sorted(one for one in in_place_folder().rglob("*") if one.is_file()):
        path.write_bytes(bytes(path.stat().st_size))
    for name in whole.columns:
        assert_equal(ds.column(name), whole.column(name))
    again = pickle.loads(pickle.dumps(ds))
    for name in whole.columns:
        assert_equal(again.column(name), whole.column(name))


@BY_RANGES
def test_an_index_or_hashes_of_another_version_are_refused(served, whole, monkeypatch):
    monkeypatch.setattr("orlog.datasets.store.chunk_hashes.MOST_WHOLE_BYTES", 0)
    folder = served.folder / whole.name / whole.manifest.version
    ds = opened(served, whole)
    assert_episode(ds, whole, 1)
    hashes = bytearray((folder / CHUNKS_FILE).read_bytes())
    hashes[::HASH_BYTES] = bytes(len(hashes[::HASH_BYTES]))
    (folder / CHUNKS_FILE).write_bytes(bytes(hashes))
    for path in in_place_folder().rglob("c.*"):
        path.unlink()
    with pytest.raises(IntegrityError, match="are not those of the manifest"):
        opened(served, whole).column("rewards")
    shutil.rmtree(in_place_folder())
    (folder / SHARDS_FILE).write_bytes(bytes((folder / SHARDS_FILE).stat().st_size))
    with pytest.raises(IntegrityError, match=SHARDS_FILE):
        opened(served, whole)


@BY_RANGES
def test_the_least_lately_opened_go_first_and_are_read_again(served, whole, monkeypatch):
    ds = opened(served, whole)
    for name in whole.columns:
        ds.column(name)
    shards = sorted(in_place_folder().rglob("c.*"))
    for age, path in enumerate(shards):
        os.utime(path, (age + 1, age + 1))
    taken = {path: path.stat().st_blocks * 512 for path in in_place_folder().rglob("*")}
    half = sum(taken.values()) - sum(taken[path] for path in shards) // 2
    monkeypatch.setenv("ORLOG_CACHE", f"{half / 0.9 / 1000:.1f}k")
    assert make_room(10**9) > 0
    left = sorted(in_place_folder().rglob("c.*"))
    assert left == [path for path in shards if path in {*left}]
    assert shards[-1] in left
    assert shards[0] not in left
    for index in range(len(whole)):
        assert_episode(ds, whole, index)  # also those of which a file is open that was removed
    monkeypatch.setenv("ORLOG_CACHE", "much")
    with pytest.raises(ValueError, match="ORLOG_CACHE must be a size"):
        make_room(10**12)


@BY_RANGES
def test_nothing_is_kept_on_a_full_disk_but_what_is_read(served, whole, mount, monkeypatch):
    disk = mount("size=3m")
    monkeypatch.setenv("ORLOG_HOME", str(disk / "home"))
    ds = opened(served, whole)
    for name in whole.columns:
        ds.column(name)
    filler = fill(disk)
    again = opened(served, whole)
    assert_episode(again, whole, 0)  # it is here
    for path in in_place_folder().rglob("c.*"):
        path.unlink()
    fill(disk)
    with pytest.raises(StorageError):
        _ = [pickle.loads(pickle.dumps(ds)).column(name) for name in whole.columns]
    filler.unlink()
    for name in whole.columns:
        assert_equal(pickle.loads(pickle.dumps(ds)).column(name), whole.column(name))


@BY_RANGES
def test_a_bucket_is_read_in_place(whole, published, bucket):
    bucket.put(f"{published[0]}/", "data/registry/", recursive=True)
    ds = orlog.load_dataset(f"s3://data/registry/{NAME}", in_place=True)
    for index in range(len(whole)):
        assert_episode(ds, whole, index)


def _read_all(url, whole, seed):
    ds, expected = open_in_place(url, patience=SHORT), orlog.load_dataset(whole)
    rng = random.Random(seed)
    for _ in range(3):
        for index in rng.sample(range(len(expected)), len(expected)):
            assert_episode(ds, expected, index)
        make_room(0, at_once=True)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@BY_RANGES
def test_processes_share_what_is_kept_and_remove_it_under_each_other(served, whole):
    url = f"{served.url}/{whole.name}/{whole.manifest.version}"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_read_all, args=(url, whole.folder, seed)) for seed in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(600)
    assert [child.exitcode for child in children] == [0, 0]


@BY_RANGES
def test_a_name_of_a_registry_that_is_read_in_place(served, whole):
    assert run("registry", "add", "lab", served.url, "--in-place").returncode == 0
    listed = json.loads(run("registry", "list", "--json").stdout)["registries"]
    assert listed[0]["in_place"]
    ds = orlog.load_dataset(NAME)
    assert ds.in_place
    assert_episode(ds, whole, 2)
    shown = run("show", NAME).stdout.replace("\n", " ")
    assert "read in place" in shown
    checked = json.loads(run("verify", NAME, "--in-place", "--sample", "50%", "--json").stdout)
    assert checked["problems"] == []
    assert 0 < checked["chunks"] < checked["of_chunks"]
    for wrong in ("0", "x", "101%"):
        assert run("verify", NAME, "--in-place", "--sample", wrong).returncode == 2
    assert run("verify", NAME, "--sample", "1%").returncode == 2
    listed = json.loads(run("cache", "list", "--json").stdout)
    assert [one["name"] for one in listed["in_place"]] == [NAME]
    with pytest.raises(OrlogError, match=r"not on this machine|not known"):
        orlog.load_dataset(NAME, in_place=False)


@BY_RANGES
def test_what_cannot_be_read_in_place_is_refused_with_what_to_do(served, whole, tmp_path):
    assert orlog.load_dataset(f"{served.url}/{NAME}", in_place=True).digest == whole.digest  # its newest version
    with pytest.raises(NotFoundError, match="give the URL of a version's folder"):
        open_in_place(f"{served.url}/lab/nothing-v1", patience=SHORT)
    with pytest.raises(SchemaError, match="run: orlog download d4rl/hopper-medium-v2"):
        open_in_place("d4rl/hopper-medium-v2")
    folder = convert_dataset(whole, tmp_path / "hdf5", container="hdf5", name="lab/one-v1")
    (tmp_path / "registry").mkdir()
    publish_dataset(folder, str(tmp_path / "registry"))
    add_registry("one", str(tmp_path / "registry"), in_place=True)
    with pytest.raises(SchemaError, match="its container is hdf5"):
        orlog.load_dataset("lab/one-v1")
    served.faults = [Fault(path="c.0", ignores_ranges=True)]
    with pytest.raises(TransferError, match="sends whole files, and no ranges of them"):
        _ = opened(served, whole).column("rewards")


@BY_RANGES
def test_a_lock_pins_what_is_read_in_place(served, whole, tmp_path, monkeypatch):
    lock = tmp_path / "orlog.lock"
    monkeypatch.setenv("ORLOG_LOCK", str(lock))
    add_registry("lab", served.url)
    ended = run("lock", NAME)
    assert (ended.returncode, f"run: orlog download {NAME}" in ended.stderr) == (1, True)
    remove_registry("lab")
    add_registry("lab", served.url, in_place=True)
    assert run("lock", NAME).returncode == 0
    ended = run("lock")
    assert (ended.returncode, "read in place" in ended.stdout) == (0, True)
    dataset = orlog.load_dataset(NAME)
    assert (dataset.digest, dataset.in_place) == (whole.digest, True)
    lock.write_text(lock.read_text().replace(whole.digest, f"sha256:{'0' * 64}"))
    assert run("lock").returncode == 3
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)
