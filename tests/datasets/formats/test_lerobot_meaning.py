"""What columns of LeRobotDatasets mean where info.json does not list them, or LeRobot gives them a meaning."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import orlog
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.lerobot import format as lerobot
from orlog.datasets.formats.notes import sentences
from orlog.errors import SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats.reading import read_files
from tests.datasets.formats.test_lerobot import LENGTHS, change_info, write

NO_VIDEO = Options(no_video=True)
ROWS = sum(LENGTHS)
LAST = np.cumsum(LENGTHS) - 1
TABLE = "data/chunk-000/file-000.parquet"


def change_table(path, **columns):
    """Give a table other columns, or take those out that are None."""
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.drop([name]) if name in table.column_names else table
        if values is not None:
            table = table.append_column(name, values)
    pq.write_table(table, path)


def unlist(root, *names):
    change_info(root, lambda info: [info["features"].pop(name, None) for name in names])


def test_a_set_whose_info_lists_little_is_read_as_its_tables_say(tmp_path, monkeypatch):
    """The set that the issue gives: two episodes whose last step is done and has the reward 1."""
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    root = tmp_path / "lerobot_undeclared"
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta").mkdir()
    lengths, feature = (20, 15), {"dtype": "float32", "shape": [3], "names": ["a", "b", "c"]}
    for number, length in enumerate(lengths):
        table = {
            "frame_index": np.arange(length),
            "timestamp": np.arange(length) * 0.054,
            "episode_index": np.full(length, number),
            "observation.state": np.arange(3.0 * length).reshape(length, 3).tolist(),
            "action": np.ones((length, 3)).tolist(),
            "next.reward": (np.arange(length) == length - 1) * 1.0,
            "next.done": np.arange(length) == length - 1,
        }
        path = root / f"data/chunk-000/episode_{number:06d}.parquet"
        pq.write_table(pa.table(table), path)
    rows = [{"episode_index": one, "tasks": ["fold"], "length": length} for one, length in enumerate(lengths)]
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    info = {"codebase_version": "v2.1", "fps": 20, "total_episodes": 2, "total_frames": 35}
    info |= {"features": {"observation.state": feature, "action": feature}}
    (root / "meta/info.json").write_text(json.dumps(info), "utf-8")
    done = run("import", str(root), "lab/h-v1")
    assert done.returncode == 0, done.stderr
    told = " ".join((done.stdout + done.stderr).split())
    assert "2 terminated" in told
    assert "returns 1 to 1" in told
    assert "has no next" not in told
    assert "does not list them: timestamp, next.reward, next.done." in told
    np.testing.assert_allclose(orlog.load_dataset("lab/h-v1")[1].infos["timestamp"], np.arange(15) * 0.054)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(
    "names",
    [("next.reward", "next.done", "force", "timestamp"), ("action", "observation.state", "observation.images.top")],
)
def test_columns_that_info_does_not_list_are_read_as_those_that_it_lists(tmp_path, version, names):
    root = tmp_path / "arm"
    write(root, version)
    ours, _ = read_files(lerobot.FORMAT, root, tmp_path / "listed", NO_VIDEO)
    unlist(root, *names)
    theirs, found = read_files(lerobot.FORMAT, root, tmp_path / "unlisted", NO_VIDEO)
    assert {*theirs.columns} == {*ours.columns}
    for name in ours.columns:
        np.testing.assert_array_equal(theirs.column(name), ours.column(name))
    (said,) = (one for one in sentences(found.notes) if "does not list" in one)
    assert all(name in said for name in names)


def test_columns_that_cannot_be_read_are_named_and_tables_that_differ_are_told(tmp_path):
    root = tmp_path / "arm"
    write(root, "v2.1")
    tables = sorted((root / "data").rglob("*.parquet"))
    for number, path in enumerate(tables):
        count = pq.read_metadata(path).num_rows
        change_table(
            path,
            ragged=pa.array([[1.0] * (one % 3 + 1) for one in range(count)]),
            gaps=pa.array([None] * count, pa.float64()),
            kinds=pa.array(np.zeros(count, "i4" if number else "f4")),
            said=pa.array(["go"] * count),
            __index_level_0__=pa.array(np.arange(count)),
            **({"sometimes": pa.array(np.zeros(count))} if number == 1 else {}),
        )
    dataset, found = read_files(lerobot.FORMAT, root, tmp_path / "store", NO_VIDEO)
    assert dataset[0].infos["said"] == ["go"] * 3
    told = " ".join(sentences(found.notes))
    assert "does not list them: said." in told
    for text in (
        "ragged (chunk-000/episode_000000.parquet: ragged holds lists of other things than numbers, or of different",
        "gaps (chunk-000/episode_000000.parquet: gaps has no value at row 0)",
        "kinds (chunk-000/episode_000001.parquet holds int32 [1] from row 0 on",
        "sometimes (only in 1 of 3 tables)",
        "__index_level_#__",
    ):
        assert text in told
    change_table(tables[2], **{"next.reward": None})
    with pytest.raises(SchemaError, match=r"1 of 3 tables have no column next\.reward, such as .*2\.p"):
        read_files(lerobot.FORMAT, root, tmp_path / "refused", NO_VIDEO)


def test_success_is_a_role_and_a_failure_that_is_done_ended_the_task(tmp_path):
    """As in LeRobot's PushT; no reward is made of `next.done`."""
    root, last = tmp_path / "arm", np.isin(np.arange(ROWS), LAST)
    success = (np.arange(ROWS) == LAST[0])[:, None]
    write(root, **{"next.done": last, "next.success": success})
    options = Options(no_video=True, reward="success")
    dataset, found = read_files(lerobot.FORMAT, root, tmp_path / "store", options)
    assert (found.terminated, found.truncated) == (3, 0)
    assert dataset.roles["infos/success"] == "success"
    assert [one.infos["success"].tolist()[-1] for one in dataset] == [True, False, False]
    assert [one.rewards.sum() for one in dataset] == [1, 0, 0]
    write(root, **{"next.success": success, "success": np.zeros(ROWS)})
    dataset, _ = read_files(lerobot.FORMAT, root, tmp_path / "both", NO_VIDEO)
    assert {"success", "next.success"} <= {*dataset[0].infos}


def test_next_terminated_says_the_end_where_nothing_says_done(tmp_path):
    root, last = tmp_path / "arm", np.isin(np.arange(ROWS), LAST)
    flags = {"next.terminated": last & (np.arange(ROWS) > 4), "next.truncated": last}
    write(root, **flags)
    unlist(root, "next.done", "next.terminated")
    change_table(root / TABLE, **{"next.done": None})
    _, found = read_files(lerobot.FORMAT, root, tmp_path / "store", NO_VIDEO)
    assert (found.terminated, found.truncated) == (1, 2)


def language_row(style, content, **more):
    return {"role": "assistant", "content": content, "style": style, **more}


def persistent_row(style, content, timestamp):
    row = language_row(style, content, timestamp=timestamp, camera=None, tool_calls=None)
    return row | {"timestamp": float(np.float32(timestamp))}


SAY = {"type": "function", "function": {"name": "say", "arguments": {"text": "on it"}}}
EVENT = language_row(None, None, camera=None, tool_calls=[SAY])
PERSISTENT = [
    [persistent_row("plan", "first this", 0), persistent_row("subtask", "reach", 0)],
    [],
    [persistent_row("subtask", "lift", 0.3), persistent_row("subtask", "grasp", 0.1)],
]


@pytest.mark.parametrize(("listed", "block_bytes"), [(True, 1), (False, 2**24)])
def test_language_columns_are_texts(tmp_path, monkeypatch, listed, block_bytes):
    monkeypatch.setattr(lerobot, "BLOCK_BYTES", block_bytes)
    root = tmp_path / "arm"
    write(root)
    episodes = np.repeat(np.arange(3), LENGTHS)
    events = [[EVENT] if row == 6 else [] for row in range(ROWS)]
    columns = {
        "language_persistent": pa.array([PERSISTENT[one] for one in episodes]),
        "language_events": pa.array(events),
    }
    change_table(root / TABLE, **columns)
    if listed:
        feature = {"dtype": "language", "shape": [1], "names": None}
        change_info(root, lambda info: info["features"].update(dict.fromkeys(columns, feature)))
    dataset, found = read_files(lerobot.FORMAT, root, tmp_path / "store", NO_VIDEO)
    assert [json.loads(one.metadata["language_persistent"]) for one in dataset] == PERSISTENT[::2]
    assert [one.infos["subtask"] for one in dataset] == [["reach"] * 3, ["", "grasp", "grasp", "lift", "lift"]]
    assert [json.loads(one) for one in dataset[1].infos["language_events"]] == [[], [EVENT], [], [], []]
    assert not any("language" in one for one in sentences(found.notes) if "does not list" not in one)


def with_language(root, persistent, events):
    write(root)
    episodes = np.repeat(np.arange(3), LENGTHS)
    columns = {"language_persistent": pa.array([persistent[one] for one in episodes]), "language_events": events}
    change_table(root / TABLE, **columns)


@pytest.mark.parametrize("video", [False, True])
def test_language_columns_are_exported_as_they_came(tmp_path, monkeypatch, video):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    root, out = tmp_path / "arm", tmp_path / "out"
    calls = pa.list_(pa.json_())
    struct = [(one, pa.string()) for one in ("role", "content", "style", "camera")] + [("tool_calls", calls)]
    rows = [[EVENT | {"tool_calls": [json.dumps(SAY), json.dumps({"a": [1, 2.5]})]}] * (row % 2) for row in range(ROWS)]
    as_json = pa.array(rows, pa.list_(pa.struct([*struct[:-1], ("tool_calls", pa.list_(pa.string()))])))
    with_language(root, PERSISTENT, as_json.cast(pa.list_(pa.struct(struct))))
    orlog.import_dataset(root, "lab/arm-v1", no_video=True)
    ours = orlog.load_dataset("lab/arm-v1")
    assert json.loads(ours[0].infos["language_events"][1])[0]["tool_calls"] == [SAY, {"a": [1, 2.5]}]
    orlog.export_dataset(ours, out, to="lerobot", video=video, rate=10, lossy=True)
    features = json.loads((out / "meta/info.json").read_text("utf-8"))["features"]
    stored = pq.read_table(out / TABLE)
    for name in ("language_persistent", "language_events"):
        assert features[name] == {"dtype": "language", "shape": [1], "names": None}
        kind = stored.schema.field(name).type.value_type
        assert kind.field("tool_calls").type == calls
        assert kind.field("content").type == pa.string()
    assert stored.schema.field("language_persistent").type.value_type.field("timestamp").type == pa.float32()
    assert stored["language_events"][1].as_py()[0]["tool_calls"][1] == '{"a": [1, 2.5]}'
    orlog.import_dataset(out, "lab/again-v1", no_video=True)
    theirs = orlog.load_dataset("lab/again-v1")
    for one, other in zip(ours, theirs, strict=True):
        count = len(other)  # frames as videos have no final observation
        assert one.metadata["language_persistent"] == other.metadata["language_persistent"]
        assert one.infos["language_events"][:count] == other.infos["language_events"]
        assert one.infos["subtask"][:count] == other.infos["subtask"]


@pytest.mark.parametrize(
    "row",
    [
        {"style": "subtask"},
        EVENT | {"speed": 1.5},
        EVENT | {"role": None},
        dict(reversed(EVENT.items())) | {"tool_calls": [json.dumps([1])]},
        "open it",
    ],
)
def test_language_of_other_forms_is_exported_as_text(tmp_path, monkeypatch, row):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    root, out = tmp_path / "arm", tmp_path / "out"
    with_language(root, [[row]] * 3, pa.array([[row]] * ROWS))
    orlog.import_dataset(root, "lab/arm-v1", no_video=True)
    ours = orlog.load_dataset("lab/arm-v1")
    orlog.export_dataset(ours, out, to="lerobot")
    features = json.loads((out / "meta/info.json").read_text("utf-8"))["features"]
    assert "language_persistent" not in features
    assert features["infos.language_events"]["dtype"] == "string"
    orlog.import_dataset(out, "lab/again-v1")
    theirs = orlog.load_dataset("lab/again-v1")
    assert [one.infos["language_events"] for one in theirs] == [one.infos["language_events"] for one in ours]
    assert [one.metadata for one in theirs] == [one.metadata for one in ours]


def test_persistent_rows_that_differ_in_an_episode_are_all_kept_and_told(tmp_path):
    root = tmp_path / "arm"
    write(root)
    each = [PERSISTENT[0], [*PERSISTENT[0], persistent_row("memory", "one done", 0.2)]]
    change_table(root / TABLE, language_persistent=pa.array([each[row == 2] for row in range(ROWS)]))
    dataset, found = read_files(lerobot.FORMAT, root, tmp_path / "store", NO_VIDEO)
    assert json.loads(dataset[0].metadata["language_persistent"]) == each[1]
    assert any("differs among the steps of 1 episode;" in one for one in sentences(found.notes))


@pytest.mark.parametrize(
    "values",
    [
        ["open it"] * ROWS,
        [[{"style": "subtask", "content": None}]] * ROWS,
        [["open it", "close it"]] * ROWS,
        [None] * ROWS + [[]],
        [[{"style": "subtask", "timestamp": "now"}]] * ROWS,
    ],
)
def test_language_columns_of_other_forms_are_kept_as_they_are(tmp_path, values):
    root = tmp_path / "arm"
    write(root)
    column = pa.array(values)[:ROWS]
    change_table(root / TABLE, language_persistent=column, language_events=column)
    dataset, _ = read_files(lerobot.FORMAT, root, tmp_path / "store", NO_VIDEO)
    expected = [values[0]] if isinstance(values[0], str) else values[0] or []
    assert json.loads(dataset[0].metadata["language_persistent"]) == expected
    assert json.loads(dataset[0].infos["language_events"][0]) == expected
    assert {*dataset[0].infos["subtask"]} == {""}
    change_table(root / TABLE, language_events=pa.array(np.zeros(ROWS)))
    with pytest.raises(SchemaError, match="language_events holds double from row 0 on"):
        read_files(lerobot.FORMAT, root, tmp_path / "refused", NO_VIDEO)


def test_numbers_of_subtasks_are_read_as_their_words(tmp_path):
    root = tmp_path / "arm"
    numbers = np.arange(ROWS) // 3 % 2
    write(root, subtask_index=numbers)
    words = {"subtask_index": [1, 0], "subtask": ["lift", "reach"]}
    pq.write_table(pa.table(words), root / "meta/subtasks.parquet")
    dataset, found = read_files(lerobot.FORMAT, root, tmp_path / "store", NO_VIDEO)
    assert dataset[1].infos["subtask"] == [["reach", "lift"][one] for one in numbers[5:]]
    assert not any(" read" in one for one in sentences(found.notes))
    write(root, subtask_index=numbers + 1)
    pq.write_table(pa.table(words), root / "meta/subtasks.parquet")
    with pytest.raises(SchemaError, match=r"no subtask has the subtask_index 2\."):
        read_files(lerobot.FORMAT, root, tmp_path / "refused", NO_VIDEO)
