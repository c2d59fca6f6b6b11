from __future__ import annotations

import csv
import re
import statistics
from collections import Counter, defaultdict

import numpy as np
import pytest

from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS
from orlog.manifests.tables import table_file
from orlog.normalize.published_scores import (
    PublishedScore,
    disagreements_about,
    published_names,
    published_scores,
    same_algorithm,
    scores_on,
)

KEYS = {
    "Atari (d4rl-atari 1%)": "atari",
    "D4RL": "d4rl",
    "D4RL (offline-to-online)": "d4rl",
    "DSRL": "dsrl",
    "NeoRL-2": "neorl2",
}


def rows(table: str) -> list[dict[str, str]]:
    with table_file(table).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def name_of(row: dict[str, str]) -> str:
    """Return the name under which a row of the table of published scores is found."""
    return f"{KEYS[row['benchmark']]}/{row['dataset'].removeprefix('AVERAGE ')}"


def one(name: str, **fields: str) -> PublishedScore:
    """Return the one score on a dataset whose fields are these."""
    found = [
        score
        for score in scores_on(name)
        if all(getattr(score, field) == value for field, value in fields.items())
    ]
    assert len(found) == 1, (name, fields, len(found))
    return found[0]


def test_every_published_score_is_found_by_name_and_equals_its_row() -> None:
    table = rows("published_scores")
    assert len(table) == 2139
    for row in table:
        score = one(
            name_of(row),
            benchmark=row["benchmark"],
            algorithm=row["algorithm"],
            implementation=row["implementation"],
            metric=row["metric"],
            protocol=row["protocol"],
        )
        assert score.score == float(row["score"])
        assert score.spread == (float(row["std"]) if row["std"] else None)
        assert score.seeds == (int(row["n_seeds"]) if row["n_seeds"] else None)
        assert (score.spread_kind, score.source) == (row["std_kind"], row["source"])
        assert (score.source_kind, str(score.year)) == (row["source_kind"], row["year"])
        assert row["flag"] in ("", *score.caveats)


def test_nothing_else_is_found() -> None:
    counts = {key: len(published_scores(key)) for key in BENCHMARKS}
    of_table = Counter(KEYS[row["benchmark"]] for row in rows("published_scores"))
    assert counts["atari"] == of_table["atari"]
    assert counts["dsrl"] == of_table["dsrl"]
    assert counts["neorl2"] == of_table["neorl2"]
    assert counts["d4rl"] == of_table["d4rl"] + 2 * 5  # the FQL paper's AntMaze and Adroit
    single = 50 * 17 * 2 - 50  # one method has no offline phase
    assert counts["ogbench"] == of_table["ogbench"] + 9 * 5 + single + 6 * 17 * 4
    assert counts["minari"] == counts["ogmarl"] == 0


def test_every_value_of_a_seed_is_found_with_its_mean() -> None:
    names = {"last": "last", "best": "maximum", "mean_last10": "mean of last"}
    values = defaultdict(list)
    for row in rows("per_seed_scores"):
        kind = names[re.split(r"[, ]", row["protocol"])[0]]
        name = f"{KEYS[row['benchmark']]}/{row['dataset']}"
        key = (name, row["algorithm"], row["implementation"], row["metric"], kind)
        values[key].append(float(row["score"]))
    assert sum(map(len, values.values())) == 6057
    differing = []
    for (name, algorithm, implementation, metric, kind), expected in values.items():
        found = [
            score
            for score in scores_on(name)
            if (score.algorithm, score.metric, score.statistic) == (algorithm, metric, kind)
            and score.implementation.startswith(implementation)
            and score.per_seed
        ]
        assert [score.per_seed for score in found] == [expected], (name, algorithm, kind)
        if any("logged seeds" in caveat for caveat in found[0].caveats):
            differing.append((name, algorithm, kind))
        else:
            assert np.mean(expected) == pytest.approx(found[0].score, abs=0.0501)
    assert len(differing) == 5
    assert {kind for _, _, kind in differing} == {"maximum"}


def test_scores_of_single_tasks_are_those_of_their_seeds() -> None:
    points = {
        "success_at_point_20_of_30": "after 1 M offline steps (evaluation 20 of 30)",
        "success_at_point_30_of_30": "after 0.5 M online steps (evaluation 30 of 30)",
    }
    for table, task, columns in (
        ("ogbench_qam_per_seed", "task", points),
        (
            "ogbench_dqc_per_seed",
            "env",
            {
                "250K": "after 250 k steps",
                "500K": "after 500 k steps",
                "750K": "after 750 k steps",
                "1M": "after 1 M steps",
            },
        ),
    ):
        values = defaultdict(list)
        for row in rows(table):
            for column, protocol in columns.items():
                value = 100 * float(row[column]) if row[column] else None
                values[row[task], row["method"], protocol].append(value)
        for (name, method, protocol), expected in values.items():
            known = [value for value in expected if value is not None]
            if not known:
                assert not [
                    score
                    for score in scores_on(f"ogbench/{name}")
                    if (score.algorithm, score.protocol) == (method, protocol)
                ]
                continue
            score = one(f"ogbench/{name}", algorithm=method, protocol=protocol)
            assert score.per_seed == expected
            assert score.score == pytest.approx(sum(known) / len(known))
            assert score.spread == pytest.approx(statistics.stdev(known))
            assert score.seeds == len(known) == (12 if "qam" in table else 10)


def test_the_table_of_the_fql_paper_is_found() -> None:
    for row in rows("ogbench_fql_paper"):
        group = row["task_group"]
        name = f"d4rl/{group[5:]}" if group.startswith("d4rl-") else f"ogbench/{group}"
        for algorithm in ("IQL", "ReBRAC", "IDQL", "IFQL", "FQL"):
            score = one(name, algorithm=algorithm, implementation="FQL paper")
            assert (score.score, score.seeds) == (float(row[algorithm]), 8)
            assert f"mean over {row['tasks']} tasks" in score.caveats


def test_other_peoples_copies_are_marked() -> None:
    for key in BENCHMARKS:
        for score in published_scores(key):
            assert score.secondary == ("secondary" in score.source_kind)


def test_every_source_of_a_published_number_has_a_name() -> None:
    """A repository with its commit and file, or a paper with its table."""
    named = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{7,}:\S|.+ paper \(.+ \d{4}\), Table \d")
    sources = {one.source for key in BENCHMARKS for one in published_scores(key)}
    assert [source for source in sources if not named.match(source)] == []
    disagreeing = [row["source_a"] + row["source_b"] for row in rows("disagreements")]
    assert [source for source in disagreeing if "unknown" in source] == []


def test_no_protocol_is_taken_for_another() -> None:
    kinds = defaultdict(set)
    for key in BENCHMARKS:
        for score in published_scores(key):
            kinds[score.statistic].add(score.protocol)
    assert kinds["not stated"] == {"as collected by the IQL authors"}
    assert all(text.startswith("maximum") for text in kinds["maximum"])
    assert all("mean of" in text for text in kinds["mean of last"])
    assert {"last evaluation", "last of the epoch evaluations"} <= kinds["last"]
    assert "single published run" in kinds["other"]


def test_every_disagreement_is_found_by_a_name_that_it_is_about() -> None:
    names = {name for key in BENCHMARKS for name in published_names(key)}
    names |= {"d4rl/maze2d-eval-umaze-dense-v1", "atari/video_pinball", "minari/D4RL/door/human-v2"}
    names |= {"ogmarl/omiga/smac_v1/corridor/Good"}
    names |= {f"dsrl/{circle}" for circle in ("CarCircle2", "PointCircle2")}
    found = {one.item for name in names for one in disagreements_about(name)}
    assert found == {row["item"] for row in rows("disagreements")}


def test_disagreements_stay_with_their_dataset_and_algorithm() -> None:
    items = {one.item for one in disagreements_about("d4rl/hopper-medium-v2")}
    assert "IQL paper hopper-medium-v2" in items
    assert "CQL paper hopper-medium (v0)" not in items
    of_iql = {one.item for one in disagreements_about("d4rl/hopper-medium-v2", algorithm="iql")}
    assert of_iql == {"IQL paper hopper-medium-v2", "IQL observation normalisation"}
    assert disagreements_about("lab/other-v1") == []


def test_names_of_algorithms_are_compared_by_their_letters() -> None:
    assert same_algorithm("TD3+BC", "td3_bc")
    assert same_algorithm("SAC-N", "sac_n")
    assert not same_algorithm("TD3", "TD3+BC")


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(NotFoundError, match="no benchmark is named 'd5rl'; there are d4rl"):
        published_scores("d5rl")
    assert scores_on("d5rl/hopper-v2") == ()
