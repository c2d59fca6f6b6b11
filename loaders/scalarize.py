"""Rewards of several objectives, weighted into one: for any kind of sampling.

arrays = orlog.load_arrays(ds, infos=("objectives",))
for batch in orlog.transitions(orlog.scalarize(arrays, weights=(0.7, 0.3)), 256, seed=0): ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.statistics import derived_digest
from orlog.manifests.names import counted

NAME = "objectives"
WEIGHTS = "weights"


def scalarize(arrays: Given | Arrays, *, weights: Sequence[float], objectives: str = NAME) -> Arrays:
    """Return the same steps with rewards that are the weighted sum of several objectives.

    Where observations have a part that is called `weights`, of as many numbers, it is set to these weights, so
    that a policy that sees weights learns what they mean. The matrix of the steps is copied; the digest changes
    with the weights, and with it the stream.

    Args:
        arrays: The steps, loaded with the info: `orlog.load_arrays(ds, infos=("objectives",))`; those of a
            dataset are read first.
        weights: One number >= 0 for each objective; they sum to 1.
        objectives: Name of the info that holds the reward of each objective.

    Raises:
        ValueError: weights that do not sum to 1, or another number of them than of objectives.
        NotFoundError: there is no such info.
        SchemaError: the info is not one vector for each step, or an objective is not finite.
        TypeError: neither arrays nor a dataset.
    """
    arrays = as_arrays(arrays, (objectives,))
    where = arrays.name or "these arrays"
    given = np.asarray(weights, np.float64)
    if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any():
        raise ValueError(f"{where}: weights must be numbers >= 0, found {weights!r:.80}.")
    if abs(float(given.sum()) - 1) > 1e-6:
        raise ValueError(
            f"{where}: weights must sum to 1, found {given.tolist()}, which sum to {given.sum():g}; divide them "
            "by their sum."
        )
    assert arrays.infos is not None  # asked for above
    rows = torch.arange(len(arrays.rows), device=arrays.rows.device)
    values = arrays.infos.leaf(arrays.infos.observation_leaves[objectives], rows)
    if values.ndim != 2:
        raise SchemaError(
            f"{where}: infos/{objectives} holds {'one number' if values.ndim == 1 else 'arrays'} for each step, "
            "expected a vector with the reward of each objective."
        )
    if values.shape[1] != len(given):
        raise ValueError(
            f"{where}: infos/{objectives} has {counted(values.shape[1], 'objective')}, and there are "
            f"{counted(len(given), 'weight')}; give one for each."
        )
    values = values.double()
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).any(1).int().argmax())
        episode = int(np.searchsorted(arrays.first_rows, row, "right")) - 1
        raise SchemaError(
            f"{where}: infos/{objectives} is not finite in episode {episode}, step "
            f"{row - int(arrays.first_rows[episode])}; leave the episode out (ds.filter_episodes)."
        )
    changed = arrays.rows.clone()
    factors = torch.from_numpy(given).to(values.device)
    changed[:, arrays.columns["rewards"]] = (values @ factors).float().unsqueeze(1)
    part = {**arrays.parts, **arrays.observation_leaves}.get(WEIGHTS)
    if part is not None and not part.column and part.shape == given.shape:
        changed[:, part.place] = factors.float()
    text = " ".join(float(one).hex() for one in given.tolist())
    digest = derived_digest(arrays, f"scalarize 1 {objectives} {text}")
    return dataclasses.replace(arrays, rows=changed, digest=digest)
