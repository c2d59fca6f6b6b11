"""What users say of files that do not say it: how episodes ended, and where rewards come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orlog.datasets.formats._shared.episodes import Options
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import NotFoundError, SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats import test_arrays, test_table
from tests.datasets.formats.reading import read_files
from tests.datasets.formats.test_layouts import write_aloha, write_maniskill, write_zarr

HOW = ("terminated", "truncated", "unknown")
MAPPED = {"observation": "obs/state", "action": "actions"}


def ends_of(dataset: Dataset) -> list[str]:
    return [
        "terminated" if one.terminations[-1] else "truncated" if one.truncations[-1] else "unknown"
        for one in dataset
    ]


def arrays(root: Path) -> tuple[Path, dict[str, Any]]:
    test_arrays.write_groups(root / "a.h5", [3, 5])
    return root / "a.h5", {"columns": MAPPED, "episode": "demo_*"}


def table(root: Path) -> tuple[Path, dict[str, Any]]:
    body = test_table.logs([3, 4])
    test_table.write(body, root / "a.csv")
    given = test_table.OPTIONS
    columns = {
        role: one for role, one in given.columns.items() if role in ("observation", "action")
    }
    return root / "a.csv", {"columns": columns, "episode": given.episode}


def aloha(root: Path) -> tuple[Path, dict[str, Any]]:
    write_aloha(root / "a")
    return root / "a", {}


def zarr(root: Path) -> tuple[Path, dict[str, Any]]:
    write_zarr(root / "a.zarr", lengths=[4, 6])
    return root / "a.zarr", {}


@pytest.mark.parametrize("write", [arrays, table, aloha, zarr])
@pytest.mark.parametrize("how", HOW)
def test_unknown_ends_are_what_the_user_says(
    tmp_path: Path, write: Callable[[Path], tuple[Path, dict[str, Any]]], how: str
) -> None:
    path, said = write(tmp_path)
    found = {}
    for ends in ("", how):
        options = Options(**said, ends=ends)
        file_format = choose_format([path], None, "lab/a-v1", is_mapped=bool(said))
        found[ends] = read_files(file_format, path, tmp_path / f"store{ends}", options)
    assert set(ends_of(found[""][0])) == {"truncated"}
    dataset, told = found[how]
    assert set(ends_of(dataset)) == {how}
    assert any("--ends says" in one for one in told.doubts)
    for one, before in zip(dataset, found[""][0], strict=True):
        # A last action that ended the task is kept, and what followed it is marked as missing.
        assert len(one) == len(before) + (how == "terminated")
        np.testing.assert_array_equal(one.actions[: len(before)], before.actions)
        assert one.metadata["final_observation_missing"] == (how == "terminated")


def test_ends_that_files_tell_stay_as_they_are(tmp_path: Path) -> None:
    write_maniskill(tmp_path)
    with pytest.raises(ValueError, match="does not use --ends"):
        read_files(
            choose_format([tmp_path / "demos.h5"], None, "lab/a-v1"),
            tmp_path / "demos.h5",
            tmp_path / "store",
            Options(ends="terminated"),
        )


def test_a_word_that_is_no_end_is_refused(tmp_path: Path) -> None:
    path, said = arrays(tmp_path)
    file_format = choose_format([path], None, "lab/a-v1", is_mapped=True)
    with pytest.raises(ValueError, match="--ends done: expected terminated, truncated, unknown"):
        read_files(file_format, path, tmp_path / "store", Options(**said, ends="done"))


def read_zarr(root: Path, **said: Any) -> tuple[Dataset, dict[str, Any], list[str]]:
    body = write_zarr(root / "a.zarr", lengths=[40, 60])
    file_format = choose_format([root / "a.zarr"], None, "lab/a-v1")
    dataset, found = read_files(file_format, root / "a.zarr", root / "store", Options(**said))
    return dataset, body, found.doubts


def test_constant_rewards(tmp_path: Path) -> None:
    dataset, _, doubts = read_zarr(tmp_path, reward="constant=-1")
    assert all((one.rewards == -1).all() for one in dataset)
    assert "Rewards were not read, but made: --reward constant=-1." in doubts
    assert not any("zeros" in one for one in doubts)


def test_rewards_of_success_are_at_the_end_of_the_task(tmp_path: Path) -> None:
    dataset, _, _ = read_zarr(tmp_path, reward="success", ends="terminated")
    for one in dataset:
        assert one.rewards[-1] == 1
        assert not one.rewards[:-1].any()


def test_rewards_of_success_are_those_of_the_files_where_they_have_them(tmp_path: Path) -> None:
    bodies = write_maniskill(tmp_path)
    path = tmp_path / "demos.h5"
    dataset, _ = read_files(
        choose_format([path], None, "lab/a-v1"), path, tmp_path / "store", Options(reward="success")
    )
    for one, body in zip(dataset, bodies, strict=True):
        np.testing.assert_array_equal(one.rewards, body["reached"].astype(float))


def test_no_success_is_told(tmp_path: Path) -> None:
    _, _, doubts = read_zarr(tmp_path, reward="success")
    assert "No step has a reward other than 0." in doubts


@pytest.mark.parametrize("block_bytes", [300, 2**22])
def test_rewards_of_a_function_see_each_step_and_what_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    from orlog.datasets.formats._shared import mapped_arrays

    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    (tmp_path / "mine.py").write_text(
        "def reach(observations, actions, next_observations):\n"
        "    moved = next_observations['state'] - observations['state']\n"
        "    return moved[:, 0] + actions[:, 1]\n"
    )
    dataset, body, _ = read_zarr(tmp_path, reward=f"{tmp_path / 'mine.py'}:reach")
    for one, start, stop in zip(dataset, (0, 40), (40, 100), strict=True):
        state, action = body["state"][start:stop], body["action"][start:stop]
        expected = np.diff(state[:, 0]) + action[:-1, 1]
        np.testing.assert_array_equal(one.rewards, expected.astype(np.float64))


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ("sparse", ValueError, "expected constant, constant=NUMBER, success, or FILE.py:function"),
        ("constant=x", ValueError, "expected a number"),
        ("missing.py:f", NotFoundError, "no file missing.py"),
        ("mine.py:g", NotFoundError, "has no function 'g'"),
        ("mine.py:short", SchemaError, r"numbers, one a step, found \(1,\)"),
        ("mine.py:fails", ValueError, "KeyError"),
        ("broken.py:f", ValueError, "SyntaxError when it was run"),
    ],
)
def test_rewards_that_cannot_be_made_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "def short(o, a, n): return [0.0]\ndef fails(o, a, n): return o['nothing']\n"
    )
    Path("broken.py").write_text("def f(:")
    with pytest.raises(error, match=text):
        read_zarr(tmp_path, reward=said)


def test_a_dataset_without_rewards_is_imitated_and_refused_where_rewards_are_needed(
    tmp_path: Path,
) -> None:
    write_zarr(tmp_path / "a.zarr", lengths=[40, 60])
    done = run("import", str(tmp_path / "a.zarr"), "lab/a-v1")
    assert done.returncode == 0, done.stderr
    small = ("--steps", "4", "--set", "hidden=8,8", "--set", "batch_size=8", "--evaluations", "0")
    refused = run("train", "iql", "lab/a-v1", *small, "--out", str(tmp_path / "iql"))
    assert refused.returncode == 1
    assert "every reward is 0" in refused.stderr
