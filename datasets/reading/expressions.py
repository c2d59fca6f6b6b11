"""Conditions on episodes as text: `returns > 100 and lengths >= 50 and not success`.

| text | meaning |
|---|---|
| `returns`, `column("task/id")` | the columns `episodes/returns`, `episodes/task/id` |
| `episode` | index of the episode |
| `success` | whether it succeeded: its column, else a column of steps with that role says it |
| `1`, `0.5`, `True`, `"door"` | numbers and text |
| `< <= > >= == !=`, `0 < x <= 1`, `x in [1, 2]`, `x not in [..]` | comparisons; text only by `== != in` |
| `and or not`, `+ - * / // % **`, `abs(x)`, `isfinite(x)` | all on whole columns at once |

A comparison with NaN is false, even `!=`; use `isfinite` to find NaN. Integers stay exact integers;
a result that leaves 64 bits is refused. The text is parsed and never run, and its length and
nesting are bounded, so texts from untrusted sources are safe.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np

from orlog.errors import SchemaError
from orlog.manifests.names import did_you_mean

LONGEST = 10_000
DEEPEST = 50
LARGEST_EXPONENT = 16
ALLOWED = (
    'Allowed are names of episode columns, column("any/name"), episode, numbers, True, False, '
    '"text", comparisons, in [..], and, or, not, + - * / // % **, abs(x), isfinite(x)'
)

Value: TypeAlias = "np.ndarray | bool | int | float | str"

_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_HINTS: dict[type[ast.AST], str] = {
    ast.BitAnd: "write `and`",
    ast.BitOr: "write `or`",
    ast.Invert: "write `not`",
    ast.Is: "write `==`",
    ast.IsNot: "write `!=`",
    ast.Attribute: 'write column("name") for a name with other characters',
    ast.NamedExpr: "write `==` to compare",
}


def evaluate(expression: str, columns: Callable[[str], np.ndarray], names: Collection[str], count: int) -> np.ndarray:
    """Return which episodes meet a condition, (count,) bool.

    Args:
        expression: Text as in the table above.
        columns: Returns a column of episodes by its name, `returns`, with one row per episode:
            numbers, or text as `str`. Called once for each name.
        names: Names of the existing columns, without `episodes/`.
        count: Number of episodes.
    """
    text = expression.strip().replace("\r\n", "\n").replace("\r", "\n")
    evaluation = _Evaluation(text, columns, names, count)
    with np.errstate(all="ignore"):
        mask = evaluation.condition(_parse(text), 1)
    return np.array(mask) if isinstance(mask, np.ndarray) else np.full(count, mask)


def _parse(text: str) -> ast.expr:
    why = f"expected at most {LONGEST} characters, found {len(text)}"
    if len(text) <= LONGEST:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns about odd literals
                return ast.parse(text, mode="eval").body
        except SyntaxError as error:
            # `return` is a word of Python's own, so it never becomes an unknown name.
            hint = "; did you mean returns?" if re.search(r"\breturn\b", text) else ""
            why = f"character {error.offset or 1}: cannot be read: {error.msg}{hint}"
        except (ValueError, RecursionError, MemoryError) as error:
            why = f"cannot be read: {str(error) or 'nested too deeply'}"
    raise SchemaError(f"expression {_shorten(text)}: {why}. {ALLOWED}.")


class _Evaluation:
    """Evaluates the nodes of an expression that are in the table, and refuses all others."""

    def __init__(self, text: str, columns: Callable[[str], np.ndarray], names: Collection[str], count: int) -> None:
        self.text, self.columns, self.names, self.count = text, columns, names, count
        self.read: dict[str, np.ndarray] = {}

    def error(self, node: ast.AST, problem: str) -> SchemaError:
        line, byte = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        lines = self.text.split("\n")
        before = [*lines[: line - 1], lines[line - 1].encode()[:byte].decode()]
        part = _shorten(ast.get_source_segment(self.text, node) or "")
        place = f"character {len(chr(10).join(before)) + 1} ({part})"
        return SchemaError(f"expression {_shorten(self.text)}, {place}: {problem}. {ALLOWED}.")

    def value(self, node: ast.expr, depth: int) -> Value:
        """Return the value of a node."""
        if depth > DEEPEST:
            raise SchemaError(
                f"expression {_shorten(self.text)}: nested more than {DEEPEST} deep (each + and * "
                "nests too); shorten it, or write `x in [..]`."
            )
        below = depth + 1
        match node:
            case ast.Constant(value=bool() | float() | str() as value):
                return value
            case ast.Constant(value=int() as number) if abs(number) < 2**63:
                return number
            case ast.Name(id="episode"):
                return np.arange(self.count)
            case ast.Name(id=name):
                return self.column(node, name)
            case ast.Call(ast.Name("column"), [ast.Constant(value=str(name))], []):
                return self.column(node, name.removeprefix("episodes/"))
            case ast.BoolOp(op=op, values=nodes):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                result: Any = self.condition(nodes[0], below)
                for other in nodes[1:]:
                    result = join(result, self.condition(other, below))
                return _plain(result)
            case ast.UnaryOp(op=ast.Not()):
                return _plain(np.logical_not(self.condition(node.operand, below)))
            case ast.UnaryOp(op=ast.USub()):
                return self.arithmetic(node, ast.Sub, 0, self.number(node.operand, below))
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                if isinstance(op, ast.Pow) and not _is_small(node.right):
                    problem = f"an exponent must be a plain number up to {LARGEST_EXPONENT}"
                    raise self.error(node, problem)
                left, right = self.number(node.left, below), self.number(node.right, below)
                return self.arithmetic(node, type(op), left, right)
            case ast.Compare(ops=[ast.In() | ast.NotIn() as op], comparators=[choices]):
                is_negated = isinstance(op, ast.NotIn)
                return self.membership(self.value(node.left, below), choices, is_negated)
            case ast.Compare(ops=ops) if all(type(op) in _COMPARISONS for op in ops):
                return self.comparison(node, below)
            case ast.Call(ast.Name("isfinite"), [argument], []):
                return _plain(np.isfinite(self.number(argument, below)))
            case ast.Call(ast.Name("abs"), [argument], []):
                operand = self.number(argument, below)
                if operand.dtype.kind == "i" and operand.min(initial=0) == -(2**63):
                    raise self.error(node, "abs of -2^63 does not fit into a 64-bit whole number")
                return _plain(np.abs(operand))
        operators = [getattr(node, "op", None), *getattr(node, "ops", []), node]
        hints = [_HINTS[type(part)] for part in operators if type(part) in _HINTS]
        raise self.error(node, "; ".join(["not allowed here", *hints]))

    def column(self, node: ast.AST, name: str) -> np.ndarray:
        """Return a column of episodes, which is read once."""
        if name not in self.names:
            known = ", ".join(sorted(self.names))[:1000]
            near = did_you_mean(name, self.names) or "."
            problem = f"no column episodes/{name:.100}{near} Columns of episodes here: {known}"
            raise self.error(node, problem)
        if name not in self.read:
            values = self.columns(name)
            what = f"column episodes/{name}: expected"
            if values.shape != (self.count,):
                raise self.error(node, f"{what} one value per episode, found {values.shape}")
            if values.dtype.kind not in "biufUTO":
                raise self.error(node, f"{what} numbers or text, found {values.dtype}")
            self.read[name] = values
        return self.read[name]

    def condition(self, node: ast.expr, depth: int) -> np.ndarray | bool:
        value = self.value(node, depth)
        if isinstance(value, bool) or (isinstance(value, np.ndarray) and value.dtype == np.bool_):
            return value
        kind = "text" if _is_text(value) else "a number"
        raise self.error(node, f"this is {kind}, not true or false; compare it with a value")

    def number(self, node: ast.expr, depth: int) -> np.ndarray:
        """Return a value as int64 or float64, the dtypes of arithmetic."""
        value = self.value(node, depth)
        if _is_text(value):
            raise self.error(node, "this is text, not a number")
        array = np.asarray(value)
        if array.dtype.kind == "u" and array.max(initial=0) >= 2**63:
            raise self.error(node, "whole numbers of 2^63 and more can only be compared")
        return array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)

    def arithmetic(self, node: ast.expr, kind: type[ast.AST], left: Any, right: Any) -> Value:
        compute = _ARITHMETIC[kind]
        left, right = np.asarray(left), np.asarray(right)
        if left.dtype.kind == right.dtype.kind == "i" and kind is not ast.Div:
            floats = compute(left.astype(np.float64), right)
            if kind in (ast.FloorDiv, ast.Mod):
                if not right.all():  # integers cannot express a division by zero
                    return _plain(floats)
            elif np.abs(floats).max(initial=0) >= 2**63 - 2**12:  # floats may be off by 3,072
                problem = "the result does not fit into a 64-bit whole number"
                raise self.error(node, f"{problem}; multiply by 1.0 first")
        return _plain(compute(left, right))

    def comparison(self, node: ast.Compare, depth: int) -> Value:
        result: Any = True
        left = self.value(node.left, depth)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, depth)
            if _is_text(left) != _is_text(right):
                problem = "a number is compared with text; write text in quotes and numbers without"
                raise self.error(node, problem)
            if _is_text(left) and not isinstance(op, ast.Eq | ast.NotEq):
                raise self.error(node, "text is compared by ==, != or in [..]")
            result = result & _COMPARISONS[type(op)](left, right)
            if isinstance(op, ast.NotEq):
                result = result & _is_number(left) & _is_number(right)
            left = right
        return _plain(result)

    def membership(self, value: Value, node: ast.expr, is_negated: bool) -> Value:
        wanted = self.choices(node, _is_text(value))
        is_member: Any
        if isinstance(value, np.ndarray) and _is_text(value):
            is_member = np.fromiter((text in wanted for text in value.tolist()), bool, self.count)
        elif isinstance(value, np.ndarray):
            is_member = np.zeros(self.count, bool)
            for number in wanted:
                is_member |= value == number
        else:
            is_member = value in wanted
        if is_negated:
            is_member = np.logical_not(is_member) & _is_number(value)
        return _plain(is_member)

    def choices(self, node: ast.expr, are_texts: bool) -> set[Any]:
        """Return the members of a literal list."""
        try:
            members = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError):
            members = None
        if not isinstance(members, list | tuple | set) or not all(
            isinstance(member, str) if are_texts else _is_plain_number(member) for member in members
        ):
            kind = "texts" if are_texts else "plain numbers"
            raise self.error(node, f"expected a list of {kind} after `in`, as in [1, 2]")
        return set(members)


def _is_plain_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _is_small(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (
        isinstance(node.value, int | float) and 0 <= node.value <= LARGEST_EXPONENT
    )


def _is_text(value: Value) -> bool:
    return value.dtype.kind in "UTO" if isinstance(value, np.ndarray) else isinstance(value, str)


def _is_number(value: Value) -> Any:
    """Return where a value is not NaN."""
    is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return value == value if is_float or isinstance(value, float) else True


def _plain(value: Any) -> Value:
    """Return a scalar as Python's number, so it takes the dtype of the column it meets."""
    is_single = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    result: Value = value.item() if is_single else value
    return result


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")
