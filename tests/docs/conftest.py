"""Fixtures of the pages: modules that they tell to write are imported anew by each test."""

import sys

import gymnasium
import pytest


@pytest.fixture(autouse=True)
def no_modules_of_others():
    """Forget modules that tests of this process named alike, before and after."""

    def forget():
        for name in ("mine", "my_method", "my_envs"):
            sys.modules.pop(name, None)
        gymnasium.registry.pop("lab/Grid-v0", None)

    forget()
    yield
    forget()
