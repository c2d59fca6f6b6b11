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
import dataclasses
import operator
import re
import warnings
from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypeAlias

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

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MEMBERSHIP = (ast.In, ast.NotIn)  # codespell:ignore
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
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


def evaluate(
    expression: str, columns: Callable[[str], np.ndarray], names: Collection[str], count: int
) -> np.ndarray:
    """Return which episodes meet a condition, (count,) bool.

    Args:
        expression: Text as in the table above.
        columns: Returns a column of episodes by its name, `returns`, with one row per episode:
            numbers, or text as `str`. Called once for each name.
        names: Names of the existing columns, without `episodes/`.
        count: Number of episodes.

    Raises SchemaError if the text is not a condition on these columns; the message shows where and why.
    """
    parsed = _parse(expression)
    for name, node in parsed.names.items():
        if name not in names:
            parsed.refuse(
                node,
                f"no column episodes/{name:.100}"
                + (did_you_mean(name, names) or ".")
                + f" Columns of episodes here: {', '.join(sorted(names))[:1000]}",
            )
    values = {
        name: _checked_column(parsed, node, name, columns(name), count)
        for name, node in parsed.names.items()
    }
    with np.errstate(all="ignore"):
        mask = _Evaluation(parsed, values, count).condition(parsed.root)
    return np.array(mask) if isinstance(mask, np.ndarray) else np.full(count, mask)


@dataclasses.dataclass(frozen=True, slots=True)
class _Parsed:
    """A checked expression; `names` maps each column to the first place that names it."""

    text: str
    root: ast.expr
    names: dict[str, ast.AST]

    def refuse(self, node: ast.AST, problem: str) -> NoReturn:
        raise SchemaError(
            f"expression {_shorten(self.text)}, {_place(self.text, node)}: {problem}. {ALLOWED}."
        )


def _parse(expression: str) -> _Parsed:
    text = expression.strip().replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > LONGEST:
        raise SchemaError(
            f"expression {_shorten(text)}: expected at most {LONGEST} characters, found {len(text)}."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about odd literals
            root = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        where = f", character {error.offset}" if error.offset else ""
        # `return` is a word of Python's own, so it never becomes an unknown name.
        hint = "; did you mean returns?" if re.search(r"\breturn\b", text) else "."
        raise SchemaError(
            f"expression {_shorten(text)}{where}: cannot be read: {error.msg}{hint} {ALLOWED}."
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        why = str(error) or "nested too deeply"
        raise SchemaError(
            f"expression {_shorten(text)}: cannot be read: {why}. {ALLOWED}."
        ) from error
    parsed = _Parsed(text, root, {})
    _check(parsed, root, 1)
    return parsed


def _check(parsed: _Parsed, node: ast.expr, depth: int) -> None:
    """Refuse every form that is not in the table, and collect the columns."""
    if depth > DEEPEST:
        raise SchemaError(
            f"expression {_shorten(parsed.text)}: nested more than {DEEPEST} deep (each + and * "
            "nests too); shorten it, or write `x in [..]`."
        )
    inner: list[ast.expr] = []
    match node:
        case ast.Name() if node.id != "episode":
            parsed.names.setdefault(node.id, node)
        case ast.Name():
            pass
        case ast.Constant(value=bool() | float() | str()):
            pass
        case ast.Constant(value=int() as number) if abs(number) < 2**63:
            pass
        case ast.BoolOp():
            inner = node.values
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            inner = [node.operand]
        case ast.BinOp(op=ast.Pow()):
            if not _is_small(node.right):
                parsed.refuse(node, f"an exponent must be a plain number up to {LARGEST_EXPONENT}")
            inner = [node.left]
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            inner = [node.left, node.right]
        case ast.Compare(ops=[op], comparators=[choices]) if isinstance(op, _MEMBERSHIP):
            _choices(parsed, choices)
            inner = [node.left]
        case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
            inner = [node.left, *node.comparators]
        case ast.Call(
            func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]
        ):
            parsed.names.setdefault(_short(name), node)
        case ast.Call(func=ast.Name(id="abs" | "isfinite"), args=[argument], keywords=[]):
            inner = [argument]
        case _:
            operators = [getattr(node, "op", None), *getattr(node, "ops", []), node]
            hints = [_HINTS[type(one)] for one in operators if type(one) in _HINTS]
            parsed.refuse(node, "; ".join(["not allowed here", *hints]))
    for child in inner:
        _check(parsed, child, depth + 1)


def _short(name: str) -> str:
    return name.removeprefix("episodes/")


def _is_small(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and 0 <= node.value <= LARGEST_EXPONENT
    )


def _choices(parsed: _Parsed, node: ast.expr) -> set[Any]:
    """Return the members of a literal list."""
    try:
        members = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        members = None
    plain = isinstance(members, list | tuple | set) and all(
        isinstance(one, str | float) or (isinstance(one, int) and abs(one) < 2**63)
        for one in members
    )
    if not plain:
        parsed.refuse(node, "expected a list of plain numbers or texts after `in`, as in [1, 2]")
    if len({isinstance(one, str) for one in members}) > 1:
        parsed.refuse(node, "the list mixes numbers and text")
    return set(members)


def _checked_column(
    parsed: _Parsed, node: ast.AST, name: str, values: np.ndarray, count: int
) -> np.ndarray:
    if values.ndim > 1:
        parsed.refuse(
            node,
            f"column episodes/{name} has rows of shape {values.shape[1:]}; a condition needs one value per "
            "episode: store the number you need in a column of its own",
        )
    if values.shape != (count,):
        parsed.refuse(node, f"column episodes/{name}: expected {count} rows, found {values.shape}")
    if values.dtype.kind not in "biufUTO":
        parsed.refuse(
            node, f"column episodes/{name}: expected numbers or text, found {values.dtype}"
        )
    return values


@dataclasses.dataclass(frozen=True, slots=True)
class _Evaluation:
    parsed: _Parsed
    columns: dict[str, np.ndarray]
    count: int

    def condition(self, node: ast.expr) -> np.ndarray | bool:
        value = self.value(node)
        if np.asarray(value).dtype.kind != "b":
            self.parsed.refuse(
                node,
                f"this is {'text' if _is_text(value) else 'a number'}, not true or false; compare "
                "it with a value",
            )
        assert isinstance(value, bool | np.ndarray)
        return value

    def value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.Name(id="episode"):
                return np.arange(self.count)
            case (
                ast.Name(id=name)
                | ast.Call(args=[ast.Constant(value=str(name))], func=ast.Name(id="column"))
            ):
                return self.columns[_short(name)]
            case ast.BoolOp():
                return self.all_or_any(node)
            case ast.UnaryOp(op=ast.Not()):
                inner = self.condition(node.operand)
                return ~inner if isinstance(inner, np.ndarray) else not inner
            case ast.UnaryOp():
                return self.arithmetic(node, ast.Sub, 0, self.number(node.operand))
            case ast.BinOp():
                left, right = self.number(node.left), self.number(node.right)
                return self.arithmetic(node, type(node.op), left, right)
            case ast.Compare(ops=[op], comparators=[choices]) if isinstance(op, _MEMBERSHIP):
                negated = not isinstance(op, ast.In)
                return self.membership(node.left, choices, negated=negated)
            case ast.Compare():
                return self.comparison(node)
            case ast.Call(func=ast.Name(id=function), args=[argument]):
                number = self.number(argument)
                if function == "isfinite":
                    return _plain(np.isfinite(number))
                if number.dtype.kind == "i" and number.min(initial=0) == -(2**63):
                    self.parsed.refuse(node, "abs of -2^63 does not fit into a 64-bit whole number")
                return _plain(np.abs(number))
        raise AssertionError(ast.dump(node))

    def all_or_any(self, node: ast.BoolOp) -> Value:
        join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        result: Any = self.condition(node.values[0])
        for child in node.values[1:]:
            result = join(result, self.condition(child))
        return _plain(result)

    def number(self, node: ast.expr) -> np.ndarray:
        """Return a value as int64 or float64, the dtypes of arithmetic."""
        value = self.value(node)
        if _is_text(value):
            self.parsed.refuse(node, "this is text, not a number")
        array = np.asarray(value)
        if array.dtype.kind == "f":
            return array.astype(np.float64, copy=False)
        if array.dtype.kind == "u" and array.max(initial=0) >= 2**63:
            self.parsed.refuse(node, "whole numbers of 2^63 and more can only be compared")
        return array.astype(np.int64, copy=False)

    def arithmetic(self, node: ast.expr, kind: type[ast.operator], left: Any, right: Any) -> Value:
        compute = _ARITHMETIC[kind]
        left, right = np.asarray(left), np.asarray(right)
        if left.dtype.kind == right.dtype.kind == "i" and kind is not ast.Div:
            floats = compute(left.astype(np.float64), right)
            if kind in (ast.FloorDiv, ast.Mod):
                if not right.all():  # integers cannot express a division by zero
                    return _plain(floats)
            elif np.abs(floats).max(initial=0) >= 2**63 - 2**12:  # floats may be off by 3,072
                self.parsed.refuse(
                    node,
                    "the result does not fit into a 64-bit whole number; multiply by 1.0 first",
                )
        return _plain(compute(left, right))

    def comparison(self, node: ast.Compare) -> Value:
        result: Any = True
        left = self.value(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            if _is_text(left) != _is_text(right):
                self.parsed.refuse(
                    node, "a number is compared with text; write text in quotes and numbers without"
                )
            if _is_text(left) and not isinstance(op, ast.Eq | ast.NotEq):
                self.parsed.refuse(node, "text is compared by ==, != or in [..]")
            result = result & _COMPARISONS[type(op)](left, right)
            if isinstance(op, ast.NotEq):
                result = result & _is_number(left) & _is_number(right)
            left = right
        return _plain(result)

    def membership(self, node: ast.expr, choices: ast.expr, *, negated: bool) -> Value:
        value, wanted = self.value(node), _choices(self.parsed, choices)
        if wanted and _is_text(value) != isinstance(next(iter(wanted)), str):
            self.parsed.refuse(choices, "`in` compares numbers with text")
        found: Any
        if isinstance(value, np.ndarray) and _is_text(value):
            found = np.fromiter((one in wanted for one in value.tolist()), bool, self.count)
        elif isinstance(value, np.ndarray):
            found = np.zeros(self.count, bool)
            for one in wanted:
                found |= value == one
        else:
            found = value in wanted
        if not negated:
            return _plain(found)
        return _plain(np.logical_not(found) & _is_number(value))


def _is_text(value: Value) -> bool:
    return value.dtype.kind in "UTO" if isinstance(value, np.ndarray) else isinstance(value, str)


def _is_number(value: Value) -> Any:
    """Return where a value is not NaN."""
    is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return value == value if is_float or isinstance(value, float) else True


def _plain(value: Any) -> Value:
    """Return a scalar as Python's number, so it takes the dtype of the column it meets."""
    single = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    result: Value = value.item() if single else value
    return result


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def _place(text: str, node: ast.AST) -> str:
    line, byte = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    lines = text.split("\n")
    before = sum(len(one) + 1 for one in lines[: line - 1])
    before += len(lines[line - 1].encode()[:byte].decode())
    return f"character {before + 1} ({_shorten(ast.get_source_segment(text, node) or '')})"
