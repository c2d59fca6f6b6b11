"""What a trained run thinks of each step: value, Q and advantage, as the columns of a layer (`orlog layer --run`)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orlog.algos.policies import actions_to_indices, chosen_values
from orlog.algos.training.data import one_thread
from orlog.algos.training.evaluating import find_run
from orlog.algos.training.policy import Spaces, make_from_record
from orlog.algos.training.runs import CHECKPOINT_FILE, load_state
from orlog.datasets.columns.episode import Episode
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError

ESTIMATES = {"infos/value": "value", "infos/advantage": "advantage"}
"""The columns that have a role; there is `infos/q` too."""

LEARN_Q = ("iql", "cql", "td3bc", "awac", "rebrac", "edac", "fql", "ifql", "calql", "rlpd")


@dataclasses.dataclass
class RunEstimates:
    """Returns of an episode the columns `infos/value`, `infos/q` and `infos/advantage`: float32, a number for each step.

    Q is the smallest of the run's critics at the action that was taken. The value is the run's own where it learns one
    (IQL), else Q at the action that its policy takes. The advantage is Q less the value. All are in the unit of the
    rewards that the run was trained with: `reward_scale * reward + reward_shift` of its record.

    Raises SchemaError where the run has no such critics, or the dataset's spaces are not those that it was trained on.
    """

    run: Path
    dataset: Dataset

    @functools.cached_property
    def _parts(self) -> tuple[Any, Spaces, str]:
        record, trained_on, kind = find_run(self.run)
        for name in ("observation_space", "action_space"):
            here, there = getattr(self.dataset, name), getattr(trained_on, name)
            if here != there:
                raise SchemaError(
                    f"{self.run}: was trained with the {name} {there}, but {self.dataset.name} has {here}."
                )
        with one_thread():
            algorithm: Any = make_from_record(record, trained_on, kind)
            load_state(algorithm, self.run, to_act=True)
        if (not hasattr(algorithm, "critic") and not hasattr(algorithm, "critics")) or record.algorithm not in LEARN_Q:
            raise SchemaError(
                f"{self.run}: {record.algorithm} has no Q of single steps; train one of: {', '.join(LEARN_Q)}."
            )
        return algorithm, Spaces(trained_on, "cpu"), record.algorithm

    def __getstate__(self) -> dict[str, Any]:  # a process of its own reads the run itself
        return {"run": self.run, "dataset": self.dataset}

    def __call__(self, episode: Episode) -> dict[str, np.ndarray]:
        """Return the columns of an episode."""
        algorithm, spaces, _ = self._parts
        given = spaces.observations(episode.observations)
        before_end = {key: part[:-1] for key, part in given.items()} if isinstance(given, dict) else given[:-1]
        with torch.no_grad(), one_thread():
            q, value = _estimate(algorithm, before_end, torch.from_numpy(np.asarray(episode.actions)))
        columns = {"infos/value": value, "infos/q": q, "infos/advantage": q - value}
        return {name: column.float().numpy() for name, column in columns.items()}

    def made_by(self) -> str:
        """Return what pins the estimates, for a lineage."""
        checkpoint = hashlib.sha256((self.run / CHECKPOINT_FILE).read_bytes()).hexdigest()
        return f"value, Q and advantage of a run of {self._parts[2]}, its checkpoint sha256:{checkpoint}"


def _estimate(algorithm: Any, observations: Any, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q and value of each step."""
    features = algorithm.encoder(observations)
    own_value = algorithm.value(features).squeeze(-1) if hasattr(algorithm, "value") else None
    if algorithm.ACTIONS == ("discrete",):
        networks = algorithm.critics if hasattr(algorithm, "critics") else [algorithm.critic]
        of_all = torch.stack([network(features) for network in networks])
        q = chosen_values(of_all, actions_to_indices(algorithm.scaling, actions)).amin(0)
        return q, of_all.amin(0).amax(-1) if own_value is None else own_value

    def smallest_q(actions: Tensor) -> Tensor:
        values: Tensor = algorithm.critic(features, algorithm.scaling.actions_to_unit(actions.float().flatten(1))).amin(
            0
        )
        return values

    return smallest_q(actions), smallest_q(algorithm.act(observations)) if own_value is None else own_value
