"""Recordings that are killed at any instant lose nothing that was acknowledged.

A child, forked from here, records and kills itself at one of its accesses to files below its home:
before it, or with half of the bytes of a file written. What it told last is what was acknowledged.
"""

import shutil

import gymnasium
import numpy as np
import pytest

import orlog
from orlog import DatasetWriter
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.recording import crash_log, finishing
from orlog.datasets.store import zarr_writer
from tests.datasets.recording.arms import EPISODES, NAME, pieces_of, record, start
from tests.datasets.recording.conftest import fill_shards
from tests.datasets.recording.test_recorder import run
from tests.kills import killed_at
from tests.levels import most, scaled

pytestmark = [pytest.mark.slow, pytest.mark.scaled, pytest.mark.usefixtures("tiny_shards")]

KILLS = scaled(most(110, 40), 8)
OLD, NEW = EPISODES[:3], EPISODES[3:10]


def start_new(old):
    return start(container=old.manifest.container, resume=True)


def start_append(old):
    return DatasetWriter.append(old, version="1.0.0", resume=True)


def start_poles(_old):
    return start_environment(gymnasium.make("CartPole-v1"), state=True)


def start_rows(_old):
    return start_environment(gymnasium.make("Pendulum-v1", max_episode_steps=25))


def start_environment(env, **options):
    return orlog.record(env, NAME, version="1.0.0", resume=True, checkpoint_seconds=0.02, **options)


def writer_of(recording):
    return recording.writer if isinstance(recording, gymnasium.Env) else recording


def record_new(begin, acknowledge=lambda _: None):
    """Record what is not there yet, acknowledging after every episode and inside of some."""
    recording = begin()
    if isinstance(recording, gymnasium.Env):
        for seed in range(recording.writer.total_episodes, 16):
            run(recording, 1, first=seed)
            acknowledge(seed + 1)
        recording.close()
        return
    with recording as writer:
        acknowledge(writer.total_episodes)
        for number in range(writer.total_episodes, len(NEW)):
            episode = NEW[number]
            half = len(episode) // 2
            for part, piece in enumerate(pieces_of(episode, [half] if half else [])):
                writer.add_steps(**piece)
                if part == 0 and number in (1, 2, 4, 6):
                    acknowledge(writer.checkpoint())
            writer.end_episode(seed=episode.seed, metadata=episode.metadata)
            if number not in (2, 5):
                acknowledge(writer.checkpoint())


def record_and_die(begin, instant, told):
    """Record in a fork that kills itself and notes what was acknowledged; return whether it did, and its accesses."""

    def work(access):
        def write_in_halves(path, data):
            with path.open("wb", buffering=0) as file:
                access()
                file.write(data[: len(data) // 2])
                access()
                file.write(data[len(data) // 2 :])

        def write(self, folder, name, pieces):
            data = b"".join(pieces)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_in_halves(folder / name, data)
            return in_thread(self, folder, name, [data])

        def write_block(self, block):
            access()
            in_log(self, block)
            access()

        in_thread, in_log = zarr_writer._Workers.write, crash_log.CrashLog.write
        for module in (crash_log, finishing):
            setattr(module, "write_durably", write_in_halves)  # noqa: B010 (in this fork only)
        setattr(zarr_writer._Workers, "write", write)  # noqa: B010
        setattr(crash_log.CrashLog, "write", write_block)  # noqa: B010
        with told.open("a", buffering=1) as file:
            record_new(begin, lambda count: file.write(f"{count}\n"))

    return killed_at(work, instant, datasets_folder())


def check_kills(begin, kills, told, container="zarr"):
    """Kill recordings at many instants and finish them; return how many ended in which way."""
    old = record(OLD, version="0.9.0", container=container)
    new = old.folder.with_name("1.0.0")
    record_new(lambda: begin(old))
    expected = orlog.load_dataset(new).digest
    shutil.rmtree(new)
    _, total = record_and_die(lambda: begin(old), 0, told)
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
        told.write_text("0\n")
        # Every other one is killed again soon after it went on.
        instants = (instant, *rng.integers(1, total // 5, instant % 2).tolist())
        for kind, at in zip(("kills", "second kills"), instants, strict=False):
            if (new / "manifest.json").exists():
                break
            counts[kind] += record_and_die(lambda: begin(old), at, told)[0]
            assert orlog.verify_store(old.folder)[1] == []
            assert orlog.load_dataset(old.folder).digest == old.digest
        if (new / "manifest.json").exists():
            counts["all there"] += 1
        else:
            counts["nothing there"] += 1
            assert orlog.load_dataset(NAME).version == old.version
            writer = writer_of(begin(old))
            assert writer.total_episodes >= max(map(int, told.read_text().split())), instant
            writer.close()
            record_new(lambda: begin(old))
        assert orlog.verify_store(new)[1] == [], instant
        assert orlog.load_dataset(new).digest == expected, instant
    return counts


@pytest.mark.parametrize("begin", [start_new, start_append])
def test_a_recording_killed_at_any_instant_goes_on_to_the_same_bytes(begin, tmp_path, record_testsuite_property):
    counts = check_kills(begin, KILLS, tmp_path / "told")
    for name, count in counts.items():
        record_testsuite_property(f"{begin.__name__}: {name}", count)
    assert counts["kills"] == KILLS
    assert min(counts.values()) > 0


@pytest.mark.parametrize("begin", [start_poles, start_rows])
def test_an_environment_that_is_recorded_keeps_every_finished_episode(begin, tmp_path, monkeypatch):
    # A few steps fill a shard, and a few episodes a log.
    fill_shards(monkeypatch, 2**10, 2**12)
    monkeypatch.setattr(crash_log, "LARGEST_BLOCKS", 2**14)
    kills = scaled(most(100, 30), 4)
    assert check_kills(begin, kills, tmp_path / "told")["kills"] == kills


@pytest.mark.parametrize("begin", [pytest.param(start_new, marks=pytest.mark.thorough), start_append])
def test_a_recording_into_one_file_is_as_safe(begin, tmp_path):
    pytest.importorskip("h5py")
    kills = scaled(16, 4)
    assert check_kills(begin, kills, tmp_path / "told", "hdf5")["kills"] == kills
