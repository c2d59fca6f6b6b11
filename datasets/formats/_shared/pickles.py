"""Looks at pickles without running them, and says how a user who trusts one turns it into npz.

A pickle is a program. `_Outline` reads its instructions as Python does, and puts only lists, dicts, texts and numbers
together: whatever it would call is a `Thing` with a name, so that arrays are known by shape and dtype.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import math
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import numpy as np

ENDINGS = (".pkl", ".pickle", ".p", ".pt", ".pth", ".joblib")
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zX": "lzma", b"PK\x03\x04": "zip"}
PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".lzma")
MOST_READ = 2**22  # bytes of instructions that are looked at
LONGEST_VALUE = 2**20  # longer ones, such as the numbers of arrays, are passed over
DEEPEST = 3
UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError, OSError, EOFError, MemoryError),
    *(OverflowError, lzma.LZMAError, zipfile.BadZipFile, pickle.UnpicklingError),
)
NUMPY_OR_PLAIN = {"numpy", "torch", "collections", "builtins", "__builtin__", "copyreg", "copy_reg"}
NUMPY_OR_PLAIN |= {"_codecs", "__main__", "pandas", "joblib", "functools", "datetime"}
BY_HAND = (
    "Where you trust it, read it with the library that wrote it, and save arrays with a row for each step: "
    "np.savez('data.npz', observations=.., actions=.., rewards=.., terminals=.., timeouts=..). "
    "Then: orlog import data.npz NAME"
)


def is_pickle(path: Path) -> bool:
    """Return whether a file is called a pickle, or starts as one of protocol 2 or later does, also if it is packed."""
    name = path.name.lower()
    for ending in PACKED_ENDINGS:
        name = name.removesuffix(ending)
    if path.is_dir() or name.endswith(ENDINGS):
        return not path.is_dir()
    with contextlib.suppress(*UNREADABLE), _opened(path) as file:
        head = file.read(2)
        return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5
    return False


def about_pickle(dataset: str, file: Path) -> str:
    """Return that a file is a pickle, what it holds, and lines that write that as npz, or as Parquet."""
    if not file.stat().st_size:
        return f"{dataset}: {file.name} is empty; get this file again."
    text = f"{dataset}: {file.name} is a pickle, and reading a pickle runs the program in it, so it is not read."
    try:
        outline = _outline_of(file)
    except UNREADABLE:
        return (
            f"{dataset}: {file.name} is called a pickle, or begins as one, and is damaged or something else. A pickle "
            f"is not read, since reading it runs the program in it. {BY_HAND}"
        )
    if outline.is_cut:
        return f"{dataset}: {file.name} is a pickle that is cut off; get the whole file. {BY_HAND}"
    far = "" if outline.is_whole else ", as far as was looked,"
    is_table = isinstance(outline.value, Thing) and outline.value.name.startswith("pandas.")
    made = "data.parquet" if is_table else "data.npz"
    lines = _load(file, outline)
    lines += (
        [f"data.to_parquet({made!r})"]
        if is_table
        else ["from orlog.datasets.unpickled import save_rows", f"save_rows(data, {made!r})"]
    )
    program = "".join(f"    {line}\n" for line in lines)
    foreign = sorted({name.partition(".")[0] for name in outline.calls} - NUMPY_OR_PLAIN)
    where = f", where {' and '.join(foreign)} can be imported" if foreign else ""
    return (
        f"{text} It holds{far} {_in_words(outline.value)}. Where you trust it, convert it yourself{where}:\n"
        f"{program}Then: orlog import {made} NAME"
    )


def _load(file: Path, outline: _Outline) -> list[str]:
    """Return the lines that read a file into `data`."""
    name, how = repr(file.name), _packing(file)
    if how == "zip" or file.name.endswith((".pt", ".pth")):
        foreign = [one for one in outline.calls if not one.startswith(("torch.", "collections."))]
        return [
            "import torch",
            f"data = torch.load({name}, map_location='cpu', weights_only={not foreign})",
        ]
    if file.name.lower().endswith(".joblib") or any("joblib" in one for one in outline.calls):
        return ["import joblib", f"data = joblib.load({name})"]
    classes = [
        f"class {one[9:]}(tuple): __new__ = lambda cls, *values: tuple.__new__(cls, values)"
        for one in sorted(outline.calls)
        if one.startswith("__main__.")
    ]
    opening = f"{how}.open({name})" if how else f"open({name}, 'rb')"
    encoding = ", encoding='latin1'" if outline.is_of_python_2 else ""
    return [
        f"import {how}, pickle" if how else "import pickle",
        *classes,
        f"with {opening} as file: data = pickle.load(file{encoding})",
    ]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open the pickle in a file: all of it, what it packs, or what lies in the Zip archive that torch writes."""
    how = _packing(path)
    if how == "zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/data\.pkl", name)]
            with archive.open(names[0]) as file:
                yield file
        return
    opening: dict[str, Any] = {"gzip": gzip.open, "bz2": bz2.open, "lzma": lzma.open}
    with opening.get(how, open)(path, "rb") as file:
        yield file


def _packing(path: Path) -> str:
    """Return the module that unpacks a file, by its first bytes; nothing if it is not packed."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((how for start, how in PACKED.items() if head.startswith(start)), "")


def _outline_of(path: Path) -> _Outline:
    """Return what the pickle in a file holds, of several in a row the first that holds data.

    Raises one of `UNREADABLE` if it cannot be told.
    """
    with _opened(path) as stream:
        while True:
            outline = _Outline(_Bounded(stream))
            is_head = isinstance(outline.value, dict) and "little_endian" in outline.value
            if not (is_head or isinstance(outline.value, int)):  # as torch writes before its data
                return outline


class Thing:
    """What a pickle would make by a call of `name`: arguments, state, and what is put in after."""

    name = ""
    arguments: tuple[Any, ...]
    state: Any
    items: list[Any]

    def __new__(cls, *arguments: Any, **_named: Any) -> Self:
        """Keep the arguments."""
        thing = super().__new__(cls)
        thing.arguments, thing.state, thing.items = arguments, None, []
        return thing

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        """Do nothing."""

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.state = state

    def append(self, value: Any) -> None:
        """Keep an item."""
        self.items.append(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep a value."""
        self.items.append((key, value))

    add = append


class _Bounded:
    """A stream of which so much is read; long values are passed over."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, MOST_READ

    def read(self, count: int) -> bytes:
        if count > LONGEST_VALUE:
            self.skip(count)
            return b""
        return self._counted(self._stream.read(count))

    def readline(self) -> bytes:
        return self._counted(self._stream.readline(self._left + 1))

    def readinto(self, buffer: bytearray) -> int:
        self.skip(len(buffer))
        return len(buffer)

    def skip(self, count: int) -> None:
        """Pass over so many bytes; raise EOFError if there are fewer."""
        while count > 0:
            passed = len(self._stream.read(min(count, LONGEST_VALUE)))
            if not passed:
                raise EOFError
            count -= passed

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise OverflowError("more than is looked at")
        return data


class _Outline(pickle._Unpickler):
    """What a pickle holds, as far as its first instructions tell.

    Attributes:
        value: Lists, tuples, dicts, texts and numbers, and `Thing` for all else.
        calls: Names of what the pickle would call.
        is_whole: Whether all instructions were looked at.
        is_cut: Whether the file ends before they do.
        is_of_python_2: Whether texts are bytes, as Python 2 wrote them.
    """

    stack: list[Any]
    metastack: list[list[Any]]

    def __init__(self, stream: _Bounded) -> None:
        """Follow the instructions; raise ValueError if there are none."""
        super().__init__(stream, encoding="latin1")
        self.calls: set[str] = set()
        self.is_whole = self.is_cut = self.is_of_python_2 = False
        self._stream = stream
        with contextlib.suppress(*UNREADABLE):
            self.value = self.load()
            self.is_whole = True
            return
        with contextlib.suppress(OverflowError):
            self.is_cut = not stream.read(1)
        stacks = [*getattr(self, "metastack", []), getattr(self, "stack", [])]
        while len(stacks) > 1:  # what was not yet put in
            above = stacks.pop()
            into = stacks[-1][-1] if stacks[-1] else None
            if isinstance(into, list):
                into += above
            elif isinstance(into, dict):
                into.update(zip(above[::2], above[1::2], strict=False))
        if not stacks[0]:
            raise ValueError("nothing in it")
        self.value = stacks[0][0]

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that stands for what has this name, which is not looked up."""
        self.calls.add(f"{module}.{name}")
        return type("Thing", (Thing,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        """Return what stands for a storage of torch."""
        return Thing(pid)

    def get_extension(self, code: int) -> None:
        """Refuse names that only this process knows."""
        raise pickle.UnpicklingError(code)

    def _decode_string(self, value: bytes) -> str:
        self.is_of_python_2 = True
        return value.decode("latin1")

    def _build(self) -> None:
        """Keep the state of what is on top; pass over the numbers of an array that joblib put behind it."""
        state = self.stack.pop()
        top = self.stack[-1]
        if isinstance(top, Thing):
            top.state = state
            if top.name.endswith(".NumpyArrayWrapper"):
                size = np.dtype(state["dtype"].arguments[0]).itemsize * math.prod(state["shape"])
                if state.get("numpy_array_alignment_bytes") is not None:
                    size += self._stream.read(1)[0]
                self._stream.skip(size)

    dispatch: ClassVar[Any] = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: _build}


def _in_words(value: Any, deep: int = 0) -> str:
    """Return what a value is, in words."""
    with contextlib.suppress(*UNREADABLE):
        if isinstance(value, Thing):
            return _thing_in_words(value, deep)
    if isinstance(value, Thing):
        return f"an object of {value.name}"
    if isinstance(value, dict):
        shown = list(value.items())[:8] if deep < DEEPEST else ()
        inner = ", ".join(f"{key!s:.40} ({_in_words(one, deep + 1)})" for key, one in shown)
        return f"a dict of {len(value):,}: {inner}" if shown else "a dict"
    if isinstance(value, list | tuple) and value and deep < DEEPEST:
        if isinstance(value, tuple) and len(value) < 9:
            return f"a tuple of {', '.join(_in_words(one, deep + 1) for one in value)}"
        kind = type(value).__name__
        return f"a {kind} of {len(value):,}, the first {_in_words(value[0], deep + 1)}"
    return type(value).__name__


def _thing_in_words(thing: Thing, deep: int) -> str:
    """Return an array by its dtype and shape, a container by what it holds; raise one of `UNREADABLE` for others."""
    kind, given = thing.name.rpartition(".")[2], thing.arguments
    dtype: Thing | str
    if kind in ("OrderedDict", "defaultdict"):
        return _in_words(dict(thing.items), deep)
    if kind == "deque":
        return _in_words(thing.items or list(given[0]), deep)
    if kind == "_rebuild_parameter":
        return _in_words(given[0], deep)
    if kind in ("_rebuild_tensor_v2", "_rebuild_tensor"):
        dtype, shape = "tensor", given[2]
    elif kind == "_reconstruct":
        dtype, shape = thing.state[2], thing.state[1]
    elif kind == "NumpyArrayWrapper":
        dtype, shape = thing.state["dtype"], thing.state["shape"]
    elif kind == "_frombuffer":
        dtype, shape = given[1], given[2]
    elif kind == "scalar":
        dtype, shape = given[0], ()
    else:
        raise ValueError(kind)
    if isinstance(dtype, Thing):
        code = str(dtype.arguments[0])
        dtype = "objects" if code.startswith("O") else np.dtype(code).name
    return f"{dtype} {tuple(shape)}" if shape else dtype
