"""Looks at pickles without running them.

A pickle is a program. Its instructions are read here as `pickletools` lists them, and only lists, dicts, texts and
numbers are put together; what it would call is noted by name. So arrays are known by shape and dtype.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import itertools
import lzma
import math
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

ENDINGS = (".pkl", ".pickle", ".p", ".pt", ".pth", ".joblib")
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zX": "lzma", b"PK\x03\x04": "zip"}
PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".lzma")
MOST_INSTRUCTIONS = 1_000_000
LONGEST_TEXT = 1000
LARGEST_VALUE = 2**28
DEEPEST = 8
MARK = object()
UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError, OSError, EOFError),
    *(lzma.LZMAError, zipfile.BadZipFile),
)


@dataclasses.dataclass
class Array:
    """An array, or one number: its shape and dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """Return shape and dtype in words."""
        return f"{self.dtype} {self.shape}" if self.shape else self.dtype


@dataclasses.dataclass
class Thing:
    """What a pickle would make by a call: the name of what it calls, arguments, state, and what is put in after."""

    name: str
    arguments: Any = ()
    state: Any = None
    items: list[Any] = dataclasses.field(default_factory=list)
    entries: dict[Any, Any] = dataclasses.field(default_factory=dict)


def is_pickle(path: Path) -> bool:
    """Return whether a file is called a pickle, or starts as one of protocol 2 or later does, also if it is packed."""
    name = path.name.lower()
    for ending in PACKED_ENDINGS:
        name = name.removesuffix(ending)
    if path.is_dir() or name.endswith(ENDINGS):
        return not path.is_dir()
    with contextlib.suppress(*UNREADABLE), opened(path) as file:
        head = file.read(2)
        return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5
    return False


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open the pickle in a file: all of it, what it packs, or what lies in the Zip archive that torch writes."""
    how = packing(path)
    if how == "zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/data\.pkl", name)]
            with archive.open(names[0]) as file:
                yield file
        return
    opening: dict[str, Any] = {"gzip": gzip.open, "bz2": bz2.open, "lzma": lzma.open}
    with opening.get(how, open)(path, "rb") as file:
        yield file


def packing(path: Path) -> str:
    """Return the module that unpacks a file, by its first bytes; nothing if it is not packed."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((how for start, how in PACKED.items() if head.startswith(start)), "")


def outline_of(path: Path) -> Outline:
    """Return what the pickle in a file holds, of several in a row the first that holds data.

    Raises one of `UNREADABLE` if it cannot be told.
    """
    with opened(path) as stream:
        while True:
            outline = Outline(stream)
            is_head = isinstance(outline.value, dict) and "little_endian" in outline.value
            if not (is_head or isinstance(outline.value, Array)):  # as torch writes before its data
                return outline


class _Bounded:
    """A stream that is read in pieces that fit into memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, count: int) -> bytes:
        """Read so many bytes; raise ValueError if these are too many."""
        if count > LARGEST_VALUE:
            raise ValueError("too large")
        return self._stream.read(count)

    def readline(self) -> bytes:
        """Read a line; raise ValueError if it is too long."""
        line = self._stream.readline(LARGEST_VALUE)
        if len(line) == LARGEST_VALUE:
            raise ValueError("too large")
        return line


class Outline:
    """What a pickle holds, as far as its first instructions tell.

    Attributes:
        value: Lists, tuples, dicts, texts, `Array` for arrays and numbers, `Thing` for anything else.
        calls: Names of what the pickle would call.
        is_whole: Whether all instructions were looked at.
        is_cut: Whether the file ends before they do.
        is_of_python_2: Whether texts are bytes, as Python 2 wrote them.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        """Follow the instructions; raise ValueError if there are none."""
        self.calls: set[str] = set()
        self.is_whole = self.is_of_python_2 = False
        self._stack: list[Any] = []
        self._memo: dict[Any, Any] = {}
        with contextlib.suppress(*UNREADABLE), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in texts of protocol 0
            for instruction, argument, _ in itertools.islice(
                pickletools.genops(cast("IO[bytes]", _Bounded(stream))), MOST_INSTRUCTIONS
            ):
                self.is_whole = instruction.name == "STOP"
                self._follow(instruction, argument)
                if instruction.name == "BUILD":
                    self._pass_array(stream)
        self.is_cut = not self.is_whole and not stream.read(1)
        while MARK in self._stack:
            self._put(self._above_mark())
        if not self._stack:
            raise ValueError("nothing in it")
        self.value = plain(self._stack[0])

    def _pass_array(self, stream: IO[bytes]) -> None:
        """Pass over the numbers of an array that joblib put behind what describes it."""
        top = self._stack[-1]
        if not isinstance(top, Thing) or not top.name.endswith(".NumpyArrayWrapper"):
            return
        dtype, shape = np.dtype(top.state["dtype"].arguments[0]), top.state["shape"]
        if top.state.get("numpy_array_alignment_bytes") is not None:
            stream.read(stream.read(1)[0])
        left = int(dtype.itemsize * math.prod(shape))
        while left > 0 and (passed := len(stream.read(min(left, 2**20)))):
            left -= passed

    def _above_mark(self) -> list[Any]:
        at = len(self._stack) - 1 - self._stack[::-1].index(MARK)
        above = self._stack[at + 1 :]
        del self._stack[at:]
        return above

    def _put(self, values: list[Any]) -> None:
        """Put values into what is on top: items, or keys and values."""
        into = self._stack[-1]
        if isinstance(into, list):
            into += values
        elif isinstance(into, dict):
            into.update(_entries(values))
        elif isinstance(into, Thing):
            into.items += values
            with contextlib.suppress(TypeError):
                into.entries.update(_entries(values))

    def _call(self, name: Any, arguments: Any) -> None:
        name = name if isinstance(name, str) else "?"
        self.calls.add(name)
        self._stack.append(Thing(name, arguments))

    def _follow(self, instruction: Any, argument: Any) -> None:
        """Follow one instruction; raise IndexError or ValueError if the stack does not hold what it takes."""
        stack, name = self._stack, instruction.name
        if name == "MARK":
            stack.append(MARK)
        elif name in ("APPEND", "SETITEM"):
            values = [stack.pop() for _ in range(1 if name == "APPEND" else 2)]
            self._put(values[::-1])
        elif name in ("APPENDS", "SETITEMS", "ADDITEMS"):
            self._put(self._above_mark())
        elif name in ("LIST", "TUPLE", "DICT", "FROZENSET"):
            above = self._above_mark()
            is_dict = name == "DICT"
            stack.append(_entries(above) if is_dict else above if name == "LIST" else tuple(above))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
        elif name in ("EMPTY_LIST", "EMPTY_SET", "EMPTY_DICT", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": {}, "EMPTY_TUPLE": ()}.get(name, []))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module, thing = argument.split(" ") if argument else (stack.pop(-2), stack.pop())
            stack.append(f"{module}.{thing}")
        elif name in ("REDUCE", "NEWOBJ"):
            arguments = stack.pop()
            self._call(stack.pop(), arguments)
        elif name == "NEWOBJ_EX":
            _, arguments = stack.pop(), stack.pop()
            self._call(stack.pop(), arguments)
        elif name in ("OBJ", "INST"):
            above = self._above_mark()
            called = argument.replace(" ", ".") if argument else above.pop(0)
            self._call(called, tuple(above))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Thing):
                stack[-1].state = state
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else int(argument)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name == "BINPERSID":
            stack.append(Thing("persistent", (stack.pop(),)))
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._above_mark()
        elif name not in ("PROTO", "FRAME", "STOP", "READONLY_BUFFER"):
            self.is_of_python_2 |= name in ("STRING", "BINSTRING", "SHORT_BINSTRING")
            said = {"NEWTRUE": True, "NEWFALSE": False}.get(name, argument)
            is_long = isinstance(said, (str, bytes, bytearray)) and len(said) > LONGEST_TEXT
            stack.append(said[:0] if is_long else said)


def _entries(values: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=False))


def plain(value: Any) -> Any:
    """Return lists, tuples and dicts with arrays and numbers as `Array`; what calls would make of known kinds too.

    What lies deeper than that of any data set, or in itself, becomes None.
    """
    return _plain(value, {}, DEEPEST)


def _plain(value: Any, done: dict[int, Any], deep: int) -> Any:
    if isinstance(value, bool):
        return Array((), "bool")
    if isinstance(value, (int, float)):
        return Array((), type(value).__name__)
    if isinstance(value, (list, tuple, dict, Thing)):
        if id(value) not in done:
            done[id(value)] = None  # where it lies in itself
            done[id(value)] = _plain_of_many(value, done, deep - 1) if deep else None
        return done[id(value)]
    return value


def _plain_of_many(value: Any, done: dict[int, Any], deep: int) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(one, done, deep) for one in value)
    if isinstance(value, dict):
        return {key: _plain(one, done, deep) for key, one in value.items()}
    with contextlib.suppress(*UNREADABLE):
        short, given = value.name.rpartition(".")[2], value.arguments
        if short == "_reconstruct":
            return Array(value.state[1], _dtype(value.state[2]))
        if short == "NumpyArrayWrapper":
            return Array(value.state["shape"], _dtype(value.state["dtype"]))
        if short == "_frombuffer":
            return Array(given[2], _dtype(given[1]))
        if short == "scalar":
            return Array((), _dtype(given[0]))
        if short in ("_rebuild_tensor_v2", "_rebuild_tensor"):
            return Array(tuple(given[2]), "tensor")
        if short == "_rebuild_parameter":
            return _plain(given[0], done, deep)
        if short in ("OrderedDict", "defaultdict"):
            return _plain(value.entries, done, deep)
        if short == "deque":
            return _plain(value.items or list(given[0]), done, deep)
    return value


def _dtype(value: Thing) -> str:
    code = str(value.arguments[0])
    return "objects" if code.startswith("O") else np.dtype(code).name


def in_words(value: Any, deep: int = 0) -> str:
    """Return what a value is, in words."""
    if isinstance(value, dict):
        shown = list(value.items())[:8]
        inner = ", ".join(f"{key!s:.40} ({in_words(one, deep + 1)})" for key, one in shown)
        return f"a dict of {len(value):,}: {inner}" if deep < 3 else "a dict"
    if isinstance(value, tuple) and 0 < len(value) < 9:
        return f"a tuple of {', '.join(in_words(one, deep + 1) for one in value)}"
    if isinstance(value, (list, tuple)) and value:
        kind = "list" if isinstance(value, list) else "tuple"
        inner = f", the first {in_words(value[0], deep + 1)}" if deep < 3 else ""
        return f"a {kind} of {len(value):,}{inner}"
    if isinstance(value, Thing):
        return f"an object of {value.name}"
    return str(value) if isinstance(value, Array) else type(value).__name__
