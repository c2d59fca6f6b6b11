"""What is written comes back, and equal data have equal bytes wherever and however they came."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import tempfile
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import orlog
from orlog import DatasetWriter, Episode
from tests.datasets.recorded_samples import rows_of
from tests.datasets.recording.arms import add_in_pieces, finished
from tests.levels import scaled

pytestmark = [
    pytest.mark.usefixtures("tiny_shards"),
    pytest.mark.filterwarnings("ignore:.*Casting input x"),  # of Gymnasium on scalars in a stack
    pytest.mark.filterwarnings("ignore:.*encountered in"),  # of NumPy on random bits
]

Space = gymnasium.Space[Any]
NAME = "lab/any-v1"
KEYS = st.from_regex(r"[A-Za-z0-9_]{1,4}", fullmatch=True)
NUMBERS = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 1, shape, dtype),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.int64, np.bool_]),
    ),
    st.builds(lambda n, first: spaces.Discrete(n, start=first), st.integers(1, 9), st.integers(-9, 9)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 9), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
)
TEXTS = st.builds(lambda longest: spaces.Text(longest, min_length=0, charset="aé水😀"), st.integers(1, 4))
SIMPLE = st.one_of(NUMBERS, TEXTS)
SPACES = st.recursive(
    st.one_of(
        SIMPLE,
        st.builds(spaces.Graph, NUMBERS, st.one_of(st.none(), NUMBERS)),
        st.builds(spaces.Sequence, SIMPLE, stack=st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(spaces.Dict, st.dictionaries(KEYS, inner, min_size=1, max_size=3)),
        st.builds(spaces.Tuple, st.lists(inner, min_size=1, max_size=3)),
        st.builds(spaces.Sequence, inner),
        st.builds(spaces.OneOf, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=4,
)
DTYPES = st.sampled_from(["bool", "uint8", "int16", "int64", "uint64", "float16", "float64"])
ROWS = st.lists(st.integers(0, 3), max_size=2).map(tuple)
SOME_ROWS = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
# What an author adds: by name, a kind with dtype and shape of its numbers.
NAMES = st.sampled_from(["a", "b.c", "deep/d-e", "F_1"])
INFOS = st.dictionaries(NAMES, st.tuples(st.sampled_from(["array", "text", "variable"]), DTYPES, ROWS), max_size=3)
# Metadata have one length for all episodes, unless they are text. Plain numbers have 64 bits.
METADATA = st.dictionaries(
    NAMES,
    st.one_of(
        st.tuples(st.just("array"), DTYPES, SOME_ROWS),
        st.tuples(st.just("array"), st.sampled_from(["bool", "int64", "float64"]), st.just(())),
        st.tuples(st.just("text"), st.just("uint8"), st.just(())),
    ),
    max_size=3,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """Everything that decides what is recorded."""

    observation_space: Space
    action_space: Space
    infos: dict[str, Any]
    metadata: dict[str, Any]
    lengths: list[int]
    seed: int
    reward_dtype: str


CASES = st.builds(
    Case,
    SPACES,
    SPACES,
    INFOS,
    METADATA,
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.integers(0, 2**31 - 1),
    st.sampled_from(["float32", "float64"]),
)


def random_numbers(rng, dtype, shape):
    """Return any bits that the type allows, infinities and NaN among them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = rng.integers(0, 256, size, np.uint8)
    if dtype == "bool":
        data %= 2
    return data.view(dtype).reshape(shape)


def random_text(rng):
    return "".join(rng.choice(list("xyé水😀\0 \n"), int(rng.integers(0, 5))))


def random_extra(rng, extra, rows):
    kind, dtype, shape = extra
    if kind == "array":
        return random_numbers(rng, dtype, (rows, *shape))
    if kind == "text":
        return [random_text(rng) for _ in range(rows)]
    return [random_numbers(rng, dtype, (int(rng.integers(0, 4)), *shape)) for _ in range(rows)]


def make_episodes(case):
    rng = np.random.default_rng(case.seed)
    case.observation_space.seed(case.seed)
    case.action_space.seed(case.seed)
    episodes = []
    for steps in case.lengths:
        last = np.arange(steps) == steps - 1
        metadata = {}
        for name, extra in case.metadata.items():
            (value,) = random_extra(rng, extra, 1)
            metadata[name] = value.item() if isinstance(value, np.generic) else value
        episodes.append(
            Episode(
                observations=[case.observation_space.sample() for _ in range(steps + 1)],
                actions=[case.action_space.sample() for _ in range(steps)],
                rewards=rng.standard_normal(steps).astype(case.reward_dtype),
                terminations=last & (rng.random() < 0.5),
                truncations=last & (rng.random() < 0.5),
                infos={name: random_extra(rng, one, steps) for name, one in case.infos.items()},
                seed=int(rng.integers(2**63)) if rng.random() < 0.7 else None,
                metadata=metadata,
            )
        )
    return episodes


def assert_same(found, expected):
    """Compare types, shapes and bits, all the way down."""
    if isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert isinstance(found, float)
        assert np.float64(found).tobytes() == np.float64(expected).tobytes()
    else:
        assert type(found) is type(expected)
        assert found == expected


def assert_same_episode(case, found, expected):
    steps = len(expected)
    for name, space, rows in (
        ("observations", case.observation_space, steps + 1),
        ("actions", case.action_space, steps),
    ):
        assert_same(rows_of(space, getattr(found, name), rows), getattr(expected, name))
    for name in ("rewards", "terminations", "truncations", "infos", "seed", "metadata"):
        assert_same(getattr(found, name), getattr(expected, name))


def start(case, container):
    return DatasetWriter(
        NAME,
        observation_space=case.observation_space,
        action_space=case.action_space,
        reward_dtype=case.reward_dtype,
        container=container,  # a parameter of the test
    )


def record(case, episodes, container="zarr", parts=()):
    """Record episodes, in several parts that begin at some of them."""
    edges = [0, *parts, len(episodes)]
    dataset = None
    for first, last in itertools.pairwise(edges):
        writer = start(case, container) if dataset is None else DatasetWriter.append(dataset)
        dataset = finished(writer, episodes[first:last])
    assert dataset is not None
    return dataset


def in_a_home_of_its_own():
    """Return a folder that is ORLOG_HOME from now on; there is one for each example."""
    folder = tempfile.TemporaryDirectory()
    os.environ["ORLOG_HOME"] = folder.name  # the fixture of the test puts it back
    return folder


# Hypothesis runs all examples inside of one test, whose fixtures do not change.
quick = settings(
    max_examples=scaled(30, 3),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
@quick
@given(case=CASES, data=st.data())
def test_any_episodes_come_back_from_one_part_or_several(container, case, data):
    if container == "hdf5":
        pytest.importorskip("h5py")
        pytest.importorskip("orlog.datasets.store.hdf5")
    episodes = make_episodes(case)
    count = len(episodes)
    parts = sorted(data.draw(st.sets(st.integers(1, count - 1), max_size=2))) if count > 1 else []
    with in_a_home_of_its_own():
        dataset = record(case, episodes, container, parts)
        assert len(dataset.manifest.parts) == (len(parts) + 1 if parts else 0)
        assert dataset.observation_space == case.observation_space
        assert dataset.action_space == case.action_space
        assert dataset.episode_lengths.tolist() == case.lengths
        for found, expected in zip(dataset, episodes, strict=True):
            assert_same_episode(case, found, expected)
        order = data.draw(st.lists(st.integers(0, count - 1), max_size=6))
        for found, position in zip(dataset.iterate_episodes(order), order, strict=True):
            assert_same_episode(case, found, episodes[position])
        for found, position in zip(dataset[order], order, strict=True):
            assert_same_episode(case, found, episodes[position])
        for name in dataset.columns:
            whole = dataset.column(name)
            start_ = data.draw(st.integers(0, len(whole)))
            stop = data.draw(st.integers(start_, len(whole)))
            assert_same(dataset.column(name, start_, stop), whole[start_:stop])
            rows = np.random.default_rng(0).integers(0, max(1, len(whole)), min(9, len(whole)))
            assert_same(dataset.rows(name, rows), whole[rows])
        if parts:
            check_columns_of_one_part(case, episodes, dataset)


def check_columns_of_one_part(case, episodes, parts):
    shutil.rmtree(parts.folder.parent / "1.0.0")
    whole = record(case, episodes)
    assert whole.columns == parts.columns
    for name in whole.columns:
        assert_same(parts.column(name), whole.column(name))


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
@settings(quick, max_examples=scaled(15, 3))
@given(case=CASES, data=st.data())
def test_equal_data_have_equal_digests_in_any_pieces(container, case, data):
    if container == "hdf5":
        pytest.importorskip("h5py")
        pytest.importorskip("orlog.datasets.store.hdf5")
    episodes = make_episodes(case)
    with in_a_home_of_its_own():
        expected = record(case, episodes, container).digest
    with in_a_home_of_its_own(), start(case, container) as writer:
        for episode in episodes:
            edges = data.draw(st.sets(st.integers(1, max(1, len(episode) - 1))))
            add_in_pieces(writer, episode, sorted(edges - {len(episode)}))
            if data.draw(st.booleans()):
                writer.checkpoint()
        found = orlog.load_dataset(writer.finish())
        assert found.digest == expected


@settings(quick, max_examples=scaled(8, 3))
@given(case=CASES, data=st.data())
def test_the_order_of_keys_does_not_matter_and_any_value_does(case, data):
    episodes = make_episodes(case)

    def shuffled(values):
        return {key: values[key] for key in data.draw(st.permutations(list(values)))}

    with in_a_home_of_its_own():
        expected = record(case, episodes).digest
    same = [
        dataclasses.replace(episode, infos=shuffled(episode.infos), metadata=shuffled(episode.metadata))
        for episode in episodes
    ]
    with in_a_home_of_its_own():
        assert record(case, same).digest == expected
    position = data.draw(st.integers(0, len(episodes) - 1))
    one = episodes[position]
    rewards = one.rewards.copy()
    step = data.draw(st.integers(0, len(rewards) - 1))
    rewards[step] = np.nextafter(rewards[step], np.inf, dtype=rewards.dtype)
    others = [
        dataclasses.replace(one, rewards=rewards),
        dataclasses.replace(one, seed=17),
        dataclasses.replace(one, truncations=~one.truncations & (np.arange(len(one)) == len(one) - 1)),
    ]
    for other in others:
        with in_a_home_of_its_own():
            changed = [*episodes[:position], other, *episodes[position + 1 :]]
            assert record(case, changed).digest != expected
