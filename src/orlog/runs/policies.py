"""Trained policies as callables: `orlog.load_policy` gives one for any loop over an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orlog.algos.algorithms import AlgorithmLike
from orlog.algos.training.data import one_thread
from orlog.algos.training.evaluating import LoadedRun, load_run
from orlog.algos.training.runs import PathLike, Run
from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.manifests.spaces import space_leaves
from orlog.normalize.rollouts import InformedPolicy, PolicyWithMemory


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

        Raises SchemaError if the observations do not fit the space, or the number of environments has changed
        without a call of `begin`.
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
            told = {name: self._of_each(name, infos[name], np.float64) for name in names if infos}
            self._policy.inform({**(infos or {}), **told})
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
                single, batch = (", ".join(map(str, one)) for one in (shape, ("n", *shape)))
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
