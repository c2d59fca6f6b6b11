"""The index of a registry: what is right comes back, all else is a typed error."""

import json

import pytest

from orlog.errors import FormatVersionError, ManifestError, VersionExistsError
from orlog.manifests.index import LARGEST_INDEX, ForeignEntry, ForeignFile, Index, IndexEntry, index_from_json
from orlog.manifests.manifest import read_manifest
from orlog.manifests.shipped import records_folder

DIGEST = "sha256:" + "a" * 64
ENTRY = {"digest": DIGEST, "size_bytes": 10, "episodes": 2, "steps": 5}
BODY = {
    "index_version": 1,
    "serial": 7,
    "datasets": {"lab/arm-v1": {"1.0.0": ENTRY, "0.9.0": ENTRY}, "lab/a/b-v2": {"1.0.0": ENTRY}},
}


def changed(change):
    body = json.loads(json.dumps(BODY))
    change(body)
    return json.dumps(body).encode()


def test_an_index_comes_back_and_equal_indexes_have_equal_bytes():
    index = index_from_json(json.dumps(BODY).encode(), "here")
    assert index.serial == 7
    assert index.entry("lab/arm-v1", "0.9.0") == IndexEntry(digest=DIGEST, size_bytes=10, episodes=2, steps=5)
    assert index.entry("lab/arm-v1", "3.0.0") is index.entry("lab/other-v1", "1.0.0") is None
    assert index_from_json(index.to_json(), "here") == index
    backwards = {**BODY, "datasets": dict(reversed(BODY["datasets"].items()))}
    assert index_from_json(json.dumps(backwards).encode(), "").to_json() == index.to_json()
    assert json.loads(index.to_json()) == BODY


def test_a_version_is_added_once_and_never_changed(built_mini):
    manifest = read_manifest(built_mini / "manifest.json")
    index = index_from_json(json.dumps(BODY).encode(), "here")
    more = index.with_version(manifest)
    assert more.serial == 8
    assert more.datasets["lab/arm-v1"] == index.datasets["lab/arm-v1"]
    entry = more.entry(manifest.name, manifest.version)
    assert entry == IndexEntry(
        digest=manifest.digest,
        size_bytes=manifest.size_bytes,
        episodes=manifest.total_episodes,
        steps=manifest.total_steps,
        license=manifest.license,
    )
    assert more.with_version(manifest) is more
    other = IndexEntry(digest=DIGEST, size_bytes=10, episodes=2, steps=5)
    with pytest.raises(VersionExistsError, match=f"{DIGEST}.*{manifest.digest}"):
        Index(datasets={manifest.name: {manifest.version: other}}).with_version(manifest)
    with pytest.raises(ManifestError, match="largest possible"):
        Index(serial=2**53).with_version(manifest)


FILE = ForeignEntry(url="https://data.example/a.hdf5", format="d4rl-hdf5", md5="a" * 32)


def test_foreign_files_are_listed_beside_versions(built_mini):
    index = index_from_json(json.dumps(BODY).encode(), "here")
    more = index.with_foreign("lab/arm-v1", "2.0.0", FILE)
    assert (more.serial, more.datasets) == (8, index.datasets)
    assert more.foreign == {"lab/arm-v1": {"2.0.0": FILE}}
    assert more.with_foreign("lab/arm-v1", "2.0.0", FILE) is more
    assert index_from_json(more.to_json(), "here") == more
    said = json.loads(more.to_json())["foreign"]["lab/arm-v1"]["2.0.0"]
    assert said == {"url": FILE.url, "format": "d4rl-hdf5", "md5": "a" * 32}
    manifest = read_manifest(built_mini / "manifest.json")
    both = more.with_version(manifest)
    assert (both.serial, both.foreign) == (9, more.foreign)
    for name, version in (("lab/arm-v1", "1.0.0"), ("lab/arm-v1", "2.0.0")):
        other = ForeignEntry(url="other.hdf5", format="d4rl-hdf5")
        with pytest.raises(VersionExistsError, match="a version never changes"):
            more.with_foreign(name, version, other)
    taken = Index().with_foreign(manifest.name, manifest.version, FILE)
    with pytest.raises(VersionExistsError, match=r"ForeignEntry.*a version never changes"):
        taken.with_version(manifest)
    with pytest.raises(ManifestError, match="largest possible"):
        Index(serial=2**53).with_foreign("lab/arm-v1", "1.0.0", FILE)
    with pytest.raises(ManifestError, match="not a dataset name"):
        index.with_foreign("../escape-v1", "1.0.0", FILE)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:80/a%20b.hdf5",
        "https://data.example/a.hdf5?download=1",
        "s3://bucket/a.hdf5",
        "hf://datasets/lab/a/b.hdf5",
        "file:///data/a.hdf5",
        "sources/größe/a.hdf5",
    ],
)
def test_urls_and_paths_inside_the_registry_are_taken(url):
    entry = ForeignEntry(url=url, format="d4rl-hdf5")
    (file,) = entry.each
    assert (entry.place, file.url) == (url, url)


FOREIGN = {"url": "https://data.example/a.hdf5", "format": "d4rl-hdf5"}


@pytest.mark.parametrize(
    "change",
    [
        {"url": ""},
        {"url": "/etc/passwd"},
        {"url": "../a.hdf5"},
        {"url": "a/../../a.hdf5"},
        {"url": "a//b"},
        {"url": "./a"},
        {"url": "a\\b"},
        {"url": "C:a"},
        {"url": "a%2e%2e/b"},
        {"url": "a\x1b[31m"},
        {"url": "https://"},
        {"url": "https://user:secret@data.example/a"},
        {"url": "https://data.example/a b"},
        {"url": "https://data.example/" + "a" * 2000},
        {"url": "zip://a::https://data.example/b"},
        {"url": "simplecache::https://data.example/b"},
        {"url": "ssh://data.example/b"},
        {"format": "../x"},
        {"format": "D4RL"},
        {"sha256": "ab"},
        {"sha256": "A" * 64},
        {"md5": "a" * 64},
        {"size_bytes": -1},
        {"size_bytes": "7"},
        {"description": 7},
        {"description": "a" * 10_001},
        {"more": 1},
    ],
)
def test_what_is_no_foreign_file_is_refused(change):
    body = {**BODY, "foreign": {"lab/x-v1": {"1.0.0": {**FOREIGN, **change}}}}
    with pytest.raises(ManifestError, match=r"^https://there: "):
        index_from_json(json.dumps(body).encode(), "https://there")


SEVERAL = {"files": [{"path": "data/a.npz", "url": "https://data.example/x/data/a.npz"}], "format": "npz"}


def test_a_dataset_of_several_files_is_listed_with_their_places():
    files = (
        ForeignFile(path="data/a.npz", url="https://data.example/x/data/a.npz", size_bytes=7),
        ForeignFile(path="b.npz", url="https://data.example/x/b.npz", mirrors=("b.npz",)),
    )
    entry = ForeignEntry(files=files, format="npz", task="cube")
    assert (entry.place, entry.total_bytes) == ("https://data.example/x", None)
    index = Index().with_foreign("lab/x-v1", "1.0.0", entry)
    assert index_from_json(index.to_json(), "here") == index
    said = json.loads(index.to_json())["foreign"]["lab/x-v1"]["1.0.0"]
    assert said["files"][1] == {"path": "b.npz", "url": files[1].url, "mirrors": ["b.npz"]}
    whole = ForeignEntry(files=files[:1], format="npz")
    assert (whole.total_bytes, whole.each) == (7, files[:1])
    elsewhere = ForeignFile(path="b.npz", url="https://other.example/c")
    assert ForeignEntry(files=(files[0], elsewhere), format="npz").place == files[0].url


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"url": "https://data.example/a"},
        {"size_bytes": 7},
        {"sha256": "a" * 64},
        {"md5": "a" * 32},
        {"mirrors": ["https://data.example/a"]},
        {"task": ""},
        *(
            {"files": [*SEVERAL["files"], {**SEVERAL["files"][0], **file}]}
            for file in (
                {},
                {"path": "Data/A.npz"},
                {"path": "data/a.npz/b"},
                {"path": "data"},
                {"path": ""},
                {"path": "../a.npz"},
                {"path": "/a.npz"},
                {"path": "c:a.npz"},
                {"path": "b\\a.npz"},
                {"path": "a\x00"},
                {"path": "b", "url": "ssh://data.example/b"},
                {"path": "b", "mirrors": ["ssh://data.example/b"]},
                {"path": "b", "mirrors": [""]},
                {"path": "b", "more": 1},
            )
        ),
    ],
)
def test_what_are_no_foreign_files_is_refused(change):
    body = {**BODY, "foreign": {"lab/x-v1": {"1.0.0": SEVERAL}}}
    index_from_json(json.dumps(body).encode(), "there")
    body["foreign"]["lab/x-v1"]["1.0.0"] = {**SEVERAL, **change}
    with pytest.raises(ManifestError, match=r"^there: "):
        index_from_json(json.dumps(body).encode(), "there")


def test_shipped_indexes_are_written_the_same():
    """Fields that were added later stay out of entries that do not have them."""
    for path in (records_folder() / "foreign").glob("*.json"):
        data = path.read_bytes()
        assert index_from_json(data, path.name).to_json() == data


@pytest.mark.parametrize(
    "foreign",
    [
        [],
        {"lab/x-v1": {}},
        {"../escape-v1": {"1.0.0": FOREIGN}},
        {"lab/x-v1": {"1.0": FOREIGN}},
        {"lab/arm-v1": {"1.0.0": FOREIGN}},
        {"lab/x-v1": {"1.0.0": {"url": FOREIGN["url"]}}},
    ],
)
def test_names_of_foreign_files_are_checked(foreign):
    with pytest.raises(ManifestError, match=r"^there: "):
        index_from_json(json.dumps({**BODY, "foreign": foreign}).encode(), "there")


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("serial"),
        lambda body: body.pop("datasets"),
        lambda body: body.pop("index_version"),
        lambda body: body.update(more=1),
        lambda body: body.update(serial=-1),
        lambda body: body.update(serial=2**54),
        lambda body: body.update(serial=True),
        lambda body: body.update(serial="7"),
        lambda body: body.update(serial=7.5),
        lambda body: body.update(index_version=0),
        lambda body: body.update(index_version="1"),
        lambda body: body.update(index_version=True),
        lambda body: body.update(datasets=[]),
        lambda body: body["datasets"].update({"../escape-v1": {"1.0.0": ENTRY}}),
        lambda body: body["datasets"].update({"lab/arm-v1@1.0.0": {"1.0.0": ENTRY}}),
        lambda body: body["datasets"].update({"lab/x-v1": {"1.0": ENTRY}}),
        lambda body: body["datasets"].update({"lab/x-v1": {"../..": ENTRY}}),
        lambda body: body["datasets"].update({"lab/x-v1": {}}),
        lambda body: body["datasets"]["lab/arm-v1"]["1.0.0"].update(digest="sha256:ab"),
        lambda body: body["datasets"]["lab/arm-v1"]["1.0.0"].update(digest=DIGEST + "\n"),
        lambda body: body["datasets"]["lab/arm-v1"]["1.0.0"].update(url="http://else"),
        lambda body: body["datasets"]["lab/arm-v1"]["1.0.0"].pop("steps"),
    ],
)
def test_what_is_not_an_index_is_refused(change):
    with pytest.raises(ManifestError, match=r"^https://there: "):
        index_from_json(changed(change), "https://there")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"{",
        b"[" * 100_000,
        b'{"serial": 1, "serial": 2}',
        b'{"serial": NaN}',
        b'{"index_version": 1, "datasets": {}, "serial": ' + b"9" * 10_000 + b"}",
        b" " * (LARGEST_INDEX + 1),
    ],
    ids=range(10),
)
def test_bytes_that_are_no_index_are_refused(data):
    with pytest.raises(ManifestError, match=r"^there: "):
        index_from_json(data, "there")


def test_a_newer_index_says_so():
    with pytest.raises(FormatVersionError, match="index_version 2 is newer"):
        index_from_json(changed(lambda body: body.update(index_version=2, more=1)), "there")
    with pytest.raises(FormatVersionError, match="pip install --upgrade orlog"):
        index_from_json(b'{"index_version": 3}', "there")
