"""ZIP archives of others: unpacked as they are, or refused with a typed error, never outside their folder."""

import zipfile

import pytest

import orlog
from orlog import OrlogError, import_dataset
from orlog.base.files import list_files
from orlog.datasets.download import foreign
from orlog.datasets.download.foreign import is_archive, unpack
from orlog.datasets.home.registries import add_registry
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.index import ForeignEntry, Index
from tests.datasets.formats.reading import damaged
from tests.datasets.formats.test_ogmarl import arrays, write
from tests.levels import scaled
from tests.servers import FileServer


def pack(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_files_come_out_as_they_went_in(tmp_path):
    files = {"a/b.txt": b"b" * 9000, "a/c/d": b"", "e": bytes(range(256)), "empty/": b""}
    path = pack(tmp_path / "a.zip", files)
    assert is_archive(path)
    for _ in range(2):  # what was left unfinished is replaced
        unpack(path, tmp_path / "out", "a.zip")
        (tmp_path / "out" / "strange").touch()
    (tmp_path / "out" / "strange").unlink()
    found = {name: file.read_bytes() for name, file in list_files(tmp_path / "out")}
    assert found == {name: data for name, data in files.items() if name != "empty/"}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\x", "c:x", "a//x", "x\x1b"])
def test_a_name_outside_the_folder_is_refused(tmp_path, name):
    path = pack(tmp_path / "a.zip", {"good": b"", "N" * len(name): b"evil"})
    path.write_bytes(path.read_bytes().replace(b"N" * len(name), name.encode()))
    with pytest.raises(SchemaError, match=r"a\.zip: .* no name of a file"):
        unpack(path, tmp_path / "out", "a.zip")
    assert not (tmp_path / "out").exists()


def test_what_grows_too_large_or_is_no_archive_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "SMALL_BYTES", 0)
    path = pack(tmp_path / "bomb.zip", {"zeros": bytes(10_000_000)})
    with pytest.raises(SchemaError, match=r"unpacks to 10,000,000 bytes, more than"):
        unpack(path, tmp_path / "out", "bomb.zip")
    monkeypatch.setattr(foreign, "MOST_FILES", 1)
    with pytest.raises(SchemaError, match="expected 1 to 1 files, found 2"):
        unpack(pack(tmp_path / "two.zip", {"a": b"", "b": b""}), tmp_path / "out", "two.zip")
    (tmp_path / "no.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(IntegrityError, match=r"no\.zip: not a whole ZIP archive"):
        unpack(tmp_path / "no.zip", tmp_path / "out", "no.zip")


@pytest.mark.scaled
def test_damaged_archives_are_refused_or_right(tmp_path):
    files = {f"folder/{number}": bytes(range(number)) * 20 for number in range(8)}
    good = pack(tmp_path / "a.zip", files).read_bytes()
    for number, data in enumerate(damaged(good, scaled(2000, 60))):
        (tmp_path / "a.zip").write_bytes(data)
        out = tmp_path / "deep" / "out"
        try:
            unpack(tmp_path / "a.zip", out, "a.zip")
        except OrlogError:
            continue
        contents = sorted(file.read_bytes() for _, file in list_files(out))
        assert set(contents) <= set(files.values()), number
    assert {path.name for path in tmp_path.iterdir()} <= {"a.zip", "deep", "home"}


def test_a_vault_in_an_archive_is_downloaded(tmp_path):
    for seed, uid in enumerate(("Good", "Poor")):
        write(tmp_path / "vaults" / "3m.vlt" / uid, arrays(seed))
    files = {name: file.read_bytes() for name, file in list_files(tmp_path / "vaults")}
    pack(tmp_path / "3m.zip", files)
    with FileServer(tmp_path) as server:
        entry = ForeignEntry(url=f"{server.url}/3m.zip", format="og-marl-vault", task="Poor")
        index = Index().with_foreign("lab/3m/poor-v0", "1.0.0", entry)
        (tmp_path / "index.json").write_bytes(index.to_json())
        add_registry("lab", str(tmp_path))
        dataset = orlog.load_dataset("lab/3m/poor-v0", download=True)
    imported = import_dataset(tmp_path / "vaults" / "3m.vlt", "lab/imported-v0", task="Poor")
    assert dataset.manifest.objects == orlog.load_dataset(imported).manifest.objects
    assert "first download (sha256 " in dataset.manifest.description
