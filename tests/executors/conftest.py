"""Fixtures of executors: clusters of this machine are started one after the other."""

import tempfile
from pathlib import Path

import pytest
from filelock import FileLock


@pytest.fixture(autouse=True)
def one_cluster_at_a_time(request):
    """Let a test that starts a cluster wait for those of other processes: Ray finds any that runs here."""
    if request.node.get_closest_marker("thorough") is None:
        yield
        return
    with FileLock(Path(tempfile.gettempdir()) / "orlog-one-cluster.lock"):
        yield
