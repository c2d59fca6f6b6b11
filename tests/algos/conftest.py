"""Fixtures for the algorithms: random batches in the environment's unit, and their scaling."""

import dataclasses
import itertools
import string

import gymnasium
import numpy as np
import pytest
import torch

from orlog.algos.algorithms import algorithm_name, for_teams, takes_goals
from orlog.algos.networks import Scaling
from orlog.algos.settings import make_config
from orlog.algos.training.data import infos_of, loaded
from orlog.datasets.columns.vocabulary import train_vocabulary
from orlog.loaders.arrays import Arrays, Leaf, add_infos
from orlog.loaders.batch import Batch
from tests.algos import plain


@pytest.fixture(autouse=True)
def one_thread():
    """Let torch use one thread: the networks are small and the numbers do not depend on cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def in_float64():
    """Let new tensors be float64, so that rounding does not hide a wrong formula."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def scaling():
    """Return maps of three observations and two actions, none of them the identity."""
    return Scaling(
        obs_mean=torch.tensor([1.0, -2.0, 0.5]),
        obs_std=torch.tensor([2.0, 0.5, 1.5]),
        action_low=torch.tensor([-2.0, 0.0]),
        action_high=torch.tensor([1.0, 4.0]),
    )


@pytest.fixture
def discrete(scaling):
    """Return the maps of three observations, and three actions counted from 2."""
    none, space = torch.zeros(0), gymnasium.spaces.Discrete(3, start=2)
    return dataclasses.replace(scaling, action_low=none, action_high=none, action_space=space)


@pytest.fixture
def make_batch(scaling):
    """Return a function that makes a random batch; some of its fields can be given."""

    def make(seed, rows=32, **given):
        rng = np.random.default_rng((seed, 1))

        def normal(*shape):
            return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

        unit = torch.from_numpy(rng.uniform(-0.95, 0.95, (rows, 2)).astype(np.float32))
        fields = {
            "observations": normal(rows, 3) * scaling.obs_std + scaling.obs_mean,
            "actions": scaling.actions_from_unit(unit),
            "rewards": normal(rows),
            "next_observations": normal(rows, 3) * scaling.obs_std + scaling.obs_mean,
            "terminations": torch.from_numpy((rng.random(rows) < 0.3).astype(np.float32)),
            "truncations": torch.from_numpy((rng.random(rows) < 0.3).astype(np.float32)),
            "next_actions": scaling.actions_from_unit(normal(rows, 2).clamp(-0.95, 0.95)),
            "has_next_action": torch.from_numpy((rng.random(rows) < 0.8).astype(np.float32)),
        }
        return Batch(**{**fields, **given})

    return make


SAID = ("go east", "go west", "take coin")
TOLD = ("A room. An exit to the east.", "A hall. An exit to the west. A coin.", "You have won!")
SPACE = gymnasium.spaces.Text(60, min_length=0, charset=string.printable)
NONE = torch.zeros(0)
IN_WORDS = Scaling(obs_mean=NONE, obs_std=NONE, action_low=NONE, action_high=NONE, action_space=SPACE)


def text_settings():
    """Return settings of a small algorithm in words; its tokenizer is known to this process."""
    vocabulary = train_vocabulary([*SAID, *TOLD] * 9, 300)
    spoken = sorted({one for said in vocabulary.encode(SAID) for one in said} | {vocabulary.end})
    sizes = {"width": 8, "layers": 1, "heads": 2, "length": 40, "batch_size": 8}
    return {**sizes, "tokenizer": vocabulary.digest, "spoken": spoken, "learning_rate": 1e-3}


@pytest.fixture
def make(scaling, discrete):
    """Return a function that makes a small algorithm, in float64 if tensors are."""
    of_goals = {"goal_mean": torch.tensor([0.5, 2.0]), "goal_std": torch.tensor([3.0, 0.7])}

    def made(form, *, seed=0, device="cpu", **settings):
        in_words = "text" in form.ACTIONS
        small = text_settings() if in_words else plain.small_settings(algorithm_name(form))
        config = make_config(form, {**small, **settings})
        fits = IN_WORDS if in_words else discrete if "discrete" in form.ACTIONS else scaling
        if takes_goals(form):
            fits = dataclasses.replace(fits, **of_goals)
        if for_teams(form):
            fits = dataclasses.replace(fits, agents=2)
        if torch.get_default_dtype() == torch.float64:
            fits = plain.doubles(fits)
        return form(config, fits, seed=seed, device=device)

    return made


@pytest.fixture
def batches_of(scaling):
    """Return a function that gives an algorithm its first batches, from its own loader.

    They are of short episodes, two in three of which are terminated, and the others truncated. Where
    goals are not whole observations, those are the achieved goal (2), which is the observation's
    first part, and its rest (1). Those who learn from choices get episodes of one step.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 8, 40)
    final_rows = np.cumsum(lengths + 1) - 1
    count = count_of_rows = final_rows[-1] + 1
    states = rng.normal(size=(count, 3)) * scaling.obs_std.numpy() + scaling.obs_mean.numpy()
    unit = torch.from_numpy(rng.uniform(-0.95, 0.95, (count, 2)).astype(np.float32))
    steps = np.concatenate([scaling.actions_from_unit(unit), rng.normal(size=(count, 3))], 1)
    steps[:, 3:] = 0
    steps[final_rows] = 0
    steps[final_rows - 1, 3] = np.arange(40) % 3 > 0
    steps[final_rows - 1, 4] = np.arange(40) % 3 == 0
    wanted = rng.normal(size=(count, 2))
    chosen = torch.from_numpy(rng.integers(2, 5, count))
    leaves = {"achieved_goal": (0, 2), "desired_goal": (2, 2), "observation": (4, 1)}
    parts = {name: Leaf(first=first, shape=(width,)) for name, (first, width) in leaves.items()}

    def choices():
        lengths = np.ones(len(states) // 2, np.int64)
        logs = torch.from_numpy(np.log(rng.uniform(0.2, 1.0, (2 * len(lengths), 1))))
        infos = Arrays(
            rows=logs.float(),
            lengths=lengths,
            obs_dim=1,
            action_dim=0,
            ends=0,
            observation_leaves={"action_log_probs": Leaf(first=0, shape=())},
        )
        rows = np.concatenate([states, steps[:, 2:]], 1)[: 2 * len(lengths)].astype(np.float32)
        return Arrays(
            rows=torch.from_numpy(rows),
            lengths=lengths,
            obs_dim=3,
            action_dim=0,
            others={"actions": chosen[: 2 * len(lengths)]},
            infos=infos,
        )

    def draw(algorithm, count):
        if "action_log_probs" in infos_of(type(algorithm), algorithm.config):
            stream = loaded(type(algorithm), algorithm.config, choices(), seed=0)
            return list(itertools.islice(stream, count))
        if for_teams(type(algorithm)):
            data = plain.team_arrays(states, steps, lengths)
            stream = loaded(type(algorithm), algorithm.config, data, seed=0)
            return list(itertools.islice(stream, count))
        columns, given = [states, steps], {"obs_dim": 3, "action_dim": 2}
        if "discrete" in algorithm.ACTIONS and "text" not in algorithm.ACTIONS:
            columns, given = [states, steps[:, 2:]], {"obs_dim": 3, "action_dim": 0}
            given["others"] = {"actions": chosen}
        elif "text" in algorithm.ACTIONS:
            columns, given = [steps[:, 2:]], {"obs_dim": 0, "action_dim": 0}
            told, said = (torch.arange(len(chosen)) * one % 7 % 3 for one in (1, 3))
            given["others"] = {"observations": told, "actions": said}
            given["texts"] = {"observations": TOLD, "actions": SAID}
            given["observation_leaves"] = {"": Leaf(column="observations")}
        elif algorithm.scaling.goal_mean is not None:
            columns, given["obs_dim"] = [states[:, :2], wanted, states[:, 2:], steps], 5
            given["parts"] = parts
        rows = torch.from_numpy(np.concatenate(columns, 1).astype(np.float32))
        data = Arrays(rows=rows, lengths=lengths, **given)
        if names := infos_of(type(algorithm), algorithm.config):
            leaves = {name: Leaf(first=place, shape=()) for place, name in enumerate(names)}
            flags = rng.integers(0, 2, (count_of_rows, len(names))).astype(np.float32)
            flags[final_rows] = 0
            infos = Arrays(
                rows=torch.from_numpy(flags),
                lengths=lengths,
                obs_dim=len(names),
                action_dim=0,
                ends=0,
                observation_leaves=leaves,
            )
            data = add_infos(data, infos)
        stream = loaded(type(algorithm), algorithm.config, data, seed=0)
        return list(itertools.islice(stream, count))

    return draw
