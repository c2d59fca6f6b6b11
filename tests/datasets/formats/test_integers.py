"""Integers come back as they were written, or the import is refused with the row and the number."""

import itertools
import json
import re
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.errors import SchemaError
from tests.levels import scaled

MAP = {"observation": "obs", "action": "act", "reward": "r", "infos/count": "count", "terminated": "end"}
LARGE = 2**53 + 1
NUMBERS = itertools.count()
TEXTS = (".csv", ".jsonl")
TABLES = (*TEXTS, ".parquet")
ENDINGS = (*TABLES, ".npz", ".h5", ".npy")


def write(folder, ending, columns, name="logs"):
    """Write columns of numbers as one file, or as a folder of arrays."""
    path = folder / f"{name}{ending}"
    lists = {key: values.tolist() for key, values in columns.items()}
    if ending == ".jsonl":
        rows = zip(*lists.values(), strict=True)
        path.write_text("".join(f"{json.dumps(dict(zip(lists, row, strict=True)))}\n" for row in rows))
    elif ending == ".csv":
        pd.DataFrame(lists, dtype=object).to_csv(path, index=False)
    elif ending == ".parquet":
        pd.DataFrame({key: list(one) if one.ndim > 1 else one for key, one in columns.items()}).to_parquet(path)
    elif ending == ".npz":
        np.savez(path, **dict[str, Any](columns))
    elif ending == ".h5":
        with h5py.File(path, "w") as file:
            for key, values in columns.items():
                file[key] = values
    else:
        path = folder / name
        path.mkdir()
        for key, values in columns.items():
            np.save(path / f"{key}.npy", values)
    return path


def logs(**changed):
    """Return the columns of an episode of three rows; some can be others."""
    columns = {
        "obs": np.array([0.5, 1.5, 2.5]),
        "act": np.array([0.25, 0.5, 0.75]),
        "r": np.zeros(3),
        "count": np.arange(3),
        "end": np.array([0, 0, 1]),
    }
    return columns | {name: np.array(one) for name, one in changed.items()}


def read(path, columns=MAP):
    name = f"lab/x{next(NUMBERS)}-v1"
    orlog.import_dataset(path, name, columns=columns, episode="file")
    return orlog.load_dataset(name)


INTEGERS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3).map(lambda one: np.array(one, np.int64)),
    st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3).map(lambda one: np.array(one, np.uint64)),
    st.lists(st.sampled_from([0, 2**53, LARGE, -LARGE, 2**62]), min_size=3, max_size=3).map(np.array),
)


@given(values=INTEGERS, ending=st.sampled_from(ENDINGS), column=st.sampled_from(["obs", "count"]))
@settings(max_examples=scaled(60), deadline=None)
def test_any_integer_comes_back_or_is_refused_with_its_row(tmp_path_factory, values, ending, column):
    path = write(tmp_path_factory.mktemp("any"), ending, logs(**{column: values}))
    try:
        found = read(path)
    except SchemaError as error:
        found = error
    if isinstance(found, SchemaError):
        match = re.search(r"holds (-?\d+) at (row|line) (\d+)", str(found))
        assert match, found
        row = int(match[3]) - (match[2] == "line")
        assert int(match[1]) == values[row]
        assert column == "obs" or (ending in TEXTS and max(values.tolist()) >= 2**63)
        return
    (episode,) = found
    numbers = episode.infos["count"] if column == "count" else episode.observations[:3, 0]
    assert [int(one) for one in numbers] == [int(one) for one in values]
    if column == "count" and ending not in TEXTS:
        assert numbers.dtype == values.dtype


@pytest.mark.parametrize("ending", [".parquet", ".npz", ".h5", ".npy"])
@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint16, np.uint8])
def test_integers_of_16_bits_stay_what_they_are(tmp_path, ending, kind):
    limits = np.iinfo(kind)
    values = np.array([limits.min, limits.max, 7], kind)
    dataset = read(write(tmp_path, ending, logs(obs=values, count=values)))
    assert dataset.observation_space == spaces.Box(limits.min, limits.max, (1,), kind)
    assert dataset[0].observations.dtype == dataset[0].infos["count"].dtype == kind
    np.testing.assert_array_equal(dataset[0].observations[:3, 0], values)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_large_integer_is_refused_with_row_and_number(tmp_path, ending):
    values = np.array([1, LARGE, 2])
    at = r"holds 9007199254740993 at (row 1|line 2), which float64"
    for name, changed in {
        "of_its_own": logs(obs=values),
        "an_action": logs(act=np.stack([values, values], 1)),
        "a_reward": logs(r=values),
    }.items():
        if ending == ".csv" and changed["act"].ndim > 1:
            continue
        with pytest.raises(SchemaError, match=at):
            read(write(tmp_path, ending, changed, name))
    path = write(tmp_path, ending, logs(other=values), "joined")
    with pytest.raises(SchemaError, match=f"other:? {at}"):
        read(path, MAP | {"observation": "obs,other"})


@pytest.mark.parametrize("ending", TEXTS)
@pytest.mark.parametrize(
    ("number", "message"), [("1" + "0" * 400, "larger than any number"), (str(2**63 + 1), "does not hold exactly")]
)
def test_a_text_of_a_number_that_is_too_large_is_refused(tmp_path, ending, number, message):
    path = write(tmp_path, ending, logs(count=[0.5, 1.5, 2.5]))
    path.write_text(path.read_text().replace("1.5", number).replace(f"{number},", "1.5,", 1))
    with pytest.raises(SchemaError, match=f"logs{ending}: count holds .* at (row 1|line 2), .*{message}"):
        read(path)


@pytest.mark.parametrize("ending", [".parquet", ".npz"])
def test_files_of_other_integers_are_joined_as_floats(tmp_path, ending):
    folder = tmp_path / "several"
    folder.mkdir()
    kinds = (np.int16, np.int64, np.float64)
    for number, kind in enumerate(kinds):
        write(folder, ending, logs(obs=np.array([1, 2, 3], kind)), f"run_{number}")
    dataset = read(folder)
    assert len(dataset) == 3
    assert dataset[0].observations.dtype == np.float64
    write(folder, ending, logs(obs=np.array([1, LARGE, 3])), "run_9")
    with pytest.raises(SchemaError, match=str(LARGE)):
        read(folder)


def test_next_observations_of_another_dtype_are_not_cut(tmp_path):
    for ending in (".parquet", ".npz"):
        path = write(tmp_path, ending, logs(obs=np.array([1, 2, 3], np.int16), after=[2, 3, 4.5]))
        episode = read(path, MAP | {"next_observation": "after"})[0]
        np.testing.assert_array_equal(episode.observations[:, 0], [1, 2, 3, 4.5])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"obs": [[0.5], [LARGE]]}, f"line 1, obs: holds {LARGE} at row 1"),
        ({"rewards": [0.0, 2**70]}, "line 1, rewards: holds an integer of more than 64 bits at row 1"),
        ({"rewards": [0, LARGE]}, f"rewards: holds {LARGE} at row 1"),
    ],
)
def test_lines_of_rllib_keep_integers_or_are_refused(tmp_path, line, message):
    batch = {"obs": [[0.5], [1]], "actions": [[0.5], [1]], "rewards": [0, 1], "eps_id": [1, 1]}
    ends = {"terminateds": [False, True], "truncateds": [False, False]}
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"type": "SampleBatch", **batch, **ends, **line}))
    with pytest.raises(SchemaError, match=message):
        orlog.import_dataset(path, "lab/r-v1")
