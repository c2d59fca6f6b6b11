"""Commands on datasets that name no environment, or one with arguments of its own."""

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

from orlog.cli.commands import app
from orlog.errors import NotFoundError, SimulatorError
from tests.episodes import record_episodes, whole_episode

NAME = "lab/pendulum-v1"


def pendulum(env):
    """Return a few recorded steps, which may name the environment."""
    with gymnasium.make("Pendulum-v1") as plain:
        observation_space, action_space = plain.observation_space, plain.action_space
    rng = np.random.default_rng(0)
    return record_episodes(
        NAME,
        (
            whole_episode(
                rng.uniform(-1, 1, (11, 3)).astype(np.float32),
                rng.uniform(-2, 2, (10, 1)).astype(np.float32),
                rng.normal(size=10),
                end="truncation",
            )
            for _ in range(3)
        ),
        observation_space,
        action_space,
        environment=env,
    )


def command(*arguments):
    """Return what a command prints, or raise what it raised."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None:
        raise result.exception
    return " ".join(result.output.split())


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Return the folder of a dataset from another machine, whose pendulum has a gravity of its own."""
    with gymnasium.make("Pendulum-v1", g=5.0) as env:
        folder = pendulum(env).folder
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "another home"))
    return folder


def test_without_an_environment_training_is_refused_unless_no_score_is_asked_for(tmp_path, monkeypatch):
    pendulum(None)
    out = tmp_path / "work"
    out.mkdir()
    monkeypatch.chdir(out)
    with pytest.raises(NotFoundError, match="names no environment"):
        command("reproduce", "bc", NAME, "--steps", "2")
    assert list(out.iterdir()) == []
    with pytest.raises(NotFoundError, match=r"names no environment; .*evaluations=0"):
        command("train", "bc", NAME, "--steps", "2")
    assert list(out.iterdir()) == []
    command("train", "bc", NAME, "--steps", "2", "--evaluations", "0")
    with pytest.raises(NotFoundError, match="names no environment") as caught:
        command("evaluate", str(out / "runs" / "bc" / NAME / "seed-0"))
    assert "evaluations=" not in str(caught.value)


def test_arguments_from_elsewhere_are_used_with_consent_only(elsewhere, tmp_path):
    run, data = tmp_path / "run", str(elsewhere)
    train = ("train", "bc", data, "--steps", "2", "--evaluations", "1", "--out", str(run))
    evaluate = ("evaluate", str(run), "--dataset", data, "--episodes", "1")
    with pytest.raises(SimulatorError, match="trust_environment=True"):
        command(*train)
    assert not run.exists()
    assert "--trust-environment" in command(*train, "--trust-environment")
    with pytest.raises(SimulatorError, match="trust_environment=True"):
        command(*evaluate)
    assert "return" in command(*evaluate, "--trust-environment")
    with pytest.raises(SimulatorError, match="trust_environment=True"):
        command("reproduce", "bc", data, "--steps", "2", "--out", str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
