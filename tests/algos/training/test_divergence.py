"""Runs whose numbers stop being finite, and checkpoints that another orlog or run wrote."""

import itertools
import json
import math
from importlib import metadata

import pytest
import torch

from orlog.algos.bc import BC
from orlog.algos.training import runs
from orlog.algos.training import train as training
from orlog.algos.training.checkpoint import first_not_finite
from orlog.algos.training.metrics import read_metrics
from orlog.errors import CheckpointError, DivergedError
from tests.command_line import orlog
from tests.training import train_run

SMALL = {"hidden": [4], "batch_size": 8}


def run(mini, folder, **options):
    train_run("bc", mini, folder, seed=0, steps=40, settings=SMALL, evaluations=0, **options)


def diverge(monkeypatch, at, spoil):
    """Let the update of one step spoil something."""
    update, steps = BC.update, itertools.count(1)

    def spoiled(self, batch):
        metrics = update(self, batch)
        if next(steps) == at:
            spoil(self, metrics)
        return metrics

    monkeypatch.setattr(BC, "update", spoiled)


def spoil_loss(_, metrics):
    metrics["policy/loss"] = torch.tensor(math.nan)


@torch.no_grad()
def spoil_weight(algorithm, _):
    next(algorithm.policy.parameters())[0] = math.inf


@pytest.mark.parametrize(("saves", "kept"), [("often", 16), ("at points", 16)])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(saves, kept, mini, tmp_path, monkeypatch):
    if saves == "often":
        monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)
    diverge(monkeypatch, 17, spoil_weight)  # its loss was still finite
    with pytest.raises(DivergedError) as caught:
        run(mini, tmp_path / "run")
    words = str(caught.value)
    assert words.startswith(f"{tmp_path / 'run'}: the run has diverged: policy/")
    assert f"checkpoint of step {kept} is kept" in words
    assert "settings={'learning_rate': 0.0003} (now: learning_rate 0.001)" in words
    last = read_metrics(tmp_path / "run")[-1]
    assert last["step"] == caught.value.step
    assert last["diverged"] == caught.value.metric
    monkeypatch.undo()
    run(mini, tmp_path / "run", resume=True)
    run(mini, tmp_path / "whole")
    assert "diverged" not in json.dumps(read_metrics(tmp_path / "run"))
    name = "checkpoint.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_metric_that_diverges_between_two_lines_of_the_log_is_not_saved_on_a_stop(mini, tmp_path, monkeypatch):
    spoiled = []

    def spoil(kind, metrics):
        spoil_loss(kind, metrics)
        spoiled.append(True)

    diverge(monkeypatch, 101, spoil)
    with pytest.raises(DivergedError, match="policy/loss was finite at step 100 and is not at step 1"):
        train_run(
            "bc",
            mini,
            tmp_path / "run",
            seed=0,
            steps=1000,
            settings=SMALL,
            evaluations=10,
            curve_episodes=1,
            stop=lambda: bool(spoiled),  # how often it is asked depends on the time that steps take
        )
    assert read_metrics(tmp_path / "run")[-1]["diverged"] == "policy/loss"


def test_the_command_says_it_in_one_line(mini, tmp_path, monkeypatch):
    diverge(monkeypatch, 1, spoil_loss)
    words = ["train", "bc", mini.name, "--steps", "5", "--evaluations", "0"]
    found = orlog(*words, "--out", str(tmp_path / "run"))
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "there is no checkpoint from before" in last


def test_a_rate_that_is_far_too_high_is_answered_with_the_usual_one(mini, tmp_path, monkeypatch):
    diverge(monkeypatch, 1, spoil_loss)
    settings = {**SMALL, "learning_rate": 1e20}
    with pytest.raises(DivergedError, match=r"settings={'learning_rate': 0\.001} \(now: .* 1e\+20\)"):
        train_run("bc", mini, tmp_path / "run", seed=0, steps=1, settings=settings, evaluations=0)


def test_infinite_masks_are_no_divergence_but_nan_is():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([0, -math.inf]))
            self.weight = torch.nn.Parameter(torch.ones(2))

    class Holder:
        STATE = ("network", "best")
        CONSTANTS = ()

        def __init__(self):
            self.network, self.best = Masked(), torch.tensor(-math.inf)

    made = Holder()
    assert first_not_finite(made) == ""
    made.best = torch.tensor(math.nan)
    assert first_not_finite(made) == "best"
    made.network.weight.data[1] = math.inf
    assert first_not_finite(made) == "network/weight"


# --- checkpoints from elsewhere


def test_a_checkpoint_of_another_algorithm_is_refused_in_one_line(mini, tmp_path):
    run(mini, tmp_path / "bc")
    options = {"seed": 0, "steps": 4, "settings": SMALL, "evaluations": 0}
    train_run("iql", mini, tmp_path / "iql", **options)
    with pytest.raises(FileExistsError, match="a run of the algorithm bc, not iql; "):
        train_run("iql", mini, tmp_path / "bc", resume=True, **options)
    name = "checkpoint.safetensors"
    (tmp_path / "iql" / name).write_bytes((tmp_path / "bc" / name).read_bytes())
    found = orlog("evaluate", str(tmp_path / "iql"))
    assert found.returncode == 3
    (line,) = found.stderr.splitlines()
    assert "the checkpoint belongs to another run.json, of another algorithm than iql; " in line


def test_a_checkpoint_that_another_orlog_wrote_and_that_does_not_fit_names_the_version(mini, tmp_path, monkeypatch):
    old = {**runs.code_versions(), "orlog": "0.0.9"}
    monkeypatch.setattr(training, "code_versions", lambda: old)
    run(mini, tmp_path / "run")
    run(mini, tmp_path / "run", resume=True)  # the same state: it is read, whatever wrote it
    init = BC.__init__

    def with_more(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.more = 1

    monkeypatch.setattr(BC, "__init__", with_more)
    with pytest.raises(CheckpointError) as caught:
        run(mini, tmp_path / "run", resume=True)
    assert f"it was written by orlog 0.0.9, and this is {metadata.version('orlog')}" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("iqll",), "no algorithm 'iqll'; did you mean iql"),
        (("iql", "--set", "expectil=0.9"), "iql has no setting 'expectil'; did you mean expectile?"),
        (("iql", "--preset", "orlogs"), "no preset 'orlogs'"),
        (("iql", "--preset", "orlogs"), "did you mean orlog?"),
        (("iql", "--device", "gpu"), "device must be cpu, cuda, cuda:NUMBER or auto, found 'gpu'."),
    ],
)
def test_what_is_misspelled_gives_one_line_with_the_nearest_name(words, message, mini, tmp_path):
    algorithm, *options = words
    found = orlog("train", algorithm, mini.name, *options, cwd=tmp_path)
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert message in line
    assert not list(tmp_path.glob("runs"))
