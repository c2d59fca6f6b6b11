"""Fixtures of homes: a tiny version that is put into them, and no file that pins any."""

import pytest

from tests.datasets.cached_homes import record_template


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """Return a tiny recorded version; do not write to it."""
    return record_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def no_lock(monkeypatch):
    """Let no file pin anything."""
    monkeypatch.setenv("ORLOG_LOCK", "0")
