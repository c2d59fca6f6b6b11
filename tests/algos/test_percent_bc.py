from __future__ import annotations

from typing import Any

import pytest

from orlog.algos.percent_bc import PercentBC
from orlog.algos.percent_bc_discrete import PercentBCDiscrete


@pytest.mark.parametrize("kind", [PercentBC, PercentBCDiscrete])
def test_batches_are_of_the_best_episodes(kind: type[Any]) -> None:
    function, arguments = kind.loader(kind.CONFIG(percent=25.0, batch_size=64))
    assert function == "orlog.loaders.best_episodes:best_transitions"
    assert arguments == {"batch_size": 64, "percent": 25.0}
