"""imitation's trajectories: those of its layout, those it saved itself, and those that do not agree."""

import json

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.tool_environments import run_tool, tool_python

LENGTHS = (3, 1, 4)
PACKAGES = (
    "imitation==1.0.1",
    "datasets==5.2.0",
    "dill==0.4.1",
    "jsonpickle==4.1.1",
    "multiprocess==0.70.19",
    "stable-baselines3==2.7.0",
)


def trajectories(choices=0):
    """Return one that a time limit ended, one that goes on, and one of which it is not known."""
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.normal(size=(length + 1, 2)).astype("f4"),
            "acts": rng.integers(0, choices, length) if choices else rng.normal(size=(length, 1)),
            "rews": rng.normal(size=length),
            "infos": [json.dumps({"TimeLimit.truncated": True} if number == 0 else {})] * length,
            "terminal": number != 1,
        }
        for number, length in enumerate(LENGTHS)
    ]


def write(folder, rows=None):
    """Write trajectories as Hugging Face's datasets save them, in two files."""
    rows = trajectories() if rows is None else rows
    folder.mkdir(exist_ok=True)
    names = []
    for number, part in enumerate((rows[:1], rows[1:])):
        listed = [{key: getattr(one, "tolist", lambda one=one: one)() for key, one in row.items()} for row in part]
        kinds = {"obs": pa.list_(pa.list_(pa.float32())), "infos": pa.list_(pa.string())}
        columns = {key: pa.array([row[key] for row in listed], kinds.get(key)) for key in listed[0]}
        names.append(f"data-{number:05}-of-00002.arrow")
        table = pa.table(columns)
        with pa.ipc.new_stream(str(folder / names[-1]), table.schema) as stream:
            stream.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state), "utf-8")


def check(dataset, rows):
    """Compare with trajectories."""
    for episode, row in zip(dataset, rows, strict=True):
        np.testing.assert_array_equal(episode.observations, row["obs"])
        np.testing.assert_array_equal(episode.actions, row["acts"])
        np.testing.assert_array_equal(episode.rewards, row["rews"])


@pytest.mark.parametrize("choices", [0, 3])
def test_trajectories_are_read(tmp_path, choices):
    rows = trajectories(choices)
    write(tmp_path / "data", rows)
    assert choose_format([tmp_path / "data"], None, "lab/x").name == "imitation"
    dataset, found = read_files(formats()["imitation"], tmp_path / "data", tmp_path / "store")
    check(dataset, rows)
    assert [bool(one.truncations[-1]) for one in dataset] == [True, False, True]
    assert [bool(one.terminations[-1]) for one in dataset] == [False, False, False]
    assert isinstance(dataset.action_space, spaces.Discrete if choices else spaces.Box)
    assert any("Of 1 episode nothing says whether a time limit" in one for one in sentences(found.notes))


def test_files_of_older_versions_are_read(tmp_path):
    rows = trajectories()
    arrays = {name: np.concatenate([row[name] for row in rows]) for name in ("obs", "acts", "rews")}
    np.savez(
        tmp_path / "rollout.npz",
        **arrays,
        indices=np.cumsum(LENGTHS)[:-1],
        terminal=np.array([row["terminal"] for row in rows]),
        infos=np.array([{}] * sum(LENGTHS), object),
    )
    assert choose_format([tmp_path / "rollout.npz"], None, "lab/x").name == "imitation"
    dataset, found = read_files(formats()["imitation"], tmp_path / "rollout.npz", tmp_path / "store")
    check(dataset, rows)
    assert (found.terminated, found.truncated) == (0, 2)
    inner = np.cumsum(LENGTHS)[:-1]
    np.savez(tmp_path / "odd.npz", **arrays, indices=inner, terminal=np.array([1, np.nan, 0]))
    with pytest.raises(SchemaError, match="terminal: expected 0 or 1, found nan at row 1"):
        read_files(formats()["imitation"], tmp_path / "odd.npz", tmp_path / "odd")


def test_what_does_not_agree_is_refused(tmp_path):
    cases = [
        ({"acts": np.zeros((2, 1))}, "trajectory 2: expected one obs more than acts, found 5 and 2"),
        ({"rews": np.zeros(3)}, "trajectory 2, rews: expected 4 rows"),
        ({"obs": np.zeros((5, 3))}, "different lengths"),
        ({"obs": [[0.0]] * 4 + [[0.0, 1.0]]}, "different lengths"),
        ({"obs": []}, "expected one obs more than acts, found 0 and 4"),
    ]
    for number, (change, message) in enumerate(cases):
        rows = trajectories()
        rows[2] |= change
        write(tmp_path / str(number), rows)
        with pytest.raises(SchemaError, match=message):
            read_files(formats()["imitation"], tmp_path / str(number), tmp_path / "store")
    write(tmp_path / "data")
    for name, error, message in (
        ("../secret.arrow", SchemaError, "expected a file in the folder"),
        ("other.arrow", IntegrityError, "missing, or a link"),
        ("long" * 100, IntegrityError, "missing, or a link"),
    ):
        state = {"_data_files": [{"filename": name}]}
        (tmp_path / "data" / "state.json").write_text(json.dumps(state), "utf-8")
        with pytest.raises(error, match=message):
            read_files(formats()["imitation"], tmp_path / "data", tmp_path / "store")


@pytest.mark.thorough
def test_what_imitation_saves_is_read(tmp_path):
    rows = trajectories()
    np.savez(
        tmp_path / "rows.npz",
        **{f"{name}{n}": row[name] for n, row in enumerate(rows) for name in ("obs", "acts", "rews")},
    )
    code = """
    import numpy as np
    from imitation.data import serialize, types

    rows = np.load("rows.npz")
    serialize.save("saved", [
        types.TrajectoryWithRew(
            obs=rows[f"obs{n}"], acts=rows[f"acts{n}"], rews=rows[f"rews{n}"], terminal=n != 1,
            infos=np.array([{"TimeLimit.truncated": n == 0, "x": np.float32(1)}] * len(rows[f"acts{n}"])),
        )
        for n in range(3)
    ])
    """
    run_tool(tool_python(*PACKAGES, dependencies=False), code, folder=tmp_path)
    dataset, found = read_files(formats()["imitation"], tmp_path / "saved", tmp_path / "store")
    check(dataset, rows)
    assert [bool(one.truncations[-1]) for one in dataset] == [True, False, False]
    assert (found.terminated, found.truncated) == (1, 1)
    assert not any("whether a time limit" in one for one in sentences(found.notes))
