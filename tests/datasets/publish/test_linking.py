"""Listing files of others in a registry, and the whole round back to their values."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orlog.cli.registries import registries
from orlog.datasets.download.foreign import download_foreign_file
from orlog.datasets.download.sources import ForeignFileSource, find_source
from orlog.datasets.home.registries import add_registry
from orlog.datasets.loading import load_dataset
from orlog.datasets.publish.publish import foreign_file_entry, link_foreign_file, publish_dataset
from orlog.errors import (
    FormatVersionError,
    InvalidNameError,
    SignatureError,
    StorageError,
    VersionExistsError,
)
from orlog.manifests.index import Index, index_from_json
from orlog.manifests.names import parse_name
from orlog.manifests.signatures import new_key, sign
from tests.datasets.formats.test_d4rl import check, rows_of, write
from tests.servers import FileServer

NAME = "lab/hopper-v2"
ENTRY = foreign_file_entry(url="https://data.example/a.hdf5", format="d4rl-hdf5")


def index_of(folder: Path) -> Index:
    return index_from_json((folder / "index.json").read_bytes(), "index")


def run(*arguments: object) -> str:
    """Run a command that must succeed; return what it printed as one line."""
    found = CliRunner().invoke(registries, list(map(str, arguments)), env={"COLUMNS": "300"})
    if found.exception is not None:
        raise found.exception
    return " ".join(found.output.split())


@pytest.mark.parametrize("checksum", [True, False])
def test_the_whole_round(tmp_path: Path, checksum: bool) -> None:
    body = rows_of([False, False, True, False], [False] * 4, next_observations=False)
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    file = write(upstream / "hopper.hdf5", body)
    key = tmp_path / "lab.pem"
    public = new_key(key)
    served = tmp_path / "registry"
    with FileServer(upstream) as origin, FileServer(served) as server:
        url = f"{origin.url}/hopper.hdf5"
        entry = foreign_file_entry(
            url=f"{origin.url}/gone.hdf5",
            mirrors=[url],
            format="d4rl-hdf5",
            sha256=hashlib.sha256(file.read_bytes()).hexdigest() if checksum else None,
        )
        signer = functools.partial(sign, key_file=key)
        link_foreign_file(str(served), f"{NAME}@1.0.0", entry, sign=signer)
        add_registry("lab", server.url, keys=[public])
        source = find_source(parse_name(NAME))
        assert isinstance(source, ForeignFileSource)
        assert source.signed_by == public
        dataset = load_dataset(download_foreign_file(source))
    check(dataset, body)
    assert ("no checksum" in dataset.manifest.description) is not checksum


def test_files_and_versions_stand_beside_each_other(tmp_path: Path, built_mini: Path) -> None:
    folder = tmp_path / "registry"
    publish_dataset(built_mini, str(folder))
    assert link_foreign_file(str(folder), f"{NAME}@1.0.0", ENTRY) == f"file://{folder}"
    link_foreign_file(str(folder), f"{NAME}@1.0.0", ENTRY)
    link_foreign_file(str(folder), f"{NAME}@1.1.0", ENTRY)
    publish_dataset(built_mini, str(folder))
    index = index_of(folder)
    assert index.serial == 3
    assert list(index.datasets) == ["pointmaze/umaze-mini-v1"]
    assert index.foreign == {NAME: {"1.0.0": ENTRY, "1.1.0": ENTRY}}
    other = foreign_file_entry(url="https://data.example/b.hdf5", format="d4rl-hdf5")
    for name in (f"{NAME}@1.0.0", "pointmaze/umaze-mini-v1@1.0.0"):
        with pytest.raises(VersionExistsError):
            link_foreign_file(str(folder), name, other)
    assert index_of(folder) == index


def test_a_signed_registry_stays_signed(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    new_key(tmp_path / "lab.pem")
    signer = functools.partial(sign, key_file=tmp_path / "lab.pem")
    link_foreign_file(str(folder), f"{NAME}@1.0.0", ENTRY, sign=signer)
    with pytest.raises(SignatureError, match="without a signature"):
        link_foreign_file(str(folder), f"{NAME}@1.1.0", ENTRY)
    new_key(tmp_path / "other.pem")
    other = functools.partial(sign, key_file=tmp_path / "other.pem")
    with pytest.raises(SignatureError, match="signing it would vouch"):
        link_foreign_file(str(folder), f"{NAME}@1.1.0", ENTRY, sign=other)
    assert index_of(folder).serial == 1


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"url": "ssh://host/a"}, "expected a URL of"),
        ({"url": "../a"}, "a path inside the registry"),
        ({"sha256": "ab"}, "sha256"),
        ({"md5": "A" * 32}, "md5"),
        ({"size_bytes": -1}, "size_bytes"),
        ({"size": 1}, "size"),
    ],
)
def test_what_makes_no_sense_is_a_value_error(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        foreign_file_entry(**{"url": "https://data.example/a", "format": "d4rl-hdf5", **said})


def test_what_cannot_be_listed_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidNameError, match=r"such as lab/hopper-v2@1\.0\.0"):
        link_foreign_file(str(tmp_path), NAME, ENTRY)
    with pytest.raises(StorageError, match="cannot publish to a web server"):
        link_foreign_file("https://data.example/registry", f"{NAME}@1.0.0", ENTRY)
    other = foreign_file_entry(url="https://data.example/a.hdf5", format="d4rl")
    with pytest.raises(FormatVersionError, match="d4rl-hdf5"):
        link_foreign_file(str(tmp_path), f"{NAME}@1.0.0", other)
    assert list(tmp_path.glob("index*")) == []


def test_the_list_tells_what_ships() -> None:
    assert "d4rl shipped with orlog" in " ".join(run("list").replace("│", " ").split())
