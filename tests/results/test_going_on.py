"""Results of runs that go on with other runs: how these are stated, and run again with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orlog.algos.training import train as training
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import read_run
from orlog.datasets.loading import load_dataset
from orlog.errors import NotFoundError, SchemaError, StoppedError
from orlog.results.adding import remarks
from orlog.results.documents import SharedResult, document_bytes, parse_document, with_digest
from orlog.results.making import results_of_runs
from orlog.results.page import cells, origin
from orlog.results.places import Collected, Entry, Found
from orlog.results.reproducing import reproduce_result
from orlog.results.tables import make_board
from tests.training import finetune_run, train_run

SMALL = {"hidden": [8], "batch_size": 8}


@pytest.fixture
def fine_tuned(mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two evaluated seeds, each of which goes on twice: with iql, and with itself."""
    monkeypatch.chdir(tmp_path)
    dataset = load_dataset(mini_folder)
    for seed in range(2):
        names = [Path(f"{what}/iql/seed-{seed}") for what in ("first", "second", "third")]
        train_run("iql", dataset, names[0], seed=seed, steps=5, evaluations=0, settings=SMALL)
        for before, after, steps in ((names[0], names[1], 4), (names[1], names[2], 3)):
            finetune_run(before, after, steps=steps, evaluations=0, prior=0.25, noise=0.1)
        evaluate_run(names[2], dataset=dataset, episodes=2)
    return tmp_path / "third"


def made(folder: Path) -> SharedResult:
    (found,) = results_of_runs([folder])
    again = parse_document(document_bytes(found), "here")
    assert again == found
    return found


def test_seeds_are_run_again_with_the_runs_that_they_go_on_with(
    fine_tuned: Path, tmp_path: Path
) -> None:
    result = made(fine_tuned)
    options = result.method.options
    assert options is not None
    assert options["online"] == {"noise": 0.1, "prior": 0.25, "random_steps": 0}
    assert options["goes_on_with"]["options"]["goes_on_with"]["options"]["steps"] == 5
    assert result.method.steps_before == [5, 4]
    assert result.code.files
    assert not [line for line in remarks(result, named=False) if "again" in line]
    for folder in ("first", "second"):
        shutil.rmtree(tmp_path / folder)  # what others do not have
    note, verdict = reproduce_result(result, tmp_path / "again", seeds=[1])
    assert verdict.word == "identical"
    assert note.seeds == result.seeds[1:]
    assert "another file" not in note.reason  # identical returns say more
    found = Found(place="here", path=result.path, document=result, signers=frozenset())
    board = make_board(
        Collected(entries=[Entry(result=result, found=[found])], problems=[], notes=[]),
        others=False,
    )
    assert "5 + 4 + 3" in cells(board.tables[0])[0]


def test_what_is_not_there_any_more_is_said(fine_tuned: Path, tmp_path: Path) -> None:
    whole = made(fine_tuned)
    shutil.rmtree(tmp_path / "first" / "iql" / "seed-1")
    result = made(fine_tuned)
    assert result.method.options is not None
    own = read_run(fine_tuned / "iql" / "seed-0").code
    assert result.code.trained_by == {"0": [own], "1": ["", own]}
    assert result.code.files == {}
    (remark,) = (line for line in remarks(result, named=False) if "nobody" in line)
    assert "first/iql/seed-1" in remark
    sha = read_run(tmp_path / "second" / "iql" / "seed-1").online
    assert sha is not None
    assert sha.checkpoint_sha256[:12] in remark
    with pytest.raises(NotFoundError, match=r"first/iql/seed-1.*beside it"):
        reproduce_result(result, tmp_path / "again", seeds=[0])
    checkpoint = tmp_path / "second" / "iql" / "seed-0" / "checkpoint.safetensors"
    checkpoint.write_bytes(b"other")
    assert any("is not the one" in line for line in remarks(made(fine_tuned), named=False))
    options = whole.method.options
    assert options is not None

    def refused(**fields: Any) -> str:
        method = msgspec.structs.replace(whole.method, options={**options, **fields})
        with pytest.raises(SchemaError) as caught:
            reproduce_result(
                with_digest(msgspec.structs.replace(whole, method=method)),
                tmp_path / "again",
                seeds=[0],
            )
        return str(caught.value)

    before = options["goes_on_with"]
    assert "method.options" in refused(online={"noise": -1})
    assert "method.options" in refused(goes_on_with={**before, "trust": True})
    assert "steps: says 4" in refused(goes_on_with={**before, "step": 6})
    assert "method.options" in refused(goes_on_with=[])


def test_every_code_that_trained_a_seed_is_stated(
    mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_dataset(mini_folder)
    for seed in range(2):
        folder = tmp_path / "runs" / f"seed-{seed}"
        options: dict[str, Any] = {"seed": seed, "steps": 6, "evaluations": 0, "settings": SMALL}
        if seed:
            with pytest.raises(StoppedError):
                train_run("bc", dataset, folder, stop=lambda: True, **options)
            with monkeypatch.context() as patch:
                patch.setattr(training, "sources_digest", lambda _kind: "0" * 64)
                train_run("bc", dataset, folder, resume=True, **options)
        else:
            train_run("bc", dataset, folder, **options)
        evaluate_run(folder, dataset=dataset, episodes=2)
    result = made(tmp_path / "runs")
    own = read_run(tmp_path / "runs" / "seed-0").code
    assert result.code.trained_by == {"0": [own], "1": [own, "0" * 64]}
    assert result.code.files == {}
    assert any("not trained by one known code" in line for line in remarks(result, named=False))
    assert "then 000000000000" in origin(Entry(result=result))["trained by"]
    body = json.loads(document_bytes(result))
    del body["code"]["trained_by"]
    older = msgspec.convert(body["code"], type(result.code))
    assert msgspec.to_builtins(older) == body["code"]  # nothing is added to what others have
    shutil.rmtree(tmp_path / "runs" / "seed-1")
    assert "trained_by" not in json.loads(document_bytes(made(tmp_path / "runs")))["code"]
