"""The library rliable, from which statistics are checked."""

import functools
import importlib.util
import sys
import types
import warnings

import pytest


def rliable_metrics():
    """Return `rliable.metrics`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("rliable.metrics", exc_type=ImportError)


@functools.cache
def rliable_library():
    """Return `rliable.library`, with only that part of its dependency arch that it uses.

    arch 7.2, the newest that rliable allows, cannot be imported beside pandas 3 because of its models
    of volatility; its bootstrap can.
    """
    spec = importlib.util.find_spec("arch")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("arch is not installed")
    package = types.ModuleType("arch")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules.setdefault("arch", package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("rliable.library", exc_type=ImportError)
