"""Pictures that an environment draws here from recorded states of its simulator: rendered, not recorded."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from orlog.base.png import png_bytes
from orlog.datasets.reading.restoring import restore
from orlog.errors import OrlogError, SimulatorError
from orlog.manifests.environments import make_environment
from orlog.viewer.opened import Shown

if TYPE_CHECKING:
    from orlog.datasets.columns.episode import Episode


class Renderer:
    """Renders in one thread, since what simulators draw with belongs to the thread that made it."""

    def __init__(self) -> None:
        """Nothing is made before the first picture is asked for."""
        self._environments: dict[str, Any] = {}
        self._episode = functools.lru_cache(maxsize=1)(_read)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "rendering")

    def png(self, shown: Shown, episode: int, step: int) -> bytes:
        """Return the picture of the state before a step; after the last step, that step is taken again.

        Raises NotFoundError if no state was recorded, or the environment is not known here;
        SimulatorError if the environment may not, or cannot, be made or drawn; MissingExtraError if its
        package is not installed.
        """
        return self._thread.submit(self._png, shown, episode, step).result()

    def _png(self, shown: Shown, episode: int, step: int) -> bytes:
        dataset = shown.dataset
        shown.stored(episode)  # whether there is one
        one = self._episode(shown, episode)
        env = self._environments.get(dataset.digest)
        if env is None:
            env = self._environments[dataset.digest] = _make(shown)
        try:
            is_end = step >= len(one)
            restore(dataset.name, env, one, len(one) - 1 if is_end else step)
            if is_end:
                env.step(_row(one.actions, len(one) - 1))
            picture = np.asarray(env.render())
        except OrlogError:
            raise
        except Exception as error:  # environments run any code and raise anything
            raise SimulatorError(
                f"{dataset.name}: the environment cannot draw on this machine: {type(error).__name__}: "
                f"{error!s:.300}. MuJoCo needs EGL or OSMesa where there is no screen (MUJOCO_GL=egl)."
            ) from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise SimulatorError(
                f"{dataset.name}: the environment draws {picture.dtype} {picture.shape}, no image."
            )
        return png_bytes(picture)


def _read(shown: Shown, episode: int) -> Episode:
    return shown.dataset[episode]


def _make(shown: Shown) -> Any:
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    record = shown.dataset.checked_environment()
    arguments = {**record.kwargs, "render_mode": "rgb_array"}
    return make_environment(record.id, arguments, max_episode_steps=record.max_episode_steps)


def _row(values: Any, row: int) -> Any:
    if isinstance(values, dict):
        return {key: _row(part, row) for key, part in values.items()}
    return values[row]
