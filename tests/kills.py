"""Processes that are killed at one of their accesses to files: no clock decides where."""

import itertools
import os
import signal
import sys
import warnings

# Inside `shutil.rmtree` these have names relative to an open folder, and its descriptor.
RELATIVE = {"os.remove": 1, "os.rmdir": 1}
ACCESSES = {"open", "os.link", "os.listdir", "os.mkdir", "os.rename", "os.scandir", *RELATIVE}
LONGEST_S = 600  # whatever hangs is not waited for


def killed_at(work, instant, folder):
    """Work in a fork that kills itself right before one of its accesses to a folder.

    Args:
        work: What to do. It is given a function to call at further instants.
        instant: Number of the access, from 1; with 0 there is no kill.
        folder: Accesses to it and all below it count.

    Returns:
        Whether it was killed; and how many accesses there were, if it was not.
    """
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of servers are not needed
        child = os.fork()
    if child == 0:
        signal.alarm(LONGEST_S)
        numbers = itertools.count(1)  # safe in threads

        def access():
            if next(numbers) == instant:
                os.kill(os.getpid(), signal.SIGKILL)

        def hook(event, arguments):
            if event in ACCESSES and (
                str(arguments[0]).startswith(str(folder)) or (event in RELATIVE and arguments[RELATIVE[event]] != -1)
            ):
                access()

        sys.addaudithook(hook)
        try:
            work(access)
        except BaseException as error:  # noqa: BLE001 (nothing may leave the child)
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os.write(write_end, b"%d" % (next(numbers) - 1))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        told = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), (code, instant)
    return code != 0, int(told or 0)
