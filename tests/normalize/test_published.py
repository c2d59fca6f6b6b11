from collections import Counter

import numpy as np
import pytest

from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS
from orlog.manifests.tables import read_table
from orlog.normalize.published_scores import (
    disagreements_about,
    published_names,
    published_scores,
    same_algorithm,
    scores_on,
)

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
