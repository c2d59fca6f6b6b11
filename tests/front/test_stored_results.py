"""Results of runs under a key: what goes into it, and what is read back."""

from __future__ import annotations

import json

import msgspec
import pytest

from orlog.algos.algorithms import find_algorithm
from orlog.algos.settings import make_config
from orlog.algos.training.evaluating import evaluate_run, scoring_protocol
from orlog.algos.training.runs import code_versions
from orlog.algos.training.train import train_run
from orlog.code_version import run_sources, source_hash
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import ManifestError
from orlog.manifests.environments import make_environment
from orlog.result_folders import result_folder
from orlog.stored_results import (
    JobIdentity,
    key_of,
    read_result,
    read_results,
    write_result,
)


def identity(dataset: Dataset) -> JobIdentity:
    kind, protocol = find_algorithm("bc"), scoring_protocol(dataset, 1)
    config = make_config(kind, {})
    return JobIdentity(
        digest=dataset.digest,
        algorithm="bc",
        config=msgspec.json.decode(msgspec.json.encode(config)),
        reward_scale=1.0,
        reward_shift=0.0,
        return_range=None,
        standardize_observations=True,
        seed=0,
        steps=2,
        evaluations=1,
        curve_episodes=1,
        protocol=protocol,
        code=run_sources(kind, config, protocol.environment_id),
        versions={name: code_versions()[name] for name in ("numpy", "torch")},
    )


def test_a_result_is_read_as_it_was_written_and_an_edited_job_is_refused(mini: Dataset) -> None:
    job = identity(mini)
    key = key_of(job)
    folder = result_folder(key)
    assert read_result(key) is None
    train_run("bc", mini, folder, seed=0, steps=2, evaluations=1, curve_episodes=1)
    evaluate_run(folder, dataset=mini, episodes=1)
    assert list(read_results()) == []
    written = write_result(job)
    assert read_result(key) == written
    assert list(read_results()) == [written]
    assert [point.step for point in written.curve] == [2]
    assert written.record.dataset == mini.name
    assert len(written.evaluation.returns) == 1

    path = folder / "result.json"
    body = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**body, "job": {**body["job"], "steps": 3}}), "utf-8")
    with pytest.raises(ManifestError, match=r"its key is not that of its job, so it was edited"):
        read_result(key)


def test_a_key_depends_on_the_code_of_its_algorithm_and_on_no_other(mini: Dataset) -> None:
    kind = find_algorithm("iql")
    found = run_sources(kind, make_config(kind, {}), scoring_protocol(mini, 1).environment_id)
    expected = {
        "orlog.algos.iql",
        "orlog.algos.networks",
        "orlog.algos.training.train",
        "orlog.loaders.transitions",
        "orlog.loaders.sampling.draws",
        "orlog.normalize.rollouts",
    }
    assert expected <= {*found}
    assert not {"orlog.algos.cql", "orlog.algos.presets", "orlog.stored_results"} & {*found}
    assert not any(name.startswith(("orlog.cli", "orlog.datasets")) for name in found)


def test_a_key_depends_on_the_code_of_an_environment_of_our_own() -> None:
    kind = find_algorithm("bc")
    with make_environment("orlog/Catch-v0", {}) as env:
        assert env.spec is not None
        found = run_sources(kind, make_config(kind, {}), env.spec.id)
    own = {name for name in found if name.startswith("orlog.datasets.")}
    assert own == {"orlog.datasets.environments.catch", "orlog.datasets.environments.drawing"}


def test_comments_and_docstrings_do_not_change_the_hash_of_a_source() -> None:
    plain = b'def f(x):\n    """Return."""\n    return x + 1\n'
    told = b'"""Text."""\n\ndef f(x):  # why\n    """Other."""\n    return (x\n      + 1)\n'
    assert source_hash(told) == source_hash(plain)
    assert source_hash(plain) != source_hash(plain.replace(b"1", b"2"))
