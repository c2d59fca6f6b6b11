"""Runs on frames, dicts, integers and infos, from the command line to scores, and what is refused."""

import json
import re

import pytest

import orlog
from orlog.algos.bc import BC
from orlog.errors import NotFoundError, SchemaError
from tests import command_line
from tests.algos.training.dots import record
from tests.algos.training.dots import registered as registered
from tests.training import SMALL, short, train_run

RARELY = [pytest.mark.thorough, pytest.mark.slow]
FAST = {
    "bc": {},
    "cql": {"conservative_weight": 0.1, "target_interval": 10, "learning_rate": 0.001, "discount": 0.5},
    "iql": {"target_rate": 0.1, "inverse_temperature": 10, "learning_rate": 0.003, "discount": 0.5},
}


def scored(out, name, dataset, steps, **settings):
    """Return the mean return after training and evaluating on the command line."""
    small = {"width": 8, "length": 3} if name == "dt" else {"hidden": "[16]", "batch_size": 32}
    words = [f"--set={key}={value}" for key, value in {**small, "encoder": "impala", **settings}.items()]
    train = ("train", name, dataset, "--out", str(out), "--steps", str(steps), "--evaluations", "1", *words)
    for command in (train, ("evaluate", str(out), "--episodes", "20", "--json")):
        ended = command_line.orlog(*command)
        assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["mean_return"]


@pytest.mark.thorough
@pytest.mark.slow
def test_discrete_values_are_learned_from_frames(tmp_path):
    record("orlog-tests/Dot-v0", "lab/dot-v1")
    returns = {name: scored(tmp_path / name, name, "lab/dot-v1", 120, **settings) for name, settings in FAST.items()}
    assert returns["cql"] == returns["iql"] == 4 > returns["bc"]


OFTEN = ("bc", "fql", "iql", "gcivl")
GOALS = ("crl", "gcbc", "gciql", "gcivl", "hiql", "qrl", "trl")
MORE = ("awac", "calql", "cql", "dt", "edac", "ifql", "qcfql", "rebrac", "td3bc", *sorted({*GOALS} - {"gcivl"}))


@pytest.mark.parametrize("name", [*OFTEN, *(pytest.param(name, marks=RARELY) for name in MORE)])
def test_any_algorithm_learns_and_acts_from_frames_and_mixtures(name, tmp_path):
    has_goals = name in GOALS
    for environment in ("PlaceDot", "FrameDot") if has_goals else ("PushedDot", "MixedDot"):
        dataset = f"lab/{environment.lower()}-v1"
        record(f"orlog-tests/{environment}-v0", dataset, paid=not has_goals)
        settings = {} if has_goals else {"random_shift": 1}
        settings |= {"chunk_length": 2} if name == "qcfql" else {}
        assert 0 <= scored(tmp_path / environment, name, dataset, 2, **settings) <= 4


class Vectors(BC):
    """BC that takes no frames."""

    OBSERVATIONS = ("vector",)


def test_frames_that_an_algorithm_cannot_take_are_refused_before_anything_is_written(tmp_path):
    dataset = record("orlog-tests/Dot-v0", "lab/dot-v1", episodes=2)
    with pytest.raises(SchemaError, match="lab/dot-v1: observations holds frames of 12 x 12 pixels, which are too"):
        short("cql", dataset, tmp_path / "run", settings=None)
    pushed = record("orlog-tests/PushedDot-v0", "lab/pushed-v1", episodes=2)
    space = re.escape(str(pushed.observation_space))
    words = (
        f"takes observations that are vectors of numbers .*, found {space}; choose one of: awac, bc, .*td3bc, trl; or"
    )
    with pytest.raises(SchemaError, match=words):
        short(Vectors, pushed, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_without_rewards_are_refused_to_all_but_cloning(tmp_path):
    record("orlog-tests/Dot-v0", "lab/unpaid-v1", paid=False, episodes=8)
    for name in ("iql", "cql"):
        ended = command_line.orlog(
            "train", name, "lab/unpaid-v1", "--out", str(tmp_path / "run"), "--set=encoder=impala"
        )
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
        assert f"lab/unpaid-v1: every reward is 0, and {name} learns from rewards; imitate" in ended.stderr
    assert not (tmp_path / "run").exists()
    assert 0 <= scored(tmp_path / "bc", "bc", "lab/unpaid-v1", steps=1) <= 4


# --- infos

SEEN = []


class Watching(BC):
    """BC that looks at an info of its steps."""

    INFO = "behavior_goal"

    @classmethod
    def loader(cls, config):
        path, settings = BC.loader(config)
        return path, {**settings, "infos": (cls.INFO,)}

    def update(self, batch):
        SEEN.append(tuple(batch.infos[self.INFO].shape))
        return super().update(batch)


class Lacking(Watching):
    INFO = "behaviour_goal"


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_batches_have_the_infos_that_a_loader_names(mini, tmp_path, where):
    SEEN.clear()
    train_run(Watching, mini, tmp_path / "run", steps=3, settings=SMALL, evaluations=0, where=where)
    assert SEEN == [(8, 2)] * 3
    with pytest.raises(NotFoundError, match=r"no info 'behaviour_goal'; did you mean behavior_goal"):
        short(Lacking, mini, tmp_path / "other")
    with pytest.raises(SchemaError, match=r"learns from infos \(behavior_goal\), which are not kept"):
        orlog.finetune(tmp_path / "run", out=tmp_path / "new", steps=1, noise=0.1, algorithm=Watching)
