"""Recordings that are killed at any instant lose nothing that was acknowledged.

A child, forked from here, records and kills itself at one of its accesses to files below its home:
before it, or with half of the bytes of a file written. What it told last is what was acknowledged.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.columns.episode import Episode
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.recording import finishing, journal
from orlog.datasets.recording.writer import DatasetWriter
from orlog.datasets.store import encoding, zarr_writer
from orlog.manifests.manifest import StoredObject
from tests.levels import scaled

pytestmark = [pytest.mark.slow, pytest.mark.scaled]

NAME = "lab/arm-v1"
KILLS = scaled(110, 8)
ACCESSES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.link"}
BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few steps fill a shard; no disk loses power here, so none is waited for."""
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 64)
    monkeypatch.setattr(encoding, "SHARD_BYTES", 128)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def make_episode(number: int) -> Episode:
    rng = np.random.default_rng(number)
    steps = int(rng.integers(1, 40))
    never = np.zeros(steps, np.bool_)
    return Episode(
        observations=rng.standard_normal((steps + 1, 2)).astype(np.float32),
        actions=rng.integers(0, 4, steps),
        rewards=rng.integers(0, 9, steps).astype(np.float64),
        terminations=never,
        truncations=never,
        infos={"note": [f"{step} ✓"[: step % 4] for step in range(steps)]},
        seed=number,
        metadata={"task": f"push {number}"},
    )


OLD = [make_episode(number) for number in range(3)]
NEW = [make_episode(number) for number in range(10, 17)]


def write_old(container: str) -> orlog.Dataset:
    """Record the version that is there before; it must come to no harm."""
    with DatasetWriter(
        NAME,
        observation_space=BOX,
        action_space=spaces.Discrete(4),
        version="0.9.0",
        container=container,  # type: ignore[arg-type] # a parameter of the test
    ) as writer:
        for episode in OLD:
            writer.add_episode(episode)
    return orlog.load_dataset(writer.folder)


def start_new(old: orlog.Dataset) -> DatasetWriter:
    return DatasetWriter(
        NAME,
        observation_space=BOX,
        action_space=spaces.Discrete(4),
        version="1.0.0",
        container=old.manifest.container,
        resume=True,
    )


def start_append(old: orlog.Dataset) -> DatasetWriter:
    return DatasetWriter.append(old, version="1.0.0", resume=True)


def record(
    start: Callable[[], DatasetWriter], acknowledge: Callable[[int], object] = lambda _: None
) -> None:
    """Record what is not there yet, acknowledging after every episode and inside of some."""
    with start() as writer:
        acknowledge(writer.total_episodes)
        for episode in NEW[writer.total_episodes :]:
            for first, last in ((0, len(episode) // 2), (len(episode) // 2, len(episode))):
                if first == last:
                    continue
                writer.add_steps(
                    observations=episode.observations[first + 1 if first else 0 : last + 1],
                    actions=episode.actions[first:last],
                    rewards=episode.rewards[first:last],
                    terminations=episode.terminations[first:last],
                    truncations=episode.truncations[first:last],
                    infos={"note": episode.infos["note"][first:last]},
                )
                if first == 0 and episode.seed in (11, 12, 14, 16):
                    acknowledge(writer.checkpoint())
            writer.end_episode(seed=episode.seed, metadata=episode.metadata)
            if episode.seed not in (12, 15):
                acknowledge(writer.checkpoint())


def in_child(work: Callable[[], DatasetWriter], instant: int) -> tuple[int, list[int]]:
    """Record in a fork that kills itself; return its status and the numbers that it told."""
    home = str(datasets_folder())
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no thread of ours runs here
        child = os.fork()
    if child == 0:
        signal.alarm(600)  # whatever hangs is not waited for
        seen = 0

        def access() -> None:
            nonlocal seen
            seen += 1
            if seen == instant:
                os.kill(os.getpid(), signal.SIGKILL)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in ACCESSES and str(arguments[0]).startswith(home):
                access()

        def write_in_halves(path: Path, data: bytes) -> None:
            with path.open("wb", buffering=0) as file:
                access()
                file.write(data[: len(data) // 2])
                access()
                file.write(data[len(data) // 2 :])

        def write(self: Any, folder: Path, name: str, pieces: Iterable[bytes]) -> StoredObject:
            data = b"".join(pieces)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_in_halves(folder / name, data)
            return in_thread(self, folder, name, [data])

        in_thread = zarr_writer._Workers.write
        for module in (journal, finishing):
            setattr(module, "write_durably", write_in_halves)  # noqa: B010 (in this fork only)
        setattr(zarr_writer._Workers, "write", write)  # noqa: B010
        sys.addaudithook(hook)
        try:
            record(work, lambda count: os.write(write_end, b"%d\n" % count))
        except BaseException as error:  # noqa: BLE001 (nothing may leave the child)
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os.write(write_end, b"%d\n" % seen)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        told = [int(line) for line in pipe]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def check_kills(
    start: Callable[[orlog.Dataset], DatasetWriter], kills: int, container: str = "zarr"
) -> dict[str, int]:
    """Kill recordings at many instants and finish them; return how many ended in which way."""
    old = write_old(container)
    new = old.folder.with_name("1.0.0")
    record(lambda: start(old))
    expected = orlog.load_dataset(new).digest
    shutil.rmtree(new)
    code, told = in_child(lambda: start(old), 0)
    assert code == 0
    total = told[-1]
    assert orlog.load_dataset(new).digest == expected

    rng = np.random.default_rng(0)
    # The last accesses are where the version comes to be; of the others some are chosen.
    late = np.arange(max(1, total - kills // 4), total + 1)
    early = rng.permutation(np.arange(1, late[0]))
    counts = {"kills": 0, "second kills": 0, "nothing there": 0, "all there": 0}
    for instant in [*late.tolist(), *early.tolist()]:
        if counts["kills"] == kills:
            break
        for path in old.folder.parent.glob("*1.0.0*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        acknowledged = 0
        # Every other one is killed again soon after it went on.
        for kind, at in zip(
            ("kills", "second kills"),
            (instant, *rng.integers(1, total // 5, instant % 2).tolist()),
            strict=False,
        ):
            if (new / "manifest.json").exists():
                break
            code, told = in_child(lambda: start(old), at)
            # With threads the number of accesses differs a little from run to run.
            assert code in (0, -signal.SIGKILL), (instant, kind, at)
            if code:
                counts[kind] += 1
                acknowledged = max([acknowledged, *told])
            assert orlog.verify_store(old.folder)[1] == []
            assert orlog.load_dataset(old.folder).digest == old.digest
        if (new / "manifest.json").exists():
            counts["all there"] += 1
        else:
            counts["nothing there"] += 1
            assert orlog.load_dataset(NAME).version == old.version
            with start(old) as writer:
                assert writer.total_episodes >= acknowledged, instant
                writer.close()
            record(lambda: start(old))
        assert orlog.verify_store(new)[1] == [], instant
        assert orlog.load_dataset(new).digest == expected, instant
        assert [episode.metadata for episode in orlog.load_dataset(new)][-len(NEW) :] == [
            episode.metadata for episode in NEW
        ]
    return counts


@pytest.mark.parametrize("start", [start_new, start_append])
def test_a_recording_killed_at_any_instant_goes_on_to_the_same_bytes(
    start: Callable[[orlog.Dataset], DatasetWriter],
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    counts = check_kills(start, KILLS)
    for name, count in counts.items():
        record_testsuite_property(f"{start.__name__}: {name}", count)
    assert counts["kills"] == KILLS
    assert min(counts.values()) > 0


@pytest.mark.parametrize(
    "start", [pytest.param(start_new, marks=pytest.mark.thorough), start_append]
)
def test_a_recording_into_one_file_is_as_safe(
    start: Callable[[orlog.Dataset], DatasetWriter],
) -> None:
    pytest.importorskip("h5py")
    kills = scaled(16, 4)
    assert check_kills(start, kills, "hdf5")["kills"] == kills
