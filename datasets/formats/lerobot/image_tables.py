"""Images in columns of Arrow, as Hugging Face's datasets have them: PNG or JPEG, `{bytes, path}` in a row."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from orlog.errors import IntegrityError, MissingExtraError, OrlogError, SchemaError


def decoded_images(column: Any, shape: tuple[int, ...], where: str, first: int) -> np.ndarray:
    """Return the images of a column, (rows, height, width, channels) uint8.

    Args:
        column: An array of Arrow.
        shape: Height, width and channels of each.
        where: What errors call the column.
        first: Which row of the file its first one is.

    Raises SchemaError if a row holds no image, or one of another shape; IntegrityError if an image is
    damaged; MissingExtraError if Pillow is not installed.
    """
    found = np.empty((len(column), *shape), np.uint8)
    for row, item in enumerate(column.to_pylist()):
        with _opened(item, f"{where}, row {first + row}") as image:
            size = _size(image)
            if size not in (shape, (*shape, 1)):
                raise SchemaError(
                    f"{where}: expected images of {shape}, found {size} in row {first + row}."
                )
            found[row] = np.asarray(image).reshape(shape)
    return found


def image_size(item: object, where: str) -> tuple[int, int, int]:
    """Return height, width and channels of the image of one row, which is not decoded.

    Raises SchemaError if the row holds no image; IntegrityError if it is damaged; MissingExtraError if Pillow
    is not installed.
    """
    with _opened(item, where) as image:
        return _size(image)


def encoded_images(frames: np.ndarray, where: str) -> Any:
    """Return frames (rows, height, width, channels) uint8 as a column of PNG files.

    Raises MissingExtraError if Pillow is not installed.
    """
    import pyarrow as pa

    image_library = _pillow(where)
    files = []
    for frame in frames:
        file = io.BytesIO()
        pixels = frame[..., 0] if frame.shape[-1] == 1 else frame
        image_library.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
        files.append(file.getvalue())
    names = [f"frame-{number:06d}.png" for number in range(len(files))]
    return pa.StructArray.from_arrays(
        [pa.array(files, pa.binary()), pa.array(names, pa.string())], names=["bytes", "path"]
    )


@contextlib.contextmanager
def _opened(item: object, where: str) -> Iterator[Any]:
    """Open the image of a row; what it says of itself is known, and its pixels come when asked for."""
    library = _pillow(where)
    data = item.get("bytes") if isinstance(item, dict) else None
    if not isinstance(data, bytes):
        raise SchemaError(f"{where} holds no image; images in files are not read.")
    try:
        with library.open(io.BytesIO(data), formats=["PNG", "JPEG"]) as image:
            yield image
    except OrlogError:
        raise
    except (OSError, SyntaxError, ValueError, library.DecompressionBombError) as error:
        raise IntegrityError(f"{where} holds no image: {error}.", file=where) from error


def _size(image: Any) -> tuple[int, int, int]:
    return image.height, image.width, len(image.getbands())


def _pillow(where: str) -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'{where}: holds images, which need Pillow; run: pip install "orlog[images]"',
            extra="images",
        ) from error
    return Image
