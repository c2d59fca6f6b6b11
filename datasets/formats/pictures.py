"""Pictures in files of others: PNG and JPEG, opened without trust in what they say of themselves."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from orlog.errors import IntegrityError, OrlogError, SchemaError, needing

JPEG_START = b"\xff\xd8"
PNG_START = b"\x89PNG"
MOST_PIXELS = 2**26


def pillow(where: str) -> Any:
    """Return PIL.Image.

    Raises MissingExtraError if Pillow is not installed.
    """
    with needing(f"{where}: holds images, which need Pillow", "orlog[formats]"):
        import PIL.Image
    return PIL.Image


@contextlib.contextmanager
def opened_picture(data: bytes, where: str) -> Iterator[Any]:
    """Open a picture; its size is known then, and its pixels come when asked for.

    Raises IntegrityError if it is none, or damaged; MissingExtraError if Pillow is not installed.
    """
    library = pillow(where)
    try:
        # A warning tells of a picture that would take all memory.
        with warnings.catch_warnings(), io.BytesIO(data) as file:
            warnings.simplefilter("error")
            with library.open(file, formats=["PNG", "JPEG"]) as image:
                yield image
    except OrlogError:
        raise
    except (EOFError, OSError, SyntaxError, ValueError, Warning, library.DecompressionBombError) as error:
        raise IntegrityError(f"{where}: holds no PNG or JPEG: {error}.", file=where) from error


def refuse_deep(data: bytes, where: str) -> None:
    """Refuse a picture that would be cut to 8 bits a color.

    Raises SchemaError if it is a PNG of 16.
    """
    if data.startswith(PNG_START) and data[24:25] == b"\x10":
        raise SchemaError(
            f"{where}: a PNG of 16 bits a color, as maps of depth have, would be cut to 8; store it as an array of numbers."
        )


def picture_size(image: Any) -> tuple[int, int, int]:
    """Return height, width and channels."""
    return image.height, image.width, len(image.getbands())


class PictureColumn:
    """Rows that are PNG or JPEG files each, read as frames of one size, (rows, height, width, channels) uint8.

    Attributes:
        shape: Rows, height, width and channels, those of the first picture.
        dtype: uint8.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, rows: Any, where: str) -> None:
        """Take rows that are bytes, or of uint8 with zeros after the picture; the first one says the size.

        Raises SchemaError if it is too large; IntegrityError if it is no picture; MissingExtraError if Pillow
        is not installed.
        """
        self._rows, self._where = rows, where
        with opened_picture(_bytes_of(rows[0:1][0]), f"{where}, row 0") as image:
            size = picture_size(image)
        if size[0] * size[1] > MOST_PIXELS:
            raise SchemaError(f"{where}: frames of {size} are too large.")
        self.shape = (len(rows), *size)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return the frames of rows.

        Raises SchemaError if one has another size; IntegrityError if one is no picture, or damaged.
        """
        start, stop, _ = rows.indices(len(self))
        frames = np.empty((stop - start, *self.shape[1:]), np.uint8)
        for number, row in enumerate(self._rows[start:stop]):
            where = f"{self._where}, row {start + number}"
            refuse_deep(_bytes_of(row), where)
            with opened_picture(_bytes_of(row), where) as image:
                size = picture_size(image)
                if size != self.shape[1:]:
                    raise SchemaError(f"{where}: expected a frame of {self.shape[1:]}, found {size}.")
                frames[number] = np.asarray(image).reshape(size)
        return frames


def begins_a_picture(row: Any) -> bool:
    """Return whether a row, bytes or of uint8, begins as PNG and JPEG files do."""
    return _bytes_of(row[:4]).startswith((JPEG_START, PNG_START))


def _bytes_of(row: Any) -> bytes:
    return row if isinstance(row, bytes) else np.asarray(row, np.uint8).tobytes()
