"""Parquet files of RLlib: a step or an episode in a row, plain and packed, in runs that repeat each other."""

import base64
import json
import pickle
import subprocess
import sys

import lz4.frame
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import orlog
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats.reading import read_files
from tests.tool_environments import run_tool, tool_python

LENGTHS = {"e7": 4, "0b": 3, "c1": 5}  # the second was cut off, and the order is not that of names


def episode(name):
    number, rows = list(LENGTHS).index(name), LENGTHS[name]
    rng = np.random.default_rng(number)
    last = np.arange(rows) == rows - 1
    return {
        "obs": rng.integers(0, 255, (rows + 1, 2, 3, 3)).astype("u1"),
        "actions": rng.normal(size=(rows, 2)).astype("f4"),
        "rewards": rng.normal(size=rows),
        "terminateds": last & (number != 1),
        "truncateds": last & (number == 1),
        "action_logp": rng.normal(size=rows).astype("f4"),
    }


def packed(values):
    return base64.b64encode(lz4.frame.compress(pickle.dumps(values))).decode()


def write_steps(file, names, *, packs=False):
    """Write a row a step, as `OfflineSingleAgentEnvRunner` does."""
    columns = {"eps_id": [], "agent_id": []}
    for name in names:
        body = episode(name)
        rows = {**body, "obs": body["obs"][:-1], "new_obs": body["obs"][1:]}
        columns["eps_id"] += [name] * LENGTHS[name]
        columns["agent_id"] += [None] * LENGTHS[name]
        for key, values in rows.items():
            columns.setdefault(key, []).extend(values)
    fields, arrays = [], []
    for key, values in columns.items():
        metadata = {}
        if isinstance(values[0], np.ndarray) and packs and key != "actions":
            values = [packed(one) for one in values]
        elif isinstance(values[0], np.ndarray):
            name, shape = "ray.data.arrow_tensor_v2", json.dumps(values[0].shape)
            metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": shape}
            values = [one.reshape(-1) for one in values]
        arrays.append(pa.array(values))
        fields.append(pa.field(key, arrays[-1].type, metadata=metadata))
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays, schema=pa.schema(fields)), file)


def write_episodes(file, pieces, **changed):
    """Write a row for a piece of an episode, from a step to a step, as `OfflineSingleAgentEnvRunner` does."""
    states = []
    for name, start, stop in pieces:
        body, back = episode(name), min(start, 1)

        def buffer(key, more=0, body=body, part=(start, stop, back)):
            first, last, lookback = part
            values = list(body[key][first - lookback : last + more])
            return {"data": values, "lookback": lookback, "finalized": False, "space": None}

        is_whole = stop == LENGTHS[name]
        state = {
            "id_": name,
            "t_started": start,
            "observations": buffer("obs", 1),
            "actions": buffer("actions"),
            "rewards": buffer("rewards"),
            "infos": buffer("rewards"),
            "extra_model_outputs": {"action_logp": buffer("action_logp"), "seen": None},
            "is_terminated": is_whole and body["terminateds"][-1],
            "is_truncated": is_whole and bool(body["truncateds"][-1]),
        }
        states.append(msgspec.msgpack.encode({**state, **changed}, enc_hook=_numpy))
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"item": states}), file)


def _numpy(value):
    """Return NumPy's values as `msgpack_numpy` packs them."""
    if isinstance(value, np.ndarray):
        head = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": list(value.shape)}
        return {**head, b"data": value.tobytes()}
    return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}


def check(dataset, names):
    for mine, name in zip(dataset, names, strict=True):
        body = episode(name)
        np.testing.assert_array_equal(mine.observations, body["obs"])
        np.testing.assert_array_equal(mine.actions, body["actions"])
        np.testing.assert_array_equal(mine.rewards, body["rewards"])
        np.testing.assert_array_equal(mine.infos["action_log_probs"], body["action_logp"])
        np.testing.assert_array_equal(mine.terminations, body["terminateds"])
        np.testing.assert_array_equal(mine.truncations, body["truncateds"])


def whole(*names):
    return [(name, 0, LENGTHS[name]) for name in names]


@pytest.mark.parametrize("kind", ["steps", "episodes"])
def test_a_run_that_the_next_one_repeats_is_read_once(tmp_path, kind):
    folder = tmp_path / "rllib" / "pong"
    for number, (run_name, names) in enumerate(
        {"run-000001-00001": ["e7"], "run-000001-00002": ["e7", "0b"], "run-000002-00001": ["c1"]}.items()
    ):
        for place, name in enumerate(names):
            file = folder / run_name / f"{number}_00000{place}-0.parquet"
            write_steps(file, [name]) if kind == "steps" else write_episodes(file, whole(name))
    assert choose_format([tmp_path / "rllib"], None, "lab/a-v1") is formats()["rllib"]
    dataset, found = read_files(formats()["rllib"], tmp_path / "rllib", tmp_path / "store")
    check(dataset, ["e7", "0b", "c1"])
    assert "Left out, since the next one holds it too: run-000001-00001." in sentences(found.notes)


def test_pieces_of_episodes_are_joined(tmp_path):
    pieces = [[("e7", 0, 2), ("0b", 0, 1)], [("e7", 2, 4), ("c1", 0, 5)], [("0b", 1, 3)]]
    for number, some in enumerate(pieces):
        write_episodes(tmp_path / "a" / f"run-000001-0000{number}" / "0.parquet", some)
    dataset, _ = read_files(formats()["rllib"], tmp_path / "a", tmp_path / "store")
    check(dataset, ["e7", "0b", "c1"])
    (tmp_path / "a" / "run-000001-00000" / "0.parquet").unlink()
    write_episodes(tmp_path / "a" / "run-000001-00000" / "0.parquet", [("e7", 0, 1)])
    with pytest.raises(SchemaError, match=r"00001/0.parquet, row 0: .* goes on at step 2, .* ends at step 1"):
        read_files(formats()["rllib"], tmp_path / "a", tmp_path / "other")


def test_steps_of_episodes_that_mix_are_sorted(tmp_path):
    write_steps(tmp_path / "a.parquet", [*LENGTHS])
    rows = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(rows.take([0, 4, 1, 7, 8, 5, 2, 9, 3, 6, 10, 11]), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match="sort=True"):
        read_files(formats()["rllib"], tmp_path / "b.parquet", tmp_path / "store")
    options = Options(sort=True)
    dataset, _ = read_files(formats()["rllib"], tmp_path / "b.parquet", tmp_path / "other", options)
    check(dataset, ["0b", "c1", "e7"])


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"t_started": "x"}, IntegrityError, "cannot be read as an episode of RLlib"),
        (
            {"rewards": {"data": {b"nd": True, b"kind": b"O", b"type": "|O", b"data": b""}}},
            SchemaError,
            "rewards: holds Python objects",
        ),
        (
            {"rewards": {"data": {b"nd": True, b"type": "<f8", b"shape": [9], b"data": b"12345678"}}},
            IntegrityError,
            "row 0",
        ),
    ],
)
def test_episodes_that_are_none_are_refused(tmp_path, changed, error, text):
    write_episodes(tmp_path / "a.parquet", whole("e7"), **changed)
    with pytest.raises(error, match=text):
        read_files(formats()["rllib"], tmp_path / "a.parquet", tmp_path / "store")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_packed_columns_are_refused_with_lines_that_convert_them(tmp_path, monkeypatch, kind):
    if kind == "parquet":
        write_steps(tmp_path / "a" / "0.parquet", ["e7", "0b"], packs=True)
        write_steps(tmp_path / "a" / "1.parquet", ["c1"], packs=True)
    else:
        with (tmp_path / "out.json").open("w") as file:
            for number, name in enumerate(LENGTHS):
                body = episode(name)
                line = {"type": "SampleBatch", "eps_id": [number] * LENGTHS[name]}
                line |= {key: values.tolist() for key, values in body.items() if key != "obs"}
                line |= {"obs": packed(body["obs"][:-1]), "new_obs": packed(body["obs"][1:])}
                file.write(json.dumps(line) + "\n")
    given = tmp_path / ("a" if kind == "parquet" else "out.json")
    with pytest.raises(SchemaError, match="packed by RLlib as a pickle") as error:
        orlog.import_dataset(given, "lab/a-v1")
    lines = str(error.value).splitlines()
    monkeypatch.chdir(tmp_path)
    exec("\n".join(line[4:] for line in lines if line.startswith("    ")), {})
    orlog.import_dataset(tmp_path / "data.npz", "lab/a-v1")
    names = sorted(LENGTHS) if kind == "parquet" else list(LENGTHS)
    for mine, name in zip(orlog.load_dataset("lab/a-v1"), names, strict=True):
        body = episode(name)
        np.testing.assert_array_equal(mine.observations, body["obs"])
        np.testing.assert_allclose(mine.infos["action_log_probs"], body["action_logp"], rtol=1e-6)
        np.testing.assert_array_equal(mine.terminations, body["terminateds"])
        np.testing.assert_array_equal(mine.truncations, body["truncateds"])


RAY = (
    "ray==2.60.0",
    "dm-tree==0.1.10",
    "gymnasium==1.2.2",
    "msgpack==1.2.4",
    "msgpack-numpy==0.4.8",
    "ormsgpack==1.13.1",
    "tensorboardx==2.6.5",
)
RECORD = """
    import logging, sys
    import gymnasium, numpy as np, ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

    kind, folder = sys.argv[1:]
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, rollout_fragment_length=30, batch_mode="truncate_episodes")
        .offline_data(
            output=folder, output_write_episodes=kind == "episodes",
            output_compress_columns=["obs"] if kind == "packed" else [],
        )
        .debugging(seed=0)
    )
    runner = OfflineSingleAgentEnvRunner(config=config, worker_index=1)
    lengths = {}
    for _ in range(3):
        for one in runner.sample(num_timesteps=30):
            lengths[one.id_] = lengths.get(one.id_, 0) + len(one)
    runner.stop()
    print([one for one in lengths.values() if one])
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["steps", "episodes", "packed"])
def test_what_rllib_records_has_the_episodes_that_it_played(tmp_path, kind):
    python = tool_python(*RAY, dependencies=False)
    printed = run_tool(python, RECORD, kind, tmp_path / "a", folder=tmp_path)
    lengths = json.loads(printed.splitlines()[-1])
    line = ["import", str(tmp_path / "a"), "lab/a-v1"]
    done = run(*line)
    if kind == "packed":
        program = "\n".join(one[4:] for one in done.stderr.splitlines() if one.startswith("    "))
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
        done = run("import", str(tmp_path / "data.npz"), "lab/a-v1")
        lengths.sort()
    assert done.returncode == 0, done.stderr
    dataset = orlog.load_dataset("lab/a-v1")
    found = dataset.episode_lengths.tolist()
    assert (sorted(found) if kind == "packed" else found) == lengths
