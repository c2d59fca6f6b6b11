"""Fixtures of the pages: modules that they tell to write are imported anew by each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gymnasium
import pytest


@pytest.fixture(autouse=True)
def no_modules_of_others() -> Iterator[None]:
    """Forget modules that tests of this process named alike, before and after."""

    def forget() -> None:
        for name in ("mine", "my_method", "my_envs"):
            sys.modules.pop(name, None)
        gymnasium.registry.pop("lab/Grid-v0", None)

    forget()
    yield
    forget()
