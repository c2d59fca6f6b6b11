"""`tf.train.Example`, the message in which TensorFlow's datasets hold a record, without TensorFlow.

    Example { features = 1 { feature = 1 { key = 1; value = 2 { bytes_list = 1 | float_list = 2 | int64_list = 3
        { value = 1, repeated } } } } }

A record can be larger than memory: it is walked in its file, and a feature's values are read some at a time,
from the first to the last. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from orlog.datasets.formats.rlds.tfrecord_files import Span
from orlog.errors import IntegrityError

Kind = Literal["bytes", "float", "int64"]
KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
NUMBERS: dict[Kind, int] = {kind: number for number, kind in KINDS.items()}
LONGEST_NUMBER = 10
LONGEST_KEY = 4096
LARGEST_VALUE = 2**28
MOST_OTHERS = 1000
READ_AT_ONCE = 2**16
VARINT, EIGHT_BYTES, BLOCK, FOUR_BYTES = 0, 1, 2, 5


class Feature(NamedTuple):
    """Where the values of a feature lie; `kind` is empty where it has none of any kind."""

    kind: Kind | Literal[""]
    span: Span


def read_example(
    file: BinaryIO, span: Span, wanted: Collection[str], where: str, others: set[str] | None = None
) -> dict[str, Feature]:
    """Return where the wanted features of a record lie, and add the names of all others.

    Raises IntegrityError if it is no `tf.train.Example`, or has a feature twice.
    """
    message = _Message(file, where)
    found: dict[str, Feature] = {}
    for number, features in message.blocks(span):
        if number != 1:
            raise message.error("it holds a SequenceExample, or no Example of TensorFlow")
        for _, entry in message.blocks(features, only=1):
            key, value = message.entry(entry)
            if key not in wanted:
                if others is not None and len(others) < MOST_OTHERS:
                    others.add(key)
                continue
            if key in found:
                raise message.error(f"it has the feature {key} twice")
            found[key] = message.feature(value)
    return found


class _Message:
    """Walks the fields of messages in a file, and stays inside of them."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where

    def error(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self._where}: {what}.", file=self._where)

    def read(self, start: int, count: int) -> bytes:
        self._file.seek(start)
        data = self._file.read(count)
        if len(data) < count:
            raise self.error("the file ends inside of it")
        return data

    def field(self, span: Span) -> tuple[int, int, Span]:
        """Return number, wire type and value of the field at the start of a span."""
        start, stop = span
        head = self.read(start, min(2 * LONGEST_NUMBER, stop - start))
        tag, used = (head[0], 1) if head and head[0] < 0x80 else self._varint(head, 0)
        number, wire = tag >> 3, tag & 7
        place = start + used
        if wire == BLOCK:
            length, after = self._varint(head, used)
            place = start + after
        elif wire == VARINT:
            length = self._varint(head, used)[1] - used
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            length = 8 if wire == EIGHT_BYTES else 4
        else:
            raise self.error(f"a field has the unknown wire type {wire}")
        if number == 0 or length > stop - place:
            raise self.error("a field is longer than the message around it, or has no number")
        return number, wire, (place, place + length)

    def blocks(self, span: Span, *, only: int = 0) -> Iterator[tuple[int, Span]]:
        """Yield number and place of all fields that are blocks of bytes; all others are none of ours."""
        place, stop = span
        while place < stop:
            number, wire, value = self.field((place, stop))
            if wire != BLOCK or (only and number != only):
                raise self.error(f"a field {number} of wire type {wire} is not expected there")
            yield number, value
            place = value[1]

    def entry(self, span: Span) -> tuple[str, Span]:
        """Return key and value of an entry of the map."""
        parts = dict(self.blocks(span))
        if not parts.keys() <= {1, 2}:
            raise self.error("an entry of features has more than key and value")
        start, stop = parts.get(1, (0, 0))
        if stop - start > LONGEST_KEY:
            raise self.error("the name of a feature is too long")
        try:
            key = self.read(start, stop - start).decode()
        except UnicodeDecodeError as error:
            raise self.error("the name of a feature is no text") from error
        return key, parts.get(2, (0, 0))

    def feature(self, span: Span) -> Feature:
        lists = list(self.blocks(span))
        if not lists:
            return Feature("", span)
        ((number, place), *more) = lists
        if more or number not in KINDS:
            raise self.error("a feature holds no list of values, or several")
        return Feature(KINDS[number], place)

    def _varint(self, data: bytes, start: int) -> tuple[int, int]:
        """Return the number at a place, and where it ends."""
        value = shift = 0
        for place, byte in enumerate(data[start : start + LONGEST_NUMBER], start + 1):
            if byte < 0x80:
                return value | byte << shift, place
            value |= (byte & 0x7F) << shift
            shift += 7
        raise self.error("a number is not ended")


class Values:
    """The values of a feature, read from the first to the last."""

    def __init__(self, file: BinaryIO, feature: Feature, where: str) -> None:
        """Begin at the first value."""
        self.kind = feature.kind
        self._message = _Message(file, where)
        self._place, self._stop = feature.span
        self._run_stop = self._place  # of the packed numbers that are being read
        self._held = np.empty(0, np.int64)  # integers that were decoded and not yet taken
        self._split = b""  # the first bytes of an integer whose other ones were not read yet

    def numbers(self, count: int) -> np.ndarray:
        """Return the next numbers, as float32 or int64.

        Raises IntegrityError if there are fewer, or they are no numbers.
        """
        if self.kind == "bytes":
            raise self._message.error("expected numbers, found bytes")
        # Checked first, so that nothing large is made for values that are not there.
        left = self._stop - self._place
        if count > (left // 4 if self.kind == "float" else left + len(self._held)):
            raise self._fewer()
        return self._floats(count) if self.kind == "float" else self._integers(count)

    def all_numbers(self) -> np.ndarray:
        """Return all numbers that are left."""
        one = self._some_floats if self.kind == "float" else self._some_integers
        parts = [np.empty(0, np.float32 if self.kind == "float" else np.int64)]
        while len(part := one(READ_AT_ONCE)):
            parts.append(part)
        return np.concatenate(parts)

    def left_numbers(self) -> int:
        """Return how many numbers are left, and go past them."""
        if self.kind == "bytes":
            raise self._message.error("expected numbers, found bytes")
        one = self._some_floats if self.kind == "float" else self._some_integers
        return sum(iter(lambda: len(one(READ_AT_ONCE)), 0))

    def left_bytes(self) -> int:
        """Return how many values of bytes are left, and go past them."""
        count = 0
        while self._place < self._stop:
            self.one_bytes(skip=True)
            count += 1
        return count

    def one_bytes(self, *, skip: bool = False) -> bytes:
        """Return the next value that is bytes; nothing if it is skipped.

        Raises IntegrityError if there is none, or it is too large.
        """
        if self.kind != "bytes" or self._place >= self._stop:
            raise self._fewer()
        number, wire, (start, stop) = self._message.field((self._place, self._stop))
        if number != 1 or wire != BLOCK:
            raise self._message.error("a list of bytes holds something else")
        self._place = stop
        if skip:
            return b""
        if stop - start > LARGEST_VALUE:
            raise self._message.error(f"a value of {stop - start:,} bytes is too large")
        return self._message.read(start, stop - start)

    def check_end(self) -> None:
        """Refuse values that are left.

        Raises IntegrityError if there are some.
        """
        is_left = bool(len(self._held) or self._split)
        if self.kind == "bytes":
            is_left |= self._place < self._stop
        elif self.kind:
            is_left |= self._open_run(FOUR_BYTES if self.kind == "float" else VARINT)
        if is_left:
            raise self._message.error("it holds more values than steps")

    def _fewer(self) -> IntegrityError:
        return self._message.error("it holds fewer values than steps, or values of another kind")

    def _floats(self, count: int) -> np.ndarray:
        return self._gather(count, self._some_floats, np.float32)

    def _integers(self, count: int) -> np.ndarray:
        return self._gather(count, self._some_integers, np.int64)

    def _gather(
        self, count: int, some: Callable[[int], np.ndarray], dtype: type[np.generic]
    ) -> np.ndarray:
        found = np.empty(count, dtype)
        done = 0
        while done < count:
            part = some(count - done)
            if not len(part):
                raise self._fewer()
            found[done : done + len(part)] = part
            done += len(part)
        return found

    def _open_run(self, single: int) -> bool:
        """Go to the next packed numbers, or the next one; return False at the end."""
        while self._place == self._run_stop:
            if self._place >= self._stop:
                return False
            number, wire, (start, stop) = self._message.field((self._place, self._stop))
            if number != 1 or wire not in (BLOCK, single):
                raise self._message.error("a list of numbers holds something else")
            self._place, self._run_stop = start, stop
        return True

    def _some_floats(self, most: int) -> np.ndarray:
        if not self._open_run(FOUR_BYTES):
            return np.empty(0, np.float32)
        left = self._run_stop - self._place
        if left % 4:
            raise self._message.error("a list of float32 holds parts of one")
        size = min(left, 4 * most)
        self._place += size
        return np.frombuffer(self._message.read(self._place - size, size), "<f4")

    def _some_integers(self, most: int) -> np.ndarray:
        while not len(self._held):
            if not self._open_run(VARINT):
                return self._held
            size = min(self._run_stop - self._place, READ_AT_ONCE)
            data = self._split + self._message.read(self._place, size)
            self._place += size
            self._held, self._split = self._decoded(data)
            if self._place == self._run_stop and self._split:
                raise self._message.error("an integer is not ended")
        part, self._held = self._held[:most], self._held[most:]
        return part

    def _decoded(self, data: bytes) -> tuple[np.ndarray, bytes]:
        """Return the integers of bytes, and the bytes of one that goes on after them."""
        array = np.frombuffer(data, np.uint8)
        if (array < 0x80).all():  # flags and small numbers
            return array.astype(np.int64), b""
        stops = np.flatnonzero(array < 0x80) + 1
        used = int(stops[-1]) if len(stops) else 0
        starts = np.append(0, stops[:-1]) if len(stops) else stops
        lengths = stops - starts
        if lengths.max(initial=0) > LONGEST_NUMBER or len(data) - used >= LONGEST_NUMBER:
            raise self._message.error("an integer has more than 10 bytes")
        values = np.zeros(len(stops), np.uint64)
        for place in range(int(lengths.max(initial=0))):
            longer = np.flatnonzero(lengths > place)
            part = (array[starts[longer] + place] & 0x7F).astype(np.uint64)
            values[longer] |= part << np.uint64(7 * place)
        return values.view(np.int64), data[used:]


def example_bytes(features: Mapping[str, np.ndarray | Sequence[bytes]]) -> bytes:
    """Return an Example of flat arrays of floats or integers, or lists of bytes, in the order of their names."""
    parts = []
    for key, values in sorted(features.items()):
        if not isinstance(values, np.ndarray):
            kind: Kind = "bytes"
            body = b"".join(_block(1, one) for one in values)
        elif not len(values):
            kind, body = ("float" if values.dtype.kind == "f" else "int64"), b""
        elif values.dtype.kind == "f":
            kind, body = "float", _block(1, values.astype("<f4").tobytes())
        else:
            kind, body = "int64", _block(1, _varints(values.astype(np.int64)))
        feature = _block(NUMBERS[kind], body)
        parts.append(_block(1, _block(1, key.encode()) + _block(2, feature)))
    return _block(1, b"".join(parts))


def _block(number: int, data: bytes) -> bytes:
    head = bytearray([number << 3 | BLOCK])
    length = len(data)
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data


def _varints(values: np.ndarray) -> bytes:
    """Return int64 as protobuf packs them: 7 bits a byte, lowest first, negative ones as uint64."""
    left = np.ascontiguousarray(values).view(np.uint64)
    table = np.empty((len(left), LONGEST_NUMBER), np.uint8)
    is_used = np.zeros(table.shape, bool)
    is_used[:, 0] = True
    for place in range(LONGEST_NUMBER):
        after = left >> np.uint64(7)
        more = after > 0
        table[:, place] = (left & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        if place + 1 < LONGEST_NUMBER:
            is_used[:, place + 1] = more
        if not more.any():
            break
        left = after
    return table[is_used].tobytes()
