"""Executors of clusters: a real cluster of Ray on this machine, and submitit's local executor."""

import sys

import pytest

from orlog.algos.training.runs import read_run
from orlog.errors import MissingExtraError
from orlog.runs.jobs import find_executor
from orlog.runs.results import finished_results
from tests.tool_environments import run_tool, tool_python

KILLS = """
import os, signal

def kill_1(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
"""

RAY = """
import sys

from ray.cluster_utils import Cluster

import orlog
from orlog.algos.training.runs import TrainOptions
from orlog.runs.jobs import find_executor
from orlog.runs.sweeps import plan_sweep, run_sweep
from orlog.datasets.download.http import plain_url, with_query

Cluster.wait_for_nodes.__defaults__ = Cluster._wait_for_node.__defaults__ = (600,)  # seconds, usually 30
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
execute = find_executor("ray", address=cluster.address)
plain_url("https://data.example.org/registry?token=s3cr3t")  # what a node downloads may need it
asked = execute(with_query, ["https://data.example.org/registry/a"], workers=1, running=print)
assert list(asked) == [(0, "https://data.example.org/registry/a?token=s3cr3t")]
lost = []

def progress(done, total):
    if done == 1 and not lost:
        lost.append(second)
        cluster.remove_node(second, allow_graceful=False)  # which kills its processes

options = TrainOptions(steps=100, evaluations=1)
sweep = plan_sweep([sys.argv[1]], ["bc"], seeds=range(4), episodes=1, options=options)
run_sweep(sweep, executor=execute, progress=progress)
assert lost
assert not sweep.failures, sweep.failures

cluster.shutdown()
"""

RAY_ERRORS = """
from ray.cluster_utils import Cluster

from kills import kill_1
from orlog.runs.jobs import find_executor

Cluster.wait_for_nodes.__defaults__ = Cluster._wait_for_node.__defaults__ = (600,)  # seconds, usually 30
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
execute = find_executor("ray", address=cluster.address)
found = dict(execute(kill_1, range(4), workers=None, running=lambda job: None))
error = found.pop(1)
assert found == {0: 0, 2: 2, 3: 3}
assert type(error).__name__ == "WorkerDiedError"
assert "was lost four times" in str(error)
cluster.shutdown()

for address in ("127.0.0.1:1", "auto", "nonsense"):
    try:
        list(find_executor("ray", address=address)(abs, [1], workers=1, running=print))
    except Exception as error:
        assert type(error).__name__ == "WorkerDiedError"
        assert str(error).startswith(f"no cluster of Ray answers at {address}: "), error
        assert "\\n" not in str(error), error
    else:
        raise AssertionError(address)
"""

SUBMITIT = """
import sys

from kills import kill_1
from orlog.algos.training.runs import TrainOptions
from orlog.runs.jobs import find_executor
from orlog.runs.sweeps import plan_sweep, run_sweep

execute = find_executor("slurm", cluster="local")
found = dict(execute(kill_1, range(3), workers=3, running=lambda job: None))
error = found.pop(1)
assert found == {0: 0, 2: 2}
assert type(error).__name__ == "WorkerDiedError"
assert "ended without a result" in str(error)

options = TrainOptions(steps=20, evaluations=1)
sweep = plan_sweep([sys.argv[1]], ["bc"], seeds=range(2), episodes=1, options=options)
run_sweep(sweep, executor=execute)
assert not sweep.failures, sweep.failures
"""


REFUSED = r"""
import os, pathlib

for program in ("sbatch", "srun"):
    file = pathlib.Path(program)
    file.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: x' >&2; exit 1")
    file.chmod(0o755)
os.environ["PATH"] = os.getcwd() + os.pathsep + os.environ["PATH"]
from orlog.runs.jobs import find_executor

execute = find_executor("slurm", partition="x")
try:
    list(execute(abs, [1], workers=1, running=print))
except Exception as error:
    assert type(error).__name__ == "WorkerDiedError"
    told = "SLURM does not queue the job: sbatch: error: invalid partition: x; change the options"
    assert str(error).startswith(told), error
else:
    raise AssertionError
"""


@pytest.fixture
def kills(tmp_path, monkeypatch):
    """Let every process import a job that kills its own."""
    (tmp_path / "kills.py").write_text(KILLS, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.thorough
def test_a_cluster_of_ray_that_loses_a_node_ends_every_job_once(mini, tmp_path):
    run_tool(tool_python("ray==2.60.0"), RAY, mini.name, folder=tmp_path)
    assert sorted(read_run(folder).seed for folder in finished_results()) == [*range(4)]


@pytest.mark.thorough
@pytest.mark.usefixtures("kills")
def test_ray_tells_of_a_job_that_kills_its_process_and_of_a_cluster_that_does_not_answer(tmp_path):
    run_tool(tool_python("ray==2.60.0"), RAY_ERRORS, folder=tmp_path)


@pytest.mark.thorough
@pytest.mark.usefixtures("kills")
def test_submitit_runs_a_sweep_and_a_killed_job_ends_no_other(mini, tmp_path):
    run_tool(tool_python("submitit==1.5.4"), SUBMITIT, mini.name, folder=tmp_path)
    assert sorted(read_run(folder).seed for folder in finished_results()) == [0, 1]


@pytest.mark.thorough
@pytest.mark.usefixtures("home")
def test_a_job_that_slurm_refuses_is_told_in_its_words(tmp_path):
    run_tool(tool_python("submitit==1.5.4"), REFUSED, folder=tmp_path)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_executor_whose_package_is_missing_names_it(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"run: pip install {package}$"):
        [*find_executor(name)(abs, [1], workers=1, running=print)]


def test_an_option_that_an_executor_does_not_have_is_refused():
    with pytest.raises(ValueError, match="executor processes has no option 'address'; it has none"):
        find_executor("processes", address="auto")
    for option, message in (
        ({"time": "abc"}, "time is a whole number of minutes from 1 on, found 'abc'"),
        ({"time": "0"}, "time is a whole number of minutes"),
        ({"memory": "8G"}, "memory is a number of gigabytes, found '8G'"),
        ({"cluster": "foo"}, "cluster is slurm or local, found 'foo'"),
    ):
        with pytest.raises(ValueError, match=f"the executor slurm: {message}"):
            [*find_executor("slurm", **option)(abs, [1], workers=1, running=print)]
    with pytest.raises(ValueError, match="it has partition, time, memory, cluster"):
        find_executor("slurm", queue="x")
