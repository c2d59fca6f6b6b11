"""An export that a full disk, a kill or a closed folder ends leaves nothing, and can be done again."""

import contextlib
import functools
import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import zarr
from gymnasium import spaces

import orlog
from orlog.datasets.formats.formats import formats
from orlog.errors import VersionExistsError
from tests.episodes import record_episodes, whole_episode
from tests.kills import killed_at

NAME = "lab/arm-v1"
WRITABLE = [name for name, one in formats().items() if one.write is not None]
KINDS = [*((name, {}) for name in WRITABLE), ("lerobot", {"codebase": "v2.1"})]
BOX = spaces.Box(-1, 1, (16,), np.float32)
# A crash of HDF5 comes when Python ends, so a process of its own writes. Without -B, Python keeps bytecode that the
# limit has cut, and whatever imports that module later fails.
FULL = """
import json, resource, sys
import orlog
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
for number, (to, options) in enumerate(json.loads(sys.argv[1])):
    try:
        orlog.export_dataset("lab/arm-v1", f"{sys.argv[2]}/new-{number}/out", to=to, lossy=True, **options)
    except orlog.OrlogError as error:
        print(error)
"""


def record(episodes=6, steps=200):
    rng = np.random.default_rng(0)
    record_episodes(
        NAME,
        (
            whole_episode(
                rng.uniform(-1, 1, (steps + 1, 16)).astype(np.float32),
                rng.uniform(-1, 1, (steps, 16)).astype(np.float32),
                rng.uniform(size=steps),
            )
            for _ in range(episodes)
        ),
        BOX,
        BOX,
    )


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    record()
    command = [sys.executable, "-B", "-c", FULL, json.dumps(KINDS), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == "".join(
        f"{tmp_path}/new-{number}/out: cannot write: File too large; free some space or choose a folder on another disk, "
        "then run the same command again.\n"
        for number in range(len(KINDS))
    )
    assert not list(tmp_path.glob("new-*"))


# HDF5 reads again what it wrote, and crashes by chance where it gets other bytes.
FULL_AT_EACH = """
import pathlib, resource, sys
import numpy as np
from orlog.datasets.formats.array_files import create_hdf5, write_checked
file = pathlib.Path(sys.argv[1])
for limit in range(1, 49_000, 397):
    same = False
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with create_hdf5(file) as (made, check):
            made["columns"], made["version"] = ["observations", "rewards"], "2.1"
            for number in range(40):
                write_checked(made, f"observations_{number}", np.ones((30, 4), np.float32))
                made[f"ended_{number}"] = True
            made["large"] = np.arange(500_000)
            same = np.array_equal(made["large"], np.arange(500_000))
            check(1, 1)
    except OSError as error:
        assert "File too large" in str(error), error
        assert same, limit
    else:
        raise AssertionError(limit)
    file.unlink()
"""


def test_hdf5_survives_a_disk_that_is_full_at_any_byte(tmp_path):
    command = [sys.executable, "-B", "-c", FULL_AT_EACH, str(tmp_path / "out.h5")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("to", "size"), [("minari", "64k"), ("minari", "256k"), ("d4rl", "100k")])
def test_the_command_says_which_disk_is_full(mount, to, size):
    record(40)
    disk = mount(f"size={size}")
    command = [sys.executable, "-m", "orlog.cli", "export", NAME, to, str(disk / "out")]
    done = subprocess.run([*command, "--lossy"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = (one for one in done.stderr.splitlines() if one.startswith("error: "))
    assert line.startswith(f"error: {disk / 'out'}: cannot write: No space left on device; free")
    assert "ORLOG_HOME" not in line
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(("to", "options"), KINDS)
def test_an_export_that_was_killed_is_done_again(tmp_path, to, options):
    record(2, 5)

    def export(folder, _access=None):
        # By several threads it opens files and makes folders in any order, and at times more of them.
        with zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1}):
            return orlog.export_dataset(NAME, folder / "out", to=to, lossy=True, **options)

    _, accesses = killed_at(functools.partial(export, tmp_path / "all"), 0, tmp_path / "all")
    for instant in {*range(1, accesses, 9), *range(accesses - 3, accesses + 1)}:
        around = tmp_path / str(instant)
        assert killed_at(functools.partial(export, around), instant, around)[0]
        with contextlib.suppress(VersionExistsError):  # of a kill after the last rename
            export(around)
        assert [path.name for path in around.iterdir()] == ["out"]
        for line in (around / "out" / "SHA256SUMS").read_text().splitlines():
            sha256, _, name = line.partition("  ")
            assert hashlib.sha256((around / "out" / name).read_bytes()).hexdigest() == sha256
