from collections import Counter

import numpy as np
import pytest

from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS, find_benchmark_dataset
from orlog.manifests.tables import read_table, table_file
from orlog.normalize.published_scores import (
    disagreements_about,
    published_names,
    published_scores,
    same_algorithm,
    scores_on,
    tasks_on,
    whole_name,
)
from tools.write_checkpoints import written

IDENTITY = ("dataset", "benchmark", "algorithm", "implementation", "metric", "protocol")


def of_benchmarks():
    return [score for key in BENCHMARKS for score in published_scores(key)]


def test_every_row_is_found_by_name_with_its_numbers():
    rows = read_table("published_scores")
    counts = {key: len(published_scores(key)) for key in BENCHMARKS}
    assert counts == Counter(row["dataset"].partition("/")[0] for row in rows) | dict.fromkeys(("minari", "ogmarl"), 0)
    for row in rows:
        (score,) = (
            score
            for score in scores_on(row["dataset"])
            if all(getattr(score, field) == row[field] for field in IDENTITY)
        )
        for field in ("score", "spread", "seeds", "year"):
            text = row[field]
            assert getattr(score, field) == (float(text) if text else None)
        for field in ("spread_kind", "source", "source_kind"):
            assert getattr(score, field) == row[field]
        assert " | ".join(score.caveats) == row["caveats"]


def test_scores_of_seeds_have_the_mean_that_was_published():
    scores = [score for score in of_benchmarks() if score.per_seed]
    assert sum(len(score.per_seed) for score in scores) == 6057 + 1650 * 12 + 408 * 10
    differing = []
    for score in scores:
        known = [value for value in score.per_seed if value is not None]
        missing = [caveat for caveat in score.caveats if "seeds is missing" in caveat]
        assert len(missing) == (len(known) < len(score.per_seed))
        if any("logged seeds" in caveat for caveat in score.caveats):
            differing.append(score.statistic)
        else:
            assert np.mean(known) == pytest.approx(score.score, abs=0.0501)
        if score.benchmark.startswith("OGBench"):
            assert score.spread == pytest.approx(np.std(known, ddof=1))
            assert score.seeds == len(known)
    assert differing == ["maximum"] * 5


def test_checkpoints_are_those_that_the_authors_released():
    text = table_file("published_scores").read_text("utf-8")
    assert written(text) == text  # the tool that filled its columns finds nothing to change
    scores = scores_on("ogbench/cube-quadruple-play-100m-v0")
    assert scores == scores_on("ogbench/cube-quadruple-play-oraclerep-v0")
    best = [score for score in scores if score.algorithm == "DQC h=25 h_a=5"]
    assert [(score.step, score.checkpoint, score.seeds, score.episodes) for score in best] == [
        (250_000, "250 k steps", 10, 250),
        (500_000, "500 k steps", 10, 250),
        (750_000, "750 k steps", 10, 250),
        (1_000_000, "1 M steps", 10, 250),
    ]
    # Of the authors' file, at 1 M steps.
    assert best[-1].per_seed == pytest.approx([91.6, 85.2, 92.4, 94.8, 93.2, 88.4, 92.8, 95.2, 91.6, 92.4])
    for score in of_benchmarks():
        assert (score.step is not None) == score.implementation.startswith(("DQC", "QAM"))
        if score.step is not None:
            assert find_benchmark_dataset(score.data), score.data
            low, high = score.interval
            assert 0 <= low <= score.score <= high <= 100
            assert low < high
    offline, online = (
        score for score in scores_on("ogbench/puzzle-4x4-play-singletask-task1-v0") if score.algorithm == "QAM"
    )
    assert (offline.step, offline.online_steps) == (1_000_000, 0)
    assert (online.step, online.online_steps) == (1_500_000, 500_000)
    assert (offline.data, offline.episodes) == ("ogbench/puzzle-4x4-play-100m-v0", 50)
    assert "20 and 30 only" in online.caveats[-1]


def test_names_that_authors_write_stand_for_one_dataset():
    assert whole_name("cube-quadruple-play-100m") == "ogbench/cube-quadruple-play-100m-v0"
    assert whole_name("antmaze-giant-navigate-singletask-task1-v0").startswith("ogbench/")
    for name in ("cube-quadruple", "hopper-medium-v2", "ogbench/cube-quadruple-play-100m", "lab/x-v1", ""):
        assert whole_name(name) == name
    assert len(tasks_on("ogbench/cube-quadruple-play-100m-v0")) == 6
    # Of several tasks on the same data none is what the dataset itself stands for.
    assert len(tasks_on("ogbench/scene-play-v0")) == 5
    assert scores_on("ogbench/scene-play-v0") == ()


def test_every_disagreement_is_found_by_a_name_that_it_is_about():
    names = {name for key in BENCHMARKS for name in published_names(key)}
    names |= {"d4rl/maze2d-eval-umaze-dense-v1", "atari/video_pinball", "minari/D4RL/door/human-v2"}
    names |= {"ogmarl/omiga/smac_v1/corridor/Good"}
    names |= {f"dsrl/{circle}" for circle in ("CarCircle2", "PointCircle2")}
    found = {one.item for name in names for one in disagreements_about(name)}
    assert found == {row["item"] for row in read_table("disagreements")}


def test_disagreements_stay_with_their_dataset_and_algorithm():
    items = {one.item for one in disagreements_about("d4rl/hopper-medium-v2")}
    assert "IQL paper hopper-medium-v2" in items
    assert "CQL paper hopper-medium (v0)" not in items
    of_iql = {one.item for one in disagreements_about("d4rl/hopper-medium-v2", algorithm="iql")}
    assert of_iql == {"IQL paper hopper-medium-v2", "IQL observation normalisation"}
    assert disagreements_about("lab/other-v1") == []


def test_algorithms_are_compared_by_their_letters_and_unknown_benchmarks_refused():
    assert same_algorithm("TD3+BC", "td3_bc")
    assert not same_algorithm("TD3", "TD3+BC")
    with pytest.raises(NotFoundError, match="no benchmark is named 'd5rl'; there are d4rl"):
        published_scores("d5rl")
    assert scores_on("d5rl/hopper-v2") == ()
