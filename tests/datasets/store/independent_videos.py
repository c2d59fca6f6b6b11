"""Frames of columns of videos, by a reader that was written from docs/store-format-1.md alone, without orlog."""

import av
import numpy as np

from tests.datasets.store.independent_reader import need


def frames_of(store, name):
    """Return the rows of a column of videos, each file decoded from its begin to its end."""
    shape = next(one["shape"] for one in store.manifest["columns"] if one["name"] == name)
    index, files = store.columns[name], store.videos_of(name)
    need(((index[:, 0] >= 0) & (index[:, 0] <= len(files))).all(), f"{name}: a file that is not there")
    frames = np.zeros((len(index), *shape), np.uint8)
    need(not index[index[:, 0] == 0].any(), f"{name}: a time in no file")
    for number, path in enumerate(files, 1):
        shown, keys = decoded(store.folder / path, "gray" if shape[2] == 1 else "rgb24")
        for row in np.flatnonzero(index[:, 0] == number):
            _, time, key = index[row].tolist()
            need(time in shown, f"{path}: row {row}: no frame at time stamp {time}")
            need(key == max(one for one in keys if one <= time), f"{path}: row {row}: another key frame")
            need(shown[time].shape[:2] == tuple(shape[:2]), f"{path}: row {row}: another size")
            frames[row] = shown[time].reshape(shape)
    return frames


def decoded(path, pixels):
    """Return the frames of a file by time stamp, and the time stamps of its key frames."""
    shown, keys = {}, set()
    with av.open(str(path)) as container:
        need(len(container.streams.video) == 1, f"{path}: not one stream of video")
        for frame in container.decode(video=0):
            need(not frame.is_corrupt and frame.pts not in shown, f"{path}: a damaged frame, or two at one time")
            shown[frame.pts] = frame.to_ndarray(format=pixels)
            keys |= {frame.pts} if frame.key_frame else set()
    return shown, keys
