import dataclasses
import json
import re
import shutil
import tomllib
import warnings
from pathlib import Path

import msgspec
import numpy as np
import pytest

import orlog
from orlog.algos.training.runs import TrainOptions
from orlog.base import terminal
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.recording.saving import convert_dataset
from orlog.datasets.worlds.classic import DATASETS
from orlog.datasets.worlds.rebuilds import compare_with_recorded, record_statistics
from orlog.errors import IntegrityError, LockError, NotFoundError, VersionExistsError
from orlog.manifests.lock import LockedDataset, read_lock, write_lock
from orlog.manifests.names import newest_first
from orlog.manifests.shipped import recorded_folder, recorded_manifest, records_folder
from orlog.runs.jobs import make_jobs, run_job
from orlog.runs.reproducing import summarize
from tests import command_line

NAME = "classic/tiny-v1"
ENTRY = DATASETS["classic/cartpole-mixed-v2"]
OLD = "0.9.0"  # of gymnasium, with which the dataset is said to be recorded

pytestmark = pytest.mark.filterwarnings("ignore:classic/tiny-v1 is not the recorded data here")


def enter(monkeypatch, **changes):
    """Put 45 episodes into the catalogue, made by a changed recipe."""
    recipe = ENTRY.recipe
    changed = dataclasses.replace(recipe, **{"count": 45, "expert_noise": 0.3, **changes})
    monkeypatch.setitem(DATASETS, NAME, dataclasses.replace(ENTRY, recipe=changed))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with the records of a small dataset, and a home with a rebuild of it.

    It is recorded with another version of gymnasium; the episodes of the rebuild are others.
    """
    folder, foreign = tmp_path_factory.mktemp("made"), records_folder() / "foreign"
    (folder / "records").mkdir()
    (folder / "records" / "foreign").symlink_to(foreign)  # which is read once in each process
    with pytest.MonkeyPatch.context() as patch:
        enter(patch)
        patch.setattr("orlog.manifests.shipped.records_folder", lambda: folder / "records")
        patch.setenv("ORLOG_HOME", str(folder / "elsewhere"))
        dataset = orlog.load_dataset(NAME, build=True)
        versions = {**dataset.environment.versions, "gymnasium": OLD}
        environment = msgspec.structs.replace(dataset.environment, versions=versions)
        manifest = msgspec.structs.replace(dataset.manifest, environment=environment)
        recorded_folder(NAME).mkdir(parents=True)
        record_statistics(dataset)
        (recorded_folder(NAME) / "1.0.0.json").write_text(manifest.to_json())
        patch.setenv("ORLOG_HOME", str(folder / "home"))
        change_the_simulator(patch)
        with pytest.warns(UserWarning, match="is not the recorded data here"):
            orlog.build_dataset(NAME)
    return folder


@pytest.fixture
def recorded(made, tmp_path, monkeypatch):
    """Return what is recorded of the dataset, which is in the catalogue and not here."""
    enter(monkeypatch)
    shutil.copytree(made / "records", tmp_path / "records", symlinks=True)
    monkeypatch.setattr("orlog.manifests.shipped.records_folder", lambda: tmp_path / "records")
    return recorded_manifest(NAME)


@pytest.fixture
def rebuilt(made, recorded, home):
    """Return a rebuild of the recorded dataset, the only thing in this home."""
    assert recorded.name == NAME
    shutil.copytree(made / "home", home)
    return orlog.load_dataset(NAME)


def change_the_simulator(monkeypatch):
    """Let the recipe make other episodes, under the same parameters."""
    kind = type(ENTRY.recipe)
    made = kind.episodes

    def episodes(recipe, first, last):
        return iter(made(dataclasses.replace(recipe, seed=99), first, last))

    monkeypatch.setattr(kind, "episodes", episodes)


def run(*arguments, cwd, code=0):
    """Run a command; return what it printed, errors last, as one line."""
    found = command_line.orlog(*arguments, cwd=cwd)
    assert found.returncode == code, found.stdout + found.stderr
    return " ".join((found.stdout + found.stderr).split())


def test_the_same_bytes_are_the_recorded_ones_with_any_packages(recorded):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = orlog.load_dataset(orlog.build_dataset(NAME))
    assert (dataset.version, dataset.digest) == ("1.0.0", recorded.digest)
    assert compare_with_recorded(dataset).startswith("identical: the same digest")
    assert orlog.verify_store(dataset.folder)[1] == []


def test_other_bytes_have_a_version_of_their_own(recorded, rebuilt):
    plain = msgspec.structs.replace(rebuilt.manifest, version="1.0.0", lineage=[])
    assert rebuilt.version == f"1.0.0+{plain.digest[7:15]}"
    assert rebuilt.folder == datasets_folder() / NAME / rebuilt.version
    (parent,) = rebuilt.lineage
    assert parent.digest == recorded.digest
    assert json.loads(parent.operation)["rebuild"] == {
        "finding": "statistically equal",
        "recorded": {"gymnasium": OLD, "numpy": np.__version__},
        "version": "1.0.0",
    }
    assert compare_with_recorded(rebuilt) == (
        f"rebuilt: statistically equal to the recorded version ({recorded.digest[:19]}) by 7 "
        "two-sample Kolmogorov-Smirnov tests of episodes at a level of 0.001 together"
    )


def test_a_rebuild_opens_knowingly_or_with_a_warning(rebuilt):
    with pytest.warns(UserWarning, match="is not the recorded data here") as told:
        assert orlog.load_dataset(NAME).digest == rebuilt.digest
    assert rebuilt.version in str(told[0].message)
    assert f"gymnasium=={OLD}" in str(told[0].message)
    with pytest.warns(UserWarning, match=r"is not the recorded data here"):
        assert orlog.load_dataset(orlog.build_dataset(NAME)).digest == rebuilt.digest
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pin in (rebuilt.version, rebuilt.digest):
            assert orlog.load_dataset(f"{NAME}@{pin}").digest == rebuilt.digest
            assert orlog.load_dataset(f"{NAME}@{pin}", build=True).digest == rebuilt.digest
    with pytest.raises(NotFoundError, match=f"gymnasium=={OLD}"):
        orlog.load_dataset(f"{NAME}@1.0.0")


def test_a_pinned_name_that_cannot_be_built_is_not_built_again(recorded, rebuilt):
    seen = []
    for pin in ("1.0.0", recorded.digest):
        with pytest.raises(IntegrityError, match=f"gymnasium=={OLD}") as caught:
            orlog.load_dataset(f"{NAME}@{pin}", build=True, progress=lambda done, _total: seen.append(done))
        assert caught.value.found == rebuilt.digest
    assert seen == []


def test_a_pinned_rebuild_is_built_by_its_version(rebuilt, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "third"))
    wanted = f"{NAME}@{rebuilt.version}"
    with pytest.raises(IntegrityError):
        orlog.load_dataset(wanted, build=True)  # this simulator gives the recorded bytes
    assert orlog.load_dataset(NAME).version == "1.0.0"
    change_the_simulator(monkeypatch)
    assert orlog.build_dataset(wanted, replace=True).name == rebuilt.version
    assert orlog.load_dataset(wanted).digest == rebuilt.digest


def test_the_recorded_build_wins_over_its_rebuild(rebuilt, recorded):
    orlog.build_dataset(f"{NAME}@1.0.0", replace=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert orlog.load_dataset(NAME).digest == recorded.digest
    assert orlog.load_dataset(f"{NAME}@{rebuilt.version}").digest == rebuilt.digest
    order = ["1.10.0", "1.9.0", "1.9.0+00000000", "1.2.0+ffffffff", "1.2.0+00000000"]
    assert newest_first(sorted(order)) == order


def test_every_command_names_a_rebuild(rebuilt, tmp_path):
    named, made = f"{NAME}@{rebuilt.version}", f"gymnasium 1.4.0 (recorded with {OLD})"
    for command in (["build", NAME, "--workers", "1"], ["show", NAME], ["verify", NAME]):
        told = run(*command, cwd=tmp_path)
        assert named in told, told
        assert made in told, told
    assert "statistically equal" in run("build", NAME, "--workers", "1", cwd=tmp_path)
    for command in (["list", "tiny"], ["cache", "list"]):
        told = run(*command, cwd=tmp_path)
        assert rebuilt.version in told, told
        assert "a rebuild of 1.0.0" in told, told
    for command in (["show", NAME, "--json"], ["verify", NAME, "--json"]):
        found = json.loads(command_line.orlog(*command, cwd=tmp_path).stdout)
        assert found["version"] == rebuilt.version
        assert found["rebuild"].startswith("a rebuild of 1.0.0 with gymnasium")


def test_a_rebuild_is_locked_only_on_purpose(rebuilt, recorded, tmp_path, monkeypatch):
    lock = tmp_path / "orlog.lock"
    for given in (NAME, f"{NAME}@{rebuilt.version}"):
        assert "orlog lock --rebuild" in run("lock", given, cwd=tmp_path, code=3)
    assert not lock.exists()
    run("lock", "--rebuild", NAME, cwd=tmp_path)
    assert read_lock(lock)[NAME] == LockedDataset(version=rebuilt.version, digest=rebuilt.digest)
    run("verify", f"{NAME}@{rebuilt.version}", cwd=tmp_path)
    assert "warning" not in run("verify", NAME, cwd=tmp_path)
    monkeypatch.setenv("ORLOG_LOCK", str(lock))
    with pytest.raises(LockError):
        orlog.load_dataset(f"{NAME}@1.0.0")
    run("lock", cwd=tmp_path)
    run("lock", "--update", f"{NAME}@1.0.0", cwd=tmp_path)
    assert read_lock(lock)[NAME] == LockedDataset(version="1.0.0", digest=recorded.digest)


def test_an_unmet_pin_says_what_would_meet_it(rebuilt, recorded, tmp_path, monkeypatch):
    assert rebuilt.digest != recorded.digest
    write_lock(tmp_path / "orlog.lock", {NAME: LockedDataset(version="1.0.0", digest=recorded.digest)})
    for command in (["lock"], ["build", NAME, "--workers", "1"]):
        assert f"gymnasium=={OLD}" in run(*command, cwd=tmp_path, code=3)
    # What it says leads there: with the recorded packages.
    monkeypatch.setenv("ORLOG_LOCK", "0")
    run("build", f"{NAME}@1.0.0", "--replace", "--workers", "1", cwd=tmp_path)
    monkeypatch.delenv("ORLOG_LOCK")
    assert "here" in run("lock", cwd=tmp_path)


def test_the_pin_of_a_rebuild_does_not_ask_to_build_the_recorded_one(rebuilt, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "third"))
    write_lock(tmp_path / "orlog.lock", {NAME: LockedDataset(version=rebuilt.version, digest=rebuilt.digest)})
    told = run("lock", cwd=tmp_path, code=3)
    assert f"{NAME}@{rebuilt.version}" in told
    assert f"orlog lock --update {NAME}@1.0.0" in told
    assert "orlog lock --update" in run("build", NAME, "--workers", "1", cwd=tmp_path, code=3)
    run("lock", "--update", f"{NAME}@1.0.0", cwd=tmp_path)
    run("lock", cwd=tmp_path)


def test_on_another_processor_the_packages_are_not_blamed(recorded, monkeypatch, tmp_path):
    environment = recorded.environment
    monkeypatch.setattr("orlog.datasets.worlds.build.environment_versions", lambda *_: environment.versions)
    change_the_simulator(monkeypatch)
    assert "another processor" in run("build", NAME, "--workers", "1", cwd=tmp_path)
    for code, command in ((3, "build"), (1, "verify"), (0, "show")):
        told = run(command, f"{NAME}@1.0.0", cwd=tmp_path, code=code)
        assert "another processor" in told
        assert "run: orlog build" not in told


def test_what_is_made_from_a_rebuild_keeps_its_mark(rebuilt, tmp_path):
    mark = rebuilt.version.partition("+")[2]
    converted = orlog.load_dataset(convert_dataset(rebuilt, tmp_path / "as", container="hdf5"))
    assert converted.version == f"1.0.1+{mark}"
    with orlog.DatasetWriter.append(rebuilt) as writer:
        writer.add_episode(rebuilt[0])
    appended = orlog.load_dataset(f"{NAME}@1.1.0+{mark}")
    assert len(appended) == len(rebuilt) + 1
    assert "made from a rebuild" in run("show", f"{NAME}@{appended.version}", cwd=tmp_path)
    view = rebuilt[:3]
    view.save(tmp_path / "view.json")
    assert orlog.load_dataset(tmp_path / "view.json").version == rebuilt.version
    for one in (rebuilt, converted, appended):
        with pytest.raises(VersionExistsError, match="orlog save"):
            orlog.publish_dataset(one, str(tmp_path / "registry"))
    own = orlog.load_dataset(orlog.save_dataset(rebuilt, "lab/tiny-v1"))
    orlog.publish_dataset(own, str(tmp_path / "registry"), audit=False)


def test_a_comparison_names_the_rebuild(rebuilt, tmp_path):
    jobs = make_jobs("bc", rebuilt, tmp_path, seeds=[0], episodes=1, options=TrainOptions(steps=2, evaluations=1))
    run_job(jobs[0])
    result = summarize(jobs)
    assert result.record.version == rebuilt.version
    assert any(rebuilt.version in note and "rebuild" in note for note in result.notes)
    shown = f"{NAME}@{rebuilt.version}"
    for word in ("runs", "compare"):
        assert shown in run(word, str(tmp_path), cwd=tmp_path), word
    (record,) = tmp_path.rglob("run.json")
    folder = str(record.parent)
    assert shown in run("ope", folder, "--episodes", "1", "--fqe-steps", "5", cwd=tmp_path)
    figure = orlog.load_runs(tmp_path).plot()
    assert [axes.get_title() for axes in figure.axes] == [shown]
    run("evaluate", folder, "--out", "scores.json", cwd=tmp_path)
    assert shown in run("compare", "scores.json", cwd=tmp_path)


def test_episodes_of_another_distribution_are_refused_and_nothing_is_kept(recorded, monkeypatch):
    enter(monkeypatch, medium_noise=1.0, expert_noise=1.0)
    message = r"differs from the recorded version .* by returns, lengths .* Nothing was kept\.$"
    with pytest.raises(IntegrityError, match=message) as caught:
        orlog.build_dataset(NAME)
    assert caught.value.expected == recorded.digest
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)


def test_without_recorded_statistics_a_rebuild_is_said_to_be_another(recorded, monkeypatch):
    (recorded_folder(NAME) / "statistics.json").unlink()
    enter(monkeypatch, seed=98, count=3)
    with pytest.warns(UserWarning, match="not compared"):
        orlog.build_dataset(NAME)
    line = compare_with_recorded(orlog.load_dataset(NAME))
    assert line.startswith(f"rebuilt: NOT the recorded build ({recorded.digest[:19]})")


def test_a_rebuild_cannot_be_recorded_by_mistake(rebuilt, tmp_path):
    run("build", NAME, "--record", cwd=tmp_path, code=1)
    assert recorded_manifest(NAME, rebuilt.version) is None


def test_building_says_at_once_what_it_does_and_then_how_far_it_is(recorded, capsys, monkeypatch):
    assert orlog.load_dataset(NAME, build=True).digest == recorded.digest
    (only,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"building {NAME}: [\d,]+ steps", only)
    shutil.rmtree(orlog.load_dataset(NAME).folder)
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    orlog.load_dataset(NAME, build=True)
    assert re.search(r"^steps: [\d,]+ of ", capsys.readouterr().err, re.MULTILINE)


def test_the_quickstart_installs_the_simulator_of_the_recordings():
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    pins = [one.partition(";")[0] for one in project["optional-dependencies"]["quickstart"]]
    manifest = recorded_manifest("pointmaze/umaze-v1")
    versions = {name: one for name, one in manifest.environment.versions.items() if name != "numpy"}
    assert dict(one.split("==") for one in pins if "==" in one) == versions
