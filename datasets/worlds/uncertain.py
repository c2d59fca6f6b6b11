"""`orlog/uncertain-v0`: any world of Gymnasium behind sticky actions, delays, noise and dropped frames.

What is chosen goes to the world from the top down, and what the world gives comes back from the bottom up:

    sticky_actions       with this probability the action of the step before is taken again (Gymnasium's StickyAction)
    action_delay         the world does in step t what was chosen in step t - delay; before that, zeros
    action_noise         a Gaussian of this standard deviation is added to each number of the action
    observation_noise    the same for each number of an observation, that of the reset too
    dropped_frames       with this probability the observation seen last is seen again
    reward_delay         step t is paid for step t - delay, and the last step for all that is left: returns are the same

Noise is in the units of actions and observations. Noisy actions are cut off at the bounds of their space;
noisy observations have no bounds. All draws are of the world's own generator, which `reset(seed=)` seeds, in
the order above: sticky actions, noise of actions, whatever the world draws, noise of observations, frames.

Recipes of the `uncertain/...` datasets: another dataset's recipe, in its world behind uncertainty.

    with_uncertainty(recipe, action_delay=3)    the same episodes, seeds and controllers, in `orlog/uncertain-v0`

The controller acts on what it sees through the uncertainty, and its noise is that of the other recipe; one that looks
at the state of the world in place of observations sees that state. What is stored is what was seen, chosen and
paid; `action_log_probs` are those of the choice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import StickyAction

from orlog.datasets.worlds.classic import DATASETS as CLASSIC
from orlog.datasets.worlds.environments import UNCERTAIN, make_environment
from orlog.datasets.worlds.mujoco import DATASETS as MUJOCO
from orlog.datasets.worlds.recipe import CatalogueEntry
from orlog.manifests.names import did_you_mean

DELAYS = ("action_delay", "reward_delay")
NOISES = ("observation_noise", "action_noise")
SHARES = ("sticky_actions", "dropped_frames")
NUMBERS = (*DELAYS, *NOISES, *SHARES)
LONGEST_DELAY = 10_000  # what is under way is kept in memory


def uncertain(
    *, environment: str, arguments: Mapping[str, Any] | None = None, render_mode: str | None = None, **numbers: Any
) -> gymnasium.Env[Any, Any]:
    """Return a world behind what the module's docstring says; without numbers it is the world itself.

    Args:
        environment: Id of the world, made with its registered time limit.
        arguments: Arguments of the world; by default those registered for its id.
        render_mode: As that of `gymnasium.make`.
        numbers: Any of `NUMBERS`: delays are steps, at most 10,000; noise is a standard deviation, and what it is of
            must be vectors or arrays of floats; the others are probabilities, at least 0 and below 1.

    Raises ValueError for a number that is none of these, noise where there are no floats, or a world that
    this function made; NotFoundError and MissingExtraError if the world is not installed.
    """
    if environment == UNCERTAIN:
        raise ValueError(
            f"environment={environment!r}: it is behind uncertainty already; name the world behind it, and "
            "all numbers once."
        )
    check_numbers(numbers)
    action_delay, reward_delay, observation_noise, action_noise, sticky_actions, dropped_frames = (
        numbers.get(name, 0) for name in NUMBERS
    )
    made_with = {**(arguments or {}), **({} if render_mode is None else {"render_mode": render_mode})}
    env = make_environment(environment, made_with)
    parts = (("observation", observation_noise), ("action", action_noise))
    for part, noise in parts:
        space = getattr(env, f"{part}_space")
        if noise and not (isinstance(space, spaces.Box) and space.dtype.kind == "f"):
            env.close()
            raise ValueError(
                f"{part}_noise={noise!r}: {environment} has no {part}s of floats, but {space!s:.100}; "
                f"leave {part}_noise at 0."
            )
    if action_delay and not isinstance(env.action_space, spaces.Box | spaces.Discrete):
        env.close()
        raise ValueError(
            f"action_delay={action_delay}: {environment} has no actions of numbers, but "
            f"{env.action_space!s:.100}; leave action_delay at 0."
        )
    if reward_delay:
        env = _DelayedRewards(env, reward_delay)
    if observation_noise:
        env = _NoisyObservations(env, observation_noise)
    if dropped_frames:
        env = _DroppedFrames(env, dropped_frames)
    if action_noise:
        env = _NoisyActions(env, action_noise)
    if action_delay:
        env = _DelayedActions(env, action_delay)
    return StickyAction(env, sticky_actions) if sticky_actions else env


def check_numbers(numbers: Mapping[str, Any]) -> None:
    """Raise ValueError for a number of a world behind uncertainty that has another name, or another value."""
    for name, value in numbers.items():
        if name in DELAYS and (type(value) is not int or not 0 <= value <= LONGEST_DELAY):
            raise ValueError(f"{name}={value!r}: it is a number of steps, 0 or more, and at most {LONGEST_DELAY:,}.")
        if name in NOISES and not 0 <= value < math.inf:
            raise ValueError(f"{name}={value!r}: it is a standard deviation, 0 or more.")
        if name in SHARES and not 0 <= value < 1:
            raise ValueError(f"{name}={value!r}: it is a probability, at least 0 and below 1.")
        if name not in NUMBERS:
            raise ValueError(
                f"{name} is no number of a world behind uncertainty{did_you_mean(name, NUMBERS)}; there are "
                f"{', '.join(NUMBERS)}."
            )


class _DelayedRewards(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], delay: int) -> None:
        super().__init__(env)
        self._delay, self._owed = delay, deque[float]()

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._owed = deque([0.0] * self._delay)
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._owed.append(float(reward))
        paid = math.fsum(self._owed) if terminated or truncated else self._owed.popleft()
        return observation, paid, terminated, truncated, info


class _NoisyObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], noise: float) -> None:
        super().__init__(env)
        self._noise = noise
        shape, dtype = env.observation_space.shape, env.observation_space.dtype
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, dtype)  # type: ignore[arg-type]

    def observation(self, observation: Any) -> Any:
        return _noisy(self.np_random, self.observation_space, observation, self._noise)


class _DroppedFrames(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], share: float) -> None:
        super().__init__(env)
        self._share, self._seen = share, None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._seen, info = self.env.reset(**arguments)
        return self._seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.np_random.random() >= self._share:
            self._seen = observation
        return self._seen, reward, terminated, truncated, info


class _NoisyActions(gymnasium.ActionWrapper[Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], noise: float) -> None:
        super().__init__(env)
        self._noise = noise

    def action(self, action: Any) -> Any:
        return _noisy(self.np_random, self.action_space, action, self._noise)


class _DelayedActions(gymnasium.ActionWrapper[Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], delay: int) -> None:
        super().__init__(env)
        self._delay, self._waiting = delay, deque[Any]()

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        first = _zeros(self.action_space)
        self._waiting = deque([first] * self._delay)
        return super().reset(**arguments)

    def action(self, action: Any) -> Any:
        self._waiting.append(action)
        return self._waiting.popleft()


def _zeros(space: Any) -> Any:
    """Return zeros of an action space, or what is next to them inside its bounds; of numbered actions the first."""
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
    return space.start


def _noisy(rng: np.random.Generator, space: Any, values: Any, noise: float) -> np.ndarray:
    added = np.asarray(values) + noise * rng.standard_normal(space.shape)
    inside: np.ndarray = np.clip(added, space.low, space.high).astype(space.dtype)
    return inside


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertainRecipe:
    """What a recipe behind uncertainty has beside its own; its class extends that of the other recipe too.

    Its version is the other recipe's.

    Attributes:
        world_id: Id of the world.
        uncertainty: Names and values of the arguments of `orlog.datasets.worlds.uncertain.uncertain`,
            besides the world.
    """

    world_id: str
    uncertainty: tuple[tuple[str, float], ...]

    name: ClassVar[str] = "uncertain"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        numbers = ", ".join(f"{name} {value:g}" for name, value in self.uncertainty)
        return f"{self._of_the_other('behavior_policy')}; it acts through {numbers or 'nothing'}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""
        own = dict(self._of_the_other("parameters"))
        del own["world_id"]
        return {**own, "world": self.world_id, "uncertainty": dict(self.uncertainty)}

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`: the world's id, its arguments if it has any, and the numbers."""
        own = self._of_the_other("environment_kwargs")
        arguments = {"arguments": own} if own else {}
        return {"environment": self.world_id, **arguments, **dict(self.uncertainty)}

    def _of_the_other(self, attribute: str) -> Any:
        return getattr(super(), attribute)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for worker processes, which make the class anew."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _restore, (type(self).__bases__[1], fields)


@functools.cache
def _behind_uncertainty(kind: type) -> type[Any]:
    return dataclasses.make_dataclass(
        f"Uncertain{kind.__name__}",
        [],
        bases=(UncertainRecipe, kind),
        namespace={"environment_id": UNCERTAIN, "__module__": __name__},
        frozen=True,
        kw_only=True,
    )


def _restore(kind: type, fields: dict[str, Any]) -> Any:
    return _behind_uncertainty(kind)(**fields)


def with_uncertainty(recipe: Any, **uncertainty: float) -> Any:
    """Return the variant of a `Recipe`: the same episodes, in its world behind this uncertainty.

    It is an `UncertainRecipe`, and of the recipe's own class. The recipe must be a dataclass that records in what
    `make_environment` makes of its `environment_id` and `environment_kwargs`.

    Raises ValueError for a number of another name or value, for a recipe that is a variant already, and for one whose
    episodes come from elsewhere than from its environment.
    """
    check_numbers(uncertainty)
    if isinstance(recipe, UncertainRecipe):
        raise ValueError(  # noqa: TRY004  # a recipe, but not one that fits
            f"{recipe.world_id} is behind uncertainty already: give its own recipe, and all numbers at once."
        )
    given: Any = recipe
    if not dataclasses.is_dataclass(recipe) or getattr(recipe, "records_elsewhere", False):
        raise ValueError(
            f"the recipe {recipe.name} does not record in {recipe.environment_id}, so nothing can come "
            "between: give a recipe that records in the environment that scores."
        )
    fields = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    if "environment_id" in fields:
        fields["environment_id"] = UNCERTAIN
    numbers = tuple(uncertainty.items())
    return _restore(type(recipe), {**fields, "world_id": given.environment_id, "uncertainty": numbers})


def _variant(plain: str, scene: str, about: str, **uncertainty: float) -> CatalogueEntry:
    recipe = {**CLASSIC, **MUJOCO}[plain].recipe
    return CatalogueEntry(
        description=f"{scene}, as in {plain}, but {about}. {recipe.steps:,} steps.",
        recipe=with_uncertainty(recipe, **uncertainty),
    )


def _pendulum(about: str, **uncertainty: float) -> CatalogueEntry:
    scene = "A torque swings a pendulum up and holds it there"
    return _variant("classic/pendulum-mixed-v1", scene, about, **uncertainty)


def _hopper(about: str, **uncertainty: float) -> CatalogueEntry:
    return _variant("mujoco/hopper-medium-v1", "A leg hops forward", about, **uncertainty)


DATASETS = {
    "uncertain/pendulum-delay3-v1": _pendulum("each torque comes three steps after it was chosen", action_delay=3),
    "uncertain/pendulum-noise-v1": _pendulum("observations have Gaussian noise of 0.2", observation_noise=0.2),
    "uncertain/pendulum-sticky-v1": _pendulum(
        "in half of the steps the torque of the step before is taken again", sticky_actions=0.5
    ),
    "uncertain/pendulum-dropped-v1": _pendulum(
        "half of the observations are those of the step before", dropped_frames=0.5
    ),
    "uncertain/hopper-noise-v1": _hopper("observations have Gaussian noise of 0.05", observation_noise=0.05),
    "uncertain/hopper-delay1-v1": _hopper("each torque comes a step after it was chosen", action_delay=1),
}
