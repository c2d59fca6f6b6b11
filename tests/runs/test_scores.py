import csv
import json

import numpy as np
import pytest
import torch

import orlog
from orlog.errors import NotFoundError
from orlog.manifests.tables import table_file
from orlog.runs.scores import SafeScore
from tests.command_line import orlog as orlog_command


def rows(table):
    with table_file(table).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("key", "name", "low", "high"),
    [
        ("d4rl", "dataset_id", "ref_min_return", "ref_max_return"),
        ("atari", "game", "random_score", "human_score"),
        ("dsrl", "dataset_id", "min_episode_reward", "max_episode_reward"),
        ("neorl2", "task", "ref_min_return", "ref_max_return"),
    ],
)
def test_scores_follow_the_formula_of_the_benchmark(key, name, low, high):
    for row in rows(key)[:: 5 if key == "d4rl" else 1]:
        if not row[low]:
            continue
        below, above = float(row[low]), float(row[high])
        returns = np.linspace(below, above, 5)
        expected = [100 * (one - below) / (above - below) for one in returns]
        found = orlog.normalized_score(f"{key}/{row[name]}", returns)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)


def test_scores_keep_the_shape_and_are_not_clipped():
    found = orlog.normalized_score("d4rl/hopper-medium-v2", [[-20.272305, 3234.3], [-3274.844610, 0]])
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found[:, 0], [0, -100], atol=1e-6)
    assert float(orlog.normalized_score("atari/breakout", 59.3)) == pytest.approx(200)


def test_antmaze_and_kitchen_and_ogbench_count_successes():
    assert orlog.normalized_score("d4rl/antmaze-umaze-v2", [0, 1, 1, 0]).mean() == 50
    assert orlog.normalized_score("d4rl/kitchen-mixed-v0", [0, 2, 4]).tolist() == [0, 50, 100]
    assert orlog.normalized_score("ogbench/cube-double-play-v0", [True, False]).tolist() == [100, 0]
    with pytest.raises(ValueError, match=r"goal, from 0 to 1; found -700"):
        orlog.normalized_score("d4rl/antmaze-umaze-v2", [-700, 3])
    with pytest.raises(ValueError, match="counts finished subtasks, from 0 to 4"):
        orlog.normalized_score("d4rl/kitchen-mixed-v0", 5)
    with pytest.raises(ValueError, match="OGBench counts whether an episode reached the goal"):
        orlog.normalized_score("ogbench/cube-double-play-v0", -1)


def test_dsrl_gives_score_cost_and_whether_it_is_safe():
    name = "dsrl/OfflineCarButton1Gymnasium-v0"
    found = orlog.normalized_score(name, [0.0, 40.0], costs=[5, 25], cost_limit=10)
    assert found == SafeScore(
        score=100 * (20 - 0.0028926206826067613) / (44.420003345738984 - 0.0028926206826067613),
        normalized_cost=1.5,
        cost_limit=10.0,
        safe=False,
    )
    assert orlog.normalized_score(name, [0.0, 40.0], costs=[5, 15], cost_limit=10).safe
    without = orlog.normalized_score(name, [1.0, 2.0], costs=[0, 0], cost_limit=0)
    assert (without.normalized_cost, without.safe) == (1.0, True)
    other = orlog.normalized_score(name, [1.0, 2.0], costs=[1, 2], cost_limit=0)
    assert (other.normalized_cost, other.safe) == (2.5, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"returns": []}, r"there are no returns"),
        ({"returns": [1.0, float("nan")]}, r"returns hold nan at position 1"),
        ({"returns": [float("inf")]}, r"returns hold inf at position 0"),
        ({"returns": ["much"]}, r"returns must be numbers, one for each episode"),
        ({"returns": ["12"]}, r"returns must be numbers, one for each episode"),
        ({"returns": [b"1", None]}, r"returns must be numbers, one for each episode"),
        ({"returns": [1j]}, r"returns must be numbers, one for each episode"),
        ({"returns": np.array([3], "m8[s]")}, r"returns must be numbers, one for each episode"),
        ({"returns": torch.ones(2).requires_grad_()}, r"returns must be numbers"),
        ({"returns": [10**400]}, r"returns must be numbers, one for each episode"),
        ({"returns": [None, 1.0]}, r"returns must be numbers, one for each episode"),
        ({"returns": np.ma.array([1, 2], mask=[False, True])}, r"some returns are masked"),
        ({"returns": [1e308]}, r"returns are too large for a score"),
        ({"returns": [[1, 2], [3]]}, r"returns must be numbers, one for each episode"),
        ({"costs": [1, 2]}, r"without a cost limit; give cost_limit, which OSRL sets to 20, 40, 80"),
        ({"cost_limit": 10}, r"limit was given without the costs"),
        ({"costs": [1], "cost_limit": 10}, r"1 costs were given for 2 returns"),
        ({"costs": [1, float("nan")], "cost_limit": 10}, r"costs hold nan at position 1"),
        ({"costs": [1, -1], "cost_limit": 10}, r"finite numbers from 0 on"),
        ({"costs": [1, 1], "cost_limit": -1}, r"finite numbers from 0 on"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    given = {"returns": [1.0, 2.0], **arguments}
    with pytest.raises(ValueError, match=rf"^dsrl/OfflineCarButton1\S*: .*{message}") as caught:
        orlog.normalized_score("dsrl/CarButton1", **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.float16])
def test_tensors_are_returns(kind):
    found = orlog.normalized_score("d4rl/hopper-medium-v2", torch.tensor([1, 2], dtype=kind))
    np.testing.assert_array_equal(found, orlog.normalized_score("d4rl/hopper-medium-v2", [1, 2]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ogmarl/omiga/smac_v1/corridor/Good", "OG-MARL has .* reports raw team returns"),
        ("minari/D4RL/door/human-v2", "Minari stores .* published none"),
        ("d4rl/carla-town-render-v0", "D4RL publishes no reference returns"),
        ("lab/other-v1", "no dataset of this name is here"),
    ],
)
def test_a_score_without_references_is_refused(name, message):
    with pytest.raises(NotFoundError, match=f"^{name}: {message}"):
        orlog.normalized_score(name, [1.0])


def test_the_command_shows_all_checkpoints_side_by_side():
    said = orlog_command("scores", "cube-quadruple-play-100m").stdout
    assert "learned from ogbench/cube-quadruple-play-100m-v0" in said
    (heading,) = (line.split() for line in said.splitlines() if line.startswith("algorithm"))
    assert " ".join(heading) == "algorithm 250 k steps 500 k steps 750 k steps 1 M steps seeds"
    (best,) = (line for line in said.splitlines() if line.startswith("DQC h=25 h_a=5"))
    assert [number.split()[0] for number in best.split("  ")[1:] if number.strip()] == [
        *("73.0", "88.4", "91.4", "91.8", "10")
    ]
    body = json.loads(orlog_command("scores", "cube-quadruple-play-100m", "--json").stdout)
    assert len(body["scores"]) == 17 * 4
    assert {score["step"] for score in body["scores"]} == {250_000, 500_000, 750_000, 1_000_000}
    assert all(len(score["interval"]) == 2 and len(score["per_seed"]) == 10 for score in body["scores"])
    assert len(body["tasks"]) == 6
    both = orlog_command("scores", "cube-quadruple-play-singletask-task1-v0").stdout
    assert "1 M offline steps" in both
    assert "0.5 M online steps" in both
    assert "20 and 30 only" in both
    hint = orlog_command("scores", "ogbench/scene-play-v0").stdout
    assert "also have published scores on: ogbench/scene-play-singletask-task1-v0" in hint


def test_the_command_scores_returns_by_the_references_that_it_names():
    said = orlog_command("scores", "d4rl/hopper-medium-v2", "2000", "-20.272305")
    lines = said.stdout.splitlines()
    assert lines[:3] == ["62.1, 0.0", "mean 31.0", "  0 = -20.27: random policy, as published by D4RL"]
    safe = orlog_command("scores", "dsrl/OfflineCarCircle2Gymnasium-v0", "20", "--cost", "30", "--cost-limit", "20")
    assert "normalized cost 1.50 at the limit 20: not safe" in safe.stdout
    counted = orlog_command("scores", "ogbench/antmaze-large-navigate-v0", "1", "0")
    assert counted.stdout.startswith("100.0, 0.0\nmean 50.0\n")
    assert (
        "costs were given without a cost limit"
        in orlog_command("scores", "dsrl/OfflineCarCircle2Gymnasium-v0", "20", "--cost", "30").stderr
    )
