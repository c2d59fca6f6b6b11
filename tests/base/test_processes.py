import contextlib
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orlog.base.processes import ProcessPool
from orlog.errors import StorageError, WorkerDiedError
from orlog.executors.processes import execute
from tests.command_line import orlog
from tests.programs import run_program
from tests.small_disks import can_mount

SCRIPT = """
import os, sys, time
from orlog.base.processes import ProcessPool

def work(item):
    os.write(1, f"{os.getpid()}\\n".encode())  # in one piece: two workers share the pipe
    time.sleep(600)

if __name__ == "__main__":
    with ProcessPool(2) as pool:
        [one.result() for one in [pool.submit(work, item) for item in range(8)]]
"""


def is_running(process):
    """Return whether a process still runs; one that only waits to be counted does not."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with (
        subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(parent.kill)
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        assert len(workers) == 2
        assert all(is_running(worker) for worker in workers)
        parent.send_signal(signal.SIGKILL)
        assert parent.wait(120) == -signal.SIGKILL
        limit = time.monotonic() + 120
        while any(is_running(worker) for worker in workers) and time.monotonic() < limit:
            time.sleep(0.05)
        left = [worker for worker in workers if is_running(worker)]
        for worker in left:
            os.kill(worker, signal.SIGKILL)
        assert left == []


def fail_on_0(number):
    if number == 0:
        raise StorageError("the disk is full.", errno=errno.ENOSPC)
    return number


def test_an_executor_brings_back_what_a_disk_said_and_replaces_a_process_killed_while_idle():
    others = {*multiprocessing.active_children()}  # of fixtures

    def jobs():
        yield 0
        yield 1
        for process in {*multiprocessing.active_children()} - others:
            process.kill()
            process.join()
        yield 2

    found = dict(execute(fail_on_0, jobs(), workers=1, running=lambda _job: None))
    error = found.pop(0)
    assert isinstance(error, StorageError)
    assert (str(error), error.errno) == ("the disk is full.", errno.ENOSPC)
    assert found == {1: 1, 2: 2}


def make_what_no_pipe_takes(number):
    return threading.Lock() if number else number


def test_what_cannot_be_sent_is_an_error_of_its_own_work():
    with ProcessPool(2) as pool:
        assert pool.submit(make_what_no_pipe_takes, 0).result() == 0
        with pytest.raises(TypeError, match="pickle"):
            pool.submit(make_what_no_pipe_takes, 1).result()
        with pytest.raises(TypeError, match="pickle"):
            pool.submit(repr, threading.Lock()).result()
        assert pool.submit(abs, -3).result() == 3


def test_a_process_that_is_killed_ends_no_other_work():
    with ProcessPool(2) as pool:
        killed = pool.submit(os._exit, 1)
        assert [pool.submit(abs, -number).result() for number in range(4)] == [0, 1, 2, 3]
        assert isinstance(killed.exception(), WorkerDiedError)


def start_another_and_wait(path):
    with subprocess.Popen(["sleep", "600"]) as child:
        path.write_text(str(child.pid))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_what_a_killed_process_started_ends_with_it(tmp_path):
    started = tmp_path / "pid"
    with contextlib.suppress(KeyboardInterrupt), ProcessPool(1) as pool:
        work = pool.submit(start_another_and_wait, started)
        while not started.exists() or not started.read_text():
            assert not work.done(), work.exception()
            time.sleep(0.05)
        raise KeyboardInterrupt
    limit = time.monotonic() + 60
    while is_running(int(started.read_text())) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not is_running(int(started.read_text()))


COMMANDS = """
mount --rbind "$1" /mnt  # the test's own folder may lie in /dev/shm
mount -t tmpfs -o ro tmpfs /dev/shm
cd /mnt
export ORLOG_HOME=/mnt/there
"$0" -m orlog.cli build {name} --workers 2
"$0" -m orlog.cli verify {name}
"$0" -m orlog.cli train bc {name} --seeds 2 --steps 3 --evaluations 0
"""


@pytest.mark.thorough
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
def test_without_shared_memory_processes_do_the_same(mini, tmp_path):
    script = COMMANDS.format(name=mini.name)
    ended = run_program(["unshare", "-rm", "sh", "-ec", script, sys.executable, tmp_path])
    assert ended.returncode == 0, ended.stderr
    folder = Path("runs/bc") / mini.name
    for seed in ("0", "1"):
        few = ("--seed", seed, "--steps", "3", "--evaluations", "0")
        assert orlog("train", "bc", mini.name, *few, cwd=tmp_path / "home").returncode == 0
        found, alone = (
            (tmp_path / one / folder / f"seed-{seed}" / "checkpoint.safetensors").read_bytes() for one in (".", "home")
        )
        assert found == alone
