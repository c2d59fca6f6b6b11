"""Datasets of several files, each with mirrors, from real servers that may lie, hang or cut them off."""

import dataclasses
import hashlib
import json
import random
from pathlib import Path
from urllib.parse import urlsplit

import gymnasium
import numpy as np
import pytest

import orlog
from orlog import export_dataset, import_dataset
from orlog.datasets import listing
from orlog.datasets.download import sources
from orlog.datasets.download.foreign import download_foreign_file, first_downloads_file
from orlog.datasets.download.http import Patience
from orlog.datasets.download.sources import ForeignFileSource, find_source
from orlog.datasets.download.transfer import TransferOptions
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import delete_version
from orlog.datasets.home.registries import add_registry
from orlog.datasets.store.verify import verify_folder
from orlog.errors import IntegrityError, TransferError
from orlog.manifests import shipped
from orlog.manifests.index import ForeignEntry, ForeignFile, Index
from orlog.manifests.names import parse_name
from tests.datasets.formats.test_minari_arrow import odd
from tests.episodes import record_episodes, whole_episode
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import COMES, Fault, FileServer

QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.01, longest_wait=0.1)
ASKED = TransferOptions(patience=QUICK)
HASTY = TransferOptions(patience=dataclasses.replace(QUICK, timeout=1.0))  # for who hangs alone
MAIN = "data/main_data.hdf5"
DOOR = "minari/d4rl/door/human-v2"  # with a mirror
LAYOUTS = {DOOR: "minari", "ogbench/cube-single-play-v0": "ogbench"}


def record(name):
    """Return a small dataset with a part for training and one for validation."""
    draw = np.random.default_rng(0)
    return record_episodes(
        name,
        (
            whole_episode(
                draw.uniform(-1, 1, (41, 64)).astype(np.float32),
                draw.uniform(-1, 1, (40, 1)).astype(np.float32),
                np.arange(40.0),
                end="truncation",
                metadata={"split": split},
            )
            for split in ("train", "train", "val")
        ),
        gymnasium.spaces.Box(-9, 9, (64,), np.float32),
        gymnasium.spaces.Box(-1, 1, (1,), np.float32),
    )


class Upstream:
    """Two servers with the files of a dataset, at the paths where upstream and its mirror have them.

    The catalogue lists the dataset as it does for everyone, but for the names of the servers.
    """

    def __init__(self, served, name):
        self.name, layout = name, LAYOUTS[name]
        dataset = record(f"lab/{self.name.rpartition('/')[2]}")
        self.folder = served.with_name("files")
        if layout == "npz":
            for split, view in (("train", dataset[:2]), ("val", dataset[2:])):
                export_dataset(view, served.with_name(split), to=layout, lossy=True)
            found = [next(served.with_name(one).glob("*.npz")) for one in ("train", "val")]
        else:
            exported = export_dataset(dataset, served.with_name("exported"), to=layout, lossy=True)
            found = [path for path in exported.rglob("*") if path.is_file() and path.suffix]
            found.sort(key=lambda path: path.stem)
        self.real = shipped.shipped_index(self.name.partition("/")[0]).foreign[self.name]["1.0.0"]
        self.paths = [file.path for file in self.real.each]
        self.servers = [FileServer(served / str(number)) for number in range(2)]
        assert [path.suffix for path in found] == [Path(path).suffix for path in self.paths]
        for file, path in zip(self.real.each, found, strict=True):
            (self.folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            path.rename(self.folder / file.path)
            for server, url in zip(self.servers, (file.url, *file.mirrors), strict=False):
                place = server.folder / urlsplit(url).path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(self.folder / file.path)

    def url(self, number, path):
        """Return the URL of a file on one of the servers."""
        (file,) = (file for file in self.real.each if file.path == path)
        return self.servers[number].url + urlsplit((file.url, *file.mirrors)[number]).path

    def source(self, *, checked=True):
        """List the files, with or without what proves their bytes, and return what is found."""
        files = []
        for file in self.real.each:
            url, *mirrors = [self.url(number, file.path) for number in range(1 + len(file.mirrors))]
            data = (self.folder / file.path).read_bytes()
            proof = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            said = proof if checked else {}
            files.append(ForeignFile(path=file.path, url=url, mirrors=tuple(mirrors), **said))
        self.entry = ForeignEntry(files=tuple(files), format=self.real.format, license="MIT")
        source = find_source(parse_name(self.name))
        assert isinstance(source, ForeignFileSource)
        return source

    def imported(self):
        """Return the same files, read from this machine."""
        given = [self.folder / path for path in self.paths]
        return orlog.load_dataset(import_dataset(given, "lab/imported-v0", format=self.real.format))


def bring(source, said=None, options=ASKED):
    told = [] if said is None else said
    return orlog.load_dataset(download_foreign_file(source, options, on_mirror=told.append))


def same(dataset, other):
    return dataset.manifest.objects == other.manifest.objects


def leftovers(name):
    paths = (datasets_folder() / name).glob(".*")
    return sorted(path.name for path in paths if path.suffix != ".lock")


@pytest.fixture
def upstream(tmp_path, request, monkeypatch):
    one = Upstream(tmp_path / "served", getattr(request, "param", DOOR))
    for module in (listing, sources, shipped):
        monkeypatch.setattr(module, "shipped_index", lambda _: Index(foreign={one.name: {"1.0.0": one.entry}}))
    with one.servers[0], one.servers[1]:
        yield one


@pytest.mark.parametrize(
    ("upstream", "checked"),
    [
        (DOOR, False),
        ("ogbench/cube-single-play-v0", True),
        pytest.param(DOOR, True, marks=pytest.mark.thorough),
        pytest.param("ogbench/cube-single-play-v0", False, marks=pytest.mark.thorough),
    ],
    indirect=["upstream"],
)
def test_all_files_of_a_dataset_become_a_version(upstream, checked):
    source = upstream.source(checked=checked)
    steps = []
    counts = []
    options = TransferOptions(progress=lambda *one: steps.append(one), on_objects=lambda *one: counts.append(one))
    folder = download_foreign_file(source, options)
    dataset = orlog.load_dataset(folder)
    total = sum((upstream.folder / path).stat().st_size for path in upstream.paths)
    assert (steps[-1], counts[-1]) == ((total, total), (len(upstream.paths),) * 2)
    imported = upstream.imported()
    assert same(dataset, imported)
    assert [one.digest for one in dataset.lineage] == [one.digest for one in imported.lineage]
    assert dataset.lineage[0].operation.startswith(f"read {upstream.real.format} from {source.entry.place}")
    assert ("first download trusted" in dataset.lineage[0].operation) == (not checked)
    assert ("was trusted" in dataset.manifest.description) == (not checked)
    assert dataset.manifest.license == "MIT"
    assert verify_folder(folder)[1] == []
    assert leftovers(upstream.name) == []
    if checked:
        assert not first_downloads_file().exists()
    else:
        known = json.loads(first_downloads_file().read_text("utf-8"))["files"]
        assert set(known) == {url for urls in source.urls for url in urls}
    assert [len(server.requests) for server in upstream.servers] == [len(upstream.paths), 0]


def test_a_format_of_folders_reads_the_files_at_their_places(tmp_path):
    folder = odd(tmp_path / "served", "parquet")
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    assert "data/0/part-0.parquet" in paths
    with FileServer(folder) as server:
        add_registry("lab", str(tmp_path))
        files = tuple(ForeignFile(path=path, url=f"{server.url}/{path}") for path in paths)
        entry = ForeignEntry(files=files, format="minari-arrow")
        index = Index().with_foreign("lab/odd-v3", "1.0.0", entry)
        (tmp_path / "index.json").write_bytes(index.to_json())
        dataset = orlog.load_dataset("lab/odd-v3", download=True)
    imported = orlog.load_dataset(import_dataset(folder, "lab/imported-v0", format="minari-arrow"))
    assert same(dataset, imported)
    (parent,), (other,) = dataset.lineage, imported.lineage
    assert parent.digest == other.digest
    assert parent.operation.startswith(f"read minari-arrow from {server.url} (upstream")
    assert f"first download of {len(paths)} of {len(paths)} files" in dataset.manifest.description


BAD = {
    "lies": Fault(path=MAIN, change=lambda data: bytes(reversed(data))),
    "cuts": Fault(path=MAIN, change=lambda data: data[:-100]),
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
def test_a_bad_mirror_is_named_and_the_next_one_used(upstream, what, checked):
    source = upstream.source(checked=checked)
    bad, good = upstream.servers
    bad.faults = [dataclasses.replace(BAD[what])]
    said = []
    dataset = bring(source, said, HASTY if what == "hangs" else ASKED)
    assert same(dataset, upstream.imported())
    assert any(upstream.url(0, MAIN) in text for text in said)
    asked = sum(MAIN in request.path for request in good.requests)
    assert asked == 1 or (what == "hangs" and asked > 0)  # a good one may be late too
    assert leftovers(upstream.name) == []


def test_a_file_that_no_mirror_gives_is_an_error_with_the_reasons(upstream):
    source = upstream.source()
    bad, other = upstream.servers
    bad.faults, other.faults = [BAD["lies"]], [BAD["is gone"]]
    with pytest.raises(TransferError, match=rf"(?s)none of 2 .*{MAIN}: gave sha256.*: 404 Not Found"):
        bring(source)
    assert not (datasets_folder() / upstream.name / "1.0.0").exists()
    other.faults = []
    said = []
    assert same(bring(source, said), upstream.imported())
    assert [text for text in said if "gave sha256" in text]
    # The other file was kept.
    assert sum("metadata.json" in one.path for one in bad.requests + other.requests) == 1


def test_what_was_trusted_of_any_file_may_not_change(upstream):
    source = upstream.source(checked=False)
    first = bring(source)
    metadata = upstream.folder / "data/metadata.json"
    good = metadata.read_bytes()
    metadata.write_bytes(good + b"\n")
    with pytest.raises(IntegrityError, match=r"metadata\.json: upstream publishes no checksum"):
        download_foreign_file(source, ASKED, replace=True)
    assert orlog.load_dataset(upstream.name).digest == first.digest
    # One mirror still has what was trusted.
    upstream.servers[1].faults = [Fault(path="metadata.json", change=lambda _: good)]
    said = []
    download_foreign_file(source, ASKED, replace=True, on_mirror=said.append)
    assert "upstream publishes no checksum, and the file is not the one" in said[0]
    assert orlog.load_dataset(upstream.name).digest == first.digest
    assert leftovers(upstream.name) == []


# Kills, and two at once.


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.parametrize("checked", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_killed_at_any_instant_it_goes_on(upstream, checked):
    source = upstream.source(checked=checked)
    expected = upstream.imported().manifest.objects
    places = datasets_folder() / upstream.name

    def work(step):
        download_foreign_file(source, TransferOptions(progress=lambda *_: step()))

    _, total = killed_at(work, 0, places)
    delete_version(upstream.name, "1.0.0")
    draw = random.Random(int(checked))
    for _ in range(scaled(80, 5)):
        killed_at(work, draw.randint(1, total), places)
        folder = places / "1.0.0"
        if folder.exists():
            assert orlog.load_dataset(folder).manifest.objects == expected
            assert verify_folder(folder)[1] == []
            delete_version(upstream.name, "1.0.0")
    dataset = bring(source)
    assert dataset.manifest.objects == expected
    assert leftovers(upstream.name) == []
