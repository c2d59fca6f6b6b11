from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.datasets.spaces import leaf_spaces, space_from_json, space_to_json
from orlog.errors import SchemaError

FLOATS = st.floats(-1e6, 1e6, width=32)
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    dtype: Any = draw(st.sampled_from([np.float32, np.float64, np.uint8, np.int64]))
    shape = draw(SHAPES)
    if dtype in (np.uint8, np.int64):
        low = np.full(shape, draw(st.integers(0, 9)), dtype)
        high = np.full(shape, draw(st.integers(9, 255)), dtype)
        return spaces.Box(low, high, dtype=dtype)
    size = int(np.prod(shape))
    bounds = st.one_of(FLOATS, st.sampled_from([np.inf, -np.inf]))
    one, two = (
        np.array(draw(st.lists(bounds, min_size=size, max_size=size)), dtype).reshape(shape)
        for _ in range(2)
    )
    low, high = np.minimum(one, two), np.maximum(one, two)
    low = np.where(low == np.inf, 0, low).astype(dtype)
    high = np.where(high == -np.inf, 0, high).astype(dtype)
    return spaces.Box(low, high, dtype=dtype)


PLAIN = st.one_of(
    boxes(),
    st.builds(
        lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-9, 9)
    ),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 9), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 9)),
    st.builds(spaces.MultiBinary, st.lists(st.integers(1, 3), min_size=2, max_size=3)),
)
KEYS = st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True)
SPACES: st.SearchStrategy[gymnasium.Space[Any]] = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.builds(spaces.Dict, st.dictionaries(KEYS, inner, max_size=3)),
        st.builds(spaces.Tuple, st.lists(inner, max_size=3)),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(SPACES)
def test_a_space_is_what_its_json_text_says(space: gymnasium.Space[Any]) -> None:
    text = json.dumps(space_to_json(space), allow_nan=False)
    assert space_from_json(json.loads(text)) == space


@settings(max_examples=30, deadline=None)
@given(SPACES)
def test_leaves_hold_every_number_of_a_value(space: gymnasium.Space[Any]) -> None:
    leaves = dict(leaf_spaces(space, "observations"))
    assert sum(spaces.flatdim(leaf) for leaf in leaves.values()) == spaces.flatdim(space)


def test_leaves_are_named_by_their_path_in_sorted_order() -> None:
    leaf = spaces.Discrete(2)
    space = spaces.Dict({"b": leaf, "a": spaces.Tuple([leaf, spaces.Dict({"c": leaf})])})
    names = [name for name, _ in leaf_spaces(space, "observations")]
    assert names == ["observations/a/0", "observations/a/1/c", "observations/b"]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Dict({"inner": spaces.Text(5)}),
        spaces.Dict({"a/b": spaces.Discrete(2)}),
        spaces.Dict({"..": spaces.Discrete(2)}),
        spaces.Dict({"": spaces.Discrete(2)}),
    ],
    ids=str,
)
def test_a_space_that_cannot_be_stored_is_refused(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(SchemaError, match="cannot"):
        space_to_json(space)


BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "Box",
        {},
        {"type": ["Box"]},
        {"type": "Graph"},
        {"type": "os.system"},
        {**BOX, "extra": 1},
        {key: value for key, value in BOX.items() if key != "high"},
        {**BOX, "shape": 5},
        {**BOX, "shape": [-1]},
        {**BOX, "shape": [2**20, 2**20]},
        {**BOX, "shape": [2**31 + 1]},
        {**BOX, "dtype": "object"},
        {**BOX, "dtype": "S3"},
        {**BOX, "dtype": "float32, float32"},
        {**BOX, "dtype": None},
        {**BOX, "low": 2},
        {**BOX, "low": None},
        {**BOX, "low": "nan"},
        {**BOX, "low": [0, 0, 0]},
        {**BOX, "low": [0, [0]]},
        {**BOX, "dtype": "uint8", "low": -1},
        {"type": "Discrete", "n": 0, "start": 0},
        {"type": "Discrete", "n": 10**30, "start": 0},
        {"type": "MultiDiscrete", "nvec": [0], "start": [0], "dtype": "int64"},
        {"type": "MultiDiscrete", "nvec": "abc", "start": [0], "dtype": "int64"},
        {"type": "MultiBinary", "shape": [-2]},
        {"type": "Tuple", "spaces": 5},
        {"type": "Tuple", "spaces": [5]},
        {"type": "Dict", "spaces": {"a": None}},
    ],
    ids=str,
)
def test_a_malformed_space_is_refused(data: object) -> None:
    with pytest.raises(SchemaError):
        space_from_json(data)
