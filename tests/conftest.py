"""Fixtures for all tests: every test has a home of its own, and one small dataset is built once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import orlog
from orlog.datasets.dataset import Dataset

MINI = "pointmaze/umaze-mini-v1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return this test's ORLOG_HOME, which does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ORLOG_HOME", str(folder))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return folder


@pytest.fixture(scope="session")
def built_mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with pointmaze/umaze-mini-v1, built once; do not write to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("built")))
        return orlog.build_dataset(MINI)


@pytest.fixture
def mini_folder(built_mini: Path, home: Path) -> Path:
    """Return a copy of the small dataset in this test's home, to be damaged at will."""
    folder = home / "datasets" / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    return folder


@pytest.fixture
def mini(mini_folder: Path) -> Dataset:
    """Return the small dataset, opened from this test's home."""
    return orlog.load_dataset(mini_folder)
