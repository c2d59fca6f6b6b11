"""Tables of logs against a slow reader, and tables that are not what they seem."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.formats import arrow_files, table
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.notes import sentences
from orlog.errors import SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats.reading import read_files
from tests.levels import scaled

MAP = {"observation": "obs_*", "action": "u", "reward": "r", "terminated": "done"}
OPTIONS = Options(columns=MAP, episode="run", step="t", length="n")


def logs(lengths, *, seed=0, terminated=True):
    """Return logs of runs; every other one ended."""
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    steps = np.concatenate([np.arange(length) for length in lengths])
    runs = np.repeat(np.arange(len(lengths)), lengths)
    sizes = np.repeat(lengths, lengths)
    return pd.DataFrame(
        {
            "run": [f"run-{number}" for number in runs],
            "t": steps,
            "n": sizes,
            "obs_10": rng.normal(size=count),
            "obs_2": rng.normal(size=count),
            "u": rng.normal(size=count),
            "r": rng.integers(0, 5, count),
            "done": (steps == sizes - 1) & (runs % 2 == 0) & terminated,
            "note": ["a note"] * count,
        }
    )


def write(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        rows = [json.dumps(row) for row in frame.to_dict("records")]
        path.write_text("\n".join(rows).replace("NaN", "null"))
    else:
        frame.to_parquet(path, row_group_size=7)
    return path


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    block_rows=st.integers(1, 9),
    ending=st.sampled_from(["csv", "jsonl", "parquet"]),
    has_next=st.booleans(),
    terminated=st.booleans(),
)
@settings(max_examples=scaled(25), deadline=None)
def test_any_runs_are_read_as_the_slow_reader_does(tmp_path_factory, lengths, block_rows, ending, has_next, terminated):
    folder = tmp_path_factory.mktemp("any")
    frame = logs(lengths, terminated=terminated)
    columns = dict(MAP)
    if has_next:
        frame["next_2"], frame["next_10"] = frame["obs_2"] + 1, frame["obs_10"] + 1
        columns["next_observation"] = "next_*"
    expected = []
    for number, length in enumerate(lengths):
        rows = frame[frame["run"] == f"run-{number}"]
        observations = rows[["obs_2", "obs_10"]].to_numpy()
        ends = bool(rows["done"].iloc[-1])
        if has_next:
            observations = np.concatenate((observations, observations[-1:] + 1))
        elif ends:
            observations = np.concatenate((observations, observations[-1:] * 0))
        else:
            rows, length = rows[:-1], length - 1
        if length:
            expected.append((observations, rows, ends))
    path = write(frame, folder / f"logs.{ending}")
    options = Options(columns=columns, episode="run", step="t", length="n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "BLOCK_ROWS", block_rows)
        patch.setattr(arrow_files, "BLOCK_ROWS", block_rows)
        if not expected:
            with pytest.raises(SchemaError, match="at least one episode"):
                read_files(table.TABLE, path, folder / "store", options)
            return
        dataset, found = read_files(table.TABLE, path, folder / "store", options)
    assert dataset.total_episodes == len(expected)
    for episode, (observations, rows, ends) in zip(dataset, expected, strict=True):
        np.testing.assert_array_equal(episode.observations, observations)
        np.testing.assert_array_equal(episode.actions[:, 0], rows["u"])
        np.testing.assert_array_equal(episode.rewards, rows["r"])
        assert (bool(episode.terminations[-1]), bool(episode.truncations[-1])) == (ends, not ends)
        if not has_next:
            assert episode.metadata["final_observation_missing"] == ends
    assert any("note" in doubt for doubt in sentences(found.notes))


def test_the_command_names_columns(tmp_path):
    write(logs([3, 4]), tmp_path / "logs.csv")
    done = run(
        *("import", str(tmp_path / "logs.csv"), "lab/robot-v3", "--episode", "run"),
        *("--map", "observation=obs_*", "--map", "action=u", "--map", "infos/note=note"),
    )
    assert "2, of 2 to 3 steps" in done.stdout
    assert "No column of rewards was named" in done.stdout
    episode = orlog.load_dataset("lab/robot-v3")[0]
    assert episode.infos["note"] == ["a note"] * 2


def test_lists_choices_and_mixed_rows_sorted(tmp_path):
    frame = logs([3, 4])
    frame["obs"] = [np.arange(3.0) + row for row in range(7)]
    frame["u"] = [3, 5, 4, 3, 3, 5, 3]
    mixed = frame.sort_values("t", kind="stable")
    path = write(mixed, tmp_path / "logs.parquet")
    columns = {**MAP, "observation": "obs"}
    options = Options(columns=columns, episode="run", step="t", length="n")
    with pytest.raises(SchemaError, match=r"episode run-0 goes on at row 2.*sort=True"):
        read_files(table.TABLE, path, tmp_path / "store", Options(columns=columns, episode="run"))
    options = Options(columns=columns, episode="run", step="t", length="n", sort=True)
    dataset, _ = read_files(table.TABLE, path, tmp_path / "store", options)
    assert dataset.action_space == spaces.Discrete(3, start=3)
    np.testing.assert_array_equal(dataset[0].observations[:3], np.stack(frame["obs"][:3].tolist()))


def test_what_is_wrong_says_where(tmp_path):
    frame = logs([3, 4])
    skipped, longer, early, empty, text = (frame.copy() for _ in range(5))
    skipped.loc[5, "t"] = 7
    longer.loc[3:, "n"] = 5
    early.loc[1, "done"] = True
    empty.loc[4, "u"] = None
    text["u"] = "left"
    cases = [
        (skipped, OPTIONS, "t goes from 1 to 7 at row 5, inside episode run-1"),
        (longer, OPTIONS, "n of episode run-1 says 5 rows, and it has 4"),
        (early, OPTIONS, "terminated is True at row 1, and the episode goes on"),
        (empty, OPTIONS, "u has no value at row 4"),
        (text, OPTIONS, "action holds texts"),
        (frame, Options(episode="run"), "give columns={'action': 'COLUMNS'}. Its columns are run, t"),
        (frame, Options(columns=MAP), "give episode=COLUMN"),
        (frame, Options(columns=MAP, episode="runs"), "no column 'runs'; did you mean run?"),
        (frame, Options(columns={**MAP, "action": "x_*"}, episode="run"), "no column 'x_*'"),
        (frame, Options(columns={**MAP, "rewards": "r"}, episode="run"), "did you mean reward?"),
    ]
    for number, (bad, options, message) in enumerate(cases):
        path = write(bad, tmp_path / f"bad.{('csv', 'jsonl', 'parquet')[number % 3]}")
        with pytest.raises(SchemaError, match=re.escape(message)):
            read_files(table.TABLE, path, tmp_path / "store", options)


def test_lists_that_change_their_length_are_refused(tmp_path):
    def written(name, sizes):
        table = pd.DataFrame({"u": np.zeros(len(sizes)), "run": "a"})
        table["obs"] = [[0.5] * size for size in sizes]
        table.to_parquet(tmp_path / name)
        return tmp_path / name

    columns = {"observation": "obs", "action": "u"}
    late = written("late.parquet", [2] * 20_000 + [3] * 20_000)
    with pytest.raises(SchemaError, match=r"observation|obs"):
        orlog.import_dataset(late, "lab/x-v1", columns=columns, episode="run")
    two = [written("a.parquet", [2] * 5), written("b.parquet", [3] * 5)]
    with pytest.raises(SchemaError, match=r"b\.parquet: observation has rows of shape \(3,\)"):
        orlog.import_dataset(two, "lab/x-v1", columns=columns, episode="run")
    with pytest.raises(SchemaError, match="holds no rows"):
        orlog.import_dataset(written("empty.parquet", []), "lab/x-v1", columns=columns, episode="run")


def test_values_that_lie_in_each_other_without_end_are_refused(tmp_path):
    text = json.dumps({"run": "a", "obs": [1.0, 2.0], "u": 0.5, "note": '[[[[ "{{' * 40})
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([text] * 4), "utf-8")
    options = Options(columns={"observation": "obs", "action": "u"}, episode="run", ends="terminated")
    dataset, _ = read_files(table.TABLE, path, tmp_path / "store", options)
    assert dataset.episode_lengths.tolist() == [4]
    path.write_text(text + '\n{"run": ' + "[" * 20_000 + "]" * 20_000 + "}\n", "utf-8")
    with pytest.raises(SchemaError, match="the values of line 2 lie more than 64 deep"):
        read_files(table.TABLE, path, tmp_path / "broken", options)
    path.write_text("null\n" + text, "utf-8")
    with pytest.raises(SchemaError, match="line 1 is no object of JSON"):
        read_files(table.TABLE, path, tmp_path / "broken", options)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_folder_stands_for_its_tables_in_the_order_of_their_numbers(tmp_path, ending):
    frame = logs([3, 1, 5, 2])
    places = ["2.x", "10.x", "part/1.x", "part/b/0.x"]
    for number, place in enumerate(places):
        file = (tmp_path / "runs" / place).with_suffix(f".{ending}")
        file.parent.mkdir(parents=True, exist_ok=True)
        write(frame[frame.run == f"run-{number}"], file)
    (tmp_path / "runs" / "README.md").write_text("# Runs")
    whole, _ = read_files(table.TABLE, write(frame, tmp_path / f"all.{ending}"), tmp_path / "a", OPTIONS)
    folder = tmp_path / "runs"
    notes = []
    orlog.import_dataset(
        folder,
        "lab/runs-v1",
        columns=MAP,
        episode="run",
        step="t",
        length="n",
        on_found=lambda found: notes.extend(sentences(found.notes)),
    )
    assert "Not read: ./README.md." in notes
    dataset = orlog.load_dataset("lab/runs-v1")
    for mine, its in zip(dataset, whole, strict=True):
        np.testing.assert_array_equal(mine.observations, its.observations)
        np.testing.assert_array_equal(mine.terminations, its.terminations)
    (folder / "part" / "link.csv").symlink_to(folder)
    with pytest.raises(SchemaError, match=r"runs/part/link.csv: a link"):
        read_files(table.TABLE, folder, tmp_path / "b", OPTIONS)


def test_a_table_of_unknown_meaning_is_shown(tmp_path):
    frame = logs([3, 4]).rename(columns={"run": "ep", "u": "torque"})
    frame["state"] = frame[["obs_2", "obs_10"]].to_numpy().tolist()
    write(frame.drop(columns=["obs_2", "obs_10"]), tmp_path / "a.parquet")
    shown = run("import", str(tmp_path / "a.parquet"), "lab/x-v1").stderr
    assert "\n    state  (2,) float64\n" in shown
    assert "\n    torque  () float64\n" in shown
    assert "--map observation=NAMES --map action=NAME" in shown
