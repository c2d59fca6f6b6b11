"""Train and score from Python: the lines of a user, in an empty folder, on data of their own."""

import dataclasses
import functools
import json
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

import orlog
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import read_run
from orlog.base import terminal
from orlog.errors import NotFoundError
from orlog.runs.evaluating import measure_references
from tests.command_line import orlog as command
from tests.pendulum import pendulum

SMALL = {"hidden": [4], "batch_size": 8}
pytestmark = pytest.mark.usefixtures("empty")


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Return the empty folder that is the current one."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def trained(data, algorithm="iql", steps=2, evaluations=0, **options):
    return orlog.train(algorithm, data, settings=SMALL, steps=steps, evaluations=evaluations, **options)


def evaluated(*words):
    ended = command("evaluate", *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_run_is_replaced_once_the_new_one_begins(mini, empty):
    train = functools.partial(orlog.train, "iql", mini, evaluations=0, out="run")
    orlog.evaluate(train(steps=20, settings=SMALL), episodes=1)
    (empty / "run" / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in (empty / "run").iterdir()}
    with pytest.raises(ValueError, match="give one"):
        train(steps=20, overwrite=True, resume=True)
    with pytest.raises(ValueError, match="batch_size"):  # what cannot begin replaces nothing
        train(steps=10, overwrite=True, settings={"batch_size": -1})
    assert {path.name: path.read_bytes() for path in (empty / "run").iterdir()} == before
    new = train(steps=10, overwrite=True, settings=SMALL)
    assert read_run("run").steps == new.record.steps == 10
    left = {path.name for path in (empty / "run").iterdir()}
    assert left == {"checkpoint.safetensors", "metrics.jsonl", "notes.txt", "run.json"}


def test_training_from_python_shows_progress_as_the_command_does(mini, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    trained(mini, "bc", 4, out="shown")
    assert "BC seed 0: 4 of 4, loss: " in capsys.readouterr().err
    seen = []
    trained(mini, "bc", 4, out="own", progress=lambda *steps: seen.append(steps))
    trained(mini, "bc", 4, out="silent", progress=False)
    assert capsys.readouterr().err == ""
    assert seen[-1] == (4, 4)


def test_a_run_is_trained_and_scored_in_two_lines(mini, empty):
    run = trained(mini, steps=20, seed=0)
    result = orlog.evaluate(run, episodes=12)
    assert run.folder == Path("runs") / "iql" / mini.name / "seed-0"
    assert run.record == read_run(empty / run.folder)
    assert (run.record.seed, run.record.steps, run.record.config["hidden"]) == (0, 20, [4])

    # By hand: 100 (return - random) / (expert - random), and the t interval over 12 episodes.
    known = orlog.references(mini)
    low, high = known.random.mean, known.expert.mean
    scores = [100 * (gained - low) / (high - low) for gained in result.returns]
    mean = sum(scores) / 12
    deviation = (sum((score - mean) ** 2 for score in scores) / 11) ** 0.5
    half = 2.200985 * deviation / 12**0.5  # the 97.5 % quantile of Student's t, 11 degrees
    assert (result.references, result.reason, result.protocol.episodes) == (known, "", 12)
    assert result.score == pytest.approx(mean)
    assert result.interval == pytest.approx((mean - half, mean + half), rel=1e-5)
    assert result.caveats[0].startswith("returns were measured in PointMaze_UMaze-v3 (gymnasium ")
    assert "nothing about other seeds" in result.caveats[-1]
    again = evaluate_run(run.folder, episodes=12)[1]
    assert again.returns == result.returns.tolist()

    # A maze tells of success, and its reward is one for each step within the goal.
    assert again.successes == result.successes.tolist() == (result.returns > 0).tolist()
    assert result.success_rate == result.successes.mean()
    assert f", success rate {100 * result.successes.mean():.1f} %, 12 episodes" in repr(result)


def test_folders_are_taken_as_text_and_paths_and_one_episode_has_no_interval(mini):
    run = trained(mini, "bc", out="some/run")
    for given in (run, "some/run", Path("some/run")):
        result = orlog.evaluate(given, episodes=1)
        assert (result.run, result.interval, result.standard_error) == (run, None, None)
        assert isinstance(result.score, float)
    with pytest.raises(FileExistsError, match="holds a run already"):
        trained(mini, "bc", out="some/run")
    trained(mini, "bc", out="some/run", resume=True)
    with pytest.raises(TypeError, match=r"comes first: orlog\.train\('iql', dataset\)"):
        orlog.train(mini, "iql")


def test_own_data_without_references_give_returns_and_say_why_there_is_no_score():
    run = trained(pendulum(episodes=3, g=9.0), evaluations=1)
    result = orlog.evaluate(run, episodes=3)
    assert (result.score, result.scores, result.interval, result.references) == (None, None, None, None)
    assert "orlog scores lab/pendulum-v1" in result.reason
    assert len(result.caveats) == 1
    assert "Pendulum-v1" in result.caveats[0]
    assert -2000 < result.mean_return < 0
    assert (result.successes, result.success_rate) == (None, None)
    shown = evaluated(str(run.folder), "--episodes", "3")
    assert "no normalized score" in shown
    for text in (result.reason, result.caveats[0]):
        assert text in shown
    assert "success" not in shown + command("runs", str(run.folder)).stdout
    body = json.loads(evaluated(str(run.folder), "--episodes", "3", "--json"))
    empty = ("normalized_score", "score_interval", "success_rate", "successes")
    assert {body[name] for name in empty} == {None}
    assert (body["no_score"], body["caveats"]) == (result.reason, result.caveats)


def test_the_command_prints_score_interval_anchors_and_caveats():
    data = pendulum(episodes=3)
    known = measure_references(data, expert=-150.0, source="S", episodes=2, keep=True)
    trained(data, out="run")
    result = orlog.evaluate("run", episodes=12)
    low, high = result.interval
    note = f"note: {' '.join(result.caveats)} More: docs/scores.md"
    assert evaluated("run", "--episodes", "12").splitlines() == [str(result), note]
    body = json.loads(evaluated("run", "--episodes", "12", "--json"))
    assert (body["normalized_score"], body["score_interval"], body["no_score"]) == (result.score, [low, high], None)
    assert body["references"]["random"] == known.random.mean
    assert body["simulator"] in result.caveats[0]
    assert str(result) == (
        f"IQL seed 0 on {data.name}, step 2 of 2: score {result.score:.1f} (95 % interval {low:.1f} to "
        f"{high:.1f}), return {result.mean_return:.2f}, 12 episodes"
    )


def test_returns_that_are_no_numbers_have_no_score(monkeypatch):
    class Broken(PendulumEnv):
        def step(self, torque):
            seen, _, *ends = super().step(torque)
            return seen, float("nan"), *ends

    run = trained(pendulum(episodes=3), "bc")
    spec = dataclasses.replace(gymnasium.spec("Pendulum-v1"), entry_point=Broken)
    monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", spec)
    ended = command("evaluate", str(run.folder), "--episodes", "2")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "Pendulum-v1: 2 of 2 episodes have no finite return (the one from seed 1000000: nan)" in ended.stderr
    assert not (run.folder / "evaluation.json").exists()


def test_without_an_environment_training_is_refused_unless_no_score_is_asked_for():
    data = pendulum(named=False, episodes=3)
    with pytest.raises(NotFoundError, match=r"names no environment, .*evaluations=0"):
        trained(data, evaluations=1)
    assert not Path("runs").exists()
    reproduced = command("reproduce", "bc", data.name, "--steps", "2")
    assert (reproduced.returncode, "names no environment" in reproduced.stderr) == (2, True)
    assert not Path("runs").exists()
    with pytest.raises(NotFoundError, match=r"lab/pendulum-v1 names no environment") as caught:
        orlog.evaluate(trained(data))
    assert "evaluations=" not in str(caught.value)


def test_arguments_of_an_environment_from_elsewhere_are_used_with_consent_only(tmp_path, monkeypatch):
    data = str(pendulum(g=5.0).folder)
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "another home"))
    train = ("train", "bc", data, "--steps", "2", "--evaluations", "1", "--out", "run")
    reproduce = ("reproduce", "bc", data, "--steps", "2", "--out", "runs")
    score = ("evaluate", "run", "--dataset", data, "--episodes", "1")
    for words in (train, reproduce):
        assert "--trust-environment" in command(*words).stderr
        assert not Path(words[-1]).exists()
    assert "--trust-environment" in command(*train, "--trust-environment").stdout
    refused = command(*score)
    assert (refused.returncode, "--trust-environment" in refused.stderr) == (1, True)
    assert command(*score, "--trust-environment").returncode == 0


def test_the_command_prints_what_it_trains_by_and_where_that_is_from(mini):
    words = ("train", "iql", mini.name, "--steps", "2", "--evaluations", "0")
    own = command(*words)
    assert own.returncode == 0, own.stderr
    assert "preset orlog: small on purpose" in own.stderr
    assert "other presets: none, which is the algorithm's defaults (--preset)" in own.stderr
    assert "settings: the defaults" in command(*words, "--preset", "none", "--out", "plain").stderr
    assert read_run("plain").config["hidden"] == [256, 256]
    wrong = command(*words, "--preset", "corl", "--out", "wrong")
    assert wrong.returncode == 1
    assert "iql has no preset 'corl' for pointmaze/umaze-mini-v1; there are orlog, none." in wrong.stderr
    assert not Path("wrong").exists()
