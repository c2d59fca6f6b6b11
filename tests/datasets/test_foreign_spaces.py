"""Spaces and keys that environments of other packages have."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import orlog
from orlog.base.terminal import printable
from orlog.cli.commands import app
from orlog.errors import SchemaError
from orlog.manifests.spaces import (
    leaf_spaces,
    original_type,
    space_from_json,
    space_leaves,
    space_to_json,
    storable_space,
)
from tests.environment_records import check_made_again, check_round_trip, make, record, run_randomly
from tests.episodes import record_episodes, whole_episode
from tests.programs import run_program

KEYS = (
    "bottom burner",
    "",
    ".",
    "..",
    "-a",
    "a/b",
    "a@values",
    "a~20b",
    "a%20b",
    "zarr.json",
    "é",
    "A",
    "a",
    "c:\\x",
    "new\nline",
    "plain_key-1.0",
)

BOOL = np.bool_


class Words(spaces.Space[Any]):
    """A space of a type of its own, whose samples are what it is given."""

    def __init__(self, samples):
        super().__init__(None, None)
        self.samples = samples

    def sample(self, mask=None, probability=None):  # noqa: ARG002
        return self.samples[int(self.np_random.integers(len(self.samples)))]

    def contains(self, x):
        return x in self.samples


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([np.zeros(3, np.float32)], spaces.Box(-np.inf, np.inf, (3,), np.float32)),
        ([np.zeros((), np.uint8)], spaces.Box(0, 255, (), np.uint8)),
        ([1, 2], spaces.Box(-(2**63), 2**63 - 1, (), np.int64)),
        ([True], spaces.Box(0, 1, (), BOOL)),
        ([0.5], spaces.Box(-np.inf, np.inf, (), np.float64)),
    ],
)
def test_an_unknown_space_is_stored_as_what_its_samples_are(samples, expected):
    found = storable_space(spaces.Tuple([Words(samples), spaces.Discrete(2)]))
    assert found == spaces.Tuple([expected, spaces.Discrete(2)])
    again = space_from_json(space_to_json(found))
    assert isinstance(again, spaces.Tuple)
    name = original_type(again[0])
    assert name is not None
    assert name.endswith("test_foreign_spaces.Words")
    assert original_type(again[1]) is None
    assert space_to_json(again) == space_to_json(found)


def test_samples_of_dicts_tuples_and_text_are_found():
    found = storable_space(Words([{"a": ("put", 1)}, {"a": ("näher", 2)}]))
    assert isinstance(found, spaces.Dict)
    pair = found["a"]
    assert isinstance(pair, spaces.Tuple)
    text, number = pair[0], pair[1]
    assert isinstance(text, spaces.Text)
    assert "ä" in text.character_set
    assert "Z" in text.character_set
    assert number == spaces.Box(-(2**63), 2**63 - 1, (), np.int64)


@pytest.mark.parametrize(
    "samples", [[object()], [None], [1, "a"], [np.zeros(2), np.zeros(3)], [{1: 2}], [{"a": None}], [[1]]]
)
def test_samples_that_are_nothing_known_are_refused(samples):
    with pytest.raises(SchemaError, match=r"Words space cannot be stored"):
        storable_space(Words(samples * 4))


def test_an_unknown_space_without_samples_is_refused():
    with pytest.raises(SchemaError, match=r"Space space cannot be stored"):
        storable_space(gymnasium.Space((2,), np.float32))


def test_looking_at_a_space_does_not_draw_from_it():
    space = Words(list(range(1000)))
    space.seed(5)
    storable_space(space)
    drawn = space.sample()
    space.seed(5)
    assert drawn == space.sample()


@pytest.mark.parametrize("original", ["x" * 300, 5, None, ["a"]])
def test_an_original_type_that_is_no_name_is_refused(original):
    with pytest.raises(SchemaError):
        space_from_json({"type": "Discrete", "n": 2, "start": 0, "original": original})


def test_any_key_of_a_dict_is_stored_and_comes_back():
    space = spaces.Dict({key: spaces.Dict({"x y": spaces.Discrete(5)}) for key in KEYS})
    assert space_from_json(space_to_json(space)) == space
    names = [name for name, _ in leaf_spaces(space, "observations")]
    assert len({name.lower() for name in names}) == len(KEYS)
    assert "observations/bottom~20burner/x~20y" in names
    assert "observations/plain_key-1.0/x~20y" in names
    assert [leaf.keys for leaf in space_leaves(space)] == [(key, "x y") for key in sorted(KEYS)]
    observations = [space.sample() for _ in range(4)]
    for container in ("zarr", "hdf5"):
        name = f"lab/{container}-v1"
        dataset = record_episodes(
            name, [whole_episode(observations, np.zeros(3, np.int64))], space, spaces.Discrete(2), container=container
        )
        found = dataset[0].observations
        assert {key: part["x y"].tolist() for key, part in found.items()} == {
            key: [int(observation[key]["x y"]) for observation in observations] for key in KEYS
        }
        view = dataset.select_columns(["observations/bottom~20burner"])
        assert list(view[0].observations) == ["bottom burner"]


def test_batches_have_the_keys_of_the_space():
    space = spaces.Dict({"bottom burner": spaces.Box(0, 255, (2, 2), np.uint8)})
    record_episodes(
        "lab/keys-v1",
        [whole_episode([space.sample() for _ in range(4)], np.zeros(3, np.int64))],
        space,
        spaces.Discrete(2),
    )
    batch = next(iter(orlog.transitions(orlog.load_dataset("lab/keys-v1"), batch_size=2, seed=0)))
    assert isinstance(batch.observations, dict)
    assert list(batch.observations) == ["bottom burner"]


def test_a_name_that_is_too_long_is_refused_before_anything_is_recorded():
    with pytest.raises(SchemaError, match=r"lab/long-v1"):
        orlog.DatasetWriter(
            "lab/long-v1",
            observation_space=spaces.Dict({"k" * 300: spaces.Discrete(2)}),
            action_space=spaces.Discrete(2),
        )


@pytest.mark.parametrize(
    "environment_id",
    [
        "ALE/Pong-v5",
        "BabyAI-GoToRedBallGrey-v0",
        "Blackjack-v1",
        "FrankaKitchen-v1",
        "MiniGrid-Empty-5x5-v0",
        "Pong-v4",
    ],
)
def test_one_environment_of_each_kind_is_recorded_and_made_again(environment_id):
    with make(environment_id) as env:
        steps = run_randomly(env)
        record(env, steps, "lab/kind-v1")
        is_sampled = check_round_trip(steps, "lab/kind-v1")
        check_made_again(env, "lab/kind-v1")
    assert is_sampled
    dataset = orlog.load_dataset("lab/kind-v1")
    if environment_id == "Blackjack-v1":
        assert isinstance(dataset[0].observations, tuple)
    if environment_id == "Pong-v4":
        with dataset.recover_environment() as env:
            assert env.spec is not None
            assert env.spec.kwargs["frameskip"] == (2, 5)
    if environment_id.startswith(("MiniGrid", "BabyAI")):
        space = dataset.observation_space
        assert isinstance(space, spaces.Dict)
        assert str(original_type(space["mission"])).endswith("MissionSpace")


def test_a_tuple_among_arguments_stays_one():
    with gymnasium.make("CartPole-v1", sutton_barto_reward=(True, [1, (2,)])) as env:
        record(env, run_randomly(env), "lab/tuple-v1")
    dataset = orlog.load_dataset("lab/tuple-v1")
    assert dataset.environment is not None
    assert dataset.environment.kwargs == {"sutton_barto_reward": {"__tuple__": [True, [1, {"__tuple__": [2]}]]}}
    with dataset.recover_environment() as env:
        assert env.spec is not None
        assert env.spec.kwargs["sutton_barto_reward"] == (True, [1, (2,)])


def test_the_type_that_a_space_was_is_shown():
    with make("MiniGrid-Empty-5x5-v0") as env:
        record(env, run_randomly(env), "lab/grid-v1")
    shown = CliRunner().invoke(app, ["show", "lab/grid-v1"]).output
    space = orlog.load_dataset("lab/grid-v1").observation_space
    charset = space["mission"].characters
    assert "\n" in charset
    (observations,) = [line for line in shown.splitlines() if line.startswith("observations  ")]
    assert printable(charset).replace("\n", r"\n") in observations
    assert "was a minigrid." in " ".join(shown.split())


def test_an_environment_is_made_in_a_process_that_did_not_import_its_package():
    code = (
        "from orlog.datasets.worlds.environments import make_environment\n"
        "for one in ('ALE/Pong-v5', 'MiniGrid-Empty-5x5-v0'):\n"
        "    make_environment(one, {}).close()\n"
    )
    done = run_program([sys.executable, "-c", code])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
