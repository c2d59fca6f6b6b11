"""Results and notes as files: what they say, and that no changed or hostile file is read."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from orlog.base.code_version import run_sources
from orlog.errors import FormatVersionError, IntegrityError, ManifestError, SchemaError
from orlog.manifests.documents import canonical_json
from orlog.normalize.baselines import added_settings_file
from orlog.normalize.references import ReferenceReturns
from orlog.results.documents import (
    NO_DIGEST,
    Note,
    SharedResult,
    digest_of,
    document_bytes,
    parse_document,
    with_digest,
)
from orlog.results.known import baseline_results, known_problems
from orlog.results.making import results_of_runs
from orlog.scoring.references import references
from tests.command_line import orlog
from tools.write_added_settings import added_settings

UMAZE = "pointmaze/umaze-v1"


def sealed(body: dict[str, Any]) -> bytes:
    """Return the file of a result that somebody made, with the digest that it must have."""
    try:
        found = msgspec.convert({**body, "digest": NO_DIGEST}, SharedResult)
        return json.dumps({**body, "digest": digest_of(found)}).encode()
    except (msgspec.ValidationError, ValueError):
        return json.dumps(body).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(ManifestError) as error:
        parse_document(data, "results/a/b.json")
    assert "results/a/b.json" in str(error.value)
    return str(error.value)


def test_a_result_says_all_that_its_numbers_come_from(result: SharedResult, runs: Path) -> None:
    evaluations = [
        json.loads((runs / "bc" / f"seed-{seed}" / "evaluation.json").read_text())
        for seed in range(3)
    ]
    assert [one.returns for one in result.seeds] == [one["returns"] for one in evaluations]
    assert msgspec.to_builtins(result.protocol) == evaluations[0]["protocol"]
    anchors = references("pointmaze/umaze-mini-v1")
    assert isinstance(anchors, ReferenceReturns)
    assert result.references is not None
    assert result.scores is not None
    low, high = anchors.random.mean, anchors.expert.mean
    expected = [
        float(np.mean([100 * (r - low) / (high - low) for r in one.returns]))
        for one in result.seeds
    ]
    assert [*result.scores.seeds.values()] == pytest.approx(expected)
    assert result.scores.mean == pytest.approx(np.mean(expected))
    assert (result.method.name, result.method.tried, result.by) == ("bc", 2, "Ada")
    assert result.method.settings["hidden"] == [64, 64]
    assert result.method.settings["standardize_observations"] is True
    assert result.code.files == run_sources_of_bc(result)
    widths = [8, 64, 64, 2]  # observation with goal, two hidden layers, action
    weights = sum(one * two + two for one, two in itertools.pairwise(widths))
    assert result.compute.parameters == weights
    assert (result.compute.steps, result.compute.batch_size) == (4, 256)
    assert result.compute.device == evaluations[0]["processor"]
    logged = [
        json.loads((runs / "bc" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()[-1])
        for seed in range(3)
    ]
    assert result.compute.hours == pytest.approx(sum(one["seconds"] for one in logged) / 3600)


def run_sources_of_bc(result: SharedResult) -> dict[str, str]:
    from orlog.algos.bc import BC

    return run_sources(BC, BC.CONFIG(), result.protocol.environment_id)


def test_a_file_is_read_as_it_was_written_and_has_a_line_for_each_seed(
    result: SharedResult,
) -> None:
    data = document_bytes(result)
    assert parse_document(data, "here") == result
    assert sum(line.startswith(b"  {") for line in data.splitlines()) == 3
    body = json.loads(data)
    del body["digest"]
    assert digest_of(result) == result.digest
    import hashlib

    assert result.digest == f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"


def leaves(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and value of each field of a document."""
    inner: Iterator[tuple[Any, Any]]
    if isinstance(body, dict) and body:
        inner = iter(body.items())
    elif isinstance(body, list) and body:
        inner = iter(enumerate(body))
    else:
        yield path, body
        return
    for name, value in inner:
        yield from leaves(value, (*path, name))


def changed(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}0" if value[-1:] != "0" else f"{value[:-1]}1"
        case None:
            return 1
        case _:
            return {"0": 0} if value == {} else [0]


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    new = copy.deepcopy(body)
    inner = new
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return new


def test_no_changed_field_of_a_result_is_read(result: SharedResult) -> None:
    body = json.loads(document_bytes(result))
    fields = [*leaves(body)]
    assert len(fields) > 80
    for path, value in fields:
        if path != ("result_version",):  # another layout
            refusal(json.dumps(put(body, path, changed(value))).encode())


def test_a_field_that_is_missing_or_unknown_is_refused_by_name(result: SharedResult) -> None:
    body = json.loads(document_bytes(result))
    for name in body:
        assert name in refusal(json.dumps({k: v for k, v in body.items() if k != name}).encode())
    assert "trust" in refusal(json.dumps({**body, "trust": 1}).encode())


CONTRADICTIONS: dict[str, tuple[tuple[Any, ...], Callable[[Any], Any], str]] = {
    "a return": (("seeds", 0, "returns", 0), lambda one: one + 500, "scores.seeds.0"),
    "a score": (("scores", "seeds", "1"), lambda one: one + 1, "scores.seeds.1"),
    "the mean": (("scores", "mean"), lambda one: one + 1, "scores.mean"),
    "a seed without score": (("scores", "seeds"), lambda _: {}, "scores.seeds"),
    "no scores": (("scores",), lambda _: None, "scores"),
    "the expert": (("references", "expert", "mean"), lambda one: one + 9, "scores.seeds.0"),
    "an expert below random": (("references", "expert", "mean"), lambda _: -1e9, "references"),
    "fewer episodes": (("seeds", 1, "returns"), lambda one: one[:2], r"seeds[1].returns"),
    "other episodes": (("protocol", "episodes"), lambda one: one + 1, "seeds[0].returns"),
    "a seed twice": (("seeds", 1, "seed"), lambda _: 0, "seeds: a seed is there twice"),
    "no seed": (("seeds",), lambda _: [], "seeds"),
    "no episode": (("seeds", 0, "returns"), lambda _: [], "seeds[0].returns"),
    "metrics": (("seeds", 0, "metrics", "success"), lambda one: one[1:], "metrics.success"),
    "the step": (("step",), lambda one: one + 1, "step"),
    "a source": (("code", "files", "orlog.algos.bc"), lambda _: "0" * 64, "code.digest"),
    "a path for a name": (("dataset", "name"), lambda _: "../../etc/passwd", "dataset.name"),
    "a pinned name": (("dataset", "name"), lambda one: f"{one}@1.0.0", "dataset.name"),
    "a version": (("dataset", "version"), lambda _: "new", "dataset.version"),
    "a digest": (("dataset", "digest"), lambda _: "sha256:0", "dataset.digest"),
    "a negative seed": (("seeds", 0, "seed"), lambda _: -1, "seeds[0].seed"),
    "a huge return": (("seeds", 0, "returns", 0), lambda _: 1e200, "seeds[0].returns"),
    "text for a number": (("seeds", 0, "returns", 0), lambda _: "1", "seeds[0].returns[0]"),
    "a line break": (("by",), lambda _: "Ada\nBob", "by"),
    "a long text": (("note",), lambda _: "x" * 5000, "note"),
    "no environments": (("protocol", "environments"), lambda _: 0, "protocol"),
    "a key": (("signed_by",), lambda _: "ed25519:00", "signed_by"),
    "a time": (("created",), lambda _: "yesterday", "created"),
    "tried": (("method", "tried"), lambda _: 0, "method.tried"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_what_does_not_agree_is_refused_by_its_field_though_the_digest_is_right(
    result: SharedResult, what: str
) -> None:
    path, change, said = CONTRADICTIONS[what]
    body = json.loads(document_bytes(result))
    value = body
    for name in path:
        value = value[name]
    assert said in refusal(sealed(put(body, path, change(value))))


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "1e999", "-1e999", "1" + "0" * 400, "1" * 6000]
)
def test_numbers_that_are_none_are_refused(result: SharedResult, number: str) -> None:
    body = json.loads(document_bytes(result))
    for path in [
        ("seeds", 0, "returns", 0),
        ("scores", "mean"),
        ("method", "settings", "learning_rate"),
    ]:
        text = json.dumps(put(body, path, "HERE")).replace('"HERE"', number)
        refusal(text.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"result_version": 1}',
        b'{"note_version": 1}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"note_version": "1"}',
        b"[" + b"[]," * 3_000_000 + b"[]]",
    ],
)
def test_what_is_no_result_is_refused(data: bytes) -> None:
    refusal(data)


def test_a_newer_layout_says_so(result: SharedResult) -> None:
    body = json.loads(document_bytes(result))
    with pytest.raises(FormatVersionError, match="pip install --upgrade orlog"):
        parse_document(json.dumps({**body, "result_version": 2}).encode(), "here")


def test_a_note_has_what_was_run_again(result: SharedResult) -> None:
    whole = Note(
        note_version=1,
        kind="confirmation",
        of=result.digest,
        reason="",
        seeds=result.seeds[:1],
        protocol=result.protocol,
        verdict="identical",
        by="",
        signed_by="",
        created="",
        digest=NO_DIGEST,
    )
    assert with_digest(whole).kind == "confirmation"
    parts: list[dict[str, Any]] = [{"seeds": []}, {"protocol": None}, {"verdict": ""}]
    for lacking in parts:
        with pytest.raises(ManifestError, match="seeds: a confirmation has what was run again"):
            with_digest(msgspec.structs.replace(whole, **lacking))


def test_recorded_baselines_are_results_whose_scores_are_those_of_orlog_baselines() -> None:
    import orlog as package

    known = {
        one.algorithm: one for one in package.baselines(UMAZE) if one.implementation == "orlog"
    }
    found = baseline_results(UMAZE)
    assert {one.method.algorithm for one in found} == known.keys() >= {"bc", "iql"}
    for one in found:
        score = known[one.method.algorithm]
        assert one.scores is not None
        assert one.scores.mean == pytest.approx(score.score)
        assert [*one.scores.seeds.values()] == pytest.approx(score.per_seed)
        assert known_problems(one) == []
        assert parse_document(document_bytes(one), "here") == one


@pytest.mark.slow
def test_settings_that_baselines_do_not_have_are_in_the_table() -> None:
    written = json.loads(added_settings_file().read_bytes())
    assert written == added_settings(), "run: python tools/write_added_settings.py"
    (cql,) = (
        one for one in baseline_results("classic/cartpole-mixed-v1") if one.method.name == "cql"
    )
    assert cql.method.settings["bellman_loss"] == "huber"


def test_data_and_references_other_than_known_ones_are_problems(result: SharedResult) -> None:
    other = msgspec.structs.replace(result.dataset, digest=NO_DIGEST)
    (problem,) = known_problems(msgspec.structs.replace(result, dataset=other))
    assert problem.startswith("dataset.digest")
    assert result.references is not None
    random = msgspec.structs.replace(result.references.random, mean=0.0)
    scale = msgspec.structs.replace(result.references, random=random)
    (problem,) = known_problems(msgspec.structs.replace(result, references=scale))
    assert problem.startswith("references.random")


def test_runs_that_are_not_seeds_of_one_another_make_no_result(runs: Path) -> None:
    copied = runs / "bc" / "copy"
    copied.mkdir()
    for path in (runs / "bc" / "seed-1").iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="both seed 1"):
        results_of_runs([runs])


def test_a_run_on_a_view_and_data_of_another_digest_are_refused(runs: Path) -> None:
    for run in (runs / "bc").iterdir():
        (run / "view.json").write_text("{}")
    with pytest.raises(SchemaError, match="orlog save"):
        results_of_runs([runs])
    path = runs / "printed.json"
    path.write_text(
        json.dumps(
            {
                "algorithm": "mine",
                "dataset": UMAZE,
                "version": "1.0.0",
                "digest": NO_DIGEST,
                "steps": 5,
                "protocol": msgspec.to_builtins(baseline_results(UMAZE)[0].protocol)
                | {"episodes": 2},
                "seeds": [{"seed": 0, "returns": [1.0, 2.0]}],
            }
        )
    )
    with pytest.raises(IntegrityError, match=r"dataset\.digest"):
        results_of_runs([path])


def test_what_other_code_measured_is_a_result_too(runs: Path) -> None:
    baseline = baseline_results(UMAZE)[0]
    path = runs / "printed.json"
    body = {
        "algorithm": "mine",
        "dataset": UMAZE,
        "version": "1.0.0",
        "digest": baseline.dataset.digest,
        "steps": 5,
        "protocol": msgspec.to_builtins(baseline.protocol) | {"episodes": 2},
        "seeds": [{"seed": 0, "returns": [1.0, 2.0]}, {"seed": 1, "returns": [3.0, 4.0]}],
    }
    path.write_text(json.dumps(body))
    (found,) = results_of_runs([path])
    assert found.method.options is None
    assert found.compute.parameters is None
    assert found.scores is not None
    assert math.isfinite(found.scores.mean)
    body["seeds"] = [{"seed": 0, "returns": [1.0, float("nan")]}]
    path.write_text(json.dumps(body))
    assert orlog("results", "add", str(path), "--to", str(runs / "to")).returncode == 3
