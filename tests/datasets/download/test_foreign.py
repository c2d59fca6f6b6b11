"""Files of others from real servers that may lie, hang or cut them off: right values with their lineage, or a typed error."""

import dataclasses
import hashlib
import json
import random

import gymnasium
import numpy as np
import pytest

import orlog
from orlog import download_dataset, export_dataset, import_dataset
from orlog.datasets import listing
from orlog.datasets.download import sources
from orlog.datasets.download.foreign import download_foreign_file, first_downloads_file
from orlog.datasets.download.sources import find_source
from orlog.datasets.download.transfer import TransferOptions
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import delete_version
from orlog.datasets.home.registries import add_registry
from orlog.datasets.store.verify import verify_folder
from orlog.errors import IntegrityError, ManifestError, TransferError, VersionExistsError
from orlog.manifests import shipped
from orlog.manifests.index import ForeignEntry, ForeignFile, Index
from orlog.manifests.names import DatasetName, parse_name
from tests.command_line import orlog as run
from tests.datasets.download.test_download import QUICK
from tests.datasets.formats.test_d4rl import check, rows_of, write
from tests.datasets.formats.test_minari_arrow import odd
from tests.episodes import record_episodes, whole_episode
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import Fault, FileServer

ASKED = TransferOptions(patience=QUICK)
HASTY = TransferOptions(patience=dataclasses.replace(QUICK, timeout=1.0))  # for who hangs alone
NAME = "lab/hopper-v2"
FILE = "upstream/hopper.hdf5"
BODY = rows_of([False, False, True] * 400, None, next_observations=True)


def proof(data):
    return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def listed(folder, name, entry):
    """Let a registry in a folder list an entry, and return what is then offered."""
    (folder / "index.json").write_bytes(Index().with_foreign(name, "1.0.0", entry).to_json())
    (datasets_folder().parent / "registries-seen.json").unlink(missing_ok=True)
    return find_source(parse_name(name))


def bring(source, messages=None, options=ASKED, **more):
    messages = [] if messages is None else messages
    return orlog.load_dataset(download_foreign_file(source, options, on_mirror=messages.append, **more))


def leftovers(name):
    return sorted(path.name for path in (datasets_folder() / name).glob(".*") if path.suffix != ".lock")


def same(dataset, other):
    return dataset.manifest.objects == other.manifest.objects


# A single file.


class Single:
    """A server with a file of others, and a registry on it that is known here as `lab`."""

    def __init__(self, server):
        self.server, self.folder, self.url = server, server.folder, f"{server.url}/{FILE}"

    def link(self, **fields):
        return listed(self.folder, NAME, ForeignEntry(**{"url": self.url, "format": "d4rl-hdf5", **fields}))


@pytest.fixture
def single(tmp_path):
    (tmp_path / "served" / FILE).parent.mkdir(parents=True)
    write(tmp_path / "served" / FILE, BODY, compression="gzip")
    with FileServer(tmp_path / "served") as server:
        add_registry("lab", server.url)
        yield Single(server)


def test_the_command_line_says_that_a_first_download_was_trusted_and_repairs_it(single):
    single.link()
    done = run("download", NAME)
    assert done.returncode == 0
    assert "upstream publishes no checksum: first download trusted" in " ".join(done.stdout.split())
    folder = datasets_folder() / NAME / "1.0.0"
    before = (folder / "rewards/c.0").read_bytes()
    (folder / "rewards/c.0").write_bytes(b"damaged")
    (folder / "actions/c.0.0").unlink()
    assert "2 problems, repaired." in run("verify", NAME, "--repair").stdout
    assert (folder / "rewards/c.0").read_bytes() == before


def test_a_digest_that_was_pinned_must_come(single, tmp_path, monkeypatch):
    digest = bring(single.link(**proof((single.folder / FILE).read_bytes()))).digest
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "other"))
    add_registry("lab", single.server.url)
    with pytest.raises(IntegrityError, match="was pinned with another version of orlog"):
        bring(find_source(DatasetName(NAME, "1.0.0", f"sha256:{'0' * 64}")))
    assert bring(find_source(DatasetName(NAME, "1.0.0", digest))).digest == digest


def test_a_path_inside_the_registry_is_tried_at_its_mirrors(single):
    single.link(url=FILE, sha256=proof((single.folder / FILE).read_bytes())["sha256"])
    source = find_source(parse_name(NAME), ["http://127.0.0.1:9/gone"])
    assert source.urls == ((f"http://127.0.0.1:9/gone/{FILE}", f"{single.server.url}/{FILE}"),)
    dataset = bring(source)
    check(dataset, BODY)
    # The version does not depend on where the registry is.
    assert dataset.lineage[0].operation == f"read d4rl-hdf5 from {FILE}"


def test_a_registry_elsewhere_may_not_name_files_of_this_machine(single):
    with pytest.raises(ManifestError, match="a file of this machine"):
        single.link(url=f"file://{single.folder / FILE}")
    add_registry("near", str(single.folder), first=True)
    check(bring(find_source(parse_name(NAME))), BODY)


# Files that their publisher replaced under the same name: both are listed, and told apart by their bytes.

HOPPER = "d4rl/hopper-medium-v2"


@pytest.fixture
def generations(tmp_path, monkeypatch):
    """Serve the newer file; return the file of each version, of different sizes."""
    body = rows_of([False, True] * 3, None, next_observations=True, sizes=(11, 3))
    (tmp_path / "served").mkdir()
    files = {
        "1.0.1": write(tmp_path / "served/hopper_medium-v2.hdf5", body),
        "0.9.0": write(tmp_path / "old.hdf5", {**body, "rewards": body["rewards"] + 1}, compression="gzip"),
    }
    with FileServer(tmp_path / "served") as server:
        url = f"{server.url}/hopper_medium-v2.hdf5"
        entries = {
            version: ForeignEntry(url=url, format="d4rl-hdf5", **proof(path.read_bytes()))
            for version, path in files.items()
        }
        for module in (listing, sources, shipped):
            monkeypatch.setattr(module, "shipped_index", lambda _: Index(foreign={HOPPER: entries}))
        yield files


def test_each_file_is_imported_as_the_version_that_a_download_gives(generations):
    new = orlog.load_dataset(download_dataset(HOPPER))
    assert new.version == "1.0.1"
    delete_version(HOPPER, "1.0.1")
    assert orlog.load_dataset(orlog.import_dataset(generations["1.0.1"], HOPPER)).digest == new.digest
    old = orlog.load_dataset(orlog.import_dataset(generations["0.9.0"], HOPPER))
    assert (old.version, old.manifest.benchmark) == ("0.9.0", HOPPER)
    assert orlog.load_dataset(HOPPER).version == "1.0.1"
    replaced = f"This is the file of {HOPPER}@0.9.0, which was replaced under the same name"
    done = run("import", str(generations["0.9.0"]), "lab/my-v0")
    assert (done.returncode, replaced in " ".join(done.stdout.split())) == (0, True)
    assert replaced in orlog.load_dataset("lab/my-v0").manifest.description
    delete_version(HOPPER, "0.9.0")
    generations["0.9.0"].replace(generations["1.0.1"])
    assert orlog.load_dataset(download_dataset(f"{HOPPER}@0.9.0")).digest == old.digest
    with pytest.raises(VersionExistsError, match=r"@0\.9\.0 is already sha256"):
        orlog.import_dataset(generations["1.0.1"], HOPPER)


# Several files, each with a mirror.

DOOR = "lab/door-v2"
MAIN, METADATA = "data/main_data.hdf5", "data/metadata.json"
PATHS = (MAIN, METADATA)


class Several:
    """Two servers with the two files of a dataset."""

    def __init__(self, folder):
        draw = np.random.default_rng(0)
        episode = whole_episode(
            draw.uniform(-1, 1, (41, 64)).astype(np.float32),
            draw.uniform(-1, 1, (40, 1)).astype(np.float32),
            np.arange(40.0),
            end="truncation",
        )
        box = gymnasium.spaces.Box(-9, 9, (64,), np.float32)
        dataset = record_episodes("lab/made-v1", [episode] * 3, box, gymnasium.spaces.Box(-1, 1, (1,), np.float32))
        exported = export_dataset(dataset, folder / "exported", to="minari", lossy=True)
        self.folder = folder / "served"
        (self.folder / "data").mkdir(parents=True)
        for path in PATHS:
            next(exported.rglob(path.rpartition("/")[2])).rename(self.folder / path)
        self.servers = [FileServer(self.folder), FileServer(self.folder)]

    def source(self, *, checked=True):
        """List the files, with or without what proves their bytes, and return what is offered."""
        files = tuple(
            ForeignFile(
                path=path,
                url=f"{self.servers[0].url}/{path}",
                mirrors=(f"{self.servers[1].url}/{path}",),
                **(proof((self.folder / path).read_bytes()) if checked else {}),
            )
            for path in PATHS
        )
        return listed(self.folder, DOOR, ForeignEntry(files=files, format="minari-hdf5", license="MIT"))

    def imported(self):
        """Return the same files, read from this machine."""
        given = [self.folder / path for path in PATHS]
        return orlog.load_dataset(import_dataset(given, "lab/imported-v0", format="minari-hdf5"))


@pytest.fixture
def several(tmp_path):
    made = Several(tmp_path)
    with made.servers[0], made.servers[1]:
        add_registry("lab", str(made.folder))
        yield made


@pytest.mark.parametrize("checked", [True, False])
def test_all_files_of_a_dataset_become_a_version(several, checked):
    source, steps, counts = several.source(checked=checked), [], []
    options = TransferOptions(progress=lambda *one: steps.append(one), on_objects=lambda *one: counts.append(one))
    dataset = bring(source, options=options)
    total = sum((several.folder / path).stat().st_size for path in PATHS)
    assert (steps[-1], counts[-1]) == ((total, total), (2, 2))
    imported = several.imported()
    assert same(dataset, imported)
    assert [one.digest for one in dataset.lineage] == [one.digest for one in imported.lineage]
    assert dataset.lineage[0].operation.startswith(f"read minari-hdf5 from {several.servers[0].url}/{MAIN}")
    assert ("first download trusted" in dataset.lineage[0].operation) == (not checked)
    assert ("was trusted" in dataset.manifest.description) == (not checked)
    assert dataset.manifest.license == "MIT"
    assert verify_folder(dataset.folder)[1] == []
    assert leftovers(DOOR) == []
    assert first_downloads_file().exists() == (not checked)
    if not checked:
        known = json.loads(first_downloads_file().read_text("utf-8"))["files"]
        assert set(known) == {url for urls in source.urls for url in urls}
    assert [len(server.requests) for server in several.servers] == [2, 0]


def test_a_format_of_folders_reads_the_files_at_their_places(tmp_path):
    folder = odd(tmp_path / "served", "parquet")
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    with FileServer(folder) as server:
        add_registry("lab", str(tmp_path))
        files = tuple(ForeignFile(path=path, url=f"{server.url}/{path}") for path in paths)
        listed(tmp_path, "lab/odd-v3", ForeignEntry(files=files, format="minari-arrow"))
        dataset = orlog.load_dataset("lab/odd-v3", download=True)
    imported = orlog.load_dataset(import_dataset(folder, "lab/imported-v0", format="minari-arrow"))
    assert same(dataset, imported)
    (parent,), (other,) = dataset.lineage, imported.lineage
    assert parent.digest == other.digest
    assert parent.operation.startswith(f"read minari-arrow from {server.url} (upstream")
    assert f"first download of {len(paths)} of {len(paths)} files" in dataset.manifest.description


BAD = {
    "lies": Fault(path=MAIN, change=lambda data: bytes(reversed(data))),
    "drops": Fault(path=MAIN, drop_after=5000),
    "hangs": Fault(path=MAIN, stall_after=5000),
    "is gone": Fault(path=MAIN, status=404),
    "fails": Fault(path=MAIN, status=500),
    "shows a page": Fault(path=MAIN, change=lambda _: b"<html>Sign in"),
}
QUICKLY = [("lies", True), ("is gone", True), ("drops", True), ("shows a page", False)]


@pytest.mark.parametrize(
    ("what", "checked"),
    [
        pytest.param(what, checked, marks=() if (what, checked) in QUICKLY else pytest.mark.thorough)
        for what in BAD
        for checked in (True, False)
    ],
)
def test_a_bad_mirror_is_named_and_the_next_one_used(several, what, checked):
    source, messages = several.source(checked=checked), []
    bad, good = several.servers
    bad.faults = [dataclasses.replace(BAD[what])]
    dataset = bring(source, messages, HASTY if what == "hangs" else ASKED)
    assert same(dataset, several.imported())
    assert any(f"{bad.url}/{MAIN}" in text for text in messages)
    asked = sum(MAIN in request.path for request in good.requests)
    assert asked == 1 or (what == "hangs" and asked > 0)  # a good one may be late too
    assert leftovers(DOOR) == []


def test_a_file_that_no_mirror_gives_is_an_error_with_the_reasons(several):
    source, messages = several.source(), []
    bad, other = several.servers
    bad.faults, other.faults = [BAD["lies"]], [BAD["is gone"]]
    with pytest.raises(TransferError, match=r"(?s)none of 2 .*: gave sha256.*: 404 Not Found"):
        bring(source)
    assert not (datasets_folder() / DOOR / "1.0.0").exists()
    other.faults = []
    assert same(bring(source, messages), several.imported())
    assert [text for text in messages if "gave sha256" in text]
    # The other file was kept.
    assert sum(METADATA in one.path for one in bad.requests + other.requests) == 1


def test_what_was_trusted_of_any_file_may_not_change(several):
    source, messages = several.source(checked=False), []
    first = bring(source)
    good = (several.folder / METADATA).read_bytes()
    (several.folder / METADATA).write_bytes(good + b"\n")
    with pytest.raises(IntegrityError, match=r"metadata\.json: upstream publishes no checksum"):
        bring(source, replace=True)
    assert orlog.load_dataset(DOOR).digest == first.digest
    # One mirror still has what was trusted.
    several.servers[1].faults = [Fault(path=METADATA, change=lambda _: good)]
    assert bring(source, messages, replace=True).digest == first.digest
    assert "upstream publishes no checksum, and the file is not the one" in messages[0]
    assert leftovers(DOOR) == []


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.parametrize("checked", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_killed_at_any_instant_it_goes_on(several, checked):
    source = several.source(checked=checked)
    expected = several.imported().manifest.objects
    places = datasets_folder() / DOOR

    def work(step):
        download_foreign_file(source, TransferOptions(progress=lambda *_: step()))

    _, total = killed_at(work, 0, places)
    delete_version(DOOR, "1.0.0")
    draw = random.Random(int(checked))
    for _ in range(scaled(80, 5)):
        killed_at(work, draw.randint(1, total), places)
        if (places / "1.0.0").exists():
            assert orlog.load_dataset(places / "1.0.0").manifest.objects == expected
            assert verify_folder(places / "1.0.0")[1] == []
            delete_version(DOOR, "1.0.0")
    assert bring(source).manifest.objects == expected
    assert leftovers(DOOR) == []
