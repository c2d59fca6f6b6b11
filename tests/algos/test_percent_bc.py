from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch

from orlog.algos.bc import BC
from orlog.algos.bc_discrete import BCDiscrete
from orlog.algos.networks import Scaling
from orlog.algos.percent_bc import PercentBC, PercentBCConfig
from orlog.algos.percent_bc_discrete import PercentBCDiscrete


@pytest.mark.parametrize(("kind", "plain"), [(PercentBC, BC), (PercentBCDiscrete, BCDiscrete)])
def test_an_update_is_that_of_cloning_on_batches_of_the_best_episodes(
    scaling: Scaling, make_batch: Callable[..., Any], kind: type[Any], plain: type[Any]
) -> None:
    batch = make_batch(0)
    if plain is BCDiscrete:
        none, space = torch.zeros(0), gymnasium.spaces.Discrete(3)
        scaling = dataclasses.replace(
            scaling, action_low=none, action_high=none, action_space=space
        )
        batch = dataclasses.replace(batch, actions=torch.arange(len(batch.actions)) % 3)
    both = [one(one.CONFIG(hidden=(8,)), scaling, seed=3) for one in (kind, plain)]
    for algorithm in both:
        algorithm.update(batch)
    first, second = (list(one.policy.parameters()) for one in both)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))

    function, arguments = kind.loader(kind.CONFIG(percent=25.0, batch_size=64))
    assert function == "orlog.loaders.best_episodes:best_transitions"
    assert arguments == {"batch_size": 64, "percent": 25.0}


def test_a_share_of_no_episode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"percent must lie in \(0, 100\], found 0"):
        PercentBCConfig(percent=0.0)
