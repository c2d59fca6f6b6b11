"""Files that their publisher replaced under the same name: both are listed, and told apart by their bytes."""

import hashlib

import pytest
from typer.testing import CliRunner

import orlog
from orlog import download_dataset
from orlog.cli import app
from orlog.datasets import listing
from orlog.datasets.download import sources
from orlog.datasets.formats import d4rl
from orlog.datasets.home.garbage import delete_version
from orlog.errors import VersionExistsError
from orlog.manifests import shipped
from orlog.manifests.index import ForeignEntry, Index
from tests.datasets.formats.test_d4rl import rows_of, write
from tests.servers import FileServer

NAME = "d4rl/hopper-medium-v2"
FILE = "hopper_medium-v2.hdf5"
BODY = rows_of([False, True] * 3, None, next_observations=True, sizes=(11, 3))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Serve the newer file; return the file of each version, of different sizes."""
    (tmp_path / "served").mkdir()
    found = {
        "1.0.1": write(tmp_path / "served" / FILE, BODY),
        "0.9.0": write(tmp_path / "old.hdf5", {**BODY, "rewards": BODY["rewards"] + 1}, compression="gzip"),
    }
    with FileServer(tmp_path / "served") as server:
        entries = {
            version: ForeignEntry(
                url=f"{server.url}/{FILE}",
                format=d4rl.FORMATS["d4rl"].name,
                size_bytes=path.stat().st_size,
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for version, path in found.items()
        }
        for module in (listing, sources, shipped):
            monkeypatch.setattr(module, "shipped_index", lambda _: Index(foreign={NAME: entries}))
        yield found


def test_each_is_imported_as_the_version_that_a_download_gives(files):
    new = orlog.load_dataset(download_dataset(NAME))
    assert new.version == "1.0.1"
    delete_version(NAME, "1.0.1")
    assert orlog.load_dataset(orlog.import_dataset(files["1.0.1"], NAME)).digest == new.digest
    old = orlog.load_dataset(orlog.import_dataset(files["0.9.0"], NAME))
    assert (old.version, old.manifest.benchmark) == ("0.9.0", NAME)
    assert orlog.load_dataset(NAME).version == "1.0.1"
    delete_version(NAME, "0.9.0")
    files["0.9.0"].replace(files["1.0.1"])
    assert orlog.load_dataset(download_dataset(f"{NAME}@0.9.0")).digest == old.digest
    with pytest.raises(VersionExistsError, match=r"@0\.9\.0 is already sha256"):
        orlog.import_dataset(files["1.0.1"], NAME)


def test_an_import_under_another_name_says_so(files):
    said = f"This is the file of {NAME}@0.9.0, which was replaced under the same name"
    done = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["import", str(files["0.9.0"]), "lab/my-v0"])
    assert done.exit_code == 0, done.output
    assert said in done.output
    assert said in orlog.load_dataset("lab/my-v0").manifest.description
    new = orlog.load_dataset(orlog.import_dataset(files["1.0.1"], "lab/new-v0"))
    assert "replaced" not in new.manifest.description
