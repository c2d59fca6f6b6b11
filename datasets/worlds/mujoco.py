"""Recipes of the `mujoco/...` datasets: random, medium and expert runs of robots, after D4RL's (v2).

Policies that `tools/behaviors/` trained record in Gymnasium's MuJoCo environments. They ship with
orlog, in `manifests/recorded/behaviors`, several of each training:

    random         uniform actions
    medium         a policy that returns about a third of what the last one does
    medium-replay  uniform actions, then the policies up to medium, one after another
    medium-expert  half medium, half the last policy
    expert         the last policy

Actions are drawn from the policy, which is a Gaussian squashed by a tanh, and every step keeps the
log-density of its action as `action_log_probs`.

Every episode depends on (recipe seed, part, episode index) only. The last one of a part is cut where
the steps of the part run out.

    episode i of part p:  SeedSequence((seed, p, i)) -> reset seed, generator of noise
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.behavior_policies import TrainedPolicy, read_policies
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, for_each, play_episode
from orlog.manifests.shipped import records_folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class MujocoRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `mujoco` dataset.

    Attributes:
        behaviors: Name of the file of behavior policies; empty where actions are uniform.
        digest: Digest of that file; empty without a file.
        policies: Positions in that file of the policies, each of which records a part with an equal
            number of steps; None in place of a position stands for uniform actions.
        part: Which part this recipe makes; None: all.
    """

    environment_id: str
    steps: int
    behaviors: str
    digest: str
    policies: tuple[int | None, ...]
    seed: int
    part: int | None = None

    name = "mujoco"
    NO_BYTES = frozenset({"part"})

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        if self.policies == (None,):
            return "uniform actions; action_log_probs are exact"
        first = "uniform actions, then " if None in self.policies else ""
        names = ", ".join(str(policy) for policy in self.policies if policy is not None)
        return (
            f"{first}policies {names} of {self.behaviors}.safetensors, one after another; each is a "
            "Gaussian squashed by a tanh, trained by orlog behavior train; action_log_probs are exact"
        )

    @property
    def parts(self) -> list[MujocoRecipe]:
        """A recipe for each part, in order."""
        share = self.steps // len(self.policies)
        return [dataclasses.replace(self, part=part, steps=share) for part in range(len(self.policies))]

    @property
    def root(self) -> tuple[int, ...]:
        """What the seeds of all episodes come from: the seed, and which part this is."""
        assert self.part is not None, "episodes are those of a part; see parts"
        return (self.seed, self.part)

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one episode of this part.

        Raises IntegrityError if the policies that ship are other ones.
        """
        position = self.policies[self.part or 0]
        behavior = None if position is None else self._policies()[position]
        (width,) = env.action_space.shape

        def choose(observation: Any) -> tuple[np.ndarray, dict[str, float]]:
            if behavior is None:
                action, log_prob = (rng.uniform(-1, 1, width).astype(np.float32), -width * math.log(2))
            else:
                action, log_prob = behavior.policy.act(observation, rng.standard_normal(width))
            return action, {"action_log_probs": log_prob}

        metadata = {"behavior_steps": 0 if behavior is None else behavior.steps}
        return play_episode(env, reset_seed, choose, metadata)

    def expert(self) -> Expert | None:
        """Return the last policy of the file, without noise; None without a file."""
        if not self.behaviors:
            return None
        *_, last = self._policies()
        return Expert(
            name=f"the last policy of {self.behaviors}.safetensors ({self.digest[:19]}), trained for "
            f"{last.steps:,} steps: its mean before the tanh",
            policy=for_each(last.policy.mode),
        )

    def _policies(self) -> list[TrainedPolicy]:
        return _read_shipped(self.behaviors, self.digest)


@functools.lru_cache(maxsize=4)
def _read_shipped(name: str, digest: str) -> list[TrainedPolicy]:
    return read_policies(records_folder() / "behaviors" / f"{name}.safetensors", digest)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """An environment and the policies trained in it.

    Attributes:
        environment_id: Its id.
        digest: Digest of the file of behavior policies.
        returns: Mean return of each policy in the file over 100 episodes, as the file's record says;
            the last two are the medium policy and the expert.
        replay_steps: Steps of the medium-replay dataset, about as many as D4RL's has.
        seed: Seed of the first dataset; those of the others follow.
    """

    environment_id: str
    digest: str
    returns: tuple[int, ...]
    replay_steps: int
    seed: int


TASKS = {
    "halfcheetah": _Task(
        environment_id="HalfCheetah-v5",
        digest="blake3:de5d2e326f208ca5aeb084fb1d0c132ca7a4338556d65e37bb9526d368b62145",
        returns=(-200, -152, 1348, 5213),
        replay_steps=200_000,
        seed=110,
    ),
    "hopper": _Task(
        environment_id="Hopper-v5",
        digest="blake3:c511a6f1729026b1d25b28099be2e77da01773a49ea297571ce839d60dbdbc68",
        returns=(792, 564, 848, 1000, 2763),
        replay_steps=400_000,
        seed=120,
    ),
    "walker2d": _Task(
        environment_id="Walker2d-v5",
        digest="blake3:d67ef845719dfe7b98748171144c265b34efa316c3a3455c9eb65f08e0c13653",
        returns=(217, 357, 543, 589, 998, 2889),
        replay_steps=300_000,
        seed=130,
    ),
}


def _entries(task: str, trained: _Task) -> dict[str, CatalogueEntry]:
    expert = len(trained.returns) - 1
    medium = expert - 1
    one_medium = f"a policy that returns {trained.returns[medium]:,}"
    one_expert = f"a policy that returns {trained.returns[expert]:,}"
    kinds: dict[str, tuple[int, str, tuple[int | None, ...]]] = {
        "random": (MILLION, "uniform actions", (None,)),
        "medium": (MILLION, one_medium, (medium,)),
        "medium-replay": (
            trained.replay_steps,
            (
                f"uniform actions, then {expert} policies of one training, one after another, the "
                f"last of which returns {trained.returns[medium]:,}"
            ),
            (None, *range(expert)),
        ),
        "medium-expert": (
            2 * MILLION,
            f"half by {one_medium}, half by one that returns {trained.returns[expert]:,}",
            (medium, expert),
        ),
        "expert": (MILLION, one_expert, (expert,)),
    }
    return {
        f"mujoco/{task}-{kind}-v1": CatalogueEntry(
            description=(
                f"{trained.environment_id}, {steps:,} steps: {actions}. With the log-density of "
                f"each action. After D4RL's {task}-{kind}-v2."
            ),
            recipe=MujocoRecipe(
                environment_id=trained.environment_id,
                steps=steps,
                behaviors="" if kind == "random" else task,
                digest="" if kind == "random" else trained.digest,
                policies=policies,
                seed=trained.seed + index,
            ),
        )
        for index, (kind, (steps, actions, policies)) in enumerate(kinds.items())
    }


MILLION = 1_000_000

DATASETS = {name: entry for task, trained in TASKS.items() for name, entry in _entries(task, trained).items()}
