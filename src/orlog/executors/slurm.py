"""Runs jobs on a cluster of SLURM, each as a job of the cluster, through submitit."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import sleep, strftime
from typing import Any, TypeVar

from orlog.base.jobs import keep_busy
from orlog.base.processes import result_or_error
from orlog.datasets.home.folders import datasets_folder
from orlog.errors import NotFoundError, WorkerDiedError, first_line, needing

AT_A_TIME = 100
LOOK_SECONDS = 2.0

Item = TypeVar("Item")
Output = TypeVar("Output")


def execute(
    function: Callable[[Item], Output],
    jobs: Iterable[Item],
    *,
    workers: int | None,
    running: Callable[[Item], None],
    partition: str = "",
    time: str = "240",
    memory: str = "8",
    cluster: str = "slurm",
) -> Iterator[tuple[int, Output | Exception]]:
    """Yield (position, result) of each job as it finishes, or the error that it raised.

    ORLOG_HOME must be on a disk that all nodes share: jobs and their logs lie in its folder `slurm`, those
    of each command in a folder named after its time, and orlog must be installed there. A job that runs out
    of time, or that makes room for another, is queued again by SLURM. At most `workers` are queued at a time,
    100 by default; a job may take `time` minutes and `memory` gigabytes; `cluster` is `slurm`, or `local` for
    processes on this machine.

    Raises WorkerDiedError if SLURM refuses a job.
    """
    resources: dict[str, Any] = {"name": "orlog", "cpus_per_task": 1, "nodes": 1}
    resources["timeout_min"] = _number(time, int, "time is a whole number of minutes from 1 on")
    resources["mem_gb"] = _number(memory, float, "memory is a number of gigabytes")
    if partition:
        resources["slurm_partition"] = partition
    if cluster not in ("slurm", "local"):
        raise ValueError(f"the executor slurm: cluster is slurm or local, found {cluster!r}.")
    with needing("the executor slurm needs submitit", "submitit"):
        import submitit
    for program in ("sbatch", "srun") if cluster == "slurm" else ():
        if shutil.which(program) is None:
            raise NotFoundError(
                f"this machine has no {program}, so it cannot queue jobs of SLURM; run the command on a "
                "node that can, such as the cluster's login node."
            )
    logs = datasets_folder().parent / "slurm"
    logs.mkdir(parents=True, exist_ok=True)
    # made before any job runs: a job that begins at once writes its log before submitit has made its own folder
    logs = Path(tempfile.mkdtemp(prefix=strftime("%Y-%m-%d-%H%M%S-"), dir=logs))
    queue = submitit.AutoExecutor(folder=logs, cluster=cluster)
    queue.update_parameters(**resources)

    def begin(job: Item) -> Any:
        try:
            return queue.submit(_Resumed(function, job))
        except submitit.core.utils.FailedJobError as error:
            raise WorkerDiedError(
                f"SLURM does not queue the job: {first_line(error)}; change the options (--executor-option), or ask "
                "those who run the cluster."
            ) from error

    def result(submitted: Any) -> Any:
        try:
            return submitted.result()
        except submitit.core.utils.UncompletedJobError as error:
            return WorkerDiedError(
                f"it ended without a result, often because memory or time ran out: {first_line(error)}."
            )

    return keep_busy(
        jobs,
        room=lambda: workers or AT_A_TIME,
        begin=begin,
        ended=_ended,
        result=result,
        running=running,
        cancel=lambda submitted: submitted.cancel(check=False),  # nothing may go on without us
    )


def _number(text: str, kind: type[int | float], rule: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number < math.inf:
        raise ValueError(f"the executor slurm: {rule}, found {text!r}.")
    return number


def _ended(busy: Sequence[Any]) -> list[Any]:
    """Return the jobs that have ended; wait a little where there are none."""
    done = [job for job in busy if job.done()]
    if not done:
        sleep(LOOK_SECONDS)
    return done


@dataclasses.dataclass
class _Resumed:
    """A job that is called again where it was after SLURM stopped it: its work is on disk."""

    function: Callable[[Any], Any]
    job: object

    def __call__(self) -> Any:
        return result_or_error(self.function, self.job)

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)
