"""NeoRL-2's Parquet files: what its npz files give, in either naming, with and without time limits."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.formats.formats import choose_format, formats
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.levels import scaled

LIMIT = 5


def episodes(lengths, seed=0):
    """Return rows of episodes; those shorter than the limit ended by a terminal."""
    rng = np.random.default_rng(seed)
    whole = [rng.normal(size=(length + 1, 3)).astype("f4") for length in lengths]
    count = sum(lengths)
    last = np.cumsum(lengths) - 1
    done, truncated = np.zeros((2, count), bool)
    done[last], truncated[last] = np.array(lengths) < LIMIT, np.array(lengths) == LIMIT
    return {
        "obs": np.concatenate([one[:-1] for one in whole]),
        "action": rng.uniform(-1, 1, (count, 2)).astype("f4"),
        "reward": rng.normal(size=count).astype("f4"),
        "next_obs": np.concatenate([one[1:] for one in whole]),
        "done": done,
        "truncated": truncated,
    }


def write(path, rows, *, spread=False, **more):
    """Write rows under the names of the npz files, lists spread over columns or not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {}
    for name, values in rows.items():
        if values.ndim == 2 and spread:
            columns |= {f"{name}_{part}": values[:, part] for part in range(values.shape[1])}
        else:
            columns[name] = values.tolist() if values.ndim == 2 else values
            if values.ndim == 2:
                columns[name] = pa.array(columns[name], pa.list_(pa.float32()))
    pq.write_table(pa.table(columns), path, **more)
    return path


def as_published(rows):
    """Return the five columns of the mirror, in its names and order."""
    names = {
        "observations": "obs",
        "actions": "action",
        "rewards": "reward",
        "next_observations": "next_obs",
        "terminals": "done",
    }
    return {name: rows[key] for name, key in names.items()}


@given(lengths=st.lists(st.integers(1, LIMIT), min_size=1, max_size=8), group=st.integers(1, 12), spread=st.booleans())
@settings(max_examples=scaled(100, 5), deadline=None)
def test_a_file_gives_what_the_npz_file_of_the_same_rows_gives(tmp_path_factory, lengths, group, spread):
    folder = tmp_path_factory.mktemp("any")
    rows = episodes(lengths)
    np.savez(folder / "a.npz", allow_pickle=False, **rows)
    whole = write(folder / "a.parquet", rows, spread=spread, row_group_size=group)
    mirrored = write(folder / "b.parquet", as_published(rows), row_group_size=group)
    expected, _ = read_files(formats()["npz"], folder / "a.npz", folder / "s0")
    for file, store in ((whole, "s1"), (mirrored, "s2")):
        dataset, _ = read_files(formats()["neorl2"], file, folder / store)
        ours, theirs = ({one.name: one.blake3 for one in each.manifest.columns} for each in (dataset, expected))
        assert ours == theirs


def test_both_files_of_the_mirror_are_recognized_and_keep_their_split(tmp_path):
    files = [
        write(tmp_path / "DMSD/train/DMSD-train.parquet", as_published(episodes([5, 3, 5]))),
        write(tmp_path / "DMSD/val/DMSD-val.parquet", as_published(episodes([5], seed=1))),
    ]
    assert choose_format(files, None, "lab/x").name == "neorl2-parquet"
    orlog.import_dataset(files, "lab/dmsd-v0")
    dataset = orlog.load_dataset("lab/dmsd-v0")
    assert [one.metadata["split"] for one in dataset] == ["train", "train", "train", "val"]
    assert [bool(one.terminations[-1]) for one in dataset] == [False, True, False, False]
    assert "taken to be 5 steps" in dataset.lineage[0].operation
    other = write(tmp_path / "logs.parquet", {**episodes([5]), "run": np.zeros(5)})
    assert choose_format([other], None, "lab/x").name == "table"


def test_what_does_not_agree_is_refused(tmp_path):
    path = tmp_path / "bad.parquet"
    rows = as_published(episodes([5, 3, 5]))
    shifted = {**rows, "next_observations": np.roll(rows["next_observations"], 1, axis=0)}
    longer = as_published(episodes([5, 3, 4]))
    longer["terminals"] = np.zeros(12, bool)
    missing = rows["rewards"].tolist()
    missing[4] = None
    cases = [
        (shifted, SchemaError, "these are not next obs"),
        (longer, SchemaError, "episodes that no terminal ends have 3 to 5 steps"),
        ({**rows, "terminals": rows["rewards"]}, SchemaError, "expected 0 or 1"),
        ({**rows, "rewards": np.array(["a"] * 13)}, SchemaError, "expected rows of numbers"),
        ({**rows, "more": rows["rewards"]}, SchemaError, "expected the columns observations"),
        ({**rows, "rewards": np.array(missing, object)}, SchemaError, "no value at row 4"),
        ({key: values[:0] for key, values in rows.items()}, SchemaError, "expected rows"),
    ]
    for changed, error, message in cases:
        write(path, changed)
        with pytest.raises(error, match=rf"bad\.parquet.*{message}"):
            read_files(formats()["neorl2"], path, tmp_path / "store")
    path.write_bytes(write(path, rows).read_bytes()[:-9])
    with pytest.raises(IntegrityError, match=r"bad\.parquet: cannot be read as a table"):
        read_files(formats()["neorl2"], path, tmp_path / "store")
    write(path, rows)
    wide = {**rows, "actions": np.zeros((13, 4), "f4")}
    other = write(tmp_path / "other.parquet", wide)
    with pytest.raises(SchemaError, match=r"other\.parquet: action has rows of"):
        read_files(formats()["neorl2"], [path, other], tmp_path / "store")
