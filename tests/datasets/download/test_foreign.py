"""Files of others from real servers: right values to the bit with their lineage, or a typed error."""

import hashlib

import pytest
from typer.testing import CliRunner

from orlog import load_dataset
from orlog.cli import app
from orlog.datasets.download.foreign import download_foreign_file
from orlog.datasets.download.http import Patience
from orlog.datasets.download.sources import ForeignFileSource, find_source
from orlog.datasets.download.transfer import TransferOptions
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.registries import add_registry
from orlog.errors import IntegrityError, ManifestError
from orlog.manifests.index import ForeignEntry, Index
from orlog.manifests.names import DatasetName, parse_name
from tests.datasets.formats.test_d4rl import check, rows_of, write
from tests.servers import COMES, FileServer

NAME = "lab/hopper-v2"
FILE = "upstream/hopper.hdf5"
QUICK = Patience(idle=0, timeout=COMES, attempts=2, first_wait=0.01, longest_wait=0.1)
ASKED = TransferOptions(patience=QUICK)
BODY = rows_of([False, False, True] * 400, None, next_observations=True)


class Upstream:
    """A server with a file of others, and a registry on it that is known here as `lab`."""

    def __init__(self, folder, server):
        self.folder = folder
        self.server = server
        self.url = f"{server.url}/{FILE}"

    @property
    def data(self):
        return (self.folder / FILE).read_bytes()

    def link(self, **said):
        """Let the registry say this of the file, and return what is then found of it."""
        entry = ForeignEntry(**{"url": self.url, "format": "d4rl-hdf5", **said})
        index = Index().with_foreign(NAME, "1.0.0", entry)
        (self.folder / "index.json").write_bytes(index.to_json())
        first_seen = datasets_folder().parent / "registries-seen.json"
        first_seen.unlink(missing_ok=True)
        source = find_source(parse_name(NAME))
        assert isinstance(source, ForeignFileSource)
        return source

    def checked(self, **said):
        """Do as `link`, with size and SHA-256."""
        sha256 = hashlib.sha256(self.data).hexdigest()
        return self.link(**{"size_bytes": len(self.data), "sha256": sha256, **said})


@pytest.fixture
def upstream(tmp_path):
    folder = tmp_path / "served"
    (folder / FILE).parent.mkdir(parents=True)
    write(folder / FILE, BODY, compression="gzip")
    with FileServer(folder) as server:
        add_registry("lab", server.url)
        yield Upstream(folder, server)


def bring(source, options=ASKED, **more):
    return load_dataset(download_foreign_file(source, options, **more))


def test_the_command_line_says_that_a_first_download_was_trusted(upstream):
    upstream.link()
    done = CliRunner().invoke(app, ["download", NAME])
    assert done.exit_code == 0
    assert "upstream publishes no checksum: first download trusted" in done.output
    folder = datasets_folder() / NAME / "1.0.0"
    before = (folder / "rewards/c.0").read_bytes()
    (folder / "rewards/c.0").write_bytes(b"damaged")
    repaired = CliRunner().invoke(app, ["verify", NAME, "--repair"])
    assert repaired.exit_code == 0
    assert "1 problem, repaired." in repaired.output
    assert (folder / "rewards/c.0").read_bytes() == before
    (folder / "rewards/c.0").unlink()
    (folder / "actions/c.0.0").unlink()
    assert "2 problems, repaired." in CliRunner().invoke(app, ["verify", NAME, "--repair"]).output


def test_a_digest_that_was_pinned_must_come(upstream, tmp_path, monkeypatch):
    digest = bring(upstream.checked()).digest
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "other"))
    add_registry("lab", upstream.server.url)
    for pinned in (digest, f"sha256:{'0' * 64}"):
        source = find_source(DatasetName(NAME, "1.0.0", pinned))
        assert isinstance(source, ForeignFileSource)
        if pinned == digest:
            assert bring(source).digest == digest
        else:
            with pytest.raises(IntegrityError, match="was pinned with another version of orlog"):
                bring(source)


# Where it is found.


def test_a_path_inside_the_registry_is_tried_at_its_mirrors(upstream):
    sha256 = hashlib.sha256(upstream.data).hexdigest()
    source = upstream.link(url=FILE, sha256=sha256)
    found = find_source(parse_name(NAME), ["http://127.0.0.1:9/gone"])
    assert isinstance(found, ForeignFileSource)
    assert found.urls == ((f"http://127.0.0.1:9/gone/{FILE}", f"{upstream.server.url}/{FILE}"),)
    dataset = bring(found)
    check(dataset, BODY)
    # The version does not depend on where the registry is.
    assert dataset.lineage[0].operation == f"read d4rl-hdf5 from {FILE}"
    assert source.urls == ((f"{upstream.server.url}/{FILE}",),)


def test_a_registry_elsewhere_may_not_name_files_of_this_machine(upstream):
    url = f"file://{upstream.folder / FILE}"
    with pytest.raises(ManifestError, match="a file of this machine"):
        upstream.link(url=url)
    add_registry("near", str(upstream.folder), first=True)
    source = find_source(parse_name(NAME))
    assert isinstance(source, ForeignFileSource)
    check(bring(source), BODY)


# Kills, and two at once.
