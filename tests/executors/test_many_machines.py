"""What several processes or machines read gives what one gives; Ray reads datasets where they are."""

import functools
import sys

import pytest

import orlog
from orlog import publish_dataset
from orlog.base import jobs
from orlog.datasets.audit import audit as audits
from orlog.datasets.home.registries import add_registry
from orlog.datasets.reading.dataset import episode_ranges
from orlog.datasets.recording.saving import convert_dataset
from orlog.errors import SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats import test_lerobot
from tests.datasets.formats.test_shared_reading import write_aloha
from tests.datasets.store.test_version import random_parts, record
from tests.pools import killing_once
from tests.servers import FileServer
from tests.tool_environments import run_tool, tool_python

NAME = "lab/parts-v1"


@pytest.fixture
def small_jobs(monkeypatch):
    """Let small datasets be several jobs."""
    monkeypatch.setattr(audits, "JOB_BYTES", 2**18)


@pytest.mark.usefixtures("small_jobs")
def test_an_audit_finds_the_same_with_two_workers_and_where_one_is_killed(mini, tmp_path, monkeypatch):
    ranges = len(episode_ranges(mini, audits.JOB_BYTES))
    assert ranges > 4
    expected = orlog.audit(mini)
    assert expected.findings
    steps = []
    killing = functools.partial(jobs.do_jobs, execute=functools.partial(killing_once, tmp_path))
    monkeypatch.setattr(audits, "do_jobs", killing)
    found = orlog.audit(mini, workers=2, progress=lambda done, _: steps.append(done))
    assert (tmp_path / "killed").exists()
    assert found == expected
    assert len(steps) == ranges
    assert steps == sorted(steps)
    assert steps[-1] == mini.total_steps


def test_commands_take_executors_and_refuse_what_does_not_fit():
    assert run("build", "x/y-v1", "--executor", "nonsense").returncode == 1
    shown = run("build", "x/y-v1", "--executor", "processes", "--executor-option", "time=1")
    assert "the executor processes has no option 'time'; it has none" in shown.stderr


RAY = """
import os, subprocess, sys
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster

import orlog
from orlog.datasets import to_ray
from orlog.datasets.reading.conversions import to_rows
from orlog.errors import SchemaError
from orlog.runs.jobs import find_executor

mini, url, other_home, files, frames = sys.argv[1:]
to_ray.BLOCK_BYTES = 2**18

Cluster.wait_for_nodes.__defaults__ = Cluster._wait_for_node.__defaults__ = (600,)  # seconds, usually 30
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
# A node with a home of its own: what is read in place is opened there by its address.
second = cluster.add_node(num_cpus=1, env_vars={"ORLOG_HOME": other_home})
cluster.wait_for_nodes()
execute = find_executor("ray", address=cluster.address)

signed = orlog.load_dataset(f"{url}?token=s3cr3t", in_place=True)


def same(found, expected):
    if isinstance(expected, tuple | list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return np.array_equal(found, expected)


def rows_of(dataset):
    parts = {}
    for batch in dataset.iter_batches(batch_format="numpy", batch_size=None):
        for column, values in batch.items():
            parts.setdefault(column, []).extend(values)
    order = np.lexsort((parts["steps"], parts["episodes"]))
    return {column: [values[row] for row in order] for column, values in parts.items()}


ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
plain = orlog.load_dataset(mini)
for dataset in (plain, plain.top_episodes(30), signed):
    handed = dataset.to_ray()
    assert handed.count() == dataset.total_steps
    expected_rows, found = to_rows(dataset), rows_of(handed)
    assert found.keys() == expected_rows.keys()
    for column, values in expected_rows.items():
        assert len(found[column]) == len(values)
        assert all(map(same, found[column], values)), column
        if isinstance(values, np.ndarray):
            assert {one.dtype for one in found[column]} == {values.dtype}, column
try:
    plain[:0].to_ray()
except SchemaError as error:
    assert "there is no episode to hand over" in str(error)
else:
    raise AssertionError
ray.shutdown()

digests = set()
for home, how in (("one", None), ("many", execute)):
    os.environ["ORLOG_HOME"] = os.path.abspath(home)
    made = orlog.import_dataset(files, "lab/arm-v1", execute=how)
    digests.add(orlog.load_dataset(made).digest)
assert len(digests) == 1
digests = set()
for home, how in (("one", ()), ("many", ("--executor", "ray", "--address", cluster.address))):
    command = [sys.executable, "-m", "orlog.cli", "import", frames, "lab/seen-v1", *how]
    os.environ["ORLOG_HOME"] = os.path.abspath(home)
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    digests.add(made.stdout.split()[-1])
assert len(digests) == 1, digests
cluster.shutdown()
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("home")
def test_a_cluster_of_ray_imports_and_reads_what_is_elsewhere(mini, tmp_path, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("author")))
        folder = tmp_path_factory.mktemp("converted") / "store"
        convert_dataset(record(NAME, random_parts()), folder, container="zarr", chunk_hashes=True)
        publish_dataset(folder, str(tmp_path / "registry"))
    other = tmp_path / "other"
    other.mkdir()
    with FileServer(tmp_path / "registry") as server:
        add_registry("lab", server.url, in_place=True)
        url = f"{server.url}/{NAME}"
        files = write_aloha(tmp_path / "files")
        test_lerobot.write(tmp_path / "frames", "v2.1")
        words = (mini.name, url, other, files, tmp_path / "frames")
        run_tool(tool_python("ray==2.60.0"), RAY, *words, folder=tmp_path)


def test_an_empty_view_is_not_handed_over(mini, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", sys)
    monkeypatch.setitem(sys.modules, "ray.data", sys)
    with pytest.raises(SchemaError, match="there is no episode to hand over"):
        mini[:0].to_ray()
