"""What is checked, audited and judged on many machines gives what one gives; Ray reads datasets where they are."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.datasets.audit import audit as audits
from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish.publish import publish_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.episode_ranges import episode_ranges
from orlog.datasets.recording.converting import convert_dataset
from orlog.datasets.store import verify
from orlog.datasets.store.verify import verify_folder
from orlog.datasets.store.verify_values import check_values
from orlog.datasets.store.version import StoredVersion
from orlog.errors import MissingExtraError, SchemaError, StorageError
from tests.command_line import orlog as run
from tests.datasets.formats import test_lerobot
from tests.datasets.formats.test_shared_reading import write_aloha
from tests.datasets.store.test_version import random_parts, record
from tests.pools import killing_once
from tests.servers import FileServer
from tests.tool_environments import run_tool, tool_python

NAME = "lab/parts-v1"


def backwards(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
    yield from reversed([(index, function(job)) for index, job in enumerate(list(jobs))])


@pytest.fixture
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small datasets be several jobs."""
    monkeypatch.setattr(audits, "JOB_BYTES", 2**18)
    monkeypatch.setattr(verify, "JOB_BYTES", 2**16)


@pytest.mark.usefixtures("small_jobs")
def test_an_audit_finds_the_same_with_any_number_of_workers_and_where_one_is_killed(
    mini: Dataset, tmp_path: Path
) -> None:
    jobs = len(episode_ranges(mini, audits.JOB_BYTES))
    assert jobs > 4
    expected = orlog.audit(mini)
    assert expected.findings
    steps: list[int] = []
    killing = functools.partial(killing_once, tmp_path)
    found = orlog.audit(
        mini, execute=killing, workers=2, progress=lambda done, _: steps.append(done)
    )
    assert (tmp_path / "killed").exists()
    assert found == expected
    assert len(steps) == jobs
    assert steps == sorted(steps)
    assert steps[-1] == mini.total_steps


@pytest.mark.thorough
@pytest.mark.usefixtures("small_jobs")
def test_an_audit_of_a_view_with_three_workers(mini: Dataset) -> None:
    view = mini.filter_episodes("lengths > 20")[::-1]
    assert orlog.audit(view, workers=3) == orlog.audit(view)


@pytest.mark.usefixtures("small_jobs")
def test_bytes_and_values_are_checked_by_jobs_as_here(mini_folder: Path, tmp_path: Path) -> None:
    shard = mini_folder / "rewards/c.0"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    seen: list[int] = []
    killing = functools.partial(killing_once, tmp_path)
    manifest, problems = verify_folder(mini_folder, execute=killing, progress=seen.append)
    assert problems == []
    assert sum(seen) == manifest.size_bytes
    assert (tmp_path / "killed").exists()
    stored, counted = StoredVersion(mini_folder), list[int]()
    expected_values = check_values(stored, counted.append)
    again: list[int] = []
    assert check_values(stored, again.append, execute=backwards) == expected_values == []
    assert sum(again) == sum(counted)
    shard.write_bytes(data)
    (mini_folder / "actions/c.0.0").unlink()
    found = verify_folder(mini_folder, execute=backwards)[1]
    assert found == verify_folder(mini_folder)[1]
    assert [one.kind for one in found] == ["missing", "damaged"]


def test_a_machine_that_does_not_see_the_data_says_so(mini: Dataset, tmp_path: Path) -> None:
    stored = mini.folder.rename(tmp_path / "store")
    opened = orlog.load_dataset(stored)

    def without(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
        stored.rename(tmp_path / "elsewhere")
        yield from ((index, function(job)) for index, job in enumerate(jobs))

    with pytest.raises(StorageError, match=r"does not see this folder; put it on a disk"):
        orlog.audit(opened, execute=without)


@pytest.mark.thorough
def test_checkpoints_are_judged_by_jobs_as_here(
    mini: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"hidden": [4], "batch_size": 8}
    options = {"steps": 20, "evaluations": 2, "keep_checkpoints": True, "settings": small}
    run_of = orlog.train("bc", mini, **options)  # type: ignore[arg-type]
    settings = FQESettings(hidden=(4,), batch_size=8, steps=5, fits=2)
    judge = functools.partial(
        orlog.evaluate_off_policy, [run_of.folder], episodes=1, settings=settings
    )
    done: list[tuple[int, int]] = []
    expected = judge().to_json()
    assert judge(workers=2, progress=lambda now, of: done.append((now, of))).to_json() == expected
    assert done == [(10, 20), (20, 20)]


def test_commands_take_executors_and_refuse_what_does_not_fit(mini: Dataset) -> None:
    assert run("verify", mini.name, "--executor", "nonsense").returncode == 1
    shown = run("audit", mini.name, "--executor", "processes", "--executor-option", "time=1")
    assert "the executor processes has no option 'time'; it has none" in shown.stderr


def test_what_hands_over_to_ray_names_its_extra(
    mini: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "ray\[data\]"'):
        mini.to_ray()


OF_OWN = """
from pathlib import Path

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings

METHOD = "from orlog.algos.bc import BC\\n\\n\\nclass Mine(BC):\\n    pass\\n"


def check_judges_alike(mini, execute):
    Path("my_method.py").write_text(METHOD)
    own, small = "my_method.py:Mine", {"hidden": [4], "batch_size": 8}
    kept = {"evaluations": 2, "keep_checkpoints": True}
    orlog.train(own, mini, folder="run", steps=20, settings=small, **kept)
    settings = FQESettings(hidden=(4,), batch_size=8, steps=5, fits=2)
    judged = [
        orlog.evaluate_off_policy("run", algorithm=own, episodes=1, settings=settings, **how)
        for how in ({}, {"execute": execute})
    ]
    assert judged[0].to_json() == judged[1].to_json()
"""
"""A method in a file of the user's, named from where the user works, which is not where jobs do."""

RAY = """
import os, subprocess, sys
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster

import orlog
from orlog.datasets import to_ray
from orlog.datasets.audit import audit as audits
from orlog.datasets.reading.conversions import to_rows
from orlog.datasets.store import verify, verify_in_place
from orlog.datasets.store.verify_values import check_values
from orlog.errors import SchemaError
from orlog.experiments.jobs import find_executor
from of_own import check_judges_alike

mini, name, url, other_home, files, frames = sys.argv[1:]
verify.JOB_BYTES = verify_in_place.JOB_BYTES = 2**14
to_ray.BLOCK_BYTES = 2**18

Cluster.wait_for_nodes.__defaults__ = Cluster._wait_for_node.__defaults__ = (600,)  # seconds, usually 30
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
# A node with a home of its own: what is read in place is opened there by its address.
second = cluster.add_node(num_cpus=1, env_vars={"ORLOG_HOME": other_home})
cluster.wait_for_nodes()
execute = find_executor("ray", address=cluster.address)

audits.JOB_BYTES = 2**9
signed = orlog.load_dataset(f"{url}?token=s3cr3t", in_place=True)
expected = orlog.audit(signed)
assert orlog.audit(signed, execute=execute) == expected
assert [*Path(other_home, "in-place").glob("*/rewards/c.0")]
stored = signed.selection().versions[0]
check = verify_in_place.check_where_it_is
assert check(stored, execute=execute) == check(stored)
assert check_values(stored, execute=execute) == []


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

cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
audits.JOB_BYTES = 2**16
expected = orlog.audit(mini)
lost = []

def progress(done, total):
    if not lost:
        lost.append(second)
        cluster.remove_node(second, allow_graceful=False)  # which kills its processes

assert orlog.audit(mini, execute=execute, progress=progress) == expected
assert lost
for words in (["audit", name], ["verify", mini, "--values"], ["verify", name, "--in-place"]):
    command = [sys.executable, "-m", "orlog.cli", *words]
    here = subprocess.run(command, capture_output=True, text=True)
    there = subprocess.run(
        [*command, "--executor", "ray", "--address", cluster.address], capture_output=True, text=True
    )
    assert there.returncode == 0, there.stderr
    assert there.stdout == here.stdout
check_judges_alike(mini, execute)
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

SUBMITIT = """
import os, sys

import orlog
from orlog.datasets.audit import audit as audits
from orlog.datasets.formats._shared import pieces
from orlog.datasets.store import verify
from orlog.experiments.jobs import find_executor
from of_own import check_judges_alike

audits.JOB_BYTES, verify.JOB_BYTES = 2**20, 2**18
execute = find_executor("slurm", cluster="local")
assert orlog.audit(sys.argv[1], execute=execute, workers=3) == orlog.audit(sys.argv[1])
assert orlog.verify_store(sys.argv[1], execute=execute)[1] == []
check_judges_alike(sys.argv[1], execute)
pieces.JOB_BYTES = 2**14
digests = set()
for how in ({}, {"execute": execute, "workers": 2}):
    os.environ["ORLOG_HOME"] = os.path.abspath(f"home-{len(how)}")
    made = orlog.import_dataset(sys.argv[2], "lab/seen-v1", **how)
    digests.add(orlog.load_dataset(made).digest)
assert len(digests) == 1
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("home")
def test_a_cluster_of_ray_checks_audits_and_reads_what_is_elsewhere(
    mini: Dataset, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
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
        (tmp_path / "of_own.py").write_text(OF_OWN, "utf-8")
        test_lerobot.write(tmp_path / "frames")
        words = (mini.name, NAME, url, other, files, tmp_path / "frames")
        run_tool(tool_python("ray==2.60.0"), RAY, *words, folder=tmp_path)


@pytest.mark.thorough
def test_submitit_audits_and_checks_as_one_process_does(mini: Dataset, tmp_path: Path) -> None:
    (tmp_path / "of_own.py").write_text(OF_OWN, "utf-8")
    test_lerobot.write(tmp_path / "frames")
    words = (mini.name, tmp_path / "frames")
    run_tool(tool_python("submitit==1.5.4"), SUBMITIT, *words, folder=tmp_path)


def test_an_empty_view_is_not_handed_over(mini: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", sys)
    monkeypatch.setitem(sys.modules, "ray.data", sys)
    with pytest.raises(SchemaError, match="there is no episode to hand over"):
        mini[:0].to_ray()
