import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.errors import SchemaError
from orlog.manifests.spaces import leaf_spaces, space_from_json, space_to_json
from tests.levels import scaled

FLOATS = st.floats(-1e6, 1e6, width=32)
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw):
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.int64]))
    shape = draw(SHAPES)
    if dtype in (np.uint8, np.int64):
        low = np.full(shape, draw(st.integers(0, 9)), dtype)
        high = np.full(shape, draw(st.integers(9, 255)), dtype)
        return spaces.Box(low, high, dtype=dtype)
    size = int(np.prod(shape))
    floats = st.floats(-6e4, 6e4, width=16) if dtype is np.float16 else FLOATS
    bounds = st.one_of(floats, st.sampled_from([np.inf, -np.inf]))
    one, two = (np.array(draw(st.lists(bounds, min_size=size, max_size=size)), dtype).reshape(shape) for _ in range(2))
    low, high = np.minimum(one, two), np.maximum(one, two)
    low = np.where(low == np.inf, 0, low).astype(dtype)
    high = np.where(high == -np.inf, 0, high).astype(dtype)
    return spaces.Box(low, high, dtype=dtype)


TEXTS = st.builds(
    lambda shortest, more, charset: spaces.Text(shortest + more, min_length=shortest, charset=frozenset(charset)),
    st.integers(0, 3),
    st.integers(0, 9),
    st.text(max_size=5),
)
PLAIN = st.one_of(
    boxes(),
    st.builds(
        lambda n, start, dtype: spaces.Discrete(n, start=start, dtype=dtype),
        st.integers(1, 9),
        st.integers(-9, 9),
        st.sampled_from([np.int64, np.int8, np.int32]),
    ),
    st.builds(
        spaces.MultiDiscrete, st.lists(st.integers(1, 9), min_size=1, max_size=3), st.sampled_from([np.int64, np.uint8])
    ),
    st.builds(spaces.MultiBinary, st.integers(1, 9)),
    st.builds(spaces.MultiBinary, st.lists(st.integers(1, 3), max_size=3)),
    TEXTS,
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=8)
SPACES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.builds(spaces.Dict, st.dictionaries(KEYS, inner, max_size=3)),
        st.builds(spaces.Tuple, st.lists(inner, max_size=3)),
        st.builds(spaces.Sequence, inner, stack=st.booleans()),
        st.builds(spaces.Graph, inner, st.one_of(st.none(), inner)),
        st.builds(spaces.OneOf, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


@settings(max_examples=scaled(150), deadline=None)
@given(SPACES)
def test_a_space_is_what_its_json_text_says(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    assert space_from_json(json.loads(text)) == space


@settings(max_examples=scaled(30), deadline=None)
@given(SPACES)
def test_leaves_hold_every_number_of_a_value(space):
    leaves = dict(leaf_spaces(space, "observations"))
    assert not any(isinstance(leaf, spaces.Dict | spaces.Tuple) for leaf in leaves.values())
    if space.is_np_flattenable:
        assert sum(spaces.flatdim(leaf) for leaf in leaves.values()) == spaces.flatdim(space)


def test_leaves_are_named_by_their_path_in_sorted_order():
    leaf = spaces.Discrete(2)
    space = spaces.Dict({"b": leaf, "a": spaces.Tuple([leaf, spaces.Dict({"c": leaf})])})
    names = [name for name, _ in leaf_spaces(space, "observations")]
    assert names == ["observations/a/0", "observations/a/1/c", "observations/b"]


LEAF = {"type": "Discrete", "n": 2, "start": 0}


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (
            spaces.Box(-np.inf, 0.1, (2,), np.float32),
            ('{"type": "Box", "shape": [2], "dtype": "float32", "low": "-inf", "high": 0.10000000149011612}'),
        ),
        (
            spaces.Box(np.array([0, 1]), np.array([1, 2]), dtype=np.int64),
            '{"type": "Box", "shape": [2], "dtype": "int64", "low": [0, 1], "high": [1, 2]}',
        ),
        (spaces.Discrete(3, start=-1), '{"type": "Discrete", "n": 3, "start": -1}'),
        (spaces.MultiDiscrete([2, 3]), '{"type": "MultiDiscrete", "nvec": [2, 3], "start": [0, 0], "dtype": "int64"}'),
        (spaces.MultiBinary(3), '{"type": "MultiBinary", "shape": [3]}'),
        (spaces.MultiBinary([2, 3]), '{"type": "MultiBinary", "shape": [2, 3]}'),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Discrete(2)])}),
            (
                '{"type": "Dict", "spaces": {"a": {"type": "Tuple", "spaces": [{"type": "Discrete", '
                '"n": 2, "start": 0}]}, "b": {"type": "Discrete", "n": 2, "start": 0}}}'
            ),
        ),
    ],
    ids=str,
)
def test_the_json_of_format_1_stays_byte_for_byte(space, text):
    assert json.dumps(space_to_json(space)) == text


@pytest.mark.parametrize(
    ("space", "data"),
    [
        (
            spaces.Text(5, min_length=2, charset="bé\na"),
            {"type": "Text", "min_length": 2, "max_length": 5, "charset": "\nabé"},
        ),
        (spaces.Sequence(spaces.Discrete(2), stack=True), {"type": "Sequence", "space": LEAF, "stack": True}),
        (spaces.Graph(spaces.Discrete(2), None), {"type": "Graph", "node_space": LEAF, "edge_space": None}),
        (spaces.OneOf([spaces.Discrete(2)]), {"type": "OneOf", "spaces": [LEAF]}),
        (spaces.Discrete(2, dtype=np.uint8), {**LEAF, "dtype": "uint8"}),
        (spaces.MultiBinary([2]), {"type": "MultiBinary", "shape": [2], "listed": True}),
    ],
    ids=str,
)
def test_the_json_of_later_spaces(space, data):
    assert space_to_json(space) == data


@pytest.mark.parametrize("shape", [(64, 64), (64, 64, 1), (9, 9, 4), (5, 5, 12), (0, 3), (3, 0)])
def test_images_of_any_number_of_channels(shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    assert space_from_json(space_to_json(space)) == space


def nested(levels):
    space = spaces.Discrete(2)
    for level in range(levels - 1):
        space = spaces.Tuple([space]) if level % 2 else spaces.Sequence(space)
    return space


def test_32_levels_can_be_nested():
    assert space_from_json(space_to_json(nested(32))) == nested(32)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.Space((), np.float32),
        nested(33),
        spaces.Box(0, 1, (2,), np.dtype(">f4")),
        spaces.Text(5, charset="a\ud800"),
        spaces.Dict({"half of a character \ud800": spaces.Discrete(2)}),
    ],
    ids=lambda space: str(space).partition(" at 0x")[0][:60],  # the same in every process
)
def test_a_space_that_cannot_be_stored_is_refused(space):
    with pytest.raises(SchemaError, match="cannot"):
        space_to_json(space)


BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": 0, "high": 1}
TEXT = {"type": "Text", "min_length": 0, "max_length": 3, "charset": "ab"}
SEQUENCE = {"type": "Sequence", "space": LEAF, "stack": False}
GRAPH = {"type": "Graph", "node_space": LEAF, "edge_space": None}


def many_copies(levels):
    data = LEAF
    for _ in range(levels):
        data = {"type": "Sequence", "space": data, "stack": True}
    return data


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
        {"type": "Tuple", "spaces": {"0": LEAF}},
        {"type": "Tuple", "spaces": [{**BOX, "shape": [2**22]}] * 5},
        {"type": "Tuple", "spaces": [LEAF] * 2**15},
        {"type": "Dict", "spaces": {"a": None}},
        {"type": "Dict", "spaces": {"\ud800": LEAF}},
        {"type": "Dict", "spaces": [LEAF]},
        {**BOX, "dtype": "f4"},
        {**BOX, "dtype": ["float32"]},
        {**BOX, "dtype": "float16", "high": 1e9},
        {**BOX, "dtype": "int64", "high": 1.5},
        {**BOX, "low": False},
        {**BOX, "shape": [10**4000]},
        {**BOX, "shape": [1] * 99},
        {**LEAF, "n": True},
        {**LEAF, "dtype": "float32"},
        {**LEAF, "dtype": "int8", "n": 300},
        {"type": "MultiBinary", "shape": [2, 3], "listed": True},
        {"type": "MultiBinary", "shape": [3], "listed": False},
        {**TEXT, "extra": 1},
        {**TEXT, "charset": "ba"},
        {**TEXT, "charset": "aa"},
        {**TEXT, "charset": ["a", "b"]},
        {**TEXT, "charset": "\ud800"},
        {**TEXT, "min_length": -1},
        {**TEXT, "min_length": 4},
        {**TEXT, "max_length": 2**64},
        {**TEXT, "max_length": 3.0},
        {"type": "Text", "max_length": 3, "charset": "ab"},
        {**SEQUENCE, "stack": 1},
        {**SEQUENCE, "space": None},
        {"type": "Sequence", "space": LEAF},
        many_copies(20),
        {**SEQUENCE, "space": {**BOX, "shape": [2**24]}, "stack": True},
        {**GRAPH, "node_space": None},
        {**GRAPH, "edge_space": []},
        {"type": "Graph", "node_space": LEAF},
        {"type": "OneOf", "spaces": []},
        {"type": "OneOf", "spaces": LEAF},
        {"type": "OneOf", "spaces": [LEAF, 5]},
    ],
    ids=lambda data: str(data)[:60],
)
def test_a_malformed_space_is_refused(data):
    with pytest.raises(SchemaError):
        space_from_json(data)
