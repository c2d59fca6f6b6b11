"""What holds for every format that orlog writes: what is exported comes back, but for what it was said to lose.

A format joins by its line in `WRITTEN`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.formats.formats import formats
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from tests.datasets.recorded_samples import record_samples

VECTOR, ONE = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
FRAME = spaces.Box(0, 255, (8, 6, 3), np.uint8)
KINDS: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "vectors": (VECTOR, ONE),
    "doubles": (spaces.Box(-1, 1, (2,), np.float64), spaces.Box(-1, 1, (2,), np.float64)),
    "choices": (VECTOR, spaces.Discrete(4)),
    "frames": (FRAME, spaces.Discrete(4)),
    "parts": (spaces.Dict({"arm": VECTOR, "frame": FRAME}), ONE),
    "pairs": (spaces.Tuple([VECTOR, VECTOR]), spaces.Box(-1, 1, (2,), np.float32)),
    "several": (VECTOR, spaces.MultiDiscrete([2, 3])),
}
"""Spaces of observations and of actions."""
NUMBERS = {"vectors", "doubles"}
FLAT = NUMBERS | {"choices", "frames"}
MAP = {
    **{name: name for name in ("observation", "action", "reward", "terminated", "truncated")},
    "next_observation": "next_observation",
    "infos/place": "infos/place",
}


@dataclasses.dataclass(frozen=True)
class Written:
    """What a format that orlog writes can hold.

    Attributes:
        kinds: Names of the kinds of spaces that it holds; others are refused.
        loses: Parts of episodes that it loses; `stops` is that an episode just stops, `last` the last
            step of each, and `final` the final observation where the task ended.
        keeps_spaces: Whether it says what the spaces were.
    """

    kinds: set[str]
    loses: str = ""
    keeps_spaces: bool = False


WRITTEN = {
    "aloha": Written(FLAT, "place stops last rewards ends"),
    "d3rlpy": Written(FLAT | {"pairs"}, "place stops final"),
    "d4rl": Written(FLAT, "stops"),
    "lerobot": Written({*KINDS}, keeps_spaces=True),
    "minari": Written({*KINDS}, keeps_spaces=True),
    "npz": Written(FLAT, "stops"),
    "ogbench": Written(NUMBERS, "rewards stops ends"),
    "parquet": Written(FLAT | {"parts"}),
    "rlds": Written({*KINDS} - {"pairs"}, "stops", keeps_spaces=True),
    "robomimic": Written(NUMBERS | {"parts"}, "place stops"),
    "torchrl": Written({*KINDS}),
    "zarr": Written(FLAT | {"parts"}, "place stops last ends"),
}
MAPPED = {"parquet": {"columns": MAP, "episode": "episode", "step": "step"}}
"""Options of imports that find the same by names that they are told."""
CASES = [(name, kind) for name, one in WRITTEN.items() for kind in KINDS if kind in one.kinds]


def export(name: str, kind: str, folder: Path, **options: Any) -> tuple[Dataset, Path]:
    """Return what was recorded, and the export of it: its only file, or its folder."""
    dataset = record_samples(f"lab/{kind}-v1", *KINDS[kind])
    if name == "lerobot":
        options["rate"] = 10  # without one, it is told that 1 was written
    orlog.export_dataset(dataset, folder, to=name, **options)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    return dataset, files[0] if len(files) == 1 else folder


def imported(files: Path, name: str, options: dict[str, Any] | None = None) -> Dataset:
    orlog.import_dataset(files, "lab/again-v1", **(options or {"format": name}))
    return orlog.load_dataset("lab/again-v1")


def parts_of(columns: Any) -> list[np.ndarray]:
    if isinstance(columns, dict):
        return [values for key in sorted(columns) for values in parts_of(columns[key])]
    return [*columns] if isinstance(columns, tuple) else [columns]


def check_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def check(dataset: Dataset, again: Dataset, loses: set[str]) -> None:
    """Compare episodes, but for what is lost."""
    lost = int("last" in loses)
    kept = [one for one in dataset if len(one) > lost]
    assert [len(one) for one in again] == [len(one) - lost for one in kept]
    for one, other in zip(kept, again, strict=True):
        steps = len(other)
        ended = bool(one.terminations[-1]) and "ends" not in loses
        rows = steps + ("final" not in loses or not ended)
        assert bool(other.metadata.get("final_observation_missing")) == (rows == steps)
        pairs = zip(parts_of(other.observations), parts_of(one.observations), strict=True)
        for found, expected in pairs:
            check_same(found[:rows], expected[:rows])
        check_same(other.actions, one.actions[:steps])
        if "rewards" not in loses:
            check_same(other.rewards, one.rewards[:steps])
        if "place" not in loses:
            check_same(other.infos["place"], one.infos["place"])
        assert other.terminations.tolist() == [False] * (steps - 1) + [ended]
        is_cut = bool(one.truncations[-1]) or ("stops" in loses and not ended)
        assert other.truncations.tolist() == [False] * (steps - 1) + [is_cut]


def test_every_format_that_is_written_is_here() -> None:
    assert {name for name, one in formats().items() if one.write is not None} == WRITTEN.keys()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_exported_comes_back_but_for_what_is_said_to_be_lost(
    tmp_path: Path, name: str, kind: str
) -> None:
    one, said = WRITTEN[name], list[str]()
    dataset, files = export(name, kind, tmp_path / "out", lossy=True, on_losses=said.extend)
    assert bool(said) == bool(one.loses)
    again = imported(files, name)
    check(dataset, again, {*one.loses.split()})
    spaces_before = dataset.observation_space, dataset.action_space
    spaces_after = again.observation_space, again.action_space
    assert (spaces_after == spaces_before) or not one.keeps_spaces
    if "last" not in one.loses:  # nothing more is lost
        orlog.export_dataset(again, tmp_path / "again", to=name)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("kind", sorted(FLAT))
def test_columns_that_are_named_come_back_too(tmp_path: Path, name: str, kind: str) -> None:
    dataset, files = export(name, kind, tmp_path / "out")
    check(dataset, imported(files, name, MAPPED[name]), set())


@pytest.mark.parametrize("name", [name for name, one in WRITTEN.items() if one.loses])
def test_what_a_format_loses_is_refused_unless_it_is_allowed(tmp_path: Path, name: str) -> None:
    with pytest.raises(SchemaError, match=r"lost|truncated|cut off"):
        export(name, "vectors", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in WRITTEN for kind in KINDS if (name, kind) not in CASES],
)
def test_spaces_that_a_format_does_not_hold_are_refused(
    tmp_path: Path, name: str, kind: str
) -> None:
    with pytest.raises(SchemaError, match=f"lab/{kind}-v1: "):
        export(name, kind, tmp_path / "out", lossy=True)
    assert not (tmp_path / "out").exists()
