"""Texts as places in a table of the distinct ones, for every kind of batch and place."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import orlog
from orlog import combine_datasets
from orlog.errors import SchemaError
from orlog.loaders import filling, packs
from orlog.loaders.arrays import read_arrays
from tests.levels import scaled

MISSION = spaces.Text(40, min_length=0, charset="abcdefghijklmnopqrstuvwxyz äé☃")
ROBOT = spaces.Dict(
    {"image": spaces.Box(0, 255, (3, 3, 1), np.uint8), "mission": MISSION, "arm": spaces.Box(-9, 9, (2,), np.float32)}
)
MOVES = spaces.Discrete(4)
COLUMN = "observations/mission"
WORDS = ("go to the door", "", "open it ☃", "é")


def instructed(missions, make):
    """Return episodes of one step less than there are missions."""
    rng = np.random.default_rng(len(missions))
    plain = spaces.Dict({key: ROBOT[key] for key in ("image", "arm")})
    made = []
    for some in missions:
        episode = make(plain, MOVES, length=len(some) - 1, end="cut", rng=rng)
        assert isinstance(episode.observations, dict)
        episode.observations["mission"] = list(some)
        made.append(episode)
    return made


@pytest.fixture(scope="module")
def missions():
    rng = np.random.default_rng(5)
    return [rng.choice(WORDS, size=count).tolist() for count in (4, 2, 7, 9)]


@pytest.fixture(scope="module")
def dataset(write, make, missions):
    return write(instructed(missions, make), ROBOT, MOVES)


def in_order(missions):
    return tuple(dict.fromkeys(word for some in missions for word in some))


def words_of(arrays, places):
    assert places.dtype == torch.int64
    return [arrays.texts[COLUMN][place] for place in places.flatten().tolist()]


def mission_of(batch):
    return batch.observations["mission"]


@settings(max_examples=scaled(15), deadline=None)
@given(
    missions=st.lists(st.lists(st.text("aé☃", max_size=3), min_size=2, max_size=6), min_size=1, max_size=5),
    block_rows=st.sampled_from([1, 3, 65536]),
)
def test_each_distinct_text_is_kept_once_in_order(write, make, missions, block_rows):
    dataset = write(instructed(missions, make), ROBOT, MOVES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "_TEXT_ROWS", block_rows)
        arrays = read_arrays(dataset)
    assert arrays.texts == {COLUMN: in_order(missions)}
    assert words_of(arrays, arrays.others[COLUMN]) == [word for some in missions for word in some]


@pytest.mark.parametrize("limit", [1, 100])
def test_any_ranges_of_rows_give_the_same_places(dataset, limit):
    whole = filling.TextTable(COLUMN)
    rows = dataset.total_steps + dataset.total_episodes
    expected = whole.read(dataset, 0, rows)
    pieces = filling.TextTable(COLUMN)
    found = [pieces.read(dataset, first, min(first + limit, rows)) for first in range(0, rows, limit)]
    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert pieces.texts == whole.texts
    assert len(whole.read(dataset, 3, 3)) == 0


def test_views_have_tables_of_their_own(write, make, dataset, missions):
    others = [["é", "new"], ["go to the door", "new", "new"]]
    more = write(instructed(others, make), ROBOT, MOVES)
    for view, expected in (
        (dataset[[2, 0]], [missions[2], missions[0]]),
        (combine_datasets([dataset, more]), [*missions, *others]),
        (combine_datasets([more, dataset])[[3, 1, 2]], [missions[1], others[1], missions[0]]),
    ):
        arrays = read_arrays(view)
        assert arrays.texts == {COLUMN: in_order(expected)}
        found = words_of(arrays, arrays.others[COLUMN])
        assert found == [word for some in expected for word in some]


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_every_kind_of_batch_gives_places(dataset, missions, where):
    arrays = orlog.load_arrays(dataset, where)
    assert arrays.texts == {COLUMN: in_order(missions)}
    steps = {}  # the arm tells a step apart
    for number, episode in enumerate(dataset):
        assert isinstance(episode.observations, dict)
        for step, arm in enumerate(np.asarray(episode.observations["arm"])):
            steps[arm.tobytes()] = missions[number][step]

    def check(observations, mask=None, key="mission"):
        places, arms = observations[key], observations["arm"]
        if mask is not None:
            assert not places[~mask].any()
            places, arms = places[mask], arms[mask]
        expected = [steps[arm.numpy().tobytes()] for arm in arms.reshape(-1, 2)]
        assert words_of(arrays, places) == expected
        assert len(set(expected)) > 1

    batch = orlog.transitions(arrays, 64, seed=0).batch(0)
    check(batch.observations)
    check(batch.next_observations)
    check(orlog.transitions(arrays, 64, seed=0, n_steps=3).batch(0).next_observations)
    check(next(orlog.transitions(arrays, 64, seed=0, prioritized=True)).observations)
    windows = orlog.sequences(arrays, 64, length=3, seed=0, with_next=True).batch(0)
    check(windows.observations, windows.mask)
    check(windows.next_observations, windows.mask)
    padded = orlog.episodes(arrays, 64, seed=0).batch(0)
    places = torch.arange(padded.mask.shape[1] + 1)
    check(padded.observations, places <= padded.lengths.unsqueeze(1))
    packed = orlog.episodes(arrays, 64, seed=0, layout="packed").batch(0)
    check(packed.observations)
    check(packed.final_observations)
    reached = orlog.goals(arrays, 64, seed=0).batch(0)
    check(reached.observations)
    check(reached.value_goals)
    stacked = orlog.transitions(arrays, 64, stacks=2, seed=0, n_steps=2).batch(0)
    check(stacked.observations)
    check(stacked.next_observations)
    both = orlog.transitions(arrays, 64, stacks=2, seed=0, stacked=["mission", "arm"]).batch(0)
    check(both.observations)
    pairs = orlog.preferences(arrays, 64, length=2, seed=0).batch(0)
    check(pairs.observations)
    goals = orlog.goals(arrays, 64, seed=0, goal_key="mission").batch(0).value_goals
    assert isinstance(goals, torch.Tensor)
    assert goals.shape == (64,)
    assert set(words_of(arrays, goals)) <= set(WORDS)


def test_codes_are_picked_by_place(dataset):
    """What the guide shows: each distinct text is encoded once."""
    arrays = orlog.load_arrays(dataset)
    codes = torch.tensor([[len(text)] for text in arrays.texts[COLUMN]])
    batch = orlog.transitions(arrays, 16, seed=0).batch(0)
    places = mission_of(batch)
    assert codes[places][:, 0].tolist() == [len(word) for word in words_of(arrays, places)]


def test_a_stream_of_compressed_files_gives_the_same_places(dataset, missions):
    arrays = read_arrays(dataset)
    stream = orlog.transitions(dataset, dataset.total_steps, seed=0, buffer_bytes=2000, stream=True)
    assert stream.mixing.blocks > 2
    for batch in (stream.batch(0), next(iter(stream))):
        found = sorted(words_of(arrays, mission_of(batch)))
        assert found == sorted(word for some in missions for word in some[:-1])
    assert stream.texts == arrays.texts
    loader = DataLoader(orlog.transitions(dataset, 5, seed=0, stream=True), batch_size=None, num_workers=1)
    direct = orlog.transitions(dataset, 5, seed=0, stream=True)
    for batch, expected in zip(loader, [direct.batch(0), direct.batch(1)], strict=False):
        assert torch.equal(mission_of(batch), mission_of(expected))


def test_a_buffer_too_small_for_places_is_refused_with_what_is_needed(dataset):
    needed = 4 * 8 * (dataset.total_steps + dataset.total_episodes)
    with pytest.raises(ValueError, match=rf"small-v1: buffer_bytes must be at least {needed}"):
        orlog.transitions(dataset, 4, seed=0, buffer_bytes=100, stream=True)


def test_an_observation_or_action_may_be_a_text_alone(write, make):
    rng = np.random.default_rng(0)
    episode = make(MISSION, MISSION, length=3, end="cut", rng=rng)
    said = ["go", "stop", "go"]
    seen = ["a", "b", "b", "c"]
    object.__setattr__(episode, "actions", said)
    object.__setattr__(episode, "observations", seen)
    arrays = read_arrays(write([episode], MISSION, MISSION))
    assert arrays.texts == {"observations": ("a", "b", "c"), "actions": ("go", "stop")}
    batch = orlog.transitions(arrays, 32, seed=0).batch(0)
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.next_observations, torch.Tensor)
    found = set(
        zip(
            [arrays.texts["observations"][place] for place in batch.observations.tolist()],
            [arrays.texts["actions"][place] for place in batch.actions.tolist()],
            [arrays.texts["observations"][place] for place in batch.next_observations.tolist()],
            strict=True,
        )
    )
    assert found == {("a", "go", "b"), ("b", "stop", "b"), ("b", "go", "c")}


@pytest.mark.thorough
def test_places_do_not_depend_on_the_order_of_hashes(dataset):
    code = (
        "import sys; from pathlib import Path; from orlog.datasets.reading.dataset import Dataset;"
        "from orlog.loaders import read_arrays; arrays = read_arrays(Dataset(Path(sys.argv[1])));"
        f"print(arrays.texts, arrays.others[{COLUMN!r}].tolist())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(dataset.folder)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    arrays = read_arrays(dataset)
    assert found == {f"{arrays.texts} {arrays.others[COLUMN].tolist()}\n"}


def test_what_is_neither_numbers_nor_text_is_still_refused(write, make):
    space = spaces.Sequence(spaces.Discrete(3))
    rng = np.random.default_rng(0)
    episode = make(spaces.Discrete(3), MOVES, length=2, end="cut", rng=rng)
    object.__setattr__(episode, "observations", [(0, 1), (), (2,)])
    dataset = write([episode], space, MOVES)
    with pytest.raises(SchemaError, match=r"small-v1: column observations is a Sequence"):
        read_arrays(dataset)


def test_more_texts_than_a_pack_holds_are_refused_before_it_appears(dataset, monkeypatch):
    monkeypatch.setattr(packs, "LARGEST_FILE", 100)
    with pytest.raises(SchemaError, match=r"small-v1: .*observations/mission take .*where='ram'"):
        orlog.load_arrays(dataset, "mmap")
    assert not packs.is_packed(dataset)
