"""Maps of depth in LeRobotDatasets, of which all bits are kept, and the parameters that make them metres.

LeRobot 0.6 marks a feature with `is_depth_map` in the `info` that it has in `info.json`, and stores

    a video   numbers of 12 bits in the luma of gray12le or such, and `video.depth_min`, `depth_max`, `shift` and
              `use_log`, of which the first three are metres
    an image  TIFF or PNG of one channel: uint16 of millimeters or float32 of meters, as `depth_unit` says

The parameters are one vector for each camera, the same in all episodes of a set, `episodes/depth/NAME`:

    depth_min, depth_max, shift, use_log, the number that is depth_max

Exports write them so too, with all bits: numbers of a unit as PNG (uint16) or TIFF (float32), others as videos by FFV1,
which unlike H.265 in 12 bits gives back what it got.

https://github.com/huggingface/lerobot/blob/main/src/lerobot/datasets/depth_utils.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from orlog.datasets.formats.lerobot.metadata import Feature
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.videos import import_av
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec

LARGEST = 2**12 - 1  # of LeRobot's videos
DEPTHS, PIXELS = "episodes/depth/", "gray12le"
MORE_BITS = re.compile(r".*(9|10|12|14|16)le")
PARAMETERS = ("depth_min", "depth_max", "shift", "use_log")
TYPES = (np.dtype(np.uint16), np.dtype(np.float32))
UNITS = {"mm": (0.0, 65.535, 0.0, 0.0, 65535.0), "m": (0.0, 1.0, 0.0, 0.0, 1.0)}


def is_deep(feature: Feature) -> bool:
    """Return whether a feature is a map of depth of one channel; one that says it has 8 bits a pixel is a picture."""
    info, old = _said(feature), feature.video_info
    marks = [info.get("is_depth_map"), info.get("video.is_depth_map")]
    marks += [old.get("video.is_depth_map")] if isinstance(old, Mapping) else []
    bits = info.get("video.pix_fmt")
    return (
        any(mark is True for mark in marks)
        and feature.dtype in ("image", "video")
        and len(feature.shape) == 3
        and 1 in (feature.shape[0], feature.shape[2])
        and (not isinstance(bits, str) or MORE_BITS.fullmatch(bits) is not None)
    )


def depth_parameters(feature: Feature, where: str) -> np.ndarray | None:
    """Return the parameters of a map of depth, (5,) float64; None where nothing says how its numbers become metres.

    Raises SchemaError if they are no numbers, or do not fit each other.
    """
    info = _said(feature)
    given = [info.get(f"video.{name}") for name in PARAMETERS]
    if feature.dtype == "image" and given == [None] * len(PARAMETERS):
        unit = UNITS.get(str(info.get("depth_unit")))
        return None if unit is None else np.array(unit)
    numbers = [float(value) for value in given if isinstance(value, int | float) and abs(value) < 1e9]
    if None in given:
        return None
    text = f"{where}: {', '.join(PARAMETERS)} are {given!r:.100}"
    if len(numbers) < len(given):
        raise SchemaError(f"{text}, expected numbers of metres; correct them in meta/info.json.")
    low, high, shift, is_log = numbers
    if not low < high or (is_log and low + shift <= 0):
        raise SchemaError(
            f"{text}; the first must be below the second, and more than -shift where use_log is true: correct them in "
            "meta/info.json."
        )
    return np.array([low, high, shift, float(is_log != 0), LARGEST])


def _said(feature: Feature) -> Mapping[str, Any]:
    return feature.info if isinstance(feature.info, Mapping) else {}


def luma_of(frame: Any, where: str) -> np.ndarray:
    """Return the numbers of a decoded frame of depth, (height, width) uint16, as they were encoded.

    Raises SchemaError if it has 8 bits a pixel, or stores more of them in another way.
    """
    name, bits = frame.format.name, max((part.bits for part in frame.format.components), default=8)
    if not (name.startswith(("gray", "yuv")) and name.endswith("le") and 8 < bits <= 16):
        raise SchemaError(
            f"{where}: its pixels are {name}, expected gray or YUV of 9 to 16 bits, as maps of depth have; to leave out "
            "this video alone, take its feature out of meta/info.json."
        )
    plane = frame.planes[0]
    return np.frombuffer(plane, "<u2").reshape(plane.height, -1)[:, : plane.width]


def luma_frame(numbers: np.ndarray, where: str) -> Any:
    """Return a frame of depth, (height, width) uint16, to encode; a SchemaError if it has greater numbers than LeRobot's."""
    if numbers.max() > LARGEST:
        raise SchemaError(
            f"{where}: {numbers.max()} is no number of a video of depth in LeRobot, which has {LARGEST} at most; a view "
            f"without the column {DEPTHS}.. of its parameters is written as arrays of numbers: select_columns."
        )
    frame = import_av().VideoFrame(numbers.shape[1], len(numbers), PIXELS)
    np.frombuffer(frame.planes[0], "<u2").reshape(len(numbers), -1)[:, : numbers.shape[1]] = numbers
    return frame


def depth_features(dataset: Dataset, columns: Mapping[str, ColumnSpec]) -> dict[str, dict[str, Any]]:
    """Return what `info.json` says of the columns that LeRobot reads as maps of depth, by their names.

    Not of those whose parameters are not the same in all episodes, or mean numbers that no file of LeRobot holds.
    """
    described = {}
    for name, row in dataset.schema.extras.items():
        column = f"observations/{name.removeprefix(DEPTHS)}"
        if not name.startswith(DEPTHS) or row.shape != (5,) or name in dataset.schema.variable:
            continue
        spec, several = columns.get(column), np.unique(dataset.column(name), axis=0)
        if spec is None or spec.dtype not in TYPES or spec.shape[2:] != (1,) or several.shape != (1, 5):
            continue
        low, high, shift, is_log, largest = several[0].tolist()
        unit = next((unit for unit, values in UNITS.items() if [*values] == several[0].tolist()), "")
        info = {"is_depth_map": True, "depth_unit": unit or "m"}
        if not unit:
            if spec.dtype != np.uint16 or largest != LARGEST:
                continue
            values = zip(PARAMETERS, (low, high, shift, is_log != 0), strict=True)
            info |= {"video.pix_fmt": PIXELS, **{f"video.{key}": value for key, value in values}}
        shape = {"shape": [*spec.shape], "names": ["height", "width", "channels"]}
        described[column] = {"dtype": "image" if unit else "video", **shape, "info": info}
    return described
