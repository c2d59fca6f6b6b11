from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import orlog
from orlog.datasets.recipes import rebuilds
from orlog.datasets.recipes.classic import DATASETS
from orlog.datasets.recipes.rebuilds import compare_with_recorded, record_statistics
from orlog.errors import IntegrityError, NotFoundError
from orlog.manifests.manifest import Manifest

NAME = "classic/tiny-v1"
ENTRY = DATASETS["classic/cartpole-mixed-v2"]


def enter(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Put 45 episodes into the catalogue, made by a changed recipe."""
    recipe: Any = ENTRY.recipe
    changed = dataclasses.replace(recipe, **{"count": 45, "expert_noise": 0.3, **changes})
    monkeypatch.setitem(DATASETS, NAME, dataclasses.replace(ENTRY, recipe=changed))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """Build a small dataset, record it as it were shipped, and delete it."""
    enter(monkeypatch)
    monkeypatch.setattr(rebuilds, "recorded_folder", lambda _name: tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path / "elsewhere"))
        orlog.build_dataset(NAME)
        dataset = orlog.load_dataset(NAME)
        record_statistics(dataset)
    monkeypatch.setattr(rebuilds, "recorded_manifest", lambda *_: dataset.manifest)
    return dataset.manifest


def test_the_same_bytes_are_identical(recorded: Manifest) -> None:
    orlog.build_dataset(NAME)
    dataset = orlog.load_dataset(NAME)
    assert dataset.digest == recorded.digest
    assert compare_with_recorded(dataset).startswith("identical: the same digest")


def test_other_episodes_of_the_same_distribution_are_statistically_equal(
    recorded: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, seed=99)
    orlog.build_dataset(NAME)
    dataset = orlog.load_dataset(NAME)
    assert dataset.digest != recorded.digest
    assert compare_with_recorded(dataset) == (
        f"rebuilt: statistically equal to the recorded version ({recorded.digest[:19]}) by 7 "
        "two-sample Kolmogorov-Smirnov tests of episodes at a level of 0.001 together"
    )


def test_episodes_of_another_distribution_are_refused_and_nothing_is_kept(
    recorded: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, medium_noise=1.0, expert_noise=1.0)
    message = r"differs from the recorded version .* by returns, lengths .* Nothing was kept\.$"
    with pytest.raises(IntegrityError, match=message) as caught:
        orlog.build_dataset(NAME)
    assert caught.value.expected == recorded.digest
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)


def test_without_recorded_statistics_a_rebuild_is_said_to_be_another(
    recorded: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "statistics.json").unlink()
    enter(monkeypatch, seed=98, count=3)
    orlog.build_dataset(NAME)
    line = compare_with_recorded(orlog.load_dataset(NAME))
    assert line.startswith(f"rebuilt: NOT the recorded build ({recorded.digest[:19]})")
