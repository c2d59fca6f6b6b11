"""Jobs in pieces: results in order or as they come, little in memory, and what was lost done again."""

import os
import signal
import time

import pytest

from orlog.base.jobs import do_jobs
from orlog.errors import WorkerDiedError


def double(number):
    return 2 * number


def with_room(room, ending):
    """Return an executor that has room for some jobs, of which `ending` says which one ends next."""

    def execute(function, jobs, **_):
        waiting = enumerate(jobs)
        busy = {}
        while True:
            while len(busy) < room and (taken := next(waiting, None)) is not None:
                busy[taken[0]] = taken[1]
            if not busy:
                return
            index = ending([*busy])
            yield index, function(busy.pop(index))

    return execute


def list_of_all(function, jobs, **_):
    """An executor that takes all jobs at once, and ends the last one first."""
    yield from reversed([(index, function(job)) for index, job in enumerate(list(jobs))])


@pytest.mark.parametrize(
    "execute", [with_room(1, min), with_room(3, min), with_room(3, max), with_room(100, max), list_of_all]
)
def test_results_are_those_of_one_worker_whatever_runs_them(execute):
    expected = [*map(double, range(20))]
    assert [*do_jobs(double, range(20), workers=1)] == expected
    assert [*do_jobs(double, iter(range(20)), execute=execute)] == expected
    assert [*do_jobs(double, [], execute=execute)] == []


def test_few_results_wait_for_an_early_job_that_takes_long():
    taken = []
    done = []

    def jobs():
        for number in range(1000):
            taken.append(number)
            yield number

    def last_first(busy):
        """End job 0 only when nothing else is running."""
        done.append(max(busy))
        return done[-1]

    results = do_jobs(double, jobs(), execute=with_room(4, last_first))
    assert next(results) == 0
    assert len(done) <= 2 * 4  # as many as ran at a time were kept, and those that were running
    assert len(taken) <= 2 * 4
    assert [*results] == [*range(2, 2000, 2)]


def kill_once(job):
    """Kill the process of job 3 the first time, and of job 5 each time if it is asked to."""
    folder, number = job
    with (folder / f"{number}").open("a") as file:
        file.write(".")
    time.sleep(0.02)
    is_first = (folder / f"{number}").stat().st_size == 1
    if (number == 3 and is_first) or (number == 5 and (folder / "always").exists()):
        os.kill(os.getpid(), signal.SIGKILL)
    return number, os.getpid()


@pytest.mark.parametrize("workers", [2, 3])
def test_a_process_that_is_killed_costs_its_own_job_alone(tmp_path, workers):
    jobs = [(tmp_path, number) for number in range(8)]
    assert [number for number, _ in do_jobs(kill_once, jobs, workers=workers)] == [*range(8)]
    begun = {number: (tmp_path / f"{number}").stat().st_size for number in range(8)}
    assert begun == {number: 1 + (number == 3) for number in range(8)}


def test_a_job_that_is_lost_again_and_again_ends_with_an_error(tmp_path):
    (tmp_path / "always").touch()
    jobs = [(tmp_path, number) for number in range(8)]
    with pytest.raises(WorkerDiedError, match="its process was killed, often because memory"):
        [*do_jobs(kill_once, jobs, workers=2)]
    assert (tmp_path / "5").stat().st_size == 2


def fail_on_2(number):
    if number == 2:
        raise ValueError("two is refused.")
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_where_results_are_asked_for(workers):
    with pytest.raises(ValueError, match=r"two is refused\."):
        list(do_jobs(fail_on_2, range(4), workers=workers))


def test_an_executor_that_forgets_jobs_is_an_error():
    def forgets(function, jobs, **_):
        kept = [*enumerate(jobs)]
        yield 0, function(kept[0][1])

    for executor in (forgets, lambda *_args, **_named: iter(())):
        with pytest.raises(WorkerDiedError, match=r"ended after \d jobs without doing the others"):
            [*do_jobs(double, range(4), execute=executor)]
