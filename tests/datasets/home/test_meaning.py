"""One name and version means one digest, wherever a version enters a home or a registry."""

import shutil

import msgspec
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import orlog
from orlog import Dataset, build_dataset, download_dataset, publish_dataset, save_dataset
from orlog.cli.commands import app
from orlog.datasets.home.folders import partial_folder, write_partial
from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish.publish import link_foreign_file
from orlog.datasets.recording.saving import convert_dataset
from orlog.errors import IntegrityError, VersionExistsError
from orlog.manifests.index import ForeignEntry
from orlog.manifests.lock import LockedDataset, write_lock

MINI = "pointmaze/umaze-mini-v1"
NAME = "lab/good-v1"


def other_bytes(folder, target, text="another"):
    """Return a copy of a version that has its name and version with another digest."""
    shutil.copytree(folder, target)
    changed = msgspec.structs.replace(Dataset(folder).manifest, description=text)
    (target / "manifest.json").write_text(changed.to_json())
    return target


def as_part(folder):
    """Move a version to where a part of it would lie."""
    dataset = Dataset(folder)
    part = partial_folder(folder)
    folder.rename(part)
    paths = [dataset.manifest.objects[0].path]
    write_partial(part, dataset.manifest, paths)
    return part


@pytest.fixture
def good(mini):
    """Return a small version of the lab's own in this test's home."""
    return Dataset(save_dataset(mini[:3], NAME))


def test_a_conversion_gets_a_version_of_its_own(good, tmp_path):
    first = Dataset(convert_dataset(good, tmp_path / "a", container="hdf5"))
    again = Dataset(convert_dataset(good, tmp_path / "b", container="hdf5"))
    assert (first.name, first.version) == (NAME, "1.0.1")
    assert (again.version, again.digest) == (first.version, first.digest)
    # A version that means something else is passed over, or refused where it is asked for.
    with orlog.DatasetWriter.append(good, version="1.0.1") as writer:
        writer.add_episode(good[0])
    assert Dataset(convert_dataset(good, tmp_path / "c", container="hdf5")).version == "1.0.2"
    for version in ("1.0.0", "1.0.1"):
        with pytest.raises(VersionExistsError, match="give another version"):
            convert_dataset(good, tmp_path / "d", container="hdf5", version=version)
    assert not (tmp_path / "d").exists()
    named = Dataset(convert_dataset(good, tmp_path / "e", container="hdf5", name="lab/h-v1"))
    assert (named.name, named.version) == ("lab/h-v1", "1.0.0")
    told = CliRunner().invoke(app, ["save", f"{NAME}@1.0.0", str(tmp_path / "f"), "--container", "hdf5"])
    assert told.exit_code == 0, told.exception
    assert f"{NAME}@1.0.2 is in {tmp_path / 'f'}" in " ".join(told.output.split())


def test_what_means_other_bytes_here_is_not_published(good, tmp_path):
    registry = tmp_path / "registry"
    other = other_bytes(good.folder, tmp_path / "other")
    with pytest.raises(VersionExistsError, match=r"has it as .* a version never changes"):
        publish_dataset(other, str(registry))
    part = as_part(good.folder)
    with pytest.raises(VersionExistsError, match="a version never changes"):
        publish_dataset(other, str(registry))
    assert not registry.exists()
    shutil.rmtree(part)
    publish_dataset(other, str(registry))


def test_what_another_registry_lists_is_not_published_otherwise(good, tmp_path):
    publish_dataset(good.folder, str(tmp_path / "lab"))
    other = other_bytes(good.folder, tmp_path / "other")
    shutil.rmtree(good.folder)
    add_registry("lab", str(tmp_path / "lab"))
    with pytest.raises(VersionExistsError, match="registry lab"):
        publish_dataset(other, str(tmp_path / "second"))
    assert not (tmp_path / "second").exists()


def test_what_ships_or_is_pinned_keeps_its_meaning(mini_folder, good, tmp_path, monkeypatch):
    other = other_bytes(mini_folder, tmp_path / "other")
    shutil.rmtree(mini_folder)
    with pytest.raises(VersionExistsError, match="what ships with orlog"):
        publish_dataset(other, str(tmp_path / "registry"))
    box = spaces.Box(-1, 1, (2,))
    for name in (MINI, "d4rl/hopper-medium-v2"):
        with pytest.raises(VersionExistsError, match=r"ships with orlog|orlog lists"):
            save_dataset(good, name)
        with pytest.raises(VersionExistsError, match=r"ships with orlog|orlog lists"):
            orlog.DatasetWriter(name, observation_space=box, action_space=box)

    lock = tmp_path / "orlog.lock"
    write_lock(lock, {NAME: LockedDataset(version="1.0.0", digest="sha256:" + "0" * 64)})
    monkeypatch.setenv("ORLOG_LOCK", str(lock))
    with pytest.raises(VersionExistsError, match=r"orlog\.lock has it as"):
        publish_dataset(good.folder, str(tmp_path / "registry"))


def test_what_means_other_bytes_here_is_not_downloaded(good, tmp_path):
    other = other_bytes(good.folder, tmp_path / "other")
    as_part(good.folder)
    place = tmp_path / "registry" / NAME / "1.0.0"
    shutil.copytree(other, place)
    for episodes in (None, [0]):
        with pytest.raises(IntegrityError, match=r"is offered, but .* a version never changes"):
            download_dataset(place.as_uri(), episodes=episodes)
    assert not good.folder.exists()


def test_a_part_keeps_its_name_and_version(good):
    as_part(good.folder)
    with pytest.raises(VersionExistsError, match="a version never changes"):
        save_dataset(orlog.load_dataset(MINI)[:1], NAME)
    with pytest.raises(VersionExistsError, match="a version never changes"):
        orlog.DatasetWriter(NAME, observation_space=good.observation_space, action_space=good.action_space)


def test_a_build_replaces_other_bytes_under_the_recorded_version(mini_folder, tmp_path):
    other, good = other_bytes(mini_folder, tmp_path / "other"), Dataset(mini_folder).digest
    shutil.rmtree(mini_folder)
    other.rename(mini_folder)
    assert build_dataset(MINI, replace=True) == mini_folder
    assert Dataset(mini_folder).digest == good


def test_a_file_is_not_listed_as_a_version_that_is_something_else(good, tmp_path):
    entry = ForeignEntry(url="https://data.example.org/x.hdf5", format="d4rl-hdf5")
    for name in (f"{good.name}@{good.version}", f"{MINI}@1.0.0", "d4rl/hopper-medium-v2@1.0.0"):
        with pytest.raises(VersionExistsError, match="a version never changes"):
            link_foreign_file(str(tmp_path / "registry"), name, entry)
    assert not (tmp_path / "registry").exists()
    link_foreign_file(str(tmp_path / "registry"), f"{NAME}@2.0.0", entry)
