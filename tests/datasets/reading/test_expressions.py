import contextlib
import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.datasets.reading.expressions import evaluate
from orlog.errors import SchemaError
from tests.levels import scaled

COLUMNS = {
    "returns": np.array([1.0, 150.0, math.nan, -3.5]),
    "lengths": np.array([10, 50, 60, 7]),
    "success": np.array([False, True, True, False]),
    "small": np.array([0, 1, 200, 255], np.uint8),
    "huge": np.array([0, 2**63, 2**64 - 1, 5], np.uint64),
    "score": np.array([0.1, 0.2, 0.3, np.inf], np.float32),
    "lowest": np.array([-(2**63), 0, 1, 2]),
    "task": np.array(["door", "pen", "door", "relocate"]),
    "task/id": np.array([3, 2, 3, 1], np.int16),
    "goal": np.zeros((4, 2)),
    "short": np.zeros(3),
    "raw": np.array([b"a", b"b", b"c", b"d"]),
}


def chosen(expression):
    mask = evaluate(expression, COLUMNS.__getitem__, COLUMNS.keys(), 4)
    assert mask.dtype == bool
    assert mask.shape == (4,)
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("returns > 100 and lengths >= 50 and success", [1]),
        ("success", [1, 2]),
        ("not success", [0, 3]),
        ("not (success or lengths < 8)", [0]),
        ("True", [0, 1, 2, 3]),
        ("1 > 2", []),
        ("not 1 > 2", [0, 1, 2, 3]),
        ("episode >= 2", [2, 3]),
        ("episode % 2 == 0", [0, 2]),
        ("0 < lengths <= 50", [0, 1, 3]),
        ("0 < lengths <= 50 != lengths", [0, 3]),
        ("lengths in [7, 50, 50.5, -1]", [1, 3]),
        ("task == 'door'", [0, 2]),
        ("task in ['pen', 'relocate']", [1, 3]),
        ("task not in ['pen', 'relocate']", [0, 2]),
        ('column("task/id") == 3', [0, 2]),
        ('column("episodes/task/id") == 3', [0, 2]),
        ("contains(task, 'o')", [0, 2, 3]),
        ("startswith(task, 'pe') or endswith(task, 'r')", [0, 1, 2]),
        ("not contains(task, '') or endswith(task, '\\ud800')", []),
        ("contains('door', 'oo')", [0, 1, 2, 3]),
        ("abs(returns) < 4", [0, 3]),
        ("isfinite(returns)", [0, 1, 3]),
        ("returns != 1", [1, 3]),
        ("returns not in [1]", [1, 3]),
        ("score == 0.1", [0]),
        ("small - 1 < 0", [0]),
        ("small + 1 == 256", [3]),
        ("small == 300", []),
        ("huge > 9223372036854775807", [1, 2]),
        ("huge in [5]", [3]),
        ("lengths ** 2 == 49", [3]),
        ("lengths ** 0.5 > 7.5", [2]),
        ("2 ** 16 * 2 ** 15 * 2 ** 16 * 2 ** 15 + 1 > 0", [0, 1, 2, 3]),
        ("lengths % 0 == 0", []),
        ("lengths % episode == 0", [1, 2]),
        ("success + success == 2", [1, 2]),
        ("(lengths\n > 8\r\n and success)", [1, 2]),
    ],
)
def test_a_condition_chooses_episodes(expression, expected):
    assert chosen(expression) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("returns", r"character 1 \('returns'\): this is a number, not true or false"),
        ("returns and success", r"'returns'\): this is a number"),
        ("lengths > 3 and returned > 5", r"character 17 \('returned'\): no column episodes/returned"),
        ("returned > 5", r"did you mean returns\? Columns of episodes here: goal, huge"),
        ("goal > 0", r"expected one value per episode, found \(4, 2\)"),
        ("short > 0", r"expected one value per episode, found \(3,\)"),
        ("raw == 'a'", "expected numbers or text"),
        ("task > 'a'", "text is compared by"),
        ("returns == '1'", "a number is compared with text"),
        ("returns in ['1']", "a list of plain numbers"),
        ("task in ['a', 1]", "a list of texts"),
        ("returns in [None]", "a list of plain numbers"),
        ("returns in lengths", "a list of plain numbers"),
        ("returns in [1j]", "a list of plain numbers"),
        ("1 in [1] in [True]", "not allowed here"),
        ("task + 'a' == 'b'", r"'task'\): this is text, not a number"),
        ("(returns > 1) & (lengths > 2)", "not allowed here"),
        ("~success", "not allowed here"),
        ("task.id == 1", "not allowed here"),
        ("success = True", "cannot be read"),
        ("", "cannot be read"),
        ("2 ** 1000 == 1", "an exponent must be a plain number up to 16"),
        ("lengths * 9223372036854775807 > 0", "does not fit into a 64-bit whole number"),
        ("abs(lowest) > 0", r"abs of -2\^63 does not fit"),
        ("huge + 1 > 0", r"2\^63 and more can only be compared"),
        ("lengths == 9223372036854775808", "not allowed here"),
        ("column(task) == 1", "not allowed here"),
        ("contains(returns, '1')", "looks into texts"),
        ("contains(task, task)", "not allowed here"),
        ("contains(task, 1)", "not allowed here"),
        ("__import__('os').system('true')", "not allowed here"),
        ("[success for x in [1]]", "not allowed here"),
        ("returns[0] > 1", "not allowed here"),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_its_place(expression, message):
    with pytest.raises(SchemaError, match=message) as caught:
        chosen(expression)
    assert str(caught.value).startswith("expression ")
    assert "Allowed are names of episode columns" in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000,
        "(" * 150 + "success" + ")" * 150,
        "-" * 9990 + "1",
        "not " * 2400 + "success",
        "1" + "+1" * 4990 + " > 2",
        "1" + "<1" * 4990,
        "[" * 4990 + "]" * 4990,
        "a" + ".a" * 4990,
        "a" + "(a" * 3000,
        "abs(" * 60 + "returns" + ")" * 60 + " > 0",
        "success and " * 800 + "success",
        "x" * 10_001,
        "success" + " " * 20_000 + "and success",
        "returns in [" + "1," * 4900 + "]",
        "returns in " + "[" * 90 + "]" * 90,
    ],
    ids=lambda text: text[:20],
)
def test_long_and_deep_texts_end_soon(expression):
    outcome = []

    def run():  # a thread has the smallest stack
        try:
            outcome.append(str(chosen(expression)))
        except SchemaError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=run)
    start = time.process_time()
    thread.start()
    thread.join()
    assert len(outcome[0]) < 2000
    assert time.process_time() - start < 5


WORDS = st.sampled_from(["returns", "lengths", "success", "task", "episode", "column('task/id')", "1", "0.5", "-2", "'door'", "True", "and", "or", "not", "in", "<", "<=", "==", "!=", "+", "-", "*", "/", "//", "%", "**", "(", ")", "[", "]", ",", "abs(", "isfinite(", "contains(", "endswith(", ".", ":", "=", "#", ";", "lambda", "é", "not in", '\n', '\\'])  # fmt: skip


@settings(max_examples=scaled(300), deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=12).map(" ".join)))
def test_any_text_gives_a_mask_or_an_error_of_its_kind(expression):
    with contextlib.suppress(SchemaError):
        chosen(expression)


NUMBERS = st.sampled_from(["returns", "lengths", "small", "episode", "3", "0.5", "abs(returns)"])
SUMS = st.recursive(
    NUMBERS, lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map("({0[0]} {0[1]} {0[2]})".format),
    max_leaves=4,
)  # fmt: skip
COMPARISONS = st.tuples(SUMS, st.sampled_from(["<", "<=", ">", ">=", "=="]), SUMS).map(" ".join)
CONDITIONS = st.recursive(
    st.one_of(COMPARISONS, st.just("success")),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map("({0[0]} {0[1]} {0[2]})".format),
        inner.map("(not {})".format),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=scaled(200), deadline=None)
@given(CONDITIONS)
def test_conditions_mean_what_they_mean_in_python(expression):

    expected = [
        episode
        for episode in range(4)
        if eval(  # our own text, which stands for the meaning of the language
            expression,
            {
                "episode": episode,
                **{name: COLUMNS[name][episode].item() for name in ("returns", "lengths", "small", "success")},
            },
        )
    ]
    assert chosen(expression) == expected


def test_each_column_is_read_once():
    read = []

    def column(name):
        read.append(name)
        return COLUMNS[name]

    evaluate("0 < returns < 5 and returns * returns < 9 or column('returns') > 7 or success",
             column, COLUMNS.keys(), 4)  # fmt: skip
    assert sorted(read) == ["returns", "success"]
