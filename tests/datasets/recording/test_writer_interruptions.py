"""Kills, interruptions and full disks lose nothing that was acknowledged."""

import errno
import itertools
import os
import shutil
import signal

import numpy as np
import pytest

import orlog
from orlog import OrlogError
from orlog.base import files as storage
from orlog.base.files import put_new
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import delete_version
from orlog.datasets.recording import crash_log, finishing
from orlog.datasets.store import zarr_writer
from orlog.errors import NotFoundError, StorageError, VersionExistsError
from tests.datasets.recording.arms import (
    EPISODES,
    NAME,
    OPTIONS,
    add,
    append,
    assert_same_episode,
    die,
    digest_of,
    finished,
    in_child,
    leftovers,
    make_episode,
    opened,
    pieces_of,
    record,
    resumed,
    start,
    steps_of,
    tell,
)
from tests.datasets.recording.conftest import fill_shards
from tests.levels import scaled

pytestmark = pytest.mark.usefixtures("small_shards")


# --- a kill loses nothing that was acknowledged


# Each value of each, with each value of most others; `make test-all` takes all.
CUT_INSIDE = {(0, 1, 50), (0, 100, 0), (1, 8, 0), (1, 100, 50), (5, 1, 0), (5, 8, 50)}


@pytest.mark.parametrize(
    ("whole", "open_steps", "more_steps"),
    [
        pytest.param(*one, marks=[] if one in CUT_INSIDE else pytest.mark.thorough)
        for one in itertools.product((0, 1, 5), (1, 8, 100), (0, 50))
    ],
)
def test_a_checkpoint_inside_an_episode_acknowledges_the_ones_before_it(whole, open_steps, more_steps):
    expected = digest_of(12)
    long = make_episode(77, 200)

    def work():
        writer = add(start(), EPISODES[:whole])
        first, second, _ = pieces_of(long, [open_steps, open_steps + more_steps + 1])
        writer.add_steps(**first)
        tell(writer.checkpoint())
        if more_steps:
            writer.add_steps(**second)
        die()

    assert in_child(work) == (-signal.SIGKILL, f"{whole}\n")
    assert resumed(whole, EPISODES[whole:]).digest == expected


def test_acknowledged_rows_beside_those_of_a_dropped_episode_survive_a_second_kill():
    """They lie in a shard that the dropped episode filled, and which is to be written anew."""

    def first():
        writer = start()
        writer.add_episode(EPISODES[0])
        writer.add_steps(**steps_of(77, 200))
        writer.checkpoint()
        die()

    def second():
        def tear(path):
            if path.name.startswith("c."):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"torn")
                die()

        before_writes(pytest.MonkeyPatch(), tear)  # in this fork only
        add(start(resume=True), EPISODES[1:]).checkpoint()

    assert in_child(first)[0] == -signal.SIGKILL
    assert in_child(second)[0] == -signal.SIGKILL
    for found, expected in zip(resumed(1, EPISODES[1:2]), EPISODES[:2], strict=True):
        assert_same_episode(found, expected)


def die_once_published():
    """Let this fork end when a version was put in place."""

    def publish_and_die(folder, destination):
        put_new(folder, destination)
        die()

    setattr(finishing, "put_new", publish_and_die)  # noqa: B010 (in this fork only)


def test_a_version_killed_right_after_it_was_put_in_place_is_there():
    def work():
        die_once_published()
        record(EPISODES[:3])

    assert in_child(work)[0] == -signal.SIGKILL
    assert len(orlog.load_dataset(NAME)) == 3
    for options in OPTIONS[1:]:
        with pytest.raises(VersionExistsError):
            start(**options)
    assert leftovers() == set()


def test_a_recording_that_goes_on_changes_no_file_of_a_version_made_of_it():
    def work():
        die_once_published()
        record(EPISODES[:3], checkpoint_seconds=0)

    assert in_child(work)[0] == -signal.SIGKILL
    newer = append(orlog.load_dataset(NAME), EPISODES[3:4])  # links to what was recorded
    delete_version(NAME, "1.0.0")
    record(EPISODES[4:6], resume=True)
    assert orlog.verify_store(newer.folder)[1] == []


# --- interruptions and full disks


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_error_inside_the_with_block_keeps_whole_episodes(stop):
    with pytest.raises(stop), start() as writer:  # noqa: PT012 (the block is what is tested)
        add(writer, EPISODES[:4]).add_steps(**steps_of(77, 100))
        raise stop
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)
    for found, expected in zip(resumed(4), EPISODES[:4], strict=True):
        assert_same_episode(found, expected)


def test_an_interruption_inside_an_episode_leaves_whole_ones(monkeypatch):
    real = zarr_writer.ColumnWriter.append
    columns = len(record(EPISODES[:1]).columns)
    calls, stop = 0, 0

    def append(self, rows):
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        real(self, rows)

    monkeypatch.setattr(zarr_writer.ColumnWriter, "append", append)
    for at in range(5 * columns + 1, 6 * columns + 1):
        shutil.rmtree(datasets_folder())
        calls, stop = 0, at
        with pytest.raises(KeyboardInterrupt):
            record(EPISODES)
        assert resumed(5, EPISODES[5:]).digest == digest_of(12)


def before_writes(patch, call):
    """Let a function be called with the path of every file before it is written."""
    durably, in_thread = storage.write_durably, zarr_writer._Workers.write

    def write_durably(path, data):
        call(path)
        durably(path, data)

    def write(self, folder, name, pieces):
        call(folder / name)
        return in_thread(self, folder, name, pieces)

    for module in (crash_log, finishing):
        patch.setattr(module, "write_durably", write_durably)
    patch.setattr(zarr_writer._Workers, "write", write)


def record_through_failures(fails, monkeypatch):
    """Record while some writes find the disk full, going on each time; return the writes."""
    calls = 0

    def count(path):
        nonlocal calls
        calls += 1
        if fails(calls):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    acknowledged = 0
    with monkeypatch.context() as patch:
        before_writes(patch, count)
        for _ in range(50):
            try:
                with start(resume=True) as writer:
                    assert writer.total_episodes >= acknowledged
                    for episode in EPISODES[writer.total_episodes :]:
                        writer.add_episode(episode)
                        if writer.total_episodes % 3 == 0:
                            acknowledged = writer.checkpoint()
            except StorageError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
                assert "No space left on device; free some space" in str(error)  # noqa: PT017
            else:
                return calls
    raise AssertionError("it never came to an end")


@pytest.mark.scaled
@pytest.mark.slow
def test_a_full_disk_at_any_write_loses_nothing(monkeypatch):
    expected = digest_of(12)
    total = record_through_failures(lambda _: False, monkeypatch)
    assert orlog.load_dataset(NAME).digest == expected
    rng = np.random.default_rng(0)
    for first in [*rng.choice(total, scaled(12, 5), replace=False).tolist(), total - 1, total]:
        for count in (1, 2, 7):  # room is made after so many writes that failed
            shutil.rmtree(datasets_folder())
            window = range(first, first + count)
            record_through_failures(window.__contains__, monkeypatch)
            assert orlog.load_dataset(NAME).digest == expected, (first, count)
            assert orlog.verify_store(datasets_folder() / NAME / "1.0.0")[1] == []


def test_after_a_full_disk_the_same_writer_goes_on_right_or_not_at_all():
    expected = digest_of(12)
    calls = 0

    def count(_):
        nonlocal calls
        calls += 1
        if calls in (20, 21, 22):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = pytest.MonkeyPatch()
    before_writes(full, count)
    writer = add(start(), EPISODES[:1])
    writer.checkpoint()
    position = 1
    try:
        for _ in range(20):
            try:
                while position < len(EPISODES):
                    writer.add_episode(EPISODES[position])
                    position += 1
                writer.finish()
            except StorageError:
                continue
            break
    except (OrlogError, ValueError):
        pass  # it says that it cannot go on
    finally:
        full.undo()
        writer.close()
    if not writer.folder.exists():
        writer = start(resume=True)
        finished(writer, EPISODES[writer.total_episodes :])
    assert opened(writer).digest == expected


@pytest.mark.slow
def test_a_small_disk_fills_up_and_recording_goes_on_once_there_is_room(mount, monkeypatch):
    fill_shards(monkeypatch, 2**12, 2**14)
    episodes = [make_episode(number, 40) for number in range(150)]
    expected = record(episodes).digest
    disk = mount("size=1600k")
    monkeypatch.setenv("ORLOG_HOME", str(disk / "home"))
    ballast = [disk / f"ballast-{number}" for number in range(9)]
    for path in ballast:
        path.write_bytes(bytes(160_000))
    acknowledged = full = 0
    while not (datasets_folder() / NAME / "1.0.0").exists():
        try:
            with start(resume=True) as writer:
                assert writer.total_episodes >= acknowledged
                for episode in episodes[writer.total_episodes :]:
                    writer.add_episode(episode)
                    if writer.total_episodes % 10 == 0:
                        acknowledged = writer.checkpoint()
        except OrlogError as error:
            assert "No space left on device; free some space" in str(error)  # noqa: PT017
            full += 1
            ballast.pop().unlink()
    assert full > 1
    assert opened(writer).digest == expected
