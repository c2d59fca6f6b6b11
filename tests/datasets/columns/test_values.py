import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.datasets.columns.values import concatenate_blocks, flatten, slice_block, space_columns, unflatten
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec
from tests.datasets.recorded_samples import rows_of
from tests.levels import scaled

Space = gymnasium.Space[Any]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
INTEGERS = st.sampled_from([np.int8, np.int32, np.int64])
KEYS = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 1, shape, dtype),
        SHAPES,
        st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.int64, np.bool_]),
    ),
    st.builds(
        lambda n, start, dtype: spaces.Discrete(n, start=start, dtype=dtype),
        st.integers(1, 9),
        st.integers(-9, 9),
        INTEGERS,
    ),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 9), min_size=1, max_size=3), INTEGERS),
    st.builds(spaces.MultiBinary, st.one_of(st.integers(1, 4), st.lists(st.integers(1, 3), min_size=1, max_size=2))),
)
TEXTS = st.builds(
    lambda shortest, more, charset: spaces.Text(shortest + more, min_length=shortest, charset=frozenset(charset)),
    st.integers(0, 2),
    st.integers(0, 5),
    # Gymnasium drops NUL when it draws.
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=5),
)


def part_of(inner, least):
    """Return Dict and Tuple spaces of at least some parts."""
    return st.one_of(
        st.builds(spaces.Dict, st.dictionaries(KEYS, inner, min_size=least, max_size=3)),
        st.builds(spaces.Tuple, st.lists(inner, min_size=least, max_size=3)),
    )


# Gymnasium itself cannot count a stack of empty Dict spaces.
FEATURES = st.one_of(NUMBERS, TEXTS, part_of(st.one_of(NUMBERS, TEXTS), 1))
SPACES = st.recursive(
    st.one_of(
        FEATURES,
        st.builds(spaces.Graph, FEATURES, st.one_of(st.none(), FEATURES)),
        st.builds(spaces.Sequence, FEATURES, stack=st.just(True)),
    ),
    lambda inner: st.one_of(
        part_of(inner, 0),
        st.builds(spaces.Sequence, inner),
        st.builds(lambda space: spaces.Sequence(spaces.Sequence(space), stack=True), inner),
        st.builds(spaces.OneOf, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=4,
)


def draw_samples(space, seed, rows):
    space.seed(seed)
    return [space.sample() for _ in range(rows)]


def assert_same(found, expected):
    if isinstance(expected, np.ndarray | np.generic):
        assert isinstance(found, np.ndarray | np.generic)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.mark.filterwarnings("ignore:.*Casting input x")  # of Gymnasium on scalars in a stack
@settings(max_examples=scaled(200), deadline=None)
@given(SPACES, st.integers(0, 2**31 - 1), st.integers(0, 5))
def test_values_come_back_as_they_were(space, seed, rows):
    samples = draw_samples(space, seed, rows)
    columns = unflatten(space, "actions", flatten(space, "actions", samples, rows))
    assert_same(rows_of(space, columns, rows), samples)
    for found, sample in zip(rows_of(space, columns, rows), samples, strict=True):
        assert space.contains(found) or not space.contains(sample)


@settings(max_examples=scaled(150), deadline=None)
@given(SPACES, st.integers(0, 2**31 - 1), st.integers(0, 5))
def test_columns_are_taken_as_they_are_given_back(space, seed, rows):
    block = flatten(space, "actions", draw_samples(space, seed, rows), rows)
    again = flatten(space, "actions", unflatten(space, "actions", block), rows)
    assert_same(again, block)


def episodes_block(space, samples, lengths):
    return {
        "episodes/lengths": np.array(lengths, np.int64),
        **flatten(space, "observations", samples, sum(lengths) + len(lengths)),
        **flatten(space, "actions", samples[: sum(lengths)], sum(lengths)),
        "rewards": np.arange(sum(lengths), dtype=np.float64),
    }


@settings(max_examples=scaled(150), deadline=None)
@given(SPACES, st.integers(0, 2**31 - 1), st.lists(st.integers(1, 3), max_size=4), st.data())
def test_blocks_are_sliced_and_concatenated_by_episodes(space, seed, lengths, data):
    samples = draw_samples(space, seed, sum(lengths) + len(lengths))
    block = episodes_block(space, samples, lengths)
    first = data.draw(st.integers(0, len(lengths)))
    last = data.draw(st.integers(first, len(lengths)))
    edges = [0, first, last, len(lengths)]
    pieces = [slice_block(block, np.array(lengths, np.int64), *edge) for edge in itertools.pairwise(edges)]
    start, stop = sum(lengths[:first]), sum(lengths[:last])
    middle = flatten(space, "observations", samples[start + first : stop + last], stop - start + last - first)
    middle |= flatten(space, "actions", samples[start:stop], stop - start)
    assert_same({name: pieces[1][name] for name in middle}, middle)
    np.testing.assert_array_equal(pieces[1]["rewards"], np.arange(start, stop))
    assert_same(concatenate_blocks(pieces), block)


def test_columns_of_nested_spaces():
    space = spaces.Dict(
        {
            "word": spaces.Text(5),
            "graph": spaces.Graph(spaces.Box(0, 1, (3,)), spaces.Discrete(4)),
            "many": spaces.Sequence(spaces.Tuple([spaces.MultiBinary(2)])),
            "any": spaces.OneOf([spaces.Discrete(2), spaces.Text(3)]),
        }
    )
    integer, byte = np.dtype(np.int64), np.dtype(np.uint8)
    assert space_columns(space, "o") == [
        ColumnSpec("o/any@choice", integer, ()),
        ColumnSpec("o/any@option0@offsets", integer, ()),
        ColumnSpec("o/any@option0@values", integer, ()),
        ColumnSpec("o/any@option1@offsets", integer, ()),
        ColumnSpec("o/any@option1@values@offsets", integer, ()),
        ColumnSpec("o/any@option1@values@values", byte, ()),
        ColumnSpec("o/graph@nodes@offsets", integer, ()),
        ColumnSpec("o/graph@nodes@values", np.dtype(np.float32), (3,)),
        ColumnSpec("o/graph@links@offsets", integer, ()),
        ColumnSpec("o/graph@links@values", integer, (2,)),
        ColumnSpec("o/graph@edges@offsets", integer, ()),
        ColumnSpec("o/graph@edges@values", integer, ()),
        ColumnSpec("o/many@offsets", integer, ()),
        ColumnSpec("o/many@values/0", np.dtype(np.int8), (2,)),
        ColumnSpec("o/word@offsets", integer, ()),
        ColumnSpec("o/word@values", byte, ()),
    ]


def test_no_edges_are_none():
    space = spaces.Graph(spaces.Discrete(3), spaces.Discrete(2))
    empty = np.zeros(0, np.int64)
    graph = spaces.GraphInstance(np.array([1, 2]), empty, np.zeros((0, 2), np.int32))
    (found,) = unflatten(space, "actions", flatten(space, "actions", [graph], 1))
    assert_same(found, spaces.GraphInstance(np.array([1, 2]), None, None))


BOX = spaces.Box(0, 1, (2,))
GRAPH = spaces.Graph(spaces.Discrete(3), spaces.Discrete(2))
NODES = np.array([0, 1])
EDGE = np.array([1])
DICT = spaces.Dict({"a": spaces.Discrete(2), "b": BOX})
STACK = spaces.Sequence(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}), stack=True)


def graph(nodes, edges, links):
    if links is not None:
        links = np.array(links, np.int32)
    return [spaces.GraphInstance(NODES, None, None), spaces.GraphInstance(nodes, edges, links)]


@pytest.mark.parametrize(
    ("space", "values", "message"),
    [
        (BOX, np.zeros((2, 2)), r"expected float32 \(2, 2\), found float64 \(2, 2\)"),
        (BOX, np.zeros((3, 2), np.float32), r"expected float32 \(2, 2\), found float32 \(3, 2\)"),
        (BOX, [np.zeros(2, np.float32), np.zeros(2)], r"row 1: expected float32 \(2,\), found flo"),
        (BOX, "ab", "found str 'ab'"),
        (spaces.Discrete(5), np.array([0, 5]), "row 1: expected 0 to 4, found 5"),
        (spaces.Discrete(5), [0, True], "row 1: expected int64 .* found bool True"),
        (spaces.Discrete(9, start=120, dtype=np.uint8), [128, 0], "expected 120 to 128, found 0"),
        (spaces.MultiDiscrete([2, 3]), np.array([[1, 2], [1, 3]]), "row 1: .* 0 to 2, found 3"),
        (spaces.Text(3), ["ab", "a b"], "row 1: expected characters of .*, found ' '"),
        (spaces.Text(3), ["a\ud800", "ab"], r"row 0: .* found '\\ud800'"),
        (spaces.Text(3, charset="a\ud800"), ["a", "a\ud800"], r"row 1: .* UTF-8 .*'\\ud800'"),
        (spaces.Sequence(BOX), [(), np.zeros((1, 2))], "row 1: expected a tuple of samples"),
        (spaces.Sequence(BOX, stack=True), [np.zeros(2, np.float32)] * 2, "row 0: expected float"),
        (STACK, [{"a": NODES, "b": EDGE}, {"a": EDGE, "b": NODES}], "values/b: .* as many"),
        (DICT, {"a": NODES}, r"expected the keys \['a', 'b'\], found \['a'\]"),
        (DICT, [{"a": 1, "b": np.zeros(2, np.float32)}, {"a": 1}], "row 1: expected the keys"),
        (spaces.OneOf([BOX]), [(0, np.zeros(2, np.float32)), (1, 0)], "row 1: .* 0 to 0, found 1"),
        (spaces.OneOf([BOX]), [0, (0, 0)], "row 0: expected a pair"),
        (GRAPH, graph(None, None, None), "nodes@values, row 1: expected int64 .* NoneType"),
        (GRAPH, graph(NODES, EDGE, [[0, 2]]), "row 1: expected links to its 2 nodes, found 2"),
        (GRAPH, graph(NODES, EDGE, [[0, 1], [1, 1]]), "row 1: expected as many links as edges"),
        (GRAPH, graph(NODES, None, [[0, 1]]), "row 1: expected edges with links"),
        (spaces.Graph(BOX, None), graph(NODES, EDGE, [[0, 1]]), "row 1: expected None for edges"),
        (gymnasium.Space((2,), np.float32), EDGE, "a Space space cannot be stored"),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],  # the same in every process
)
def test_what_does_not_fit_is_refused(space, values, message):
    with pytest.raises(SchemaError, match=f"column actions.*{message}"):
        flatten(space, "actions", values, 2)


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (spaces.Discrete(2), np.zeros(2, np.int64)),
        (spaces.Discrete(2), [0, 1]),
        (spaces.Text(2), ["a", "b"]),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": np.zeros(2, np.int64)}),
    ],
    ids=str,
)
def test_a_missing_last_observation_is_explained(space, values):
    with pytest.raises(SchemaError, match="one row more than actions"):
        flatten(space, "observations", values, 3)
    with pytest.raises(SchemaError) as raised:
        flatten(space, "actions", values, 3)
    assert "one row more" not in str(raised.value)


@pytest.mark.parametrize(
    ("space", "changes", "error"),
    [
        (spaces.Text(3), {"p@offsets": [2, 1]}, SchemaError),
        (spaces.Text(3), {"p@offsets": [-1, 2]}, SchemaError),
        (spaces.Text(3), {"p@offsets": [1, 9]}, SchemaError),
        (spaces.Text(3), {"p@values": [255, 255]}, UnicodeDecodeError),
        (spaces.Sequence(BOX), {"p@offsets": [1, 3]}, SchemaError),
        (spaces.OneOf([BOX]), {"p@choice": [0, 1]}, SchemaError),
        (spaces.OneOf([BOX]), {"p@option0@offsets": [0, 2]}, SchemaError),
        (GRAPH, {"p@links@values": [[0, 1], [0, 9]]}, SchemaError),
        (GRAPH, {"p@edges@offsets": [0, 2]}, SchemaError),
    ],
    ids=str,
)
def test_columns_that_do_not_agree_are_refused(space, changes, error):
    values = {
        spaces.Text: ["a", "b"],
        spaces.Sequence: [(np.zeros(2, np.float32),)] * 2,
        spaces.OneOf: [(0, np.zeros(2, np.float32))] * 2,
        spaces.Graph: [spaces.GraphInstance(NODES, EDGE, np.array([[0, 1]]))] * 2,
    }
    block = flatten(space, "p", values[type(space)], 2)
    block |= {name: np.array(rows, block[name].dtype) for name, rows in changes.items()}
    with pytest.raises(error):
        unflatten(space, "p", block)
