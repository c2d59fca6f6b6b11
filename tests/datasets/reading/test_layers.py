"""Layers: columns over a pinned version, against arrays in memory, and what is refused."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.recording.layering import columns_of_table
from orlog.errors import IntegrityError, NotFoundError, SchemaError, VersionExistsError
from orlog.executors.processes import execute
from tests.command_line import orlog as orlog_command
from tests.episodes import record_episodes, whole_episode
from tests.kills import killed_at
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
LENGTHS = (3, 1, 5, 2)


def record(name="lab/arm-v1", lengths=LENGTHS, seed=0, actions=BOX):
    rng = np.random.default_rng(seed)
    return record_episodes(
        name,
        (
            whole_episode(
                rng.normal(size=(n + 1, 2)).astype("f4"), rng.normal(size=(n, 2)).astype("f4"), rng.normal(size=n)
            )
            for n in lengths
        ),
        BOX,
        actions,
    )


@pytest.fixture
def arm():
    return record()


def per_step(arm, dtype="f4"):
    return np.arange(arm.total_steps).astype(dtype)


def test_only_the_new_column_is_written_and_the_base_is_named_by_digest(arm):
    labels = arm.with_columns(
        {"episodes/success": arm.column("episodes/returns") > 0}, roles={"episodes/success": "success"}
    )
    assert not (labels.parents[1].folder / "rewards").exists()
    folder = labels.save_layer("lab/labels-v1")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["base"] == {"name": "lab/arm-v1", "version": "1.0.0", "digest": arm.digest}
    listed = {one.name: one.layer_of for one in orlog.list_datasets("lab/")}
    assert listed == {"lab/arm-v1": None, "lab/labels-v1": "lab/arm-v1@1.0.0"}
    assert "layers over lab/arm-v1@1.0.0" in orlog_command("show", "lab/labels-v1").stdout.splitlines()[0]
    assert [column["name"] for column in manifest["columns"]] == ["episodes/lengths", "episodes/success"]
    assert orlog.verify_store("lab/labels-v1")[1] == []
    opened = orlog.load_dataset("lab/labels-v1")
    assert opened.roles["episodes/success"] == "success"
    assert [episode.metadata["success"] for episode in opened] == (arm.column("episodes/returns") > 0).tolist()
    np.testing.assert_array_equal(opened[2].rewards, arm[2].rewards)
    with pytest.raises(VersionExistsError):
        labels.save_layer("lab/labels-v1")


COLUMNS = {
    "infos/value": lambda rng, n: rng.normal(size=n).astype("f4"),
    "infos/wide": lambda rng, n: rng.integers(0, 9, (n, 2, 3)).astype("i2"),
    "infos/words": lambda rng, n: ["x" * int(k) + "é" for k in rng.integers(0, 4, n)],
    "episodes/flag": lambda rng, n: rng.random(n) < 0.5,
    "episodes/name": lambda rng, n: [f"n{k}" for k in rng.integers(0, 9, n)],
    "infos/many": lambda rng, n: [rng.normal(size=(int(k), 2)) for k in rng.integers(0, 4, n)],
}


def same(one, other):
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


@settings(max_examples=scaled(15))
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    names=st.lists(st.sampled_from([*COLUMNS]), min_size=1, unique=True),
    seed=st.integers(0, 99),
    chosen=st.lists(st.integers(0, 99), max_size=4),
    by_function=st.booleans(),
)
def test_a_layer_reads_as_the_arrays_that_it_was_given(tmp_path_factory, lengths, names, seed, chosen, by_function):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("home")))
        arm, rng = record(lengths=lengths), np.random.default_rng(seed)
        made = {
            name: COLUMNS[name](rng, arm.total_steps if name.startswith("infos/") else arm.total_episodes)
            for name in names
        }
        ends = np.cumsum(lengths)

        def expected(name, index):
            if name.startswith("episodes/"):
                return made[name][index]
            return made[name][ends[index] - lengths[index] : ends[index]]

        layered = arm
        if by_function:
            for name in names:
                layered = layered.with_columns(name, lambda episode, name=name: expected(name, episode.index))
        else:
            layered = arm.with_columns(made)
            layered.save_layer("lab/layer-v1")
            layered = orlog.load_dataset("lab/layer-v1")
        positions = [number % len(lengths) for number in chosen]
        views = [(layered, [*range(len(lengths))]), (layered[positions], positions)]
        views.append((pickle.loads(pickle.dumps(layered)), [*range(len(lengths))]))
        for view, which in views:
            for episode, index in zip(view, which, strict=True):
                for name in names:
                    root, _, rest = name.partition("/")
                    found = (episode.infos if root == "infos" else episode.metadata)[rest]
                    assert same(found, expected(name, index)), (name, index)
                np.testing.assert_array_equal(episode.actions, arm[index].actions)
        copied = orlog.load_dataset(orlog.save_dataset(layered, "lab/copy-v1"))
        assert copied.columns == layered.columns
        assert copied.manifest.base is None


def test_layers_of_several_people_lie_over_each_other_in_any_order(arm, home):
    arm.with_columns("infos/value", per_step(arm), role="value").save_layer("lab/values-v1")
    arm.with_columns("infos/weight", per_step(arm) % 3, role="weight").save_layer("lab/weights-v1")
    names = ["lab/values-v1", "lab/weights-v1"]
    both, turned = arm.with_layers(*names), arm.with_layers(*names[::-1])
    assert both.digest == turned.digest
    assert both.digest != arm.with_layers(names[0]).digest
    assert (both.roles["infos/value"], both.roles["infos/weight"]) == ("value", "weight")
    batches = [
        next(iter(orlog.transitions(data, 64, seed=1, infos=("value",), weights="infos/weight")))
        for data in (both, turned)
    ]
    assert same(batches[0].infos["value"].tolist(), batches[1].infos["value"].tolist())
    assert all(int(value) % 3 for value in batches[0].infos["value"])
    saved = both.save(home / "both.json")
    assert orlog.load_dataset(saved).digest == both.digest
    assert both.filter_episodes("lengths > 1").total_steps == 10


def test_columns_that_are_saved_nowhere_are_in_no_view(arm, tmp_path):
    view = arm.with_columns("infos/value", per_step(arm)).filter_episodes("lengths > 1")
    with pytest.raises(SchemaError, match="infos/value are saved nowhere"):
        view.save(tmp_path / "view.json")


def test_a_filtered_view_takes_layers_of_its_version(arm):
    arm.with_columns("infos/value", per_step(arm)).save_layer("lab/values-v1")
    part = arm.filter_episodes("lengths > 1").with_layers("lab/values-v1")
    assert [episode.infos["value"].tolist() for episode in part] == [[0, 1, 2], [4, 5, 6, 7, 8], [9, 10]]


def test_unequal_columns_of_two_layers_need_a_name_or_an_order(arm):
    for number in (1, 2):
        arm.with_columns("infos/value", per_step(arm) * number).save_layer(f"lab/values{number}-v1")
    arm.with_columns("infos/value", per_step(arm)).save_layer("lab/same-v1")
    with pytest.raises(SchemaError, match=r"lab/values\d-v1 and lab/values\d-v1 both have the column infos/value"):
        arm.with_layers("lab/values1-v1", "lab/values2-v1")
    assert arm.with_layers("lab/values1-v1", "lab/same-v1")[0].infos["value"].tolist() == [0, 1, 2]
    later = [
        arm.with_layers(*names, later_wins=True)
        for names in (["lab/values1-v1", "lab/values2-v1"], ["lab/values2-v1", "lab/values1-v1"])
    ]
    assert [one[0].infos["value"].tolist() for one in later] == [[0, 2, 4], [0, 1, 2]]
    renamed = arm.with_layers(
        "lab/values1-v1", "lab/values2-v1", rename={"lab/values2-v1": {"infos/value": "infos/other"}}
    )
    assert renamed[0].infos["other"].tolist() == [0, 2, 4]
    with pytest.raises(NotFoundError, match="no column 'infos/none' to rename"):
        arm.with_layers("lab/values1-v1", rename={"lab/values1-v1": {"infos/none": "infos/x"}})


def test_new_rewards_take_the_place_of_old_ones_only_when_asked(arm):
    new = np.arange(arm.total_steps, dtype=np.float64)
    with pytest.raises(SchemaError, match=r"has a column (rewards|episodes/returns) too; replaces=True"):
        arm.with_columns("rewards", new)
    relabelled = arm.with_columns("rewards", new, replaces=True)
    assert relabelled[2].rewards.tolist() == [4, 5, 6, 7, 8]
    assert relabelled.column("episodes/returns").tolist() == [3, 3, 30, 19]
    assert relabelled.top_episodes(25).total_steps == 5
    relabelled.save_layer("lab/rewards-v1")
    with pytest.raises(SchemaError, match="replaces=True"):
        arm.with_layers("lab/rewards-v1")
    assert arm.with_layers("lab/rewards-v1", replaces=True)[0].rewards.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"infos/x": np.zeros(10)}, "has 10 rows, expected one for each of the 11 steps"),
        ({"episodes/x": np.zeros(3)}, "has 3 rows, expected one for each of the 4 episodes"),
        ({"infos/x": lambda _: np.zeros(2)}, "episode 0: column infos/x has 2 rows, expected 3"),
        ({"infos/x": lambda episode: ["a"] * len(episode) if episode.index else np.zeros(len(episode))}, "infos/x"),
        ({"observations/x": np.zeros(11)}, "a layer has columns of steps"),
        ({"infos/../x": np.zeros(11)}, "cannot name a column"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_leave_nothing(arm, home, columns, text):
    with pytest.raises(SchemaError, match=text):
        arm.with_columns(columns)
    assert [*home.glob("drafts/*")] == []


def test_a_layer_opens_over_no_other_bytes(arm):
    folder = arm.with_columns("infos/value", per_step(arm)).save_layer("lab/values-v1")
    other = record("lab/other-v1", seed=1)
    with pytest.raises(SchemaError, match=r"lab/values-v1 lies over lab/arm-v1@1.0.0 .*, not over lab/other-v1@1.0.0"):
        other.with_layers("lab/values-v1")
    with pytest.raises(SchemaError, match="lab/other-v1 is no layer"):
        arm.with_layers("lab/other-v1")
    with pytest.raises(SchemaError, match="add them before it is combined"):
        orlog.combine_datasets([arm, other]).with_layers("lab/values-v1")
    with pytest.raises(SchemaError, match="a whole stored version"):
        arm[:2].with_columns("infos/x", np.zeros(4))
    away = arm.folder.rename(arm.folder.with_name("away"))
    with pytest.raises(NotFoundError, match=r"lab/values-v1 is a layer over lab/arm-v1@1.0.0 .*not on this machine"):
        orlog.load_dataset("lab/values-v1")
    away.rename(arm.folder)
    shard = next(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".json" and "value" in str(path.relative_to(folder))
    )
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError):
        orlog.load_dataset("lab/values-v1")[0]


def test_a_draft_is_gone_with_its_dataset_and_survives_a_fork(arm, home):
    layered = arm.with_columns("infos/value", per_step(arm))
    child = os.fork()
    if not child:
        del layered
        os._exit(0)
    os.waitpid(child, 0)
    assert layered[0].infos["value"].tolist() == [0, 1, 2]
    del layered
    assert [*home.glob("drafts/*")] == []


KILLED = """
import os, sys, numpy as np, orlog
arm = orlog.load_dataset("lab/arm-v1")
def value(episode):
    if episode.index == 2:
        os.kill(os.getpid(), 9)
    return np.zeros(len(episode))
arm.with_columns("infos/value", value).save_layer("lab/values-v1")
"""


def test_a_kill_leaves_no_layer_and_the_next_one_is_whole(arm, home):
    done = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert done.returncode == -9
    assert not (home / "datasets" / "lab" / "values-v1").exists()
    arm.with_columns("infos/value", per_step(arm)).save_layer("lab/values-v1")
    assert orlog.load_dataset("lab/values-v1")[0].infos["value"].tolist() == [0, 1, 2]
    (left,) = home.glob("drafts/*")
    os.utime(left, (0, 0))
    assert arm.with_columns("infos/other", per_step(arm))
    assert not left.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("episode,ok,by\n0,true,ann\n2,false,bob\n1,true,ann\n3,false,ann\n", {"ok": [True, True, False, False]}),
        ("episode,score\n3,1.5\n2,2\n1,0\n0,4\n", {"score": [4, 0, 2, 1.5]}),
        ("episode,step,tag\n1,0,a\n", {"tag": ["-", "-", "-", "a", *"-------"]}),
    ],
)
def test_a_table_of_episodes_or_steps_becomes_columns(arm, tmp_path, text, expected):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    columns = columns_of_table(arm, path, {"tag": "-"} if "tag" in text else {})
    for name, values in expected.items():
        assert list(columns[f"{'infos' if 'step' in text else 'episodes'}/{name}"]) == values
    assert arm.with_columns(columns)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("episode,ok\n7,1\n", r"line 2: there is no episode '7'; lab/arm-v1 has 4"),
        ("episode,ok\nx,1\n", "there is no episode 'x'"),
        ("episode,step,ok\n1,1,1\n", r"line 2: episode 1 has no step '1'; it has 1"),
        ("episode,ok\n0,1\n0,1\n", "line 3: says again what line 2 says"),
        ("episode,ok\n0,1\n1,1\n3,1\n", "no line is about episode 2; .* --fill ok=VALUE"),
        ("episode,step,ok\n0,0,1\n", "no line is about episode 0, step 1"),
        ("episode,ok\n0\n", "fewer values"),
        ("a,b\n0,1\n", "expected columns episode"),
        ("", "expected columns episode"),
    ],
)
def test_tables_that_do_not_fit_name_line_and_episode(arm, tmp_path, text, message):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message):
        columns_of_table(arm, path, {})


def test_a_diff_of_layers_says_which_episodes_are_labelled_otherwise_and_by_whom(arm):
    ok, steps = np.array([True, False, True, True]), np.zeros(arm.total_steps, np.bool_)
    columns = {"episodes/success": ok, "infos/slips": steps, "episodes/labelled_by": ["ann"] * 4}
    arm.with_columns(columns).save_layer("lab/labels-v1")
    steps[[5, 6, 9]] = True
    changed = {"episodes/success": ok ^ [False, True, False, False], "infos/slips": steps, "episodes/note": ["a"] * 4}
    arm.with_columns({**changed, "episodes/labelled_by": ["ann", "bob", "ann", "bob"]}).save_layer(
        "lab/labels-v1", version="1.1.0"
    )
    rows = json.loads(orlog_command("diff", "lab/labels-v1@1.0.0", "lab/labels-v1@1.1.0", "--json").stdout)["labels"]
    assert rows == [
        {"column": "episodes/note", "before": False, "after": True},
        {"column": "episodes/success", "episode": 1, "before": False, "after": True, "by": "ann", "now_by": "bob"},
        *(
            {
                "column": "infos/slips",
                "episode": episode,
                "first_step": a,
                "last_step": b,
                "before": False,
                "after": True,
            }
            | {"by": "ann", "now_by": by}
            for episode, a, b, by in ((2, 1, 2, "ann"), (3, 0, 0, "bob"))
        ),
    ]
    same = orlog_command("diff", "lab/labels-v1@1.0.0", "lab/labels-v1@1.0.0").stdout
    assert "the same of every episode" in same


def test_a_second_home_gets_layers_of_two_people_and_is_told_of_a_base_that_it_does_not_have(
    arm, tmp_path, monkeypatch
):
    registry = tmp_path / "registry"
    labels = tmp_path / "labels.csv"
    labels.write_text("episode,ok\n" + "".join(f"{episode},{episode != 2}\n" for episode in range(4)).lower())
    run = orlog_command(
        "layer", "lab/hand-v1", "--of", "lab/arm-v1", "--file", str(labels), "--role", "episodes/ok=success"
    )
    assert (run.returncode, run.stderr.splitlines()[1:]) == (0, [])
    assert "lab/hand-v1@1.0.0, over lab/arm-v1@1.0.0: episodes/ok" in run.stdout
    arm.with_columns("infos/value", per_step(arm), role="value").save_layer("lab/values-v1")
    wanted = arm.with_layers("lab/hand-v1", "lab/values-v1").digest
    for name in ("lab/hand-v1", "lab/values-v1", "lab/arm-v1"):
        assert orlog_command("publish", name, str(registry), "--no-hashes").returncode == 0
    sizes = [
        sum(path.stat().st_size for path in (registry / name).rglob("*") if path.is_file())
        for name in ("lab/hand-v1", "lab/arm-v1")
    ]
    assert sizes[0] < sizes[1]
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "second"))
    assert orlog_command("registry", "add", "lab", str(registry)).returncode == 0
    for name in ("lab/hand-v1", "lab/values-v1"):
        assert orlog_command("download", name).returncode == 0
    assert orlog_command("verify", "lab/hand-v1").returncode == 0
    with pytest.raises(NotFoundError, match=r"orlog download lab/arm-v1@1.0.0"):
        orlog.load_dataset("lab/hand-v1")
    assert orlog_command("download", "lab/arm-v1").returncode == 0
    both = orlog.load_dataset("lab/arm-v1").with_layers("lab/values-v1", "lab/hand-v1")
    assert both.digest == wanted
    assert both.filter_episodes("ok").total_episodes == 3
    shown = orlog_command("show", "lab/hand-v1").stdout
    assert "lab/hand-v1@1.0.0" in shown
    assert "episodes/ok" in shown


def test_a_run_is_trained_with_weights_of_a_layer_and_its_estimates_become_one(tmp_path):
    data = record("lab/more-v1", lengths=(20, 30, 25), actions=spaces.Box(-9, 9, (2,), np.float32))
    weights = (np.arange(75) >= 50).astype("f4")
    data.with_columns("infos/weight", weights, role="weight").save_layer("lab/weights-v1")
    train = (
        "train",
        "td3bc",
        "lab/more-v1",
        "--steps",
        "3",
        "--evaluations",
        "0",
        "--preset",
        "none",
        "--set",
        "hidden=[8]",
    )
    plain, weighted = tmp_path / "plain", tmp_path / "weighted"
    assert orlog_command(*train, "--out", str(plain)).returncode == 0
    run = orlog_command(*train, "--out", str(weighted), "--layer", "lab/weights-v1", "--weights", "infos/weight")
    assert run.returncode == 0, run.stderr
    record_of = {folder: json.loads((folder / "run.json").read_text()) for folder in (plain, weighted)}
    assert "weights" not in record_of[plain]
    assert record_of[weighted]["weights"] == "infos/weight"
    assert (plain / "checkpoint.safetensors").read_bytes() != (weighted / "checkpoint.safetensors").read_bytes()
    made = orlog_command("layer", "lab/q-v1", "--of", "lab/more-v1", "--run", str(plain))
    assert made.returncode == 0, made.stderr
    layer = orlog.load_dataset("lab/q-v1")
    values = {name: layer.column(f"infos/{name}") for name in ("value", "q", "advantage")}
    np.testing.assert_array_equal(values["advantage"], values["q"] - values["value"])
    assert layer.roles["infos/advantage"] == "advantage"
    assert "checkpoint sha256:" in layer.parents[1].lineage[0].operation
    refused = orlog_command(*train, "--out", str(tmp_path / "x"), "--weights", "infos/weight")
    assert refused.returncode
    assert "infos/weight" in refused.stderr


@pytest.mark.scaled
def test_no_flipped_bit_of_a_layer_is_read_as_right(arm):
    columns = {
        "infos/value": per_step(arm),
        "episodes/name": ["a", "bb", "", "é"],
        "infos/words": ["w"] * arm.total_steps,
    }
    folder = arm.with_columns(columns).save_layer("lab/values-v1")
    rng = np.random.default_rng(0)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    whole = [(episode.infos, episode.metadata) for episode in orlog.load_dataset("lab/values-v1")]
    for _ in range(scaled(500)):
        path = files[rng.integers(len(files))]
        good = path.read_bytes()
        bad = bytearray(good)
        bad[rng.integers(len(good))] ^= 1 << rng.integers(8)
        path.write_bytes(bad)
        try:
            layered = arm.with_layers("lab/values-v1")
            read = [(episode.infos, episode.metadata) for episode in layered]
        except orlog.OrlogError:
            pass
        else:  # of a file that reading does not need
            assert repr(read) == repr(whole)
            if path.name != "record.json":
                assert orlog.verify_store("lab/values-v1")[1] != [], path
        path.write_bytes(good)
    assert orlog.verify_store("lab/values-v1")[1] == []


@pytest.mark.scaled
def test_a_layer_that_is_killed_at_any_moment_is_whole_or_not_there(arm, home):
    def work(_access):
        arm.with_columns("infos/value", lambda episode: np.full(len(episode), episode.index, "f4"), key="1").save_layer(
            "lab/k-v1"
        )

    _, count = killed_at(work, 0, home)
    shutil.rmtree(home / "datasets" / "lab" / "k-v1")
    for instant in np.linspace(1, count, min(count, scaled(100, 12))).astype(int).tolist():
        assert killed_at(work, instant, home)[0]
        if (home / "datasets" / "lab" / "k-v1" / "1.0.0" / "manifest.json").exists():
            assert orlog.verify_store("lab/k-v1")[1] == []
            shutil.rmtree(home / "datasets" / "lab" / "k-v1")
    work(None)
    assert [int(episode.infos["value"][0]) for episode in orlog.load_dataset("lab/k-v1")] == [0, 1, 2, 3]


def test_what_was_computed_under_a_key_is_not_computed_again(arm, home):
    calls = []

    def value(episode):
        calls.append(episode.index)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return np.full(len(episode), episode.index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orlog.datasets.recording.layering.STEPS_OF_A_PIECE", 4)
        with pytest.raises(KeyboardInterrupt):
            arm.with_columns("infos/value", value, key="1")
        layered = arm.with_columns("infos/value", value, key="1")
    assert calls == [0, 1, 2, 3, 2, 3]  # two pieces of two episodes
    assert [episode.infos["value"].tolist()[0] for episode in layered] == [0, 1, 2, 3]
    assert len([*home.glob("drafts/*")]) == 1  # what is kept of pieces is deleted with them


def length_of(episode):
    return np.full(len(episode), len(episode))


def test_processes_compute_what_this_one_does(arm):
    here, there = (arm.with_columns("infos/n", length_of, execute=how) for how in (None, execute))
    assert here.digest == there.digest


def test_a_layer_goes_out_with_the_formats_that_have_room(arm, tmp_path):
    labelled = arm.with_columns({"infos/value": per_step(arm), "episodes/success": np.array([True, False, True, True])})
    labelled.save_layer("lab/labels-v1")
    orlog.export_dataset("lab/labels-v1", tmp_path / "out", to="minari", lossy=True)
    back = orlog.load_dataset(orlog.import_dataset(tmp_path / "out", "lab/back-v1", license="CC0-1.0"))
    assert [episode.infos["value"].tolist() for episode in back] == [[0, 1, 2], [3], [4, 5, 6, 7, 8], [9, 10]]


def test_a_function_of_a_file_makes_columns_from_the_command_line(arm, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "def columns(episode):\n    return {'infos/twice': 2 * episode.rewards, 'episodes/ok': len(episode) > 2}\n"
    )
    words = ("layer", "lab/own-v1", "--of", "lab/arm-v1", "--function")
    made = orlog_command(*words, f"{own}:columns", "--role", "episodes/ok=success")
    assert made.returncode == 0, made.stderr
    layered = orlog.load_dataset("lab/own-v1")
    np.testing.assert_array_equal(layered.column("infos/twice"), 2 * arm.column("rewards"))
    assert layered.column("episodes/ok").tolist() == [True, False, True, False]
    assert layered.roles["episodes/ok"] == "success"
    assert "2 * episode.rewards" in layered.parents[1].lineage[0].operation
    own.write_text("def columns(episode):\n    return missing\n")
    for wrong, message in (
        (f"{own}:other", "has no function 'other'"),
        (f"{own}:columns", "NameError: name 'missing'"),
        ("own", "expected FILE.py:"),
    ):
        refused = orlog_command(*words[:1], "lab/no-v1", *words[2:], wrong)
        assert (refused.returncode, "Traceback" in refused.stderr) == (1, False), refused.stderr
        assert message in refused.stderr
