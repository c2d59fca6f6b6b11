"""Logs as the Open Bandit Dataset has them are read as a plain reader of the CSV files reads them."""

import csv
import datetime as dt
import math

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.errors import SchemaError
from tests.command_line import orlog as run

pytest.importorskip("pyarrow")


def choices(count=12):
    """Return rows as the dataset has them, of 4 items, 3 places and 2 affinities."""
    rng = np.random.default_rng(0)
    start = dt.datetime(2019, 11, 24, tzinfo=dt.UTC)
    rows = []
    for number in range(count):
        time = start + dt.timedelta(seconds=number, microseconds=int(rng.integers(10**6)))
        rows.append(
            {
                "": number,
                "timestamp": str(time),
                "item_id": int(rng.integers(3)),
                "position": int(rng.integers(1, 4)) if number else 3,
                "click": int(rng.random() < 0.3),
                "propensity_score": float(rng.uniform(0.05, 0.9)),
                "user_feature_0": str(rng.choice(["f1c2", "81ce", "c2e4"])),
                "user_feature_1": str(rng.choice(["9bde", "03a5"])),
                "user-item_affinity_0": float(rng.integers(2)),
                "user-item_affinity_1": 0.5,
            }
        )
    return rows


ITEM_ROWS = [
    {"": 0, "item_id": 0, "item_feature_0": -0.5, "item_feature_1": "b"},
    {"": 1, "item_id": 2, "item_feature_0": 0.25, "item_feature_1": "a"},
    {"": 2, "item_id": 1, "item_feature_0": 1.0, "item_feature_1": "c"},
    {"": 3, "item_id": 3, "item_feature_0": 2.0, "item_feature_1": "b"},
]


def write(folder, rows, items=None):
    """Write the folder of a campaign."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, some in (("men.csv", rows), ("item_context.csv", items)):
        if some is not None:
            with (folder / name).open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(some[0]))
                writer.writeheader()
                writer.writerows(some)
    return folder


def write_sample(root):
    """Write a small sound folder, for the tests that damage files."""
    return write(root, choices(6), ITEM_ROWS)


def test_every_choice_is_an_episode_with_its_propensity(tmp_path):
    rows = choices()
    folder = write(tmp_path / "random" / "men", rows, ITEM_ROWS)
    dataset = orlog.load_dataset(orlog.import_dataset([folder], "lab/clicks-v1"))
    assert dataset.action_space == spaces.Discrete(4)
    space = dataset.observation_space
    assert space["user"] == spaces.MultiDiscrete([3, 2])
    assert space["position"] == spaces.Discrete(3)
    assert dataset.total_episodes == dataset.total_steps == len(rows)
    assert dataset.roles["infos/action_log_probs"] == "behavior_log_prob"
    of_item = {one["item_id"]: one for one in ITEM_ROWS}
    for row, episode in zip(rows, dataset, strict=True):
        assert episode.actions.tolist() == [row["item_id"]]
        assert episode.rewards.tolist() == [row["click"]]
        assert episode.terminations.tolist() == [True]
        seen = episode.observations
        assert seen["position"][0] == row["position"] - 1
        texts = ["81ce", "c2e4", "f1c2"].index(row["user_feature_0"])
        assert seen["user"][0].tolist() == [texts, ["03a5", "9bde"].index(row["user_feature_1"])]
        assert seen["affinity"][0].tolist() == [row["user-item_affinity_0"], 0.5]
        infos = {name: values[0] for name, values in episode.infos.items()}
        assert infos["action_log_probs"] == math.log(row["propensity_score"])
        item = of_item[row["item_id"]]
        assert infos["item_feature_0"] == item["item_feature_0"]
        assert infos["item_feature_1"] == "abc".index(item["item_feature_1"])
        time = dt.datetime.fromisoformat(row["timestamp"])
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        assert infos["timestamp"] == (time - epoch) // dt.timedelta(microseconds=1)
    listed = run("list", "lab/", "--family", "bandits").stdout
    assert "lab/clicks-v1" in listed


def test_files_are_taken_without_the_items(tmp_path):
    folder = write(tmp_path / "men", choices(40))
    ended = run("import", str(folder / "men.csv"), "lab/alone-v1")
    assert ended.returncode == 0, ended.stderr
    assert "No item_context.csv was given" in ended.stdout + ended.stderr
    dataset = orlog.load_dataset("lab/alone-v1")
    assert dataset.action_space == spaces.Discrete(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"propensity_score": 0.0}, r"propensity_score is 0\.0 at row 2"),
        ({"click": 2}, "click is 2 at row 2"),
        ({"position": 0}, "position is 0 at row 2"),
        ({"item_id": -1}, "item_id is -1 at row 2"),
        ({"item_id": 7}, r"item_context.csv: has no item 4, which .*men.* shows"),
        ({"timestamp": "yesterday"}, "timestamp is no time in UTC"),
    ],
)
def test_numbers_that_are_none_of_such_a_log_are_refused(tmp_path, change, message):
    rows = choices()
    rows[2] |= change
    with pytest.raises(SchemaError, match=message):
        orlog.import_dataset([write(tmp_path / "men", rows, ITEM_ROWS)], "lab/bad-v1")


def test_items_twice_and_two_campaigns_are_refused(tmp_path):
    folder = write(tmp_path / "men", choices(), [*ITEM_ROWS, ITEM_ROWS[0]])
    with pytest.raises(SchemaError, match="item_id must have each number from 0 on once"):
        orlog.import_dataset([folder], "lab/twice-v1")
    (folder / "item_context.csv").unlink()
    (folder / "women.csv").write_bytes((folder / "men.csv").read_bytes())
    with pytest.raises(SchemaError, match=r"expected one file of choices beside item_context\.csv"):
        orlog.import_dataset([folder], "lab/two-v1", format="open-bandit")
