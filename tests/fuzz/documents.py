"""Every kind of document that orlog reads, real ones, and what opens them: for tests and fuzzing.

A `Workplace` makes small real stores, a registry, a view and so on in a folder. Its `check` puts
damaged bytes in the place of one document and opens what depends on it: either that raises an
OrlogError, or what comes out is right.
"""

import hashlib
import json
import os
import re

import gymnasium
import msgspec
import numpy as np

from orlog import Dataset, DatasetWriter, load_dataset, publish_dataset
from orlog.datasets.download.sources import find_source
from orlog.datasets.home.records import (
    Source,
    choose_version,
    read_history,
    remember_files,
    remembered_files,
    set_status,
    stamp_of,
    status_message,
)
from orlog.datasets.home.registries import add_registry, read_registries, registries_file, seen_file
from orlog.datasets.recording.saving import convert_dataset
from orlog.datasets.store.verify import DamageFinder, check_values, verify_folder
from orlog.datasets.store.version import StoredVersion
from orlog.manifests.index import index_from_json
from orlog.manifests.lock import LockedDataset, read_lock, write_lock
from orlog.manifests.manifest import manifest_from_text
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import check_signature, new_key, sign
from tests.episodes import whole_episode
from tests.fuzz.damage import damaged, from_text, seal_manifest, seal_view, to_text

NAME = "tests/tiny-v1"
KINDS = (
    *("manifest", "manifest of parts", "manifest of hdf5", "metadata", "offsets", "hdf5", "index"),
    *("signature", "lock", "registries", "seen", "origin", "verified", "view", "history"),
)


class Workplace:
    """Small real documents of every kind in a folder, and what opens them.

    Sets ORLOG_HOME and ORLOG_LOCK of this process.

    Attributes:
        originals: The sound document of each kind.
    """

    def __init__(self, folder):
        os.environ["ORLOG_HOME"] = str(folder / "home")
        os.environ["ORLOG_LOCK"] = "0"
        self.folder = folder
        self._zarr, self._parts = _write_stores()
        self._hdf5 = convert_dataset(load_dataset(self._zarr), folder / "hdf5", container="hdf5")
        self._values = {store: _values_of(Dataset(store)) for store in (self._zarr, self._parts, self._hdf5)}
        self._registry = self._make_registry()
        home = folder / "home"
        view = folder / "view.json"
        load_dataset(self._zarr).filter_episodes("lengths > 2").top_episodes(50.0).save(view)
        set_status(NAME, "0.9.0", "superseded", reason="tests", use="1.1.0")
        manifest = load_dataset(self._parts).manifest
        write_lock(folder / "orlog.lock", {NAME: LockedDataset(version="1.1.0", digest=manifest.digest)})
        stamps = {"rewards/c.0": stamp_of((self._zarr / "rewards/c.0").stat())}
        remember_files(self._zarr, load_dataset(self._zarr).digest, stamps)
        (record,) = (path for path in (home / "verified").glob("*.json") if b"rewards/c.0" in path.read_bytes())
        self._documents = {
            "manifest": (self._zarr / "manifest.json", self._check_manifest),
            "manifest of parts": (self._parts / "manifest.json", self._check_manifest_of_parts),
            "manifest of hdf5": (self._hdf5 / "manifest.json", self._check_manifest_of_hdf5),
            "metadata": (self._zarr / "rewards/zarr.json", self._check_metadata),
            "offsets": (self._zarr / "observations/text@offsets/c.0", self._check_offsets),
            "hdf5": (self._hdf5 / "data.h5", self._check_hdf5),
            "index": (self._registry / "index.json", self._check_index),
            "signature": (self._registry / "index.json.sig", self._check_signature),
            "lock": (folder / "orlog.lock", self._check_lock),
            "registries": (registries_file(), self._check_registries),
            "seen": (seen_file(), self._check_seen),
            "origin": (self._zarr.with_name(".1.0.0.origin.json"), self._check_origin),
            "verified": (record, self._check_verified),
            "view": (view, self._check_view),
            "history": (home / "datasets" / NAME / "versions.json", self._check_history),
        }
        assert tuple(self._documents) == KINDS
        self.originals = {kind: path.read_bytes() for kind, (path, _) in self._documents.items()}
        for kind in KINDS:
            self.check(kind, self.originals[kind])

    def damaged(self, kind, steps):
        """Return a document of this kind after some steps."""
        return damaged(self.originals[kind], steps, self.seal_of(kind))

    def seal_of(self, kind):
        """Return what makes the digest inside a document of this kind fit; None where none is."""
        return {"view": seal_view}.get(kind, seal_manifest if "manifest" in kind else None)

    def check(self, kind, data):
        """Open what depends on a document with other bytes.

        Raises:
            OrlogError: it was refused, as it should be.
            AssertionError: it was taken, and is not right.
        """
        path, check = self._documents[kind]
        try:
            path.write_bytes(data)
            check(data)
        finally:
            if kind in getattr(self, "originals", {}):
                path.write_bytes(self.originals[kind])

    def _make_registry(self):
        key = self.folder / "key"
        self._public = new_key(key)
        registry = self.folder / "registry"
        registry.mkdir()
        for store in (self._zarr, self._parts):
            publish_dataset(store, str(registry), sign=lambda data, kind: sign(data, kind, key_file=key))
        add_registry("tests", str(registry))
        find_source(parse_name(NAME))
        origin = {
            "origin_version": 1,
            "digest": load_dataset(self._zarr).digest,
            "mirrors": [f"{registry}/{NAME}/1.0.0"],
            "registry": "tests",
            "signed_by": "",
        }
        self._zarr.with_name(".1.0.0.origin.json").write_text(json.dumps(origin))
        return registry

    def _check_manifest(self, data):
        self._check_store(self._zarr, data)

    def _check_manifest_of_parts(self, data):
        self._check_store(self._parts, data)

    def _check_manifest_of_hdf5(self, data):
        self._check_store(self._hdf5, data)

    def _check_store(self, folder, data):
        manifest = manifest_from_text(data, "here")
        assert manifest_from_text(manifest.to_json(), "again") == manifest
        found, problems = verify_folder(folder)
        assert found == manifest
        finder = DamageFinder(folder, manifest, {problem.file for problem in problems})
        for item in manifest.objects:
            finder.find(item.path)
        dataset = Dataset(folder)
        for _ in dataset:
            pass
        for name, values in _values_of(dataset).items():
            assert np.array_equal(values, self._values[folder][name]), name

    def _check_object(self, folder, path, data):
        """Open a store whose manifest takes an object for right."""
        manifest = folder / "manifest.json"
        before = manifest.read_bytes()
        body = from_text(before)
        for item in dict(body)["objects"]:
            if dict(item)["path"] == path:
                sums = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                item[:] = [["path", path], *map(list, sums.items())]
        try:
            manifest.write_text(to_text(seal_manifest(body)))
            assert verify_folder(folder)[1] == []
            dataset = Dataset(folder)
            values = _values_of(dataset)
            for _ in dataset:
                pass
            if check_values(StoredVersion(folder)) == []:
                for name, found in values.items():
                    assert np.array_equal(found, self._values[folder][name]), name
        finally:
            manifest.write_bytes(before)

    def _check_metadata(self, data):
        self._check_object(self._zarr, "rewards/zarr.json", data)

    def _check_offsets(self, data):
        self._check_object(self._zarr, "observations/text@offsets/c.0", data)

    def _check_hdf5(self, data):
        self._check_object(self._hdf5, "data.h5", data)

    def _check_index(self, data):
        index = index_from_json(data, "here")
        assert index_from_json(index.to_json(), "again") == index
        seen_file().unlink(missing_ok=True)
        source = find_source(parse_name(NAME))
        assert isinstance(source, Source)
        digests = {entry.digest for entry in _entries(index)}
        assert source.manifest.digest in digests

    def _check_signature(self, data):
        signed = self._registry / "index.json"
        key = check_signature(signed.read_bytes(), "index", data, [self._public], "here")
        assert key == self._public
        signatures = re.findall(rb"[0-9a-f]{128}", self.originals["signature"])
        assert any(signature in data for signature in signatures)

    def _check_lock(self, _):
        entries = read_lock(self.folder / "orlog.lock")
        again = self.folder / "again.lock"
        again.unlink(missing_ok=True)
        write_lock(again, entries)
        assert read_lock(again) == entries

    def _check_registries(self, _):
        found = read_registries()
        body = {"registries_version": 1, "registries": msgspec.to_builtins(found)}
        registries_file().write_text(json.dumps(body))
        assert read_registries() == found

    def _check_seen(self, _):
        find_source(parse_name(NAME))

    def _check_origin(self, _):
        from orlog.datasets.home.records import read_origin

        read_origin(self._zarr)

    def _check_verified(self, _):
        remembered_files(self._zarr, json.loads(self.originals["manifest"])["digest"])

    def _check_view(self, _):
        view = load_dataset(self.folder / "view.json")
        assert len(view.column("rewards")) == view.total_steps

    def _check_history(self, _):
        history = read_history(NAME)
        choose_version(["1.1.0", "1.0.0"], history)
        for version in history:
            status_message(NAME, version, history)


def _entries(index):
    return [entry for versions in index.datasets.values() for entry in versions.values()]


def _values_of(dataset):
    return {name: dataset.column(name) for name in dataset.columns}


def _write_stores():
    """Write a version, and one that appends to it; return their folders."""
    spaces = gymnasium.spaces
    observations = spaces.Dict({"goal": spaces.Box(-1, 1, (2,), np.float32), "text": spaces.Text(9)})
    writer = DatasetWriter(
        NAME, observation_space=observations, action_space=spaces.Discrete(5), description="Tiny", license="MIT"
    )
    with writer:
        for steps in (3, 2, 4):
            writer.add_episode(_episode(steps))
        first = writer.finish()
    with DatasetWriter.append(load_dataset(first), changes="more") as writer:
        writer.add_episode(_episode(3))
        return first, writer.finish()


def _episode(steps):
    return whole_episode(
        {"goal": np.full((steps + 1, 2), 0.5, np.float32), "text": ["a" * (row + 1) for row in range(steps + 1)]},
        np.arange(steps),
        np.linspace(0, 1, steps),
        infos={"note": ["b"] * steps, "force": np.ones((steps, 3))},
        metadata={"task": "push"},
    )
