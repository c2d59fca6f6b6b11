"""The commands about versions, views and containers, as a user runs them."""

import json

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

import orlog
from orlog import Dataset
from orlog.cli.commands import app
from orlog.errors import ManifestError, SchemaError, VersionExistsError
from tests import command_line

MINI = "pointmaze/umaze-mini-v1"


def run(*arguments, cwd, code=0):
    """Run a command; return what it printed, errors last, as one line."""
    found = command_line.orlog(*arguments, cwd=cwd)
    assert found.returncode == code, found.stderr
    return " ".join((found.stdout + found.stderr).split())


@pytest.fixture
def appended(mini):
    """Return version 1.1.0 of the small dataset, with two episodes more."""
    changes = "two episodes again"
    with orlog.DatasetWriter.append(mini, changes=changes) as writer:
        for episode in mini.iterate_episodes([0, 1]):
            writer.add_episode(episode)
    return orlog.load_dataset(MINI)


def test_a_lock_pins_and_moves_on_purpose(mini, tmp_path):
    assert "pins nothing" in run("lock", cwd=tmp_path)
    assert "new" in run("lock", MINI, cwd=tmp_path)
    with orlog.DatasetWriter.append(mini) as writer:
        writer.add_episode(mini[0])
    assert "1.0.0" in run("show", MINI, cwd=tmp_path).partition("digest")[0]
    assert "LockError" not in run("lock", f"{MINI}@1.1.0", cwd=tmp_path, code=3)
    assert "orlog lock --update" in run("show", f"{MINI}@1.1.0", cwd=tmp_path, code=3)
    assert "moved" in run("lock", "--update", cwd=tmp_path)
    assert "1.1.0" in run("show", MINI, cwd=tmp_path).partition("digest")[0]
    assert "here" in run("lock", cwd=tmp_path)


def test_versions_are_listed_compared_and_marked(mini, appended, tmp_path):
    shown = run("show", MINI, cwd=tmp_path)
    assert "1.1.0 (shown)" in shown
    assert "two episodes again" in shown
    told = run("diff", f"{MINI}@1.0.0", MINI, cwd=tmp_path)
    assert "the second is the first with episodes appended" in told
    assert "67 to 68" in told
    found = json.loads(run("diff", f"{MINI}@1.0.0", MINI, "--json", cwd=tmp_path))
    assert (found["is_append"], found["unchanged"]) == (True, 67)

    mark = ("mark", f"{MINI}@1.1.0", "yanked", "--reason", "doubled by mistake", "--use", "1.0.0")
    run(*mark, cwd=tmp_path)
    with pytest.warns(UserWarning, match="doubled by mistake"):
        assert orlog.load_dataset(f"{MINI}@1.1.0").digest == appended.digest
    assert orlog.load_dataset(MINI).digest == mini.digest
    shown = run("show", f"{MINI}@1.1.0", cwd=tmp_path)
    assert "warning:" in shown
    assert "yanked doubled by mistake 1.0.0" in shown
    run("mark", f"{MINI}@1.1.0", "good", cwd=tmp_path)
    assert orlog.load_dataset(MINI).digest == appended.digest
    assert "name the version" in run("mark", MINI, "good", cwd=tmp_path, code=1)


def test_a_view_is_saved_shown_verified_and_stored(mini, tmp_path):
    arguments = ("--where", "returns > 1", "--top", "50", "--episodes", "1:")
    run("save", MINI, "good.json", *arguments, cwd=tmp_path)
    view = mini.filter_episodes("returns > 1").top_episodes(50)[1:]
    assert orlog.load_dataset(tmp_path / "good.json").digest == view.digest
    other = ("save", MINI, "other.json", "--episodes")
    run(*other, "0:2", cwd=tmp_path)
    assert "--replace" in run(*other, "0:3", cwd=tmp_path, code=1)
    run(*other, "0:3", "--replace", cwd=tmp_path)
    assert orlog.load_dataset(tmp_path / "other.json").digest == mini[:3].digest
    shown = run("show", "./good.json", cwd=tmp_path)
    assert f"episodes {len(view)}" in shown
    assert "derived from" in shown
    assert "all as in the manifest" in run("verify", "./good.json", cwd=tmp_path)
    run("save", "./good.json", "lab/good-v1@2.0.0", "--changes", "chosen", cwd=tmp_path)
    stored = orlog.load_dataset("lab/good-v1@2.0.0")
    assert stored.lineage[0].digest == view.parents[0].digest
    assert (stored.column("rewards") == view.column("rewards")).all()
    assert "never changes" in run("save", "./good.json", "lab/good-v1@2.0.0", cwd=tmp_path, code=1)
    assert "slice" in run("save", MINI, "x.json", "--episodes", "a:b", cwd=tmp_path, code=1)
    rewards = mini.folder / "rewards/c.0"
    rewards.write_bytes(rewards.read_bytes()[:-1] + b"x")
    assert "rewards/c.0: damaged" in run("verify", "./good.json", cwd=tmp_path, code=3)


def test_a_version_is_converted_and_back(mini, tmp_path):
    run("save", MINI, "one-file", "--container", "hdf5", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "one-file").iterdir()) == ["data.h5", "manifest.json"]
    told = run("diff", MINI, "./one-file", cwd=tmp_path)
    assert "episodes unchanged 67 episodes changed 0" in told
    run("save", "./one-file", "back", cwd=tmp_path)
    back = orlog.load_dataset(tmp_path / "back")
    assert back.manifest.objects == mini.manifest.objects
    assert "is in the zarr container" in run("save", MINI, "again", cwd=tmp_path, code=1)


def test_a_view_is_published_as_itself_or_not_at_all(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view = mini[:14]
    view.save("good.json")
    for command in (
        ["publish", "./good.json", "registry"],
        ["save", "./good.json", "converted", "--container", "hdf5"],
        ["reproduce", "bc", "./good.json", "--record"],
        ["diff", MINI, "./good.json"],
    ):
        refused = CliRunner().invoke(app, command)
        assert isinstance(refused.exception, ValueError), command
        assert "orlog save" in str(refused.exception), command
    for command in (["lock"], ["download"], ["mark", "--reason", "x"], ["cache", "keep"]):
        command.insert(len(command) if command[0] != "mark" else 1, "./good.json")
        assert CliRunner().invoke(app, command).exit_code != 0, command
    with pytest.raises(SchemaError, match="orlog save"):
        orlog.publish_dataset(view.folder, "registry")
    with pytest.raises(ManifestError, match="orlog save"):
        orlog.verify_store(view.folder)
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["good.json"]

    good = ["save", "./good.json", "lab/good-v1@1.0.0"]
    assert CliRunner().invoke(app, good).exit_code == 0
    told = CliRunner().invoke(app, ["publish", "lab/good-v1", "registry"])
    assert told.exit_code == 0
    published = Dataset(tmp_path / "registry/lab/good-v1/1.0.0")
    assert published.total_episodes == 14
    assert published.lineage[0].digest == mini.digest


def test_what_was_built_is_checked_before_it_is_called_identical(mini_folder):
    repaired = command_line.orlog("verify", MINI, "--repair")
    assert (repaired.returncode, "no damage found" in repaired.stdout) == (0, True)
    shard = mini_folder / "rewards" / "c.0"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    again = f"orlog build {MINI} --replace"
    for command, code in (("build", 3), ("verify --repair", 1)):
        ended = command_line.orlog(*command.split(), MINI)
        assert (ended.returncode, again in ended.stderr) == (code, True)
    assert command_line.orlog(*again.split()[1:]).returncode == 0
    assert "identical" in command_line.orlog("build", MINI).stdout


@pytest.mark.usefixtures("home")
def test_a_version_that_is_taken_is_answered_with_one_that_is_free(tmp_path):
    for number in (1, 2):
        np.savez(
            tmp_path / f"{number}.npz",
            observations=np.zeros((4, 2), np.float32),
            actions=np.zeros((4, 2), np.float32),
            rewards=np.full(4, number, np.float32),
            terminals=np.array([False, True, False, True]),
            timeouts=np.zeros(4, bool),
        )
    name = "lab/taken-v1"
    run("import", "1.npz", name, cwd=tmp_path)
    run("save", f"{name}@1.0.0", "v.json", "--where", "lengths > 1", cwd=tmp_path)
    for line, taken, free in (
        ("import 2.npz {} --license MIT", name, "1.1.0"),
        ("save v.json {}", f"{name}@1.1.0", "1.2.0"),
    ):
        refused = run(*line.format(taken).split(), cwd=tmp_path, code=1)
        assert refused.endswith(f"give another version: {name}@{free}")
        run(*line.format(f"{name}@{free}").split(), cwd=tmp_path)
    with pytest.raises(VersionExistsError, match=r"give version='1\.3\.0', or run: orlog delete"):
        orlog.record(gymnasium.make("CartPole-v1"), name, version="1.1.0")
