import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

import orlog
from orlog.errors import NotFoundError
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.manifest import read_manifest
from orlog.normalize.references import read_baseline, read_baselines
from orlog.runs.scores import benchmark_sections
from tests.command_line import orlog as run

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
TOTALS = re.compile(r"sum of the 9 rows ([\d.]+), published total ([\d.]+) \(agrees\)")


def section(key, publication, protocol, version="", metric=""):
    found = [
        one
        for one in benchmark_sections(key)
        if (one.publication, one.version) == (publication, version)
        and one.protocol.startswith(protocol)
        and metric in one.metric
    ]
    assert len(found) == 1
    return found[0]


def test_scores_of_a_dataset_have_their_protocol_seeds_and_source():
    scores = orlog.baselines("d4rl/hopper-medium-v2", algorithm="iql")
    last = next(one for one in scores if one.implementation.startswith("CORL (corl-team"))
    assert (last.algorithm, last.score, last.spread, last.seeds) == ("IQL", 67.53, 3.78, 4)
    assert (last.protocol, last.source) == ("last evaluation", "corl-team/CORL@eeeeef2671:README.md")
    assert {one.algorithm for one in scores} == {"IQL"}


def test_recorded_baselines_of_orlog_come_first_with_their_seeds():
    scores = orlog.baselines("pointmaze/umaze-v1")
    names = [one.algorithm for one in scores]
    assert names == ["bc", "cql", "fql", "iql", "percent_bc", "rebrac", "td3bc"]
    recorded = read_baseline("iql", "pointmaze/umaze-v1")
    references = orlog.references("pointmaze/umaze-v1")
    means = [references.normalize(np.array(one)).mean() for one in recorded.returns.values()]
    iql = scores[names.index("iql")]
    assert iql.per_seed == pytest.approx(means)
    assert iql.score == pytest.approx(np.mean(means))
    assert iql.spread == pytest.approx(np.std(means, ddof=1))
    assert (iql.seeds, iql.source) == (8, "recorded with orlog")
    assert "PointMaze_UMaze-v3" in iql.protocol


def test_baselines_are_of_whole_versions_and_say_so_of_another_version(mini_folder, monkeypatch):
    large = "pointmaze/umaze-v1"
    monkeypatch.setattr("orlog.runs.scores.read_baselines", lambda _: read_baselines(large))
    whole = orlog.load_dataset(mini_folder)
    scores = orlog.baselines(whole)
    assert [one.algorithm for one in scores] == [one.algorithm for one in orlog.baselines(large)]
    assert all(one.caveats == ["recorded on another version of the dataset"] for one in scores)
    assert all(one.caveats == [] for one in orlog.baselines(large))
    with pytest.raises(NotFoundError, match="no published or recorded scores are known"):
        orlog.baselines(whole[:3])


def test_groups_and_single_tasks_are_found_by_name():
    assert all(one.caveats[0].startswith("mean over") for one in orlog.baselines("dsrl/MetaDrive"))
    assert len(orlog.baselines("ogbench/cube-double-play-singletask-task2-v0")) == 33
    papers = {one.implementation for one in orlog.baselines("ogbench/cube-double-play-singletask")}
    assert papers == {"FQL paper"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minari/D4RL/kitchen/complete", "no published or recorded scores are known"),
        ("d4rl/hoper-medium-v2", r"Did you mean d4rl/hopper-medium-v2"),
        ("ogbench/cube-double-singletask-task9-v0", "Did you mean ogbench/cube-.*singletask"),
        ("lab/other-v1", "no dataset of this name"),
    ],
)
def test_what_is_not_known_is_one_clear_line(name, message):
    with pytest.raises(NotFoundError, match=rf"^{name}: .*{message}") as caught:
        orlog.baselines(name)
    assert "\n" not in str(caught.value)


def test_an_algorithm_without_scores_is_refused_with_those_that_have_some():
    with pytest.raises(NotFoundError, match=r"no score of 'ppo' is known; there are AWAC, BC, "):
        orlog.baselines("d4rl/hopper-medium-v2", algorithm="ppo")
    with pytest.raises(NotFoundError, match=r"DSRL: no score of 'ppo' is known; there are BC, "):
        benchmark_sections("dsrl", algorithm="ppo")


@pytest.mark.parametrize("key", ["d4rl", "atari", "dsrl", "neorl2", "ogbench"])
def test_no_two_protocols_share_a_column_or_an_average(key):
    for one in benchmark_sections(key):
        scores = [score for row in one.scores.values() for score in row.values()]
        for field in ("benchmark", "metric", "protocol", "secondary", "statistic"):
            assert len({getattr(score, field) for score in scores}) == 1
        if key == "d4rl":
            versions = {score.dataset.rpartition("-")[2] for score in scores}
            assert len(versions & {"v0", "v1", "v2"}) <= 1
        for average in one.averages:
            for algorithm, mean in average.means.items():
                values = [one.scores[name][algorithm].score for name in average.datasets]
                assert mean == pytest.approx(np.mean(values))
            for algorithm in set(one.algorithms) - set(average.means):
                assert any(algorithm not in one.scores[name] for name in average.datasets)


def test_published_totals_of_locomotion_are_the_sums_of_their_rows():
    columns = section("d4rl", "paper baseline column (IQL paper, Table 1)", "as collected", "v2")
    checked = 0
    for algorithm in columns.algorithms:
        total = sum(row[algorithm].score for row in columns.scores.values())
        for row in columns.scores.values():
            for caveat in row[algorithm].caveats:
                match = TOTALS.fullmatch(caveat)
                if match:
                    assert total == pytest.approx(float(match[1]), abs=1e-6)
                    assert total == pytest.approx(float(match[2]), abs=1e-6)
                    checked += 1
    assert checked == 36


def test_published_normalized_scores_follow_from_the_raw_returns():
    raw = section("neorl2", "OfflineRL (polixir)", "final policy", metric="raw")
    scores = section("neorl2", "OfflineRL (polixir)", "final policy", metric="normalized")
    checked = 0
    for name, row in raw.scores.items():
        for algorithm, one in row.items():
            found = float(orlog.normalized_score(name, one.score))
            assert found == pytest.approx(scores.scores[name][algorithm].score, abs=0.01)
            checked += 1
    assert checked == 63
    tianshou = section("d4rl", "tianshou examples", "single published run", "v2")
    for name, row in tianshou.scores.items():
        for one in row.values():
            said = float(one.caveats[0].removeprefix("normalizes to "))
            assert float(orlog.normalized_score(name, one.score)) == pytest.approx(said, abs=0.051)


def test_scores_are_shown_in_tables_by_protocol_with_what_sources_disagree_on():
    ended = run("scores", "d4rl/hopper-medium-v2")
    assert (ended.returncode, ended.stderr) == (0, "")
    out = ended.stdout
    assert "  0 = -20.272305 (standard error unknown): random policy, as published by D4RL\n100 = " in out
    assert "\nsimulator: mujoco-py and gym of 2020" in out
    assert "to score returns: orlog scores d4rl/hopper-medium-v2 RETURN.." in out
    heading = "CORL (corl-team fork): last evaluation (D4RL v2, d4rl_normalized_score_x100)"
    part = out[out.index(heading) : out.index("source:", out.index(heading))]
    assert re.search(r"^ReBRAC +102\.29 +0\.17 +std over seeds +4$", part, re.MULTILINE)
    assert "secondary: someone else's copy of it" in out
    assert re.search(r"IQL paper hopper-medium-v2 +66\.3 +gwthomas/IQL-PyTorch@71ea1aa313:results\.py", out)


def test_a_benchmark_is_shown_as_a_matrix_with_averages():
    out = run("scores", "--benchmark", "d4rl", "--algorithm", "iql").stdout
    assert re.search(r"^average of 9: locomotion v2 +81\.6 *$", out, re.MULTILINE)
    assert re.search(r"^d4rl/hopper-medium-v2 +67\.5 *$", out, re.MULTILINE)


def test_what_is_shown_in_words_is_there_for_scripts():
    (row,) = re.findall(r"^\| `scores` \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    documented = set(re.findall("`([a-z_ ]+)`", row))
    body = json.loads(run("scores", "d4rl/hopper-medium-v2", "--json").stdout)
    assert set(body) == {"dataset", "tasks", "references", "scores", "disagreements"}
    assert len(body["scores"]) == len(orlog.baselines("d4rl/hopper-medium-v2"))
    assert body["references"]["random"]["return"] == -20.272305
    for part in (body, body["references"], body["scores"][0], body["disagreements"][0]):
        assert set(part) <= documented
    matrix = json.loads(run("scores", "--benchmark", "dsrl", "--json").stdout)
    first = matrix["sections"][0]
    for part in (matrix, first, first["averages"][0]):
        assert set(part) <= documented
    assert first["scores"]["dsrl/OfflineAntRun-v0"]["BC"]["source"].startswith("ZhengYinan-AIR/FISOR")


def test_a_name_without_scores_still_says_where_sources_disagree():
    ended = run("scores", "d4rl/maze2d-eval-umaze-dense-v1")
    assert ended.returncode == 0
    assert "no published or recorded scores are known." in ended.stdout
    assert "looks like a copy error in the reference table" in ended.stdout


def test_data_imported_like_a_benchmarks_have_its_scores(mini_folder):
    path = mini_folder / "manifest.json"
    known = benchmark_environment("d4rl/hopper-medium-v2")
    like = msgspec.structs.replace(read_manifest(path), benchmark="d4rl/hopper-medium-v2", environment=known.record)
    path.write_text(like.to_json(), "utf-8")
    scores = orlog.baselines(mini_folder)
    assert scores == orlog.baselines("d4rl/hopper-medium-v2")
    body = json.loads(run("scores", str(mini_folder), "--json").stdout)
    own = json.loads(run("scores", "d4rl/hopper-medium-v2", "--json").stdout)
    assert body == own
    assert body["disagreements"]


@pytest.mark.parametrize("arguments", [[], ["d4rl/hopper-medium-v2", "--benchmark", "d4rl"]])
def test_a_name_or_a_benchmark_is_needed_not_both(arguments):
    ended = run("scores", *arguments)
    assert ended.returncode == 2
    assert "give either the name of a dataset or" in ended.stderr


def test_a_recorded_score_says_what_was_run_where_that_has_another_name():
    for name, said in (("pixels/reach-mixed-v1", "BC-25%"), ("safety/hazard-safe-v1", "BC-Safe")):
        caveats = {one.algorithm: one.caveats for one in orlog.baselines(name)}
        assert caveats.pop("percent_bc") == [f"run as {said}"]
        assert caveats
        assert not any(caveats.values())
