"""`replay`: whether the recorded actions lead through the recorded observations again, in the environment made here.

An episode begins again from the seed of its reset, or else from the simulator's state before its first action.
Each observation is then compared with the recorded one, as it would be stored:

    exact       all numbers are equal
    rounding    no number a differs from the recorded b by more than TOLERANCE * (1 + |b|)
    left        a number does, from one step on; or an end of the episode comes earlier, or not at all
    unknown     nothing says how the episode began, so there is nothing to compare; nor does a seed if the recipe
                records in another environment than the one that scores

Rewards are not compared, since datasets often replace them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import gymnasium
import msgspec
import numpy as np

from orlog.datasets.audit.pieces import optional_columns
from orlog.datasets.columns.episode import options_from_text
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.datasets.reading.restoring import restore, row_of, states_of
from orlog.datasets.reading.selection import success_column, success_of
from orlog.datasets.worlds.environments import environment_record, make_environment
from orlog.errors import OrlogError, SchemaError, SimulatorError
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.datasets.columns.episode import Episode

TOLERANCE = 1e-4
Verdict: TypeAlias = Literal["exact", "rounding", "left", "unknown"]
VERDICTS: dict[Verdict, str] = {
    "left": "left",
    "rounding": "within rounding",
    "exact": "exact",
    "unknown": "without a known start",
}
"""Each verdict and its words, the most important one first."""


class Difference(NamedTuple):
    """The number of two rows that differs most.

    Attributes:
        excess: How many times the tolerance it is; infinite for texts, shapes and flags that differ.
        column: Its column, and its place in the row.
        size: The absolute difference; None where there is no such number.
    """

    excess: float = 0.0
    column: str = ""
    size: float | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How an episode replays.

    Attributes:
        episode: Its position.
        steps: Its recorded steps.
        seed: Seed of its reset; None if it is not known.
        start: What it began from.
        verdict: Whether its observations came again.
        step: The first action after which they did not, from 0; None if its first observation did not, or all did.
        column: Column and place of the largest difference: at that step, or of a whole episode within rounding.
        difference: Its absolute size; None if there is none, or it is no number.
        recorded_end: What it reached: success if a column says so, else a termination, if there is one.
        is_reached: Whether the replay reaches that too; None if it reached neither, or the environment does not say.
    """

    episode: int
    steps: int
    seed: int | None
    start: Literal["seed", "state", ""] = ""
    verdict: Verdict = "unknown"
    step: int | None = None
    column: str = ""
    difference: float | None = None
    recorded_end: Literal["success", "termination", ""] = ""
    is_reached: bool | None = None


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Which episodes of a dataset replay, and in which version of the simulator.

    Attributes:
        name: Name of the dataset.
        version: Content version.
        digest: Digest of what was replayed.
        episodes: Episodes that it has, of which `replays` may be some.
        environment: Id of the environment.
        recorded_versions: Versions of the packages that decide what it does, when it was recorded.
        versions: The same, where it was replayed.
        tolerance: Relative and absolute difference up to which numbers are equal but for rounding.
        replays: How each episode replays.
    """

    name: str
    version: str
    digest: str
    episodes: int
    environment: str
    recorded_versions: dict[str, str]
    versions: dict[str, str]
    tolerance: float = TOLERANCE
    replays: list[Replay]

    @property
    def is_good(self) -> bool:
        """Whether no episode left what was recorded."""
        return not self.of("left")

    def of(self, verdict: Verdict) -> list[Replay]:
        """Return the replays of one verdict."""
        return [replay for replay in self.replays if replay.verdict == verdict]

    def summary(self) -> str:
        """Return the number of episodes of each verdict, and how many tasks are reached again, in words."""
        parts = [f"{len(self.of(verdict)):,} {words}" for verdict, words in VERDICTS.items()]
        again = [replay.is_reached for replay in self.replays if replay.is_reached is not None]
        parts += [f"{sum(again):,} of {counted(len(again), 'recorded end')} reached again"] if again else []
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the document that `orlog audit --replay --json` prints."""
        return {**msgspec.to_builtins(self), "is_good": self.is_good}


def replay(
    dataset: Given,
    *,
    episodes: int | None = None,
    trust_environment: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Certificate:
    """Return which episodes of a dataset replay in its environment, as it is installed here.

    Videos are not compared, since they are not as the environment drew them.

    Args:
        dataset: A stored version or a view, or its name.
        episodes: How many to replay, which lie evenly in the data; None for all.
        trust_environment: Consent to environment arguments that come with the data.
        progress: Called with steps done and steps in all.

    Raises:
        NotFoundError: it is not on this machine, it names no environment, or Gymnasium does not know that.
        SchemaError: it has no episodes, or its states are those of another simulator.
        MissingExtraError: the environment's package is not installed.
        SimulatorError: the environment's arguments need consent, or it cannot be made, reset or stepped.
    """
    opened = as_dataset(dataset)
    if not opened.total_episodes:
        raise SchemaError(f"{opened.name}: there is no episode to replay; choose others.")
    record = opened.checked_environment(trust_environment=trust_environment)
    count = min(episodes or opened.total_episodes, opened.total_episodes)
    chosen = np.linspace(0, opened.total_episodes - 1, count).astype(int)
    some = opened[chosen]
    column = success_column(some)
    succeeded = np.zeros(count, np.bool_) if column is None else success_of(some, column)
    if some.videos:
        some = some.select_columns(sorted(optional_columns(some.schema) - some.videos))
    env = make_environment(record.id, record.kwargs, max_episode_steps=record.max_episode_steps)
    try:
        versions = environment_record(env).versions
        is_elsewhere = opened.manifest.recipe is not None and getattr(env.unwrapped, "only_scores", False)
        replays: list[Replay] = []
        done = 0
        for position, episode, success in zip(chosen.tolist(), some, succeeded, strict=True):
            episode = dataclasses.replace(episode, seed=None) if is_elsewhere else episode
            replays.append(_replay(f"{opened.name}, episode {position}", env, episode, position, bool(success)))
            done += len(episode)
            progress(done, some.total_steps)
    finally:
        env.close()
    return Certificate(
        name=opened.name,
        version=opened.version,
        digest=opened.digest,
        episodes=opened.total_episodes,
        environment=record.id,
        recorded_versions=record.versions,
        versions=versions,
        replays=replays,
    )


def _replay(where: str, env: gymnasium.Env[Any, Any], episode: Episode, position: int, success: bool) -> Replay:
    """Take the recorded actions, and return where what follows leaves the recording."""
    end: Literal["success", "termination", ""] = "termination" if episode.terminations.any() else ""
    replayed = Replay(
        episode=position, steps=len(episode), seed=episode.seed, recorded_end="success" if success else end
    )
    worst, start = Difference(), replayed.start
    if episode.seed is not None:
        options = options_from_text(episode.metadata.get("options", ""))
        observation, _ = _call(where, lambda: env.reset(seed=episode.seed, options=options))
        worst, start = difference(observation, row_of(episode.observations, 0)), "seed"
    if states_of(episode) and (not start or worst.excess > 1):
        _call(where, lambda: restore(where, env, episode, 0))
        worst, start = Difference(), "state"
    if not start:
        return replayed
    has_left, left_at = worst.excess > 1, None
    successes: list[bool] = []
    is_over = False
    for step in range(len(episode)):
        action, is_last = row_of(episode.actions, step), step == len(episode) - 1
        observation, _, is_over, is_cut, info = _call(f"{where}, step {step}", functools.partial(env.step, action))
        # As `success_of` judges recorded ones: that of any step, or this one of the last step.
        successes += [bool(info["success"])] if "success" in info else []
        successes += [bool(info["is_success"])] if is_last and "is_success" in info else []
        if not has_left:
            here = _after(episode, step, observation, bool(is_over), bool(is_cut))
            has_left = here.excess > 1
            worst, left_at = (here, step) if has_left else (max(worst, here, key=lambda each: each.excess), None)
        if is_over or is_cut:
            break
    reached = {"success": any(successes) if successes else None, "termination": bool(is_over), "": None}
    return msgspec.structs.replace(
        replayed,
        start=start,
        verdict="left" if has_left else "rounding" if worst.excess else "exact",
        step=left_at,
        column=worst.column,
        difference=worst.size,
        is_reached=reached[replayed.recorded_end],
    )


def _after(episode: Episode, step: int, observation: Any, is_over: bool, is_cut: bool) -> Difference:
    """Return the largest difference of what followed an action."""
    is_last = step == len(episode) - 1
    if is_over != bool(episode.terminations[step]):
        return Difference(math.inf, "terminations")
    if is_cut and not is_last:  # a recording may be cut where the environment would go on, not the other way round
        return Difference(math.inf, "truncations")
    if is_last and episode.metadata.get("final_observation_missing"):
        return Difference()
    return difference(observation, row_of(episode.observations, step + 1))


def _call(where: str, what: Callable[[], Any]) -> Any:
    try:
        return what()
    except OrlogError:
        raise
    except Exception as error:  # environments run any code and raise anything
        raise SimulatorError(
            f"{where}: the environment fails on what was recorded: {type(error).__name__}: {error!s:.300}."
        ) from error


def difference(observation: Any, recorded: Any, column: str = "observations") -> Difference:
    """Return the number of an observation that differs most from the recorded one, which may be of other precision.

    What an environment gives beside what was recorded is not compared.
    """
    if isinstance(recorded, Mapping):
        given = observation if isinstance(observation, Mapping) else {}
        parts = [difference(given.get(key), part, f"{column}/{key}") for key, part in recorded.items()]
        return max(parts, key=lambda part: part.excess, default=Difference())
    if isinstance(recorded, tuple | list) and isinstance(observation, tuple | list):
        if len(observation) != len(recorded):
            return Difference(math.inf, column)
        pairs = enumerate(zip(observation, recorded, strict=True))
        parts = [difference(mine, theirs, f"{column}/{place}") for place, (mine, theirs) in pairs]
        return max(parts, key=lambda part: part.excess, default=Difference())
    a, b = np.asarray(observation), np.asarray(recorded)
    if a.shape != b.shape or a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        is_equal = a.shape == b.shape and bool(np.all(a == b))
        return Difference() if is_equal else Difference(math.inf, column)
    a = a.astype(b.dtype) if b.dtype.kind == "f" else a
    if np.array_equal(a, b, equal_nan=True):
        return Difference()
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        size = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        excess = np.nan_to_num(size / (TOLERANCE * (1 + np.abs(b))), nan=math.inf, posinf=math.inf)
    place = np.unravel_index(int(excess.argmax()), excess.shape)
    index = f"[{', '.join(map(str, place))}]" if place else ""
    largest = float(size[place])
    return Difference(float(excess[place]), f"{column}{index}", largest if math.isfinite(largest) else None)
