"""An algorithm is one file: put into the package's folder, or anywhere else, it does what others do."""

import importlib
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.algos.algorithms import ALGORITHMS, algorithm_name, find_algorithm
from orlog.algos.settings import check_for_any_form, make_config
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import read_metrics, read_run, run_folder
from orlog.errors import NotFoundError, SchemaError, StoppedError
from tests.episodes import whole_episode
from tests.training import train_run

# It takes several steps at once, which none of orlog's algorithms does, and integer actions.
SOURCE = '''
"""Behavior cloning of discrete actions."""

from __future__ import annotations

import msgspec
import torch

from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.settings import Count, Widths


class DiscreteBCConfig(msgspec.Struct, frozen=True, kw_only=True):
    hidden: Widths = (8,)
    batch_size: Count = 16
    n_steps: Count = 3
    seed: int = 0


class DiscreteBC:
    CONFIG = DiscreteBCConfig
    OBSERVATIONS = ("vector",)
    ACTIONS = ("discrete",)

    @staticmethod
    def loader(config):
        arguments = {"batch_size": config.batch_size, "n_steps": config.n_steps}
        return "orlog.loaders.transitions:transitions", arguments

    def __init__(self, config, scaling: Scaling, *, seed, device="cpu"):
        self.config, self.scaling, self.seen = config, scaling.to(device), []
        generator = make_generator(seed, 0, device)
        inputs, actions = len(scaling.obs_mean), int(scaling.action_space.n)
        self.policy = make_network(inputs, actions, config.hidden, generator=generator)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), 1e-3)

    def update(self, batch):
        logits = self.policy(self.scaling.observations(batch.observations))
        loss = torch.nn.functional.cross_entropy(logits, batch.actions)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen.append(float(batch.discounts.sum()))
        return {"policy/loss": loss.detach()}

    @torch.no_grad()
    def act(self, observations):
        return self.policy(self.scaling.observations(observations)).argmax(-1)
'''


@pytest.fixture
def poles():
    """Return a few episodes of CartPole, whose actions are discrete."""
    rng = np.random.default_rng(0)
    with gymnasium.make("CartPole-v1") as env, orlog.DatasetWriter("lab/poles-v1", environment=env) as writer:
        for _ in range(5):
            writer.add_episode(
                whole_episode(
                    rng.uniform(-0.1, 0.1, (11, 4)).astype(np.float32),
                    rng.integers(0, 2, 10),
                    np.ones(10),
                    end="truncation",
                )
            )
    return orlog.load_dataset("lab/poles-v1")


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Return the name of an algorithm whose file is in a folder that was added to the package's."""
    package = importlib.import_module("orlog.algos")
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "discrete_bc.py").write_text(SOURCE, "utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "orlog.algos.discrete_bc", raising=False)
    return "discrete_bc"


def test_a_file_is_listed_and_imported_only_when_it_is_used(added):
    assert added in list(ALGORITHMS)
    assert list(ALGORITHMS) == sorted(ALGORITHMS)
    assert added in ALGORITHMS
    assert f"orlog.algos.{added}" not in sys.modules
    assert find_algorithm(added).__name__ == "DiscreteBC"
    assert make_config(added, {"n_steps": "5"}).n_steps == 5


def test_a_file_trains_resumes_and_evaluates(added, poles, tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"

    def run(folder, **options):
        train_run(added, poles, folder, seed=3, steps=6, evaluations=2, **options)

    run(whole)
    calls = iter([False] * 2 + [True] * 9)
    with pytest.raises(StoppedError):
        run(half, stop=lambda: next(calls))
    run(half, resume=True)
    name = "checkpoint.safetensors"
    assert (half / name).read_bytes() == (whole / name).read_bytes()
    assert read_run(half).algorithm == added
    assert read_run(half).config["seed"] == 3
    assert len(read_metrics(half)[-1]["returns"]) > 1
    _, evaluation = evaluate_run(half, episodes=3)
    assert all(1 <= one <= 500 for one in evaluation.returns)


def test_a_setting_of_the_run_is_not_another(added, poles, tmp_path):
    with pytest.raises(ValueError, match=r"seed is an option of its own, .*: use seed="):
        train_run(added, poles, tmp_path, seed=0, steps=1, settings={"seed": 1})


@pytest.mark.parametrize("form", ["a file", "a class", "a module"])
def test_a_file_from_elsewhere_is_named_or_given_as_its_class(form, poles, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    (tmp_path / "my_method.py").write_text(SOURCE, "utf-8")
    algorithm = {"a file": "./my_method.py:DiscreteBC", "a module": "my_method:DiscreteBC"}.get(form) or find_algorithm(
        "./my_method.py:DiscreteBC"
    )
    folder = run_folder("runs", algorithm, poles, 0)
    assert folder == Path("runs/DiscreteBC/lab/poles-v1/seed-0")
    record = train_run(algorithm, poles, folder, seed=0, steps=2, evaluations=0)
    assert record.algorithm == algorithm_name(algorithm) == "my_method:DiscreteBC"
    train_run(algorithm, poles, folder, seed=0, steps=2, evaluations=0, resume=True)
    # A record is data that others may write: code that it names is run only if it is named here.
    with pytest.raises(NotFoundError, match="my_method:DiscreteBC, which is not part of orlog"):
        evaluate_run(folder, episodes=1)
    with pytest.raises(NotFoundError, match="not with bc"):
        evaluate_run(folder, episodes=1, algorithm="bc")
    assert evaluate_run(folder, episodes=1, algorithm=algorithm)[0] == record
    sys.modules.pop("my_method")


def test_spaces_that_an_algorithm_does_not_take_are_named(added, poles, mini, tmp_path):
    with pytest.raises(SchemaError, match=rf"edac takes actions that are a Box, found Discrete\(2\); .*{added}"):
        train_run("edac", poles, tmp_path, seed=0, steps=1)
    with pytest.raises(SchemaError, match=r"takes actions that are a Discrete space, found Box"):
        train_run(added, mini, tmp_path, seed=0, steps=1)


@pytest.fixture
def two_forms(tmp_path, monkeypatch):
    """Return the name of an added algorithm with a form for continuous and one for discrete actions."""
    package = importlib.import_module("orlog.algos")
    folder = tmp_path / "forms"
    folder.mkdir()
    discrete = SOURCE.replace("class DiscreteBC:", "class LinearDiscrete:")
    continuous = Path(package.__path__[0], "bc.py").read_text("utf-8")
    (folder / "linear.py").write_text(continuous.replace("class BC:", "class Linear:"), "utf-8")
    (folder / "linear_discrete.py").write_text(discrete, "utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    for name in ("linear", "linear_discrete"):
        monkeypatch.delitem(sys.modules, f"orlog.algos.{name}", raising=False)
    return "linear"


def test_the_action_space_chooses_the_form_and_records_keep_the_name(two_forms, poles, mini, tmp_path):
    assert two_forms in ALGORITHMS
    assert f"{two_forms}_discrete" not in ALGORITHMS
    for dataset, form in ((mini, "Linear"), (poles, "LinearDiscrete")):
        kind = find_algorithm(two_forms, action_space=dataset.action_space)
        assert kind.__name__ == form
        assert algorithm_name(kind) == two_forms
        folder = run_folder(tmp_path / "runs", two_forms, dataset, 0)
        record = train_run(two_forms, dataset, folder, seed=0, steps=2, evaluations=0)
        assert record.algorithm == read_run(folder).algorithm == two_forms
        train_run(two_forms, dataset, folder, seed=0, steps=2, evaluations=0, resume=True)
        assert evaluate_run(folder, episodes=1)[0] == record
        assert evaluate_run(folder, episodes=1, algorithm=two_forms)[0] == record
    # a setting of the discrete form only
    folder = tmp_path / "three"
    train_run(two_forms, poles, folder, seed=0, steps=1, evaluations=0, settings={"n_steps": 2})
    with pytest.raises(ValueError, match="linear has no setting 'n_steps'"):
        train_run(two_forms, mini, tmp_path, seed=0, steps=1, settings={"n_steps": 2})
    check_for_any_form(two_forms, {"n_steps": 2})
    with pytest.raises(ValueError, match="linear has no setting 'expectile'"):
        check_for_any_form(two_forms, {"expectile": 2})


def test_actions_that_no_form_takes_are_refused_with_the_forms_that_there_are(two_forms):
    space = gymnasium.spaces.MultiBinary(3)
    with pytest.raises(
        SchemaError, match=r"linear takes actions that are a Box or a Discrete space, found MultiBinary\(3\)\."
    ):
        find_algorithm(two_forms, action_space=space)
    with pytest.raises(ValueError, match="'linear_discrete' is a form of linear: name linear"):
        find_algorithm("linear_discrete")
