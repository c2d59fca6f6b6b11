"""Trained policies: as callables for any loop over an environment (`orlog.load_policy`), and films of their episodes.

A film runs the evaluation once more, with the same seeds side by side, since a policy's last bits depend on what it
acts on together; frames are only rendered of the worst, the median and the best episode. Their returns are compared
with the evaluation's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np

from orlog.algos.algorithms import AlgorithmLike
from orlog.algos.training.data import EVALUATING, one_thread, seeded
from orlog.algos.training.evaluating import LoadedRun, load_run, run_protocol
from orlog.algos.training.runs import Evaluation, PathLike, Run
from orlog.base.files import put_in_place, storage_errors, unfinished_folder
from orlog.datasets.looking.leaves import as_picture
from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError, SimulatorError, needing
from orlog.manifests.spaces import space_leaves
from orlog.normalize.rollouts import InformedPolicy, PolicyWithMemory

VIDEOS = Path("videos")
LIST = "videos.json"
FRAMES_PER_SECOND = 30
QUALITY = {"crf": "20", "preset": "fast"}  # of H.264; edges of small pictures stay clear


class RunPolicy:
    """The policy of a run: a callable from observations of the environment to actions.

    An observation as `env.reset()` gives it becomes an action that `env.step` takes, and a batch of
    observations, as a vector environment gives it, a batch of actions.

        policy = orlog.load_policy("runs/iql/pointmaze/umaze-v1/seed-0")
        observation, _ = env.reset(seed=0)
        policy.begin()
        done = False
        while not done:
            observation, reward, terminated, truncated, info = env.step(policy(observation))
            policy.reward(reward, info)
            done = terminated or truncated

    Some policies remember an episode, such as Decision Transformer's, which looks at past steps and
    at the return that is still to come: they need the calls of `begin` and `reward`. Others ignore
    them, so that one loop serves all.

    Attributes:
        run: The run.
        step: Gradient steps that the policy had taken.
        observation_space: What it takes.
        action_space: What it returns.
        has_memory: Whether its actions depend on earlier steps of an episode.
    """

    def __init__(self, loaded: LoadedRun) -> None:
        dataset = loaded.dataset
        self.run = Run(folder=loaded.folder, record=loaded.record)
        self.step = loaded.step
        self.observation_space = dataset.observation_space
        self.action_space = dataset.action_space
        self.has_memory = isinstance(loaded.policy, PolicyWithMemory)
        self._policy = loaded.policy
        self._environments = 0  # whose episodes it remembers
        self._begins = True
        self._leaves = [*space_leaves(dataset.observation_space)]

    def __repr__(self) -> str:
        """Return algorithm, dataset, seed and step in one line."""
        record = self.run.record
        return f"RunPolicy({record.algorithm} seed {record.seed} on {record.shown_dataset}, step {self.step:,})"

    def begin(self, which: Any = None, infos: Mapping[str, Any] | None = None) -> None:
        """Forget the episodes: new ones begin with the next observations.

        Args:
            which: For each environment whether its episode begins; by default all do, and their
                number may change.
            infos: The infos of `env.reset`, which may say which actions are legal in the first step.

        Raises:
            SchemaError: it is not one truth value for each environment.
        """
        if infos is not None and isinstance(self._policy, InformedPolicy):
            self._policy.inform(infos)
        if which is None:
            self._begins = True
        elif self.has_memory:
            chosen = self._of_each("begin", which, np.bool_)
            assert isinstance(self._policy, PolicyWithMemory)
            self._policy.begin(chosen)

    def __call__(self, observations: Any) -> Any:
        """Return the action for an observation, or the actions for a batch of them.

        The actions have the dtype, shape and unit of the action space, and lie within its bounds.
        """
        count = self._count(observations)
        environments = 1 if count is None else count
        if isinstance(self._policy, PolicyWithMemory):
            if not self._begins and environments != self._environments:
                raise SchemaError(
                    f"{self.run.folder}: the policy remembers the episodes of "
                    f"{self._environments} environments, found observations of {environments}; "
                    "call policy.begin() where new episodes begin."
                )
            if self._begins:
                if environments != self._environments:
                    self._policy.start(environments)
                    self._environments = environments
                self._policy.begin(np.ones(environments, np.bool_))
                self._begins = False
        with one_thread():  # as in evaluations, whose actions are then the same to the bit
            actions = self._policy(observations)
        if count is not None:
            return actions
        if isinstance(actions, Mapping):
            return {key: several[0] for key, several in actions.items()}
        return actions[0]

    def reward(self, rewards: Any, infos: Mapping[str, Any] | None = None) -> None:
        """Take note of the reward of the last action, or of the rewards of a batch of actions.

        Args:
            rewards: One number for each environment.
            infos: The infos of the same steps, as the environments gave them. Some policies look at what is
                in them, such as CDT's at costs, and those of several agents at what is legal.

        Raises:
            SchemaError: it is not one number for each environment, or the policy looks at an info that is
                not there.
        """
        if isinstance(self._policy, InformedPolicy):
            names = self._policy.infos
            missing = [name for name in names if name not in (infos or {})]
            if missing:
                raise SchemaError(
                    f"{self.run.folder}: the policy looks at the info {missing[0]} of each step; call "
                    "policy.reward(reward, info) with the info of env.step."
                )
            numbers = {name: self._of_each(name, infos[name], np.float64) for name in names if infos}
            self._policy.inform({**(infos or {}), **numbers})
        if isinstance(self._policy, PolicyWithMemory):
            self._policy.reward(self._of_each("reward", rewards, np.float64))

    def _of_each(self, name: str, values: Any, dtype: type) -> np.ndarray:
        array: np.ndarray = np.asarray(values, dtype).reshape(-1)
        acted = 0 if self._begins else self._environments
        if len(array) != acted:
            raise SchemaError(
                f"{self.run.folder}: policy.{name} takes one value for each environment, of which "
                f"{acted} have acted in the present episodes; found {len(array)} values."
            )
        return array

    def _count(self, observations: Any) -> int | None:
        """Return how many observations a batch has, None for a single one."""
        counts: set[int | None] = set()
        for leaf in self._leaves:
            part, shape = observations, tuple(leaf.space.shape or ())
            place = "".join(f"[{key!r}]" for key in leaf.keys)
            try:
                for key in leaf.keys:
                    part = part[key]
            except (KeyError, IndexError, TypeError) as error:
                raise self._misfit(f"{place} is missing") from error
            present = np.shape(part)
            if present == shape:
                counts.add(None)
            elif present[1:] == shape and len(present) == len(shape) + 1:
                counts.add(present[0])
            else:
                single, batch = (", ".join(map(str, size)) for size in (shape, ("n", *shape)))
                raise self._misfit(
                    f"{place} has the shape {list(present)} instead of [{single}] or, in a batch, [{batch}]"
                )
        if len(counts) != 1:
            raise self._misfit(" has parts of different numbers of environments")
        return counts.pop()

    def _misfit(self, text: str) -> SchemaError:
        return SchemaError(
            f"{self.run.folder}: observation{text}; the policy takes observations of "
            f"{self.observation_space}, as its environment gives them."
        )


def load_policy(run: PathLike, *, dataset: Given | None = None, algorithm: AlgorithmLike | None = None) -> RunPolicy:
    """Return the last saved policy of a run, as a callable for a loop of your own.

    Args:
        run: A run, or its folder.
        dataset: What it was trained on, if its recorded name does not find it.
        algorithm: The algorithm, if it is not one of orlog's: code that a record names is not run
            unless it is named here too.

    Raises:
        NotFoundError: there is no checkpoint in the folder, or its dataset is not here.
        CheckpointError: the checkpoint is damaged or belongs to another run.
        IntegrityError: the dataset is not the one that the run was trained on.
        ManifestError: `run.json` is malformed.
    """
    return RunPolicy(load_run(run, dataset=dataset, algorithm=algorithm))


# Films.


class Video(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filmed episode."""

    kind: str  # `worst`, `median` or `best` by return
    file: str  # name of the file in the run's folder `videos`
    episode: int  # number of the episode in the evaluation, from 0
    seed: int  # seed of its reset
    step: int  # gradient steps that the policy had taken
    frames: int  # frames: one before each action, and the last
    returned: float  # undiscounted return of the filmed episode
    evaluated: float  # return of the same episode in the evaluation


def chosen_episodes(returns: np.ndarray) -> dict[str, int]:
    """Return the numbers of the worst, the median and the best episode; of equal ones the first."""
    order = np.argsort(returns, kind="stable")
    kinds = {"best": int(np.flatnonzero(returns == returns.max())[0])}
    if len(returns) > 1:
        kinds = {"worst": int(order[0]), **kinds}
    if len(returns) > 2:
        kinds["median"] = int(order[(len(order) - 1) // 2])
    return kinds


def film(run: LoadedRun, evaluation: Evaluation, progress: Callable[[int], None] = lambda _done: None) -> list[Video]:
    """Film episodes of an evaluation into the run's folder `videos`, in place of earlier ones."""
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
        made = [
            Video(
                kind=kind,
                file=filmed.path.name,
                episode=episode,
                seed=protocol.first_seed + episode,
                step=evaluation.step,
                frames=filmed.frames,
                returned=filmed.returned,
                evaluated=evaluation.returns[episode],
            )
            for kind, episode in sorted(chosen.items(), reverse=True)
            for filmed in [films[protocol.first_seed + episode]]
        ]
        (folder / LIST).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2))
        put_in_place(folder, place)
    return made


def read_videos(folder: Path) -> list[Video]:
    """Return the videos of a run; none if it was not filmed, or the list of them is damaged."""
    try:
        listed = msgspec.json.decode((folder / VIDEOS / LIST).read_bytes(), type=list[Video])
    except (OSError, msgspec.DecodeError):
        return []
    return [video for video in listed if Path(video.file).name == video.file]


def check_video() -> None:
    """Check that videos can be written; choose how MuJoCo and pygame draw where there is no display."""
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
