"""Runs jobs on a cluster of Ray, each on one core."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from orlog.base.jobs import keep_busy
from orlog.base.processes import result_or_error
from orlog.datasets.download.http import bringing_queries
from orlog.datasets.worlds.environments import IMPORTS
from orlog.errors import WorkerDiedError, first_line, needing

CONNECT_SECONDS = 10.0

Item = TypeVar("Item")
Output = TypeVar("Output")


def execute(
    function: Callable[[Item], Output],
    jobs: Iterable[Item],
    *,
    workers: int | None,
    running: Callable[[Item], None],
    address: str = "auto",
) -> Iterator[tuple[int, Output | Exception]]:
    """Yield (position, result) of each job as it finishes, or the error that it raised.

    Ray runs a job again, up to three times, if its node or its process is lost. Nodes can join and leave
    while jobs run; orlog must be installed there. `workers` are as many as the cluster has cores by default;
    `address` is `HOST:PORT` of the cluster, or `auto` for one that runs on this machine.

    Raises MissingExtraError if ray is not installed; WorkerDiedError if the cluster cannot be reached.
    """
    with needing("the executor ray needs ray", "ray"):
        import ray
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon:  # ray itself would try for minutes
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # ray raises errors of many kinds
        raise WorkerDiedError(
            f"no cluster of Ray answers at {address}: {first_line(error)}; start it with ray start --head, or give "
            "address=HOST:PORT of one that runs."
        ) from error

    def result(future: Any) -> Any:
        try:
            return ray.get(future)
        except ray.exceptions.RayTaskError as error:  # such as a result that cannot be pickled
            return WorkerDiedError(f"its process on the cluster failed: {error.cause!r}.")
        except ray.exceptions.RayError as error:
            return WorkerDiedError(
                f"its process or its node was lost four times, often because memory ran out: {first_line(error)}."
            )

    try:
        variables = {name: os.environ[name] for name in (IMPORTS,) if name in os.environ}
        options = {"num_cpus": 1, "max_retries": 3, "runtime_env": {"env_vars": variables}}
        remote = ray.remote(**options)(result_or_error)
        yield from keep_busy(
            jobs,
            room=lambda: workers or int(ray.cluster_resources().get("CPU", 1)),
            begin=lambda job: remote.remote(bringing_queries(function), job),
            ended=lambda busy: ray.wait(busy, timeout=0.5)[0],
            result=result,
            running=running,
        )
    finally:
        ray.shutdown()
