"""HDF5 files that several processes read become the version that one process makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import orlog
from orlog.base.jobs import execute_here
from orlog.datasets.formats._shared import mapped_arrays
from orlog.datasets.formats._shared.episodes import Found
from orlog.errors import IntegrityError, OrlogError
from orlog.manifests.manifest import Manifest
from tests.command_line import orlog as run
from tests.datasets.formats.test_lerobot import png

LENGTHS = (7, 1, 30, 12, 3)


def backwards(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
    """An executor that takes all jobs, and ends the last one first."""
    yield from reversed([(index, function(job)) for index, job in enumerate(list(jobs))])


def write_aloha(folder: Path) -> Path:
    """Write episodes as ALOHA does, a file each; some arrays were never written."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, length in enumerate(LENGTHS):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["action"] = rng.normal(size=(length, 3)).astype(np.float32)
            file["observations/qpos"] = rng.normal(size=(length, 3))
            frames = rng.integers(0, 256, (length, 6, 8, 3), np.uint8)
            file.create_dataset("observations/images/top", data=frames, fletcher32=number < 2)
            file.create_dataset("base_action", (length, 2), np.float32)
    return folder


def write_groups(folder: Path) -> Path:
    """Write files of several demonstrations each, with final observations and rewards."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(3):
        with h5py.File(folder / f"part_{number}.h5", "w") as file:
            for demo, length in enumerate(LENGTHS):
                group = file.create_group(f"demo_{demo}")
                group["obs"] = rng.normal(size=(length + 1, 4))
                group["act"] = rng.integers(0, 5 + number, length)
                group["rew"] = rng.normal(size=length)
    return folder


GROUPS: dict[str, Any] = {
    "columns": {"observation": "obs", "action": "act", "reward": "rew"},
    "episode": "demo_*",
    "ends": "truncated",
}
CASES: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "aloha": (write_aloha, {}),
    "groups": (write_groups, GROUPS),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("home")
def test_the_version_is_the_same_whoever_reads(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, options = CASES[case]
    folder = write(tmp_path / "files")
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", 2**9)  # so that an episode is several jobs
    monkeypatch.setattr(mapped_arrays, "BLOCKS_OF_JOB", 2)
    taken: list[int] = []

    def counting(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
        for index, job in enumerate(jobs):
            taken.append(index)
            yield index, function(job)

    found: list[Found] = []
    manifests: list[Manifest] = []
    several: list[dict[str, Any]] = [
        {},
        {"execute": counting},
        {"execute": backwards},
        {"execute": execute_here, "workers": 3} if case == "aloha" else {"execute": counting},
    ]
    for number, how in enumerate(several):
        monkeypatch.setenv("ORLOG_HOME", str(tmp_path / f"home-{number}"))
        made = orlog.import_dataset(folder, "lab/arm-v1", **options, **how, on_found=found.append)
        manifests.append(orlog.load_dataset(made).manifest)
    assert len(taken) > len(LENGTHS)
    assert {one.digest for one in manifests} == {manifests[0].digest}
    assert [one.doubts for one in found] == [found[0].doubts] * len(several)
    assert {str(one.carried_sums) for one in found} == {str(found[0].carried_sums)}
    assert found[0].total_return == pytest.approx(found[1].total_return, abs=0)
    if case == "aloha":
        assert "Never written" in manifests[0].description


@pytest.mark.usefixtures("home")
def test_pictures_are_decoded_by_jobs(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), np.uint8)
    packed = [np.frombuffer(png(one)["bytes"], np.uint8) for one in frames]
    longest = max(map(len, packed))
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((9, 1), np.float32)
        file["observations/qpos"] = np.zeros((9, 1))
        rows = np.stack([np.pad(one, (0, longest - len(one))) for one in packed])
        file["observations/images/top"] = rows
    made = orlog.import_dataset(tmp_path / "episode_0.hdf5", "lab/seen-v1", execute=backwards)
    episode = orlog.load_dataset(made)[0]
    assert np.array_equal(episode.observations["images.top"], frames)


@pytest.mark.usefixtures("home")
def test_what_is_wrong_with_a_file_is_told_and_nothing_is_kept(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "files")
    changing = folder / "episode_3.hdf5"

    def damaging(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
        changing.write_bytes(changing.read_bytes()[:2000])
        yield from ((index, function(job)) for index, job in enumerate(list(jobs)))

    with pytest.raises(IntegrityError, match="episode_3"):
        orlog.import_dataset(folder, "lab/arm-v1", execute=damaging)
    with pytest.raises(OrlogError, match="lab/arm-v1 is not known"):
        orlog.load_dataset("lab/arm-v1")


@pytest.mark.usefixtures("home")
def test_formats_that_one_process_reads_say_so(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        observations=np.zeros((4, 2)),
        actions=np.zeros((4, 1)),
        rewards=np.zeros(4),
        terminals=[False, True, False, True],
    )
    with pytest.raises(ValueError, match=r"are read by one process; leave out .* of aloha, arrays"):
        orlog.import_dataset(tmp_path / "a.npz", "lab/a-v1", workers=2)
    answered = run("import", "a.npz", "lab/a-v1", "--workers", "2", cwd=tmp_path)
    assert answered.returncode == 1
    assert "are read by one process" in " ".join(answered.stderr.split())
    with pytest.raises(OrlogError, match="lab/a-v1 is not known"):
        orlog.load_dataset("lab/a-v1")
