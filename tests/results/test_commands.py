"""The commands of results: added, run again, taken back, verified, and shown in tables."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import orlog as package
from orlog.manifests.signatures import public_key
from orlog.normalize.statistics import bootstrap_interval
from orlog.results.documents import (
    SharedResult,
    document_bytes,
    parse_document,
    scores_of,
    with_digest,
)
from orlog.results.known import baseline_results
from orlog.results.places import Collected, Entry, Found, add_documents, collect
from orlog.results.tables import make_board
from tests.command_line import orlog
from tests.servers import FileServer

MINI = "pointmaze/umaze-mini-v1"
Keys = tuple[Path, Path]


def files(folder: Path, kind: str = "") -> list[Path]:
    pattern = f"*.{kind}-*.json" if kind else "*.json"
    found = sorted((folder / "umaze-mini-v1").glob(pattern))
    return found if kind else [path for path in found if path.name.count(".") == 1]


def run(*words: str, code: int = 0) -> str:
    ended = orlog("results", *words)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code in (0, 4) else ended.stdout + ended.stderr


def entry_of(result: SharedResult) -> Entry:
    found = Found(place="here", path=result.path, document=result, signers=frozenset())
    return Entry(result=result, found=[found])


def board_of(*results: SharedResult, **options: Any) -> Any:
    collected = Collected(entries=[entry_of(one) for one in results], problems=[], notes=[])
    return make_board(collected, others=False, **options)


def with_returns(result: SharedResult, change: float, **fields: Any) -> SharedResult:
    """Return a result of other returns, whose scores agree."""
    seeds = [
        msgspec.structs.replace(one, returns=[value + change for value in one.returns])
        for one in result.seeds
    ]
    scores = scores_of(seeds, result.references)
    made = msgspec.structs.replace(result, seeds=seeds, scores=scores, **fields)
    found: SharedResult = with_digest(made)
    return found


def test_from_runs_to_a_table_that_a_second_home_has_confirmed(
    runs: Path, keys: Keys, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = map(str, keys)
    to = tmp_path / "results"
    said = run("add", str(runs), "--to", str(to), "--by", "Ada", "--sign", ada, "--tried", "3")
    (file,) = files(to)
    assert str(file) in said
    assert "there already" in run(
        "add", str(runs), "--to", str(to), "--by", "Ada", "--sign", ada, "--tried", "3"
    )
    second = tmp_path / "second"
    shutil.copytree(home / "datasets", second / "datasets")
    monkeypatch.setenv("ORLOG_HOME", str(second))
    monkeypatch.chdir(tmp_path)
    found = run("reproduce", str(file), "--seed", "1", "--by", "Bob", "--sign", bob)
    assert "confirmation: identical" in found
    (note,) = files(to, "confirmation")
    body = json.loads(note.read_bytes())
    assert body["seeds"][0]["returns"] == json.loads(file.read_bytes())["seeds"][1]["returns"]
    with FileServer(to) as server:
        shown = run("table", MINI, "--from", server.url, "--json")
        address = f"{server.url}/umaze-mini-v1/{file.name}"
        refused = run("reproduce", address, code=2)
        aside = run("reproduce", address, "--to", "mine")
        page = tmp_path / "table.html"
        run("table", MINI, "--from", server.url, "--html", str(page))
    assert "add --to FOLDER" in refused
    assert "seed 0" not in refused  # before anything is trained
    assert f'<a href="{address}">' in page.read_text("utf-8")
    assert "confirmation: identical" in aside
    table = json.loads(shown)["tables"][0]
    row = next(one for one in table["rows"] if one["where"] != ["recorded with orlog"])
    assert row["state"] == ["confirmed 1x (1 signed by others)"]
    assert row["signers"] == [public_key(keys[0])]
    both = run("table", MINI, "--from", str(to), "--from", "mine")
    assert "confirmed 2x (1 signed by others)" in both
    assert "all agree: 1 result, 1 signed, and 2 notes" in run("verify", str(to), "mine")


def test_the_table_has_the_intervals_and_ranks_of_everywhere(result: SharedResult) -> None:
    better = with_returns(result, 40.0, method=msgspec.structs.replace(result.method, name="mine"))
    board = board_of(result, better)
    (table,) = board.tables
    assert [row.name for row in table.rows] == ["mine", "BC"]
    values = better.values
    assert table.rows[0].score.value == pytest.approx(values.mean())
    assert table.rows[0].score.interval == bootstrap_interval(values, np.random.default_rng(0))
    assert table.comparison.ranking() == ["mine", "BC"]
    assert set(table.comparison.aggregates["BC"]) == {"IQM", "median", "mean", "optimality gap"}
    from orlog.normalize.statistics import compare_methods

    alone = compare_methods(
        {row.name: {MINI: row.entry.result.values} for row in table.rows}, np.random.default_rng(0)
    )
    assert table.comparison.to_json() == alone.to_json()


SEPARATE: dict[str, tuple[str, dict[str, Any]]] = {
    "data": ("dataset", {"digest": f"sha256:{'1' * 64}", "version": ""}),
    "environment": ("protocol", {"environment_id": "Other-v0"}),
    "arguments": ("protocol", {"environment_kwargs": {"reset_target": True}}),
    "time limit": ("protocol", {"max_episode_steps": 7}),
    "packages": ("protocol", {"versions": {"gymnasium": "9.9.0"}}),
    "trained": ("method", {"online": True}),
}


@pytest.mark.parametrize("what", SEPARATE)
def test_what_does_not_compare_shares_no_table_and_the_difference_is_said(
    result: SharedResult, what: str
) -> None:
    part, fields = SEPARATE[what]
    changed = msgspec.structs.replace(getattr(result, part), **fields)
    other = with_digest(msgspec.structs.replace(result, **{part: changed}))
    board = board_of(result, other)
    assert len(board.tables) == 2
    (lines,) = board.differences.values()
    assert [line.partition(":")[0] for line in lines] == [what]


def test_other_policies_and_references_share_no_table(result: SharedResult) -> None:
    best = with_digest(msgspec.structs.replace(result, checkpoint="best of all evaluations"))
    assert result.references is not None
    scale = msgspec.structs.replace(result.references, source="mine", simulator="mine")
    shifted = msgspec.structs.replace(scale.expert, mean=scale.expert.mean + 1)
    scale = msgspec.structs.replace(scale, expert=shifted)
    scores = scores_of(result.seeds, scale)
    scaled = with_digest(msgspec.structs.replace(result, references=scale, scores=scores))
    board = board_of(result, best, scaled)
    assert len(board.tables) == 3
    assert [line.partition(":")[0] for lines in board.differences.values() for line in lines] == [
        *("policy", "references", "policy", "references")
    ]


def test_patch_versions_and_numbers_of_episodes_are_noted_in_one_table(
    result: SharedResult,
) -> None:
    versions = {name: f"{one}.post1" for name, one in result.protocol.versions.items()}
    seeds = [
        msgspec.structs.replace(one, returns=one.returns[:2], metrics={}) for one in result.seeds
    ]
    protocol = msgspec.structs.replace(result.protocol, versions=versions, episodes=2)
    fields = {"protocol": protocol, "seeds": seeds, "scores": scores_of(seeds, result.references)}
    other = with_digest(msgspec.structs.replace(result, by="Bob", **fields))
    (table,) = board_of(result, other).tables
    assert {row.name for row in table.rows} == {"BC by Ada", "BC by Bob"}
    assert sum("the rows differ in" in line for line in table.notes) == 2


def test_recorded_baselines_and_published_scores_stand_beside_results(tmp_path: Path) -> None:
    to = tmp_path / "results"
    run("add", "pointmaze/umaze-v1", "--baselines", "--to", str(to))
    written = collect([str(to)])
    shipped = make_board(Collected(entries=[], problems=[], notes=[]), ["pointmaze/umaze-v1"])
    (table,) = shipped.tables
    assert {row.entry.result.digest for row in table.rows} == {
        one.result.digest for one in written.entries
    }
    (shown,) = make_board(written, ["pointmaze/umaze-v1"]).tables
    assert [row.name for row in shown.rows] == [
        row.name for row in table.rows
    ]  # each is there once
    published = json.loads(run("table", "d4rl/hopper-medium-v2", "--json"))
    assert len(published["tables"]) > 5
    count = len(published["tables"])
    assert len(published["differences"]) == count * (count - 1) // 2
    assert all(one["differs"] for one in published["differences"])
    known = {
        (one.algorithm, one.score, one.source) for one in package.baselines("d4rl/hopper-medium-v2")
    }
    assert {
        (one["algorithm"], one["score"], one["source"])
        for table in published["tables"]
        for one in table["published"]
    } == known
    assert "nothing" not in run("table", "pointmaze/nothing-v1", code=1).partition("error")[0]


def test_tables_and_checks_need_no_algorithm(result: SharedResult, tmp_path: Path) -> None:
    add_documents(str(tmp_path / "results"), {result.path: result})
    place = repr(str(tmp_path / "results"))
    code = f"""
import sys
from orlog.cli import app
for words in (["table", {MINI!r}, "pointmaze/umaze-v1", "--from", {place}, "--html", "t.html"], ["verify", {place}]):
    app(["results", *words], standalone_mode=False)
print(sorted({{"torch", "scipy.stats"}} & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert "TD3+BC" in found.stdout
    assert found.stdout.splitlines()[-1] == "[]"


def test_over_several_datasets_only_methods_with_results_on_all_are_compared(
    result: SharedResult,
) -> None:
    elsewhere = msgspec.structs.replace(
        result.dataset, name="lab/arm-v1", version="", digest=f"sha256:{'2' * 64}"
    )
    mine = msgspec.structs.replace(result.method, name="mine")
    results = [
        result,
        with_returns(result, 30.0, method=mine),
        with_returns(result, 10.0, dataset=elsewhere),
    ]
    board = board_of(*results)
    (overall,) = board.overall
    assert overall.tasks == [MINI, "lab/arm-v1"]
    assert overall.methods == ["BC by Ada"]
    assert any(line.startswith("mine by Ada: has results on 1 of 2") for line in board.notes)


def test_runs_that_are_there_with_other_words_are_named(runs: Path, tmp_path: Path) -> None:
    to = str(tmp_path / "results")
    run("add", str(runs), "--to", to)
    (file,) = files(Path(to))
    again = orlog("results", "add", str(runs), "--to", to, "--tried", "2")
    assert f"{file} is of the same runs" in again.stderr
    assert "results table pointmaze/umaze-mini-v1 --from" in again.stderr


def test_of_many_rows_the_best_are_compared(
    result: SharedResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orlog.results.tables.MOST_COMPARED", 3)
    many = [
        with_returns(result, float(n), method=msgspec.structs.replace(result.method, name=f"m{n}"))
        for n in range(5)
    ]
    (table,) = board_of(*many).tables
    assert len(table.rows) == 5
    assert table.comparison is not None
    assert {*table.comparison.methods} == {"m2", "m3", "m4"}
    assert any("of the 3 rows" in line for line in table.notes)


def test_a_result_shares_the_table_of_the_recorded_baselines(result: SharedResult) -> None:
    recorded = baseline_results("pointmaze/umaze-v1")
    of_this_data = [
        with_digest(msgspec.structs.replace(one, dataset=result.dataset)) for one in recorded
    ]
    (table,) = board_of(result, *of_this_data).tables
    assert len(table.rows) == len(recorded) + 1


def test_returns_that_no_seed_gives_are_contradicted(
    result: SharedResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    to = tmp_path / "results"
    raised = with_returns(result, 50.0)
    add_documents(str(to), {raised.path: raised})
    said = run("reproduce", f"{to}/{raised.path}", "--seed", "1", code=1)
    assert "contradiction: contradicted: -" in said
    assert "seed 1 gives other numbers with the stated code and versions" in said
    assert "contradicted 1x" in run("table", MINI, "--from", str(to))
    run("verify", str(to))
    shutil.rmtree(to)
    # What states no code can be contradicted by its numbers alone, and one seed confirms none of these.
    code = msgspec.structs.replace(result.code, files={}, digest="")
    few = with_returns(result, 50.0, code=code)
    add_documents(str(to), {few.path: few})
    assert "unsettled" in run("reproduce", f"{to}/{few.path}", code=4)
    assert files(to, "unsettled")
    # Thirty seeds that somebody made up: enough that one seed, run again, lies outside of them.
    made_up = [
        msgspec.structs.replace(
            result.seeds[0], seed=seed, returns=[200.0 + seed / 10] * 3, metrics={}
        )
        for seed in range(30)
    ]
    fields = {"seeds": made_up, "scores": scores_of(made_up, result.references), "code": code}
    forged = with_digest(msgspec.structs.replace(result, **fields))
    add_documents(str(to), {forged.path: forged})
    said = run("reproduce", f"{to}/{forged.path}", "--seed", "0", code=1)
    assert "contradiction: not consistent: worse by" in said
    (note,) = files(to, "contradiction")
    body = json.loads(note.read_bytes())
    lie = {**body, "verdict": "identical", "kind": "confirmation"}
    told = parse_document(note.read_bytes(), "here")
    forged_note = with_digest(
        msgspec.structs.replace(told, verdict="identical", kind="confirmation")
    )
    add_documents(str(to), {forged_note.path_beside(forged.path): forged_note})
    assert lie["kind"] == forged_note.kind
    assert "verdict: says identical (confirmation)" in run("verify", str(to), code=3)


def test_few_seeds_few_episodes_and_copies_stand_below_the_line(result: SharedResult) -> None:
    def named(one: SharedResult, name: str, **fields: Any) -> SharedResult:
        method = msgspec.structs.replace(one.method, name=name)
        found: SharedResult = with_digest(msgspec.structs.replace(one, method=method, **fields))
        return found

    varied = [
        msgspec.structs.replace(one, returns=[one.seed + n * 1.5 for n in range(3)], metrics={})
        for one in result.seeds
    ]
    result = msgspec.structs.replace(
        result, seeds=varied, scores=scores_of(varied, result.references)
    )
    result = with_digest(result)
    better = with_returns(result, 40.0, created="2030-01-01T00:00:00Z")
    seeds = better.seeds[:1]
    alone = named(better, "alone", seeds=seeds, scores=scores_of(seeds, result.references))
    best = [msgspec.structs.replace(s, returns=s.returns[:2], metrics={}) for s in better.seeds]
    fields = {"seeds": best, "scores": scores_of(best, result.references)}
    protocol = msgspec.structs.replace(result.protocol, episodes=2)
    chosen = named(better, "chosen", protocol=protocol, **fields)
    copies = [named(result, f"copy{n}", created="2031-01-01T00:00:00Z") for n in range(3)]
    longer = msgspec.structs.replace(result.compute, steps=result.compute.steps * 10)
    much = named(with_returns(result, 5.0), "much", compute=longer, step=longer.steps)
    tried = msgspec.structs.replace(much.method, tried=500)
    much = with_digest(msgspec.structs.replace(much, method=tried))
    board = board_of(*copies, alone, chosen, much, result)
    (table,) = board.tables
    assert [row.name for row in table.rows if row.is_ranked] == ["much", "BC"]
    assert {*table.comparison.ranks} == {"much", "BC"}
    states = {row.name: row.state for row in table.rows[2:]}
    assert states == {
        "alone": ["not ranked: 1 of at least 3 seeds"],
        "chosen": ["not ranked: 2 of 3 episodes of each seed"],
        **{f"copy{n}": ["returns of BC to the bit"] for n in range(3)},
    }
    noted = " ".join(table.notes)
    for what in ("seeds", "episodes of each seed", "gradient steps", "settings tried"):
        assert f"the rows differ in {what}: " in noted


def test_returns_above_what_is_possible_are_refused(result: SharedResult, tmp_path: Path) -> None:
    above = with_returns(result, 1000.0)
    board = board_of(result, above)
    assert [row.entry.result.digest for row in board.tables[0].rows] == [result.digest]
    assert "is more than" in board.problems[0]
    add_documents(str(tmp_path), {above.path: above})
    assert "seeds: a return of" in run("verify", str(tmp_path), code=3)


def test_what_cannot_be_run_again_says_why(result: SharedResult, tmp_path: Path) -> None:
    def reproduce(code: int = 2, *words: str, **fields: Any) -> str:
        one = with_digest(msgspec.structs.replace(result, **fields))
        add_documents(str(tmp_path), {one.path: one})
        return run("reproduce", f"{tmp_path}/{one.path}", *words, code=code)

    method = result.method
    assert "method.options" in reproduce(method=msgspec.structs.replace(method, options=None))
    other = msgspec.structs.replace(method, settings={**method.settings, "learning_rate": 7.0})
    assert "method.settings.learning_rate: says 7.0" in reproduce(method=other)
    own = msgspec.structs.replace(method, algorithm="mine:Mine")
    assert "--algorithm" in reproduce(method=own)
    for options in ({"trust": 1}, {"trust_environment": "yes"}, {"steps": -1}):
        broken = msgspec.structs.replace(method, options=options)
        assert "method.options" in reproduce(method=broken)
    assert "references" in reproduce(references=None, scores=None)
    protocol = msgspec.structs.replace(result.protocol, max_episode_steps=5)
    assert "protocol.max_episode_steps" in reproduce(protocol=protocol)


def test_an_algorithm_of_ones_own_is_run_again_from_its_file_alone(
    mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mini_folder.is_dir()
    page = (Path(__file__).parents[2] / "docs" / "algorithm-in-30-lines.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    name = re.findall(r"class (\w+)", code)[-1]
    own = f"shared_method.py:{name}"
    (tmp_path / "shared_method.py").write_text(code)
    words = ("--steps", "3", "--evaluations", "1", "--curve-episodes", "1", "--out", "runs/mine")
    assert orlog("train", own, MINI, *words).returncode == 0
    assert orlog("evaluate", "runs/mine", "--algorithm", own, "--episodes", "2").returncode == 0
    unnamed = orlog("results", "add", "runs/mine", "--to", "unnamed")
    assert "its file is not stated" in unnamed.stderr
    run("add", "runs/mine", "--to", "results", "--method", "mine", "--algorithm", own)
    (file,) = files(tmp_path / "results")
    assert "shared_method" in json.loads(file.read_bytes())["code"]["files"]
    assert "--algorithm" in run("reproduce", str(file), code=2)
    assert "confirmation: identical" in run("reproduce", str(file), "--algorithm", own)
    git = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@lab.example")
    address = "https://ada:secret@host.example/lab/methods?token=1"
    for command in (
        ("init", "--quiet"),
        ("remote", "add", "origin", address),
        ("add", "shared_method.py"),
        ("commit", "--quiet", "-m", "A method"),
    ):
        subprocess.run([*git, *command], check=True)
    add = ("add", "runs/mine", "--method", "mine", "--algorithm", own, "--to")
    run(*add, "clean")
    (clean,) = files(tmp_path / "clean")
    said = json.loads(clean.read_bytes())["code"]
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert said["repository"] == "https://host.example/lab/methods"
    assert said["commit"] == head.stdout.strip()
    (tmp_path / "shared_method.py").write_text(code + "\nMORE = 1\n")
    run(*add, "changed")
    (after,) = files(tmp_path / "changed")
    said = json.loads(after.read_bytes())["code"]
    assert (said["files"], said["repository"], said["commit"]) == ({}, "", "")
    assert "code.files.shared_method" in run("reproduce", str(file), "--algorithm", own, code=3)


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_every_number_and_runs_nothing_that_a_result_says(
    result: SharedResult, tmp_path: Path
) -> None:
    evil = "<script>alert(1)</script>"
    method = msgspec.structs.replace(result.method, name=evil, source=evil)
    one = with_returns(result, 9.0, method=method, by=evil, note=evil)
    to = tmp_path / "results"
    for made in (result, one):
        add_documents(str(to), {made.path: made})
    page = tmp_path / "table.html"
    run("table", MINI, "--from", str(to), "--html", str(page))
    read = _Page()
    read.feed(page.read_text("utf-8"))
    assert "script" not in read.tags
    assert read.text.count(evil) > 3
    (table,) = make_board(collect([str(to)]), others=False).tables
    for row in table.rows:
        assert str(row.score) in read.text
        assert row.entry.result.digest in read.text


def test_a_damaged_file_is_named_and_the_others_are_shown(runs: Path, tmp_path: Path) -> None:
    to = tmp_path / "results"
    run("add", str(runs), "--to", str(to), "--by", "Ada")
    run("add", str(runs), "--to", str(to), "--by", "Bob")
    one, two = files(to)
    two.write_bytes(two.read_bytes().replace(b'"Bob"', b'"Eve"').replace(b'"Ada"', b'"Eve"'))
    said = run("table", MINI, "--from", str(to), "--results-only", code=3)
    assert str(two) in said
    assert str(one) in said
    assert str(two) in run("verify", str(to), code=3)
    assert "--from" in run("table", code=2)
    assert "ed25519" in run("table", MINI, "--trust", "me", code=2)
    result = parse_document(one.read_bytes(), str(one))
    assert document_bytes(result) == one.read_bytes()
