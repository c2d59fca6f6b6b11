"""Films the worst, the median and the best episode of an evaluation.

The evaluation runs once more, with the same seeds side by side, since a policy's last bits depend on what it acts on
together; frames are only rendered of the chosen episodes. Their returns are compared with the evaluation's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np

from orlog.algos.training.data import EVALUATING, one_thread, seeded
from orlog.algos.training.evaluating import LoadedRun, run_protocol
from orlog.algos.training.runs import Evaluation
from orlog.base.files import put_in_place, storage_errors, unfinished_folder
from orlog.datasets.looking.leaves import as_picture
from orlog.errors import SimulatorError, needing

VIDEOS = Path("videos")
LIST = "videos.json"
FRAMES_PER_SECOND = 30
QUALITY = {"crf": "20", "preset": "fast"}  # of H.264; edges of small pictures stay clear


class Video(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filmed episode.

    Attributes:
        kind: `worst`, `median` or `best` by return.
        file: Name of the file in the run's folder `videos`.
        episode: Number of the episode in the evaluation, from 0.
        seed: Seed of its reset.
        step: Gradient steps that the policy had taken.
        frames: Frames: one before each action, and the last.
        returned: Undiscounted return of the filmed episode.
        evaluated: Return of the same episode in the evaluation.
    """

    kind: str
    file: str
    episode: int
    seed: int
    step: int
    frames: int
    returned: float
    evaluated: float


def chosen_episodes(returns: np.ndarray) -> dict[str, int]:
    """Return the numbers of the worst, the median and the best episode; of equal ones the first.

    Fewer than three episodes have fewer kinds: the best, and the worst of two.
    """
    order = np.argsort(returns, kind="stable")
    kinds = {"best": int(np.flatnonzero(returns == returns.max())[0])}
    if len(returns) > 1:
        kinds = {"worst": int(order[0]), **kinds}
    if len(returns) > 2:
        kinds["median"] = int(order[(len(order) - 1) // 2])
    return kinds


def film(run: LoadedRun, evaluation: Evaluation, progress: Callable[[int], None] = lambda _done: None) -> list[Video]:
    """Film episodes of an evaluation into the run's folder `videos`, in place of earlier ones.

    `progress` is told the number of episodes done.

    Raises MissingExtraError if PyAV is not installed; SimulatorError if the environment renders no frames here;
    StorageError if the disk is full.
    """
    check_video()
    chosen = chosen_episodes(np.array(evaluation.returns))
    protocol = evaluation.protocol
    count = (max(chosen.values()) // protocol.environments + 1) * protocol.environments
    shorter = msgspec.structs.replace(protocol, episodes=min(count, protocol.episodes))
    place = run.folder / VIDEOS
    with storage_errors(place), unfinished_folder(place) as folder:
        films = {}
        for episode in {*chosen.values()}:
            kinds = "-".join(kind for kind in chosen if chosen[kind] == episode)
            films[protocol.first_seed + episode] = _Film(folder / f"{kinds}-episode-{episode}.mp4")
        with contextlib.ExitStack() as stack, one_thread(), seeded(run.kind, run.record.seed, EVALUATING):
            for each in films.values():
                stack.callback(each.close)
            run_protocol(
                run.policy,
                shorter,
                progress,
                wrap=lambda env: _Filmed(env, films),
                arguments={"render_mode": "rgb_array"},
            )
        made = []
        for kind, episode in sorted(chosen.items(), reverse=True):
            seed = protocol.first_seed + episode
            made.append(
                Video(
                    kind=kind,
                    file=films[seed].path.name,
                    episode=episode,
                    seed=seed,
                    step=evaluation.step,
                    frames=films[seed].frames,
                    returned=films[seed].returned,
                    evaluated=evaluation.returns[episode],
                )
            )
        (folder / LIST).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2))
        put_in_place(folder, place)
    return made


def read_videos(folder: Path) -> list[Video]:
    """Return the videos of a run; none if it was not filmed, or the list of them is damaged."""
    try:
        listed = msgspec.json.decode((folder / VIDEOS / LIST).read_bytes(), type=list[Video])
    except (OSError, msgspec.DecodeError):
        return []
    return [one for one in listed if Path(one.file).name == one.file]


def check_video() -> None:
    """Check that videos can be written; choose how MuJoCo and pygame draw where there is no display.

    Raises MissingExtraError if PyAV is not installed.
    """
    with needing("videos need PyAV", "orlog[formats]"):
        import av  # noqa: F401 (the import is the check)
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


class _Film:
    """A video that grows by one frame after another, and counts the rewards between them."""

    def __init__(self, path: Path) -> None:
        self.path, self.frames, self.returned = path, 0, 0.0
        self._container: Any = None
        self._stream: Any = None

    def shoot(self, env: gymnasium.Env[Any, Any]) -> None:
        """Add what an environment renders; one row or column is left out where a side is odd."""
        import av

        try:
            picture = as_picture(np.asarray(env.render()))
        except Exception as error:  # renderers of any kind
            name = env.spec.id if env.spec is not None else str(env)
            raise SimulatorError(
                f"{name} renders no frames here: {type(error).__name__}: {str(error)[:200]}; on Linux without a "
                "display MuJoCo needs EGL (Debian: libegl1 libegl-mesa0 libgl1-mesa-dri) and MUJOCO_GL=egl."
            ) from error
        picture = picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]
        if self._container is None:
            rate = int(env.metadata.get("render_fps") or FRAMES_PER_SECOND)
            self._container = av.open(str(self.path), "w")
            self._stream = self._container.add_stream("h264", rate=rate)
            self._stream.options = QUALITY
            self._stream.height, self._stream.width = picture.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        shown = np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
        frame = av.VideoFrame.from_ndarray(shown, format="rgb24")
        self._container.mux(self._stream.encode(frame))
        self.frames += 1

    def close(self) -> None:
        """Write what is left."""
        if self._container is not None:
            self._container.mux(self._stream.encode())
            self._container.close()
            self._container = None


class _Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose frames are filmed in the episodes that begin with chosen seeds."""

    def __init__(self, env: gymnasium.Env[Any, Any], films: dict[int, _Film]) -> None:
        super().__init__(env)
        self._films = films
        self._film: _Film | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and film the episode if its seed is one of those."""
        result = super().reset(seed=seed, options=options)
        self._film = None if seed is None else self._films.get(seed)
        if self._film is not None:
            self._film.shoot(self.env)
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step; after the last one of an episode nothing more is filmed."""
        result = super().step(action)
        if self._film is not None:
            self._film.returned += float(result[1])
            self._film.shoot(self.env)
            if result[2] or result[3]:
                self._film = None
        return result
