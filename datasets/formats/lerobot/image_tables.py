"""Images in columns of Arrow, as Hugging Face's datasets have them: PNG or JPEG, `{bytes, path}` in a row."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.pictures import (
    opened_picture,
    picture_size,
    pillow,
    refuse_deep,
)
from orlog.errors import SchemaError


def decoded_images(column: Any, shape: tuple[int, ...], where: str, first: int) -> np.ndarray:
    """Return the images of a column of Arrow, (rows, height, width, channels) uint8, all of one shape."""
    found = np.empty((len(column), *shape), np.uint8)
    for row, item in enumerate(column.to_pylist()):
        place = f"{where}, row {first + row}"
        with opened_picture(_bytes_of(item, place), place) as image:
            size = picture_size(image)
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
    with opened_picture(_bytes_of(item, where), where) as image:
        return picture_size(image)


def encoded_images(frames: np.ndarray, where: str) -> Any:
    """Return frames (rows, height, width, channels) uint8 as a column of PNG files.

    Raises MissingExtraError if Pillow is not installed.
    """
    import pyarrow as pa

    image_library = pillow(where)
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


def _bytes_of(item: object, where: str) -> bytes:
    data = item.get("bytes") if isinstance(item, dict) else None
    if not isinstance(data, bytes):
        raise SchemaError(f"{where} holds no image; images in files are not read.")
    refuse_deep(data, where)
    return data
