"""Train and score from Python: the lines of a user, in an empty folder, on data of their own."""

import dataclasses
import functools
import json
from pathlib import Path

import gymnasium
import msgspec
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

import orlog
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import read_evaluation, read_run, write_sealed
from orlog.base import terminal
from orlog.datasets.worlds.environments import own_arguments
from orlog.errors import NotFoundError
from orlog.runs.measuring import measure_references
from tests.command_line import orlog as command
from tests.pendulum import pendulum

SMALL = {"hidden": [4], "batch_size": 8}


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Return the empty folder that is the current one."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_run_is_replaced_once_the_new_one_begins(mini, empty):
    train = functools.partial(orlog.train, "iql", mini, settings=SMALL, evaluations=0, out="run")
    old = train(steps=20)
    orlog.evaluate(old, episodes=1)
    (empty / "run" / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in (empty / "run").iterdir()}
    with pytest.raises(ValueError, match="give one"):
        train(steps=20, overwrite=True, resume=True)
    with pytest.raises(ValueError, match="batch_size"):  # what cannot begin replaces nothing
        train(steps=10, overwrite=True, settings={"batch_size": -1})
    assert {path.name: path.read_bytes() for path in (empty / "run").iterdir()} == before
    new = train(steps=10, overwrite=True)
    assert read_run("run").steps == new.record.steps == 10
    assert sorted(path.name for path in (empty / "run").iterdir()) == [
        "checkpoint.safetensors",
        "metrics.jsonl",
        "notes.txt",
        "run.json",
    ]


def test_training_from_python_shows_progress_as_the_command_does(mini, empty, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    train = functools.partial(orlog.train, "bc", mini, steps=4, settings=SMALL, evaluations=0)
    train(out=empty / "shown")
    assert "BC seed 0: 4 of 4, loss: " in capsys.readouterr().err
    seen = []
    train(out=empty / "own", progress=lambda *steps: seen.append(steps))
    train(out=empty / "silent", progress=False)
    assert capsys.readouterr().err == ""
    assert seen[-1] == (4, 4)


def test_a_dataset_in_the_place_of_the_algorithm_is_named(mini):
    for first in (mini, mini.name):
        with pytest.raises(TypeError, match=r"comes first: orlog\.train\('iql', dataset\)"):
            orlog.train(first, "iql")


def test_a_run_is_trained_and_scored_in_two_lines(mini, empty):
    run = orlog.train("iql", mini, seed=0, settings=SMALL, steps=20, evaluations=0)
    result = orlog.evaluate(run, episodes=12)
    assert run.folder == Path("runs") / "iql" / mini.name / "seed-0"
    assert (empty / run.folder / "run.json").is_file()
    assert run.record == read_run(run.folder)
    assert (run.record.seed, run.record.steps, run.record.config["hidden"]) == (0, 20, [4])

    # By hand: 100 (return - random) / (expert - random), and the t interval over 12 episodes.
    known = orlog.references(mini)
    low, high = known.random.mean, known.expert.mean
    scores = [100 * (one - low) / (high - low) for one in result.returns]
    mean = sum(scores) / 12
    deviation = (sum((one - mean) ** 2 for one in scores) / 11) ** 0.5
    half = 2.200985 * deviation / 12**0.5  # the 97.5 % quantile of Student's t, 11 degrees
    assert result.references == known
    assert result.score == pytest.approx(mean)
    assert result.interval == pytest.approx((mean - half, mean + half), rel=1e-5)
    assert result.reason == ""
    assert result.protocol.episodes == 12
    assert result.caveats[0].startswith("returns were measured in PointMaze_UMaze-v3 (gymnasium ")
    assert "nothing about other seeds" in result.caveats[-1]
    again = evaluate_run(run.folder, episodes=12)[1]
    assert again.returns == result.returns.tolist()

    # A maze tells of success, and its reward is one for each step within the goal.
    assert result.successes is not None
    assert again.successes == result.successes.tolist() == (result.returns > 0).tolist()
    assert result.success_rate == result.successes.mean()
    assert f", success rate {100 * result.successes.mean():.1f} %, 12 episodes" in repr(result)


def test_evaluations_from_before_successes_were_noted_are_read(mini, empty):
    run = orlog.train("bc", mini, settings=SMALL, steps=2, evaluations=0)
    new = evaluate_run(run.folder, episodes=2)[1]
    path = empty / run.folder / "evaluation.json"
    body = json.loads(path.read_text("utf-8"))
    assert body.pop("successes") == new.successes
    del body["seal"]
    write_sealed(path, body, {})
    assert read_evaluation(run.folder) == msgspec.structs.replace(new, successes=None)


@pytest.mark.usefixtures("empty")
def test_folders_are_taken_as_text_and_paths_and_one_episode_has_no_interval(mini):
    run = orlog.train("bc", mini, settings=SMALL, steps=2, evaluations=0, out="some/run")
    for given in (run, "some/run", Path("some/run")):
        result = orlog.evaluate(given, episodes=1)
        assert result.run == run
        assert (result.interval, result.standard_error) == (None, None)
        assert isinstance(result.score, float)
    with pytest.raises(FileExistsError, match="holds a run already"):
        orlog.train("bc", mini, settings=SMALL, steps=2, evaluations=0, out="some/run")
    orlog.train("bc", mini, settings=SMALL, steps=2, evaluations=0, out="some/run", resume=True)


@pytest.mark.usefixtures("empty")
def test_own_data_without_references_give_returns_and_say_why_there_is_no_score():
    pendulum(episodes=3, g=9.0)
    run = orlog.train("iql", "lab/pendulum-v1", settings=SMALL, steps=5, evaluations=1)
    result = orlog.evaluate(run, episodes=3)
    assert (result.score, result.scores, result.interval) == (None, None, None)
    assert result.references is None
    assert "orlog scores lab/pendulum-v1" in result.reason
    assert len(result.caveats) == 1
    assert "Pendulum-v1" in result.caveats[0]
    assert -2000 < result.mean_return < 0
    assert (result.successes, result.success_rate) == (None, None)
    for name in ("evaluation.json", "metrics.jsonl"):
        text = (run.folder / name).read_text("utf-8")
        assert "returns" in text
        assert "successes" not in text
    shown = command("evaluate", str(run.folder), "--episodes", "3")
    assert shown.returncode == 0, shown.stderr
    (line,) = (one for one in shown.stdout.splitlines() if "no normalized score" in one)
    assert result.reason in line
    assert result.caveats[0] in shown.stdout
    body = json.loads(command("evaluate", str(run.folder), "--episodes", "3", "--json").stdout)
    assert (body["normalized_score"], body["score_interval"]) == (None, None)
    assert body["no_score"] == result.reason
    assert body["caveats"] == result.caveats
    assert (body["success_rate"], body["successes"]) == (None, None)
    assert "success" not in shown.stdout
    assert "success" not in command("runs", str(run.folder)).stdout


@pytest.mark.usefixtures("empty")
def test_the_command_prints_score_interval_anchors_and_caveats():
    data = pendulum(episodes=3)
    known = measure_references(data, expert=-150.0, source="S", episodes=2, keep=True)
    orlog.train("iql", data, settings=SMALL, steps=2, evaluations=0, out="run")
    result = orlog.evaluate("run", episodes=12)
    shown = command("evaluate", "run", "--episodes", "12")
    assert shown.returncode == 0, shown.stderr
    assert result.interval is not None
    low, high = result.interval
    note = f"note: {' '.join(result.caveats)} More: docs/scores.md"
    assert shown.stdout.splitlines() == [str(result), note]
    body = json.loads(command("evaluate", "run", "--episodes", "12", "--json").stdout)
    assert body["normalized_score"] == result.score
    assert body["score_interval"] == [low, high]
    assert body["references"]["random"] == known.random.mean
    assert body["simulator"] in result.caveats[0]
    assert body["no_score"] is None
    assert str(result) == (
        f"IQL seed 0 on {data.name}, step 2 of 2: score {result.score:.1f} (95 % interval {low:.1f} to "
        f"{high:.1f}), return {result.mean_return:.2f}, 12 episodes"
    )


@pytest.mark.usefixtures("empty")
def test_returns_that_are_no_numbers_have_no_score(monkeypatch):
    class Broken(PendulumEnv):
        def step(self, torque):
            seen, _, *ends = super().step(torque)  # Gymnasium has no types for it
            return seen, float("nan"), *ends

    run = orlog.train("bc", pendulum(episodes=3), settings=SMALL, steps=2, evaluations=0)
    broken = Broken
    spec = dataclasses.replace(gymnasium.spec("Pendulum-v1"), entry_point=broken)
    monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", spec)
    ended = command("evaluate", str(run.folder), "--episodes", "2")
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert line == (
        "error: Pendulum-v1: 2 of 2 episodes have no finite return (the one from seed 1000000: nan), so "
        "there is no mean return and no score."
    )
    assert not (run.folder / "evaluation.json").exists()


@pytest.mark.usefixtures("empty")
def test_without_an_environment_training_is_refused_unless_no_score_is_asked_for():
    data = pendulum(named=False, episodes=3)
    with pytest.raises(NotFoundError, match=r"names no environment; .*evaluations=0"):
        orlog.train("iql", data, settings=SMALL, steps=3)
    assert not Path("runs").exists()
    run = orlog.train("iql", data, settings=SMALL, steps=3, evaluations=0)
    with pytest.raises(NotFoundError, match=r"lab/pendulum-v1 names no environment"):
        orlog.evaluate(run)


@pytest.mark.usefixtures("empty")
def test_an_environment_that_is_not_installed_is_named_before_training(monkeypatch):
    def forget(environment_id, kwargs):
        if environment_id == "Pendulum-v1":
            raise NotFoundError("environment 'Pendulum-v1' is not registered; install the package.")
        return own_arguments(environment_id, kwargs)

    pendulum(episodes=3)
    monkeypatch.setattr("orlog.datasets.home.consent.own_arguments", forget)
    words = ("train", "bc", "lab/pendulum-v1", "--steps", "2", "--set", "hidden=4,4")
    refused = command(*words)
    assert refused.returncode == 1
    assert "'Pendulum-v1' is not registered; install the package; " in refused.stderr
    assert "--evaluations 0" in refused.stderr
    trained = command(*words, "--evaluations", "0")
    assert trained.returncode == 0, trained.stderr
    evaluated = command("evaluate", "runs/bc/lab/pendulum-v1/seed-0")
    assert evaluated.returncode == 1
    assert "is not registered" in evaluated.stderr
    assert len(evaluated.stderr.strip().splitlines()) == 1


@pytest.mark.usefixtures("empty")
def test_the_command_prints_what_it_trains_by_and_where_that_is_from(mini):
    few = ("--steps", "2", "--evaluations", "0")
    own = command("train", "iql", mini.name, *few)
    assert own.returncode == 0, own.stderr
    assert "preset orlog: small on purpose" in own.stderr
    assert "other presets: none, which is the algorithm's defaults (--preset)" in own.stderr
    plain = command("train", "iql", mini.name, *few, "--preset", "none", "--out", "plain")
    assert "settings: the defaults" in plain.stderr
    assert read_run("plain").config["hidden"] == [256, 256]
    wrong = command("train", "iql", mini.name, *few, "--preset", "corl", "--out", "wrong")
    assert wrong.returncode == 1
    assert "iql has no preset 'corl' for pointmaze/umaze-mini-v1; there are orlog, none." in (wrong.stderr)
    assert not Path("wrong").exists()
