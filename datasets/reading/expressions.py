"""Conditions on episodes as text: `returns > 100 and lengths >= 50 and not success`.

| text | meaning |
|---|---|
| `returns`, `column("task/id")` | the columns `episodes/returns`, `episodes/task/id` |
| `episode` | index of the episode |
| `success` | whether it succeeded: its column, else a column of steps with that role says it |
| `1`, `0.5`, `True`, `"door"` | numbers and text |
| `< <= > >= == !=`, `0 < x <= 1`, `x in [1, 2]`, `x not in [..]` | comparisons; text only by `== != in` |
| `contains(task, "door")`, `startswith(..)`, `endswith(..)` | where a text has another in it, at its begin, at its end |
| `and or not`, `+ - * / // % **`, `abs(x)`, `isfinite(x)` | all on whole columns at once |

A comparison with NaN is false, even `!=`; use `isfinite` to find NaN. Integers stay exact integers;
a result that leaves 64 bits is refused. The text is parsed and never run, and its length and
nesting are bounded, so texts from untrusted sources are safe.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
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
    '"text", comparisons, in [..], and, or, not, + - * / // % **, abs(x), isfinite(x), '
    'contains(text, "part"), startswith(text, "part"), endswith(text, "part")'
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
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "contains": operator.contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
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
        mask: np.ndarray = np.broadcast_to(evaluation.condition(_parse(text)), count).copy()
    return mask


def _parse(text: str) -> ast.expr:
    why = f"expected at most {LONGEST} characters, found {len(text)}"
    if len(text) <= LONGEST:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns about odd literals
                tree = ast.parse(text, mode="eval").body
            level: list[ast.AST] = [tree]
            for _ in range(DEEPEST):
                level = [inner for node in level for inner in ast.iter_child_nodes(node)]
            if not level:
                return tree
            why = f"nested more than {DEEPEST} deep (each + and * nests too); shorten it, or write `x in [..]`"
        except SyntaxError as error:
            why = f"character {error.offset or 1}: cannot be read: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            why = f"cannot be read: {str(error) or 'nested too deeply'}"
    raise SchemaError(f"expression {_shorten(text)}: {why}. {ALLOWED}.")


class _Evaluation:
    """Evaluates the nodes of an expression that are in the table, and refuses all others."""

    def __init__(self, text: str, columns: Callable[[str], np.ndarray], names: Collection[str], count: int) -> None:
        self.text, self.names, self.count = text, names, count
        self.columns = functools.cache(columns)

    def error(self, node: ast.AST, problem: str) -> SchemaError:
        line, byte = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        lines = self.text.split("\n")
        first = sum(len(each) + 1 for each in lines[: line - 1]) + len(lines[line - 1].encode()[:byte].decode()) + 1
        part = _shorten(ast.get_source_segment(self.text, node) or "")
        return SchemaError(f"expression {_shorten(self.text)}, character {first} ({part}): {problem}. {ALLOWED}.")

    def value(self, node: ast.expr) -> Value:
        """Return the value of a node; a scalar as Python's, so that it takes the dtype of the column it meets."""
        value = self._value(node)
        plain: Value = value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value
        return plain

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | float() | str() as value):
                return value
            case ast.Constant(value=int() as number) if abs(number) < 2**63:
                return number
            case ast.Name(id="episode"):
                return np.arange(self.count)
            case ast.Name(id=str(name)) | ast.Call(ast.Name("column"), [ast.Constant(value=str(name))], []):
                return self.column(node, name.removeprefix("episodes/"))
            case ast.BoolOp(op=op, values=nodes):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                return functools.reduce(join, map(self.condition, nodes))
            case ast.UnaryOp(op=ast.Not()):
                return np.logical_not(self.condition(node.operand))
            case ast.UnaryOp(op=ast.USub()):
                return self.arithmetic(node, ast.Sub, np.int64(0), self.number(node.operand))
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                if isinstance(op, ast.Pow) and not _is_small(node.right):
                    raise self.error(node, f"an exponent must be a plain number up to {LARGEST_EXPONENT}")
                return self.arithmetic(node, type(op), self.number(node.left), self.number(node.right))
            case ast.Compare(ops=[ast.In() | ast.NotIn() as op], comparators=[members]):
                left: Any = self.value(node.left)
                is_member: Any = False
                for member in self.members(members, _is_text(left)):
                    is_member = is_member | (left == member)
                return is_member if isinstance(op, ast.In) else np.logical_not(is_member) & _is_number(left)
            case ast.Compare(ops=ops) if all(type(op) in _COMPARISONS for op in ops):
                return self.comparison(node)
            case ast.Call(ast.Name("isfinite"), [argument], []):
                return np.isfinite(self.number(argument))
            case ast.Call(ast.Name("abs"), [argument], []):
                operand = self.number(argument)
                if operand.dtype.kind == "i" and operand.min(initial=0) == -(2**63):
                    raise self.error(node, "abs of -2^63 does not fit into a 64-bit whole number")
                return np.abs(operand)
            case ast.Call(ast.Name(name), [subject, ast.Constant(str(part))], []) if name in _TEXTS:
                texts = self.value(subject)
                if not _is_text(texts):
                    raise self.error(node, f"{name} looks into texts, this column has numbers")
                return np.array([_TEXTS[name](text, part) for text in np.atleast_1d(texts).tolist()])
        raise self.error(node, "not allowed here")

    def column(self, node: ast.AST, name: str) -> np.ndarray:
        if name not in self.names:
            known = ", ".join(sorted(self.names))[:1000]
            near = did_you_mean(name, self.names) or "."
            raise self.error(node, f"no column episodes/{name:.100}{near} Columns of episodes here: {known}")
        values = self.columns(name)
        what = f"column episodes/{name}: expected"
        if values.shape != (self.count,):
            raise self.error(node, f"{what} one value per episode, found {values.shape}")
        if values.dtype.kind not in "biufUTO":
            raise self.error(node, f"{what} numbers or text, found {values.dtype}")
        return values

    def condition(self, node: ast.expr) -> np.ndarray | bool:
        value = self.value(node)
        if isinstance(value, bool) or (isinstance(value, np.ndarray) and value.dtype == np.bool_):
            return value
        kind = "text" if _is_text(value) else "a number"
        raise self.error(node, f"this is {kind}, not true or false; compare it with a value")

    def number(self, node: ast.expr) -> np.ndarray:
        """Return a value as int64 or float64, the dtypes of arithmetic."""
        value = self.value(node)
        if _is_text(value):
            raise self.error(node, "this is text, not a number")
        array = np.asarray(value)
        if array.dtype.kind == "u" and array.max(initial=0) >= 2**63:
            raise self.error(node, "whole numbers of 2^63 and more can only be compared")
        return array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)

    def arithmetic(self, node: ast.expr, kind: type[ast.AST], left: Any, right: Any) -> Any:
        compute = _ARITHMETIC[kind]
        if left.dtype.kind == right.dtype.kind == "i" and kind is not ast.Div:
            floats = compute(left.astype(np.float64), right)
            if kind in (ast.FloorDiv, ast.Mod):
                if not right.all():  # integers cannot express a division by zero
                    return floats
            elif np.abs(floats).max(initial=0) >= 2**63 - 2**12:  # floats may be off by 3,072
                raise self.error(node, "the result does not fit into a 64-bit whole number; multiply by 1.0 first")
        return compute(left, right)

    def comparison(self, node: ast.Compare) -> Any:
        result: Any = True
        values = [self.value(each) for each in (node.left, *node.comparators)]
        for op, (left, right) in zip(node.ops, itertools.pairwise(values), strict=True):
            if _is_text(left) != _is_text(right):
                raise self.error(node, "a number is compared with text; write text in quotes and numbers without")
            if _is_text(left) and not isinstance(op, ast.Eq | ast.NotEq):
                raise self.error(node, "text is compared by ==, != or in [..]")
            result = result & _COMPARISONS[type(op)](left, right)
            if isinstance(op, ast.NotEq):
                result = result & _is_number(left) & _is_number(right)
        return result

    def members(self, node: ast.expr, are_texts: bool) -> set[Any]:
        """Return the members of a literal list."""
        try:
            members = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError):
            members = None
        expected = str if are_texts else int | float
        if not isinstance(members, list | tuple | set) or not all(
            isinstance(each, expected) and not (isinstance(each, int) and abs(each) >= 2**63) for each in members
        ):
            kind = "texts" if are_texts else "plain numbers"
            raise self.error(node, f"expected a list of {kind} after `in`, as in [1, 2]")
        return set(members)


def _is_small(node: ast.expr) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) and 0 <= value <= LARGEST_EXPONENT


def _is_text(value: Value) -> bool:
    return value.dtype.kind in "UTO" if isinstance(value, np.ndarray) else isinstance(value, str)


def _is_number(value: Value) -> Any:
    """Return where a value is not NaN."""
    is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return value == value if is_float or isinstance(value, float) else True


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")
