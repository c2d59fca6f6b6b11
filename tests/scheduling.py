"""The way the system gives cores to the threads of a process."""

import contextlib
import os
import sys
from pathlib import Path


def leave_real_time():
    """Make all threads of this process ordinary ones.

    Some runners start commands as real-time processes, and SVT-AV1, run by root, makes the thread that encodes and
    its own threads such. One that computes keeps its core for itself: other processes stand still.
    """
    if sys.platform != "linux":
        return
    for thread in (int(task.name) for task in Path("/proc/self/task").iterdir()):
        with contextlib.suppress(ProcessLookupError):  # it ended
            if os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
