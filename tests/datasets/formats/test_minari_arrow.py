"""Minari's Arrow and Parquet folders: those that minari writes, long episodes, and those that do not agree."""

import json
import shutil
import warnings

import h5py
import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

import orlog
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.formats.minari import arrow as minari_arrow
from orlog.datasets.formats.minari import episodes as minari_episodes
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.datasets.formats.test_minari import ACTIONS, ODD, buffer, check

FORMATS = ("arrow", "parquet")


def record(folder, data_format, buffers, *ours):
    """Write episodes by minari itself; return the dataset's folder."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        warnings.simplefilter("ignore")  # it wants an author, a link to the code ..
        minari.create_dataset_from_buffers(
            "lab/odd-v3",
            list(buffers),
            observation_space=ours[0],
            action_space=ours[1],
            data_format=data_format,
            description="Odd.",
            algorithm_name="random",
        )
    return folder / "lab" / "odd-v3"


def odd(folder, data_format, episodes=4):
    return record(folder, data_format, [buffer(number) for number in range(episodes)], ODD, ACTIONS)


@pytest.mark.parametrize("block_bytes", [1, 2**24])
@pytest.mark.parametrize("data_format", FORMATS)
def test_what_minari_records_is_read_as_minari_reads_it(tmp_path, monkeypatch, data_format, block_bytes):
    monkeypatch.setattr(minari_episodes, "BLOCK_BYTES", block_bytes)
    recorded = odd(tmp_path / "minari", data_format)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    theirs = minari.load_dataset("lab/odd-v3")
    dataset, found = read_files(minari_arrow.FORMAT, recorded, tmp_path / "store")
    assert (dataset.observation_space, dataset.action_space) == (ODD, ACTIONS)
    check(dataset, theirs)
    last = dataset[3]
    assert last.seed == 3
    assert json.loads(last.metadata["options"]) == {"level": {"height": 3}}
    np.testing.assert_array_equal(last.infos["inner/count"], [1, 2, 3, 4])
    np.testing.assert_array_equal(last.infos["place"][:, 0], [2, 4, 6, 8])
    assert last.metadata["reset_info/inner/count"] == 0
    assert (found.terminated, found.truncated) == (3, 1)
    assert any("JPEG" in doubt for doubt in sentences(found.notes))
    assert (dataset.manifest.behavior_policy, dataset.manifest.description[:4]) == ("random", "Odd.")


@pytest.mark.parametrize("data_format", FORMATS)
def test_what_is_imported_is_given_back_to_minari(tmp_path, monkeypatch, data_format):
    recorded = odd(tmp_path / "minari", data_format)
    assert choose_format([recorded], None, "lab/x").name == "minari-arrow"
    orlog.import_dataset(recorded, "lab/odd-v3")
    dataset = orlog.load_dataset("lab/odd-v3")
    orlog.export_dataset(dataset, tmp_path / "out", to="minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    check(dataset, minari.load_dataset("lab/odd-v3"))


@pytest.mark.parametrize("data_format", FORMATS)
def test_episodes_of_more_rows_than_a_batch_are_whole(tmp_path, data_format):
    def long(number, steps):
        rows = np.arange(steps + 1) + 10**6 * number
        return EpisodeBuffer(
            id=number,
            observations=np.stack([rows, -rows], 1).astype(np.float64),
            actions=np.arange(steps) % 5,
            rewards=list(rows[1:] / 8),
            terminations=[*[False] * (steps - 1), number == 0],
            truncations=[False] * steps,
            infos={"rows": rows[:, None]},
        )

    # Batches have 32,768 rows, so that the second episode ends with the row after the first batch.
    buffers = [long(0, 70_000), long(1, 32_768), long(2, 10)]
    box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    recorded = record(tmp_path / "minari", data_format, buffers, box, spaces.Discrete(5))
    dataset, found = read_files(minari_arrow.FORMAT, recorded, tmp_path / "store")
    assert dataset.episode_lengths.tolist() == [70_000, 32_768, 10]
    assert (found.steps, found.terminated, sentences(found.notes)) == (102_778, 1, [])
    for ours, other in zip(dataset, buffers, strict=True):
        np.testing.assert_array_equal(ours.observations, other.observations)
        np.testing.assert_array_equal(ours.actions, other.actions)
        np.testing.assert_array_equal(ours.rewards, other.rewards)
        np.testing.assert_array_equal(ours.infos["rows"], other.infos["rows"][1:])


def rewrite(file, change):
    """Change the table of an episode."""
    pq.write_table(change(pq.read_table(file)), file)


def test_what_does_not_agree_is_refused(tmp_path):
    recorded = odd(tmp_path / "minari", "parquet")
    data = recorded / "data"
    part, said = data / "1" / "part-0.parquet", data / "1" / "metadata.json"

    def refused(error, message):
        with pytest.raises(error, match=message):
            read_files(minari_arrow.FORMAT, recorded, tmp_path / "store")
        shutil.rmtree(tmp_path / "minari")
        odd(tmp_path / "minari", "parquet")

    def without(name):
        return lambda table: table.drop_columns([name])

    rewrite(part, lambda table: table.slice(0, 4))
    refused(IntegrityError, "odd-v3, 1: total_steps says 4, so expected 5 rows, found 4")
    rewrite(part, lambda table: pa.concat_tables([table, table]))
    refused(IntegrityError, "1: total_steps says 4, so expected 5 rows, found more")
    rewrite(part, without("truncations"))
    refused(SchemaError, "1: has no column truncations")
    rewrite(part, lambda t: t.set_column(0, "observations", t.column("rewards")))
    refused(SchemaError, "1, observations: expected a part arm, found double")
    rewrite(part, lambda t: t.set_column(1, "actions", t.column("rewards")))
    refused(SchemaError, "1, actions: expected int64, found float64")
    rewrite(part, lambda t: t.set_column(3, "terminations", pa.array([True] * 5)))
    refused(SchemaError, "1, terminations: expected 4 flags, of which only")
    rewrite(part, lambda t: t.set_column(4, "truncations", pa.array([0, 0, 0, np.nan, 0])))
    refused(SchemaError, "1, truncations: expected 0 or 1, found nan at row 3")
    rewrite(part, lambda t: t.set_column(2, "rewards", pa.array([[0.0, 1.0]] * 5)))
    refused(SchemaError, r"1, rewards: expected one number a step, found float64 \(4, 2\)")
    rewrite(part, lambda t: t.set_column(2, "rewards", pa.array([[0.0]] * 2 + [[0.0, 1.0]] * 3)))
    refused(SchemaError, "1: rewards holds lists .* of different lengths, at row 2")
    rewrite(part, lambda t: t.set_column(2, "rewards", pa.array([0.0, None, 0, 0, 0])))
    refused(SchemaError, "1: rewards has no value at row 1")
    said.write_text('{"total_steps": "4"}', "utf-8")
    refused(SchemaError, "1: expected total_steps as a count, found '4'")
    said.write_text("{", "utf-8")
    refused(IntegrityError, "1: metadata.json is no JSON")
    part.rename(tmp_path / "moved")
    part.symlink_to(tmp_path / "moved")
    refused(SchemaError, "1: a link, which is not followed")
    shutil.copy(part, data / "1" / "part-1.parquet")
    refused(SchemaError, "1: expected the one file part-0.parquet, found")
    shutil.rmtree(data / "3")
    refused(SchemaError, "holds 3 episodes, and metadata.json says 4")


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", ["total_steps", "total_episodes"])
def test_totals_that_do_not_agree_are_refused(tmp_path, data_format, name):
    recorded = odd(tmp_path / "minari", data_format)
    said = recorded / "data" / "metadata.json"
    body = json.loads(said.read_text("utf-8"))
    said.write_text(json.dumps({**body, name: body[name] + 1}), "utf-8")
    count = body[name] + 1
    with pytest.raises((IntegrityError, SchemaError), match=f"metadata.json says (total_steps )?{count}"):
        read_files(minari_arrow.FORMAT, recorded, tmp_path / "store")


def test_infos_that_not_all_episodes_have_are_left_out(tmp_path):
    recorded = odd(tmp_path / "minari", "parquet")
    for number in range(4):
        part = recorded / "data" / str(number) / "part-0.parquet"
        rewrite(part, lambda t: t.drop_columns(["infos"]) if len(t) == 3 else t)
    said = recorded / "data" / "2" / "metadata.json"
    said.write_text(json.dumps({**json.loads(said.read_text("utf-8")), "score": 3}), "utf-8")
    dataset, found = read_files(minari_arrow.FORMAT, recorded, tmp_path / "store")
    assert dataset[2].infos == {}
    assert [doubt.rpartition(": ")[2] for doubt in sentences(found.notes)[:2]] == [
        "infos inner/count, place.",
        "metadata score.",
    ]


def test_who_made_it_and_attributes_with_a_slash_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    data = odd(tmp_path / "minari", "hdf5", episodes=2) / "data"
    with h5py.File(data / "main_data.hdf5", "a") as file:
        for number in range(2):
            file[f"episode_{number}"].attrs["tags/room"] = f"kitchen {number}"
    body = json.loads((data / "metadata.json").read_text("utf-8"))
    said = {"author": ["A. Maker", "B. Maker"], "author_email": "a@b.org", "code_permalink": "https://c"}
    (data / "metadata.json").write_text(json.dumps(body | said), "utf-8")
    orlog.import_dataset(data, "lab/odd-v1")
    ds = orlog.load_dataset("lab/odd-v1")
    assert "Author: A. Maker, B. Maker. Their address: a@b.org. Code: https://c." in (ds.manifest.description)
    orlog.export_dataset(ds, tmp_path / "again", to="minari")
    orlog.import_dataset(tmp_path / "again", "lab/again-v1")
    for one in (ds, orlog.load_dataset("lab/again-v1")):
        assert [episode.metadata["tags/room"] for episode in one] == ["kitchen 0", "kitchen 1"]
