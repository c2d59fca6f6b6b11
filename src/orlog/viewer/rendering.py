"""Pictures that an environment draws here: from recorded states of its simulator, or by replaying actions.

A replay resets the environment with the episode's seed and takes the recorded actions. It is what was
recorded only if the environment behaves as it did then, so each observation is compared with the recorded
one, and the first step that differs is told.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from orlog.datasets.audit.replay import difference
from orlog.datasets.columns.episode import options_from_text
from orlog.datasets.looking.leaves import png_bytes
from orlog.datasets.reading.restoring import restore, row_of
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import NotFoundError, OrlogError, SimulatorError
from orlog.viewer.shown import Shown

if TYPE_CHECKING:
    from orlog.datasets.columns.episode import Episode

Source: TypeAlias = Literal["states", "actions", ""]
LONGEST_REPLAY = 100_000
CLOSE_SECONDS = 5


@dataclasses.dataclass
class _Replay:
    """An environment, and how far it has replayed an episode."""

    env: Any
    episode: int = -1
    step: int = 0
    differs: int | None = None


def source_of(shown: Shown, seed: object) -> Source:
    """Return what an episode with a seed can be rendered from; empty if nothing."""
    names = shown.dataset.columns
    if any(name.startswith("infos/state/") for name in names) or "infos/qpos" in names:
        return "states"
    is_known = str(seed).isdecimal()
    return "actions" if is_known and shown.dataset.environment is not None else ""


class Renderer:
    """Renders in one thread, since what simulators draw with belongs to the thread that made it."""

    def __init__(self, *, trust_environment: bool = False) -> None:
        """Nothing is made before the first picture is asked for."""
        self._trust = trust_environment
        self._replays: dict[str, _Replay] = {}
        self._episode = functools.lru_cache(maxsize=1)(lambda shown, episode: shown.dataset[episode])
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "rendering")

    def picture(self, shown: Shown, episode: int, step: int) -> tuple[bytes, dict[str, int]]:
        """Return the picture of the state before a step as PNG; after the last step, that step is taken again.

        With a replay comes `differs`, its first step whose observation is not the recorded one, or `equals`, its
        last step if all observations so far are as recorded.

        Raises NotFoundError if nothing was recorded to render from, or the environment is not known here;
        SimulatorError if the environment may not, or cannot, be made or drawn; MissingExtraError if its
        package is not installed.
        """
        return self._thread.submit(self._picture, shown, episode, step).result()

    def close(self) -> None:
        """End the environments, in the thread that they belong to."""
        for replay in self._replays.values():
            # Some fail when they end; then the process ends them.
            with contextlib.suppress(Exception):
                self._thread.submit(replay.env.close).result(CLOSE_SECONDS)
        self._replays.clear()

    def _picture(self, shown: Shown, position: int, step: int) -> tuple[bytes, dict[str, int]]:
        dataset = shown.dataset
        shown.stored(position)  # whether there is one
        episode = self._episode(shown, position)
        step = min(max(0, step), len(episode))
        source = source_of(shown, episode.seed)
        if not source and dataset.environment is not None:
            raise NotFoundError(
                f"{shown.title}, episode {position}: neither states of the simulator nor the seed of its "
                "reset were recorded, so it cannot be rendered."
            )
        try:
            if dataset.digest not in self._replays:
                self._replays[dataset.digest] = _Replay(self._make(shown))
            replay = self._replays[dataset.digest]
            if source == "states":
                is_end = step == len(episode)
                restore(dataset.name, replay.env, episode, step - 1 if is_end else step)
                if is_end:
                    replay.env.step(row_of(episode.actions, step - 1))
            else:
                _replay(replay, episode, step)
            picture = np.asarray(replay.env.render())
        except OrlogError:
            raise
        except Exception as error:  # environments run any code and raise anything
            raise SimulatorError(
                f"{dataset.name}: the environment cannot draw on this machine: {_words(error)}. MuJoCo needs "
                "EGL or OSMesa where there is no screen (MUJOCO_GL=egl or osmesa)."
            ) from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise SimulatorError(
                f"{dataset.name}: the environment renders {picture.dtype} {picture.shape}, no frame of uint8 (height, width, 3)."
            )
        if source == "states":
            return png_bytes(picture), {}
        differs = replay.differs
        is_equal = differs is None or differs > step
        return png_bytes(picture), {"equals": step} if is_equal else {"differs": differs or 0}

    def _make(self, shown: Shown) -> Any:
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        record = shown.dataset.checked_environment(trust_environment=self._trust)
        arguments = {**record.kwargs, "render_mode": "rgb_array"}
        return make_environment(record.id, arguments, max_episode_steps=record.max_episode_steps)


def _replay(replay: _Replay, episode: Episode, step: int) -> None:
    if step > LONGEST_REPLAY:
        raise SimulatorError(f"more than {LONGEST_REPLAY:,} steps are not replayed.")
    if replay.episode != episode.index or replay.step > step:
        options = options_from_text(episode.metadata.get("options", ""))
        observation, _ = replay.env.reset(seed=episode.seed, options=options)
        replay.episode, replay.step = int(episode.index or 0), 0
        replay.differs = 0 if difference(observation, row_of(episode.observations, 0)).excess > 1 else None
    while replay.step < step:
        observation = replay.env.step(row_of(episode.actions, replay.step))[0]
        replay.step += 1
        recorded = row_of(episode.observations, replay.step)
        if replay.differs is None and difference(observation, recorded).excess > 1:
            replay.differs = replay.step


def _words(error: Exception) -> str:
    """Return type and text of an error, some of whose texts cannot be made."""
    try:
        return f"{type(error).__name__}: {error!s:.300}"
    except Exception:  # noqa: BLE001 (PyOpenGL's raise)
        return type(error).__name__
