"""Arrays that the user names: every way to say what an episode is, against a plain reading of the same arrays."""

import contextlib
import shutil

import gymnasium
import h5py
import numpy as np
import pytest
import zarr

import orlog
from orlog.datasets.formats import arrays, mapped_arrays
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files

LENGTHS = [3, 1, 5, 12]
MAPPED = {
    "observation/state": "obs/state",
    "observation/image": "obs/image",
    "action": "actions",
    "reward": "r",
    "infos/speed": "speed",
}


def episode(rows, seed, *, with_final=False):
    rng = np.random.default_rng(seed)
    return {
        "obs/state": rng.normal(size=(rows + with_final, 4)).astype("f4"),
        "obs/image": rng.integers(0, 255, (rows + with_final, 2, 3, 3)).astype("u1"),
        "actions": rng.normal(size=(rows, 2)),
        "r": rng.normal(size=rows).astype("f4"),
        "speed": rng.normal(size=rows),
        "done": (np.arange(rows) == rows - 1) & (seed % 2 == 0),
    }


def write_npz(path, **body):
    np.savez(path, **body)


def episodes(lengths, **how):
    return [episode(rows, number, **how) for number, rows in enumerate(lengths)]


def joined(bodies):
    return {name: np.concatenate([one[name] for one in bodies]) for name in bodies[0]}


def write_hdf5(path, body, group=""):
    with h5py.File(path, "a") as file:
        for name, values in body.items():
            file[f"{group}/{name}" if group else name] = values


def write_groups(path, lengths, **how):
    """Write a group an episode, whose order as text is not that of their numbers."""
    bodies = episodes(lengths, **how)
    for number, body in enumerate(bodies):
        write_hdf5(path, body, f"data/demo_{7 * number}")
    return bodies


def write_rows(path, lengths, **more):
    """Write all rows one after the other, and where episodes end."""
    bodies = episodes(lengths)
    body = {**joined(bodies), "ends": np.cumsum(lengths), **more}
    if path.suffix == ".npz":
        write_npz(path, **body)
    else:
        write_hdf5(path, body)
    return bodies


def groups(folder):
    return [folder / "a.h5"], "demo_*", write_groups(folder / "a.h5", LENGTHS)


def groups_with_final(folder):
    bodies = write_groups(folder / "a.h5", LENGTHS, with_final=True)
    return [folder / "a.h5"], "data/demo_*", bodies


def files(folder):
    bodies = episodes(LENGTHS)
    for number, body in enumerate(bodies):
        write_hdf5(folder / f"run_{5 * number}.hdf5", body)
    return [*folder.glob("*.hdf5")], "file", bodies


def folder_of_files(folder):
    (folder / "runs").mkdir()
    bodies = episodes(LENGTHS, with_final=True)
    for number, body in enumerate(bodies):
        write_npz(folder / "runs" / f"{5 * number}.npz", **body)
    return [folder / "runs"], "file", bodies


def folders_in_a_folder(folder):
    bodies = episodes(LENGTHS)
    for number, body in enumerate(bodies):  # `9/` comes before `10/`, and all files have one name
        (inner := folder / "runs" / f"part_{8 + number}").mkdir(parents=True)
        write_hdf5(inner / "trajectory.h5", body)
    (folder / "runs" / ".cache").mkdir()
    (folder / "runs" / ".cache" / "trajectory.h5").write_text("not ours")
    return [folder / "runs"], "file", bodies


def ends(folder):
    return [folder / "a.npz"], "ends", write_rows(folder / "a.npz", LENGTHS)


def numbers(folder):
    ids = np.repeat([4, 2, 9, 7], LENGTHS)
    return [folder / "a.h5"], "id", write_rows(folder / "a.h5", LENGTHS, id=ids)


@pytest.mark.parametrize(("block_bytes", "with_flags"), [(1, False), (200, True), (2**22, False)])
@pytest.mark.parametrize(
    "write", [groups, groups_with_final, files, folder_of_files, folders_in_a_folder, ends, numbers]
)
def test_episodes_are_those_of_a_plain_reading(tmp_path, monkeypatch, write, with_flags, block_bytes):
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    given, what, bodies = write(tmp_path)
    options = Options(columns={**MAPPED, **({"terminated": "done"} if with_flags else {})}, episode=what)
    dataset, found = read_files(arrays.FORMAT, given, tmp_path / "store", options)
    expected = []
    for body in bodies:
        rows, ended = len(body["actions"]), with_flags and bool(body["done"][-1])
        has_final = len(body["obs/state"]) > rows
        keeps_last = ended or has_final
        steps = rows if keeps_last else rows - 1
        if steps:
            expected.append((body, steps, ended, ended and not has_final))
    assert len(dataset) == len(expected)
    for one, (body, steps, ended, is_missing) in zip(dataset, expected, strict=True):
        for part in ("state", "image"):
            values = body[f"obs/{part}"]
            final = np.zeros_like(values[:1]) if is_missing else values[steps : steps + 1]
            np.testing.assert_array_equal(one.observations[part], np.concatenate((values[:steps], final)))
            assert one.observations[part].dtype == values.dtype
        np.testing.assert_array_equal(one.actions, body["actions"][:steps])
        np.testing.assert_array_equal(one.rewards, body["r"][:steps])
        np.testing.assert_array_equal(one.infos["speed"], body["speed"][:steps])
        assert (one.terminations[-1], one.truncations[-1]) == (ended, not ended)
    said = " ".join(sentences(found.notes))
    assert ("Nothing says how episodes ended" in said) != with_flags
    assert ("done" in said) != with_flags  # left out, not named


def test_flags_alone_end_episodes(tmp_path):
    bodies = write_rows(tmp_path / "a.npz", LENGTHS, end=np.isin(np.arange(21), [2, 3, 8, 20]))
    options = Options(columns={"observation": "obs/state", "action": "actions", "terminated": "end"})
    dataset, found = read_files(arrays.FORMAT, tmp_path / "a.npz", tmp_path / "store", options)
    assert [len(one) for one in dataset] == LENGTHS
    assert found.terminated == len(LENGTHS)
    np.testing.assert_array_equal(dataset[2].actions, bodies[2]["actions"])
    options = Options(columns={"observation": "obs/state", "action": "actions"})
    with pytest.raises(SchemaError, match="nothing says what an episode is"):
        read_files(arrays.FORMAT, tmp_path / "a.npz", tmp_path / "other", options)


def test_a_horizon_says_which_episodes_were_cut_off(tmp_path):
    write_rows(tmp_path / "a.npz", LENGTHS)
    options = Options(columns={"observation": "obs/state", "action": "actions"}, episode="ends", horizon=5)
    with pytest.raises(SchemaError, match="an episode has 12 steps, more than horizon=5"):
        read_files(arrays.FORMAT, tmp_path / "a.npz", tmp_path / "store", options)
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    write_rows(tmp_path / "b.npz", LENGTHS[:3])
    dataset, _ = read_files(arrays.FORMAT, tmp_path / "b.npz", tmp_path / "store", options)
    assert [(len(one), one.terminations[-1]) for one in dataset] == [
        (3, True),
        (1, True),
        (4, False),  # five rows, of which the last one gave the final observation
    ]


def test_several_arrays_make_one_observation_and_integers_discrete_actions(tmp_path):
    rng = np.random.default_rng(0)
    body = {"q": rng.normal(size=(9, 2)), "v": rng.normal(size=9).astype("f4")}
    write_npz(tmp_path / "a.npz", **body, actions=np.arange(9)[:, None] % 3 + 1)
    options = Options(columns={"observation": "q,v", "action": "actions"}, episode="file")
    dataset, _ = read_files(arrays.FORMAT, tmp_path / "a.npz", tmp_path / "store", options)
    expected = np.concatenate((body["q"], body["v"][:, None]), 1)
    np.testing.assert_array_equal(dataset[0].observations, expected)
    assert dataset.action_space == gymnasium.spaces.Discrete(3, start=1)
    np.testing.assert_array_equal(dataset[0].actions, np.arange(8) % 3 + 1)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"episode": "demos_*"}, "episode='demos_.*no group and no array has such a name"),
        ({}, {"episode": ""}, "there is no column 'obs/state'"),
        ({}, {"columns": {"action": "actions"}}, "columns={'observation': 'COLUMNS'}"),
        ({}, {"columns": {**MAPPED, "action": "b"}}, "there is no column 'b'"),
        ({"actions": np.zeros((3, 2))}, {}, "demo_7, obs/state: expected 3 rows, found 5"),
        ({"actions": np.zeros((5, 3))}, {}, r"demo_7: action has rows of float64 \(3,\), and .*demo_0 of"),
        ({"actions": None}, {}, "demo_7: has no array 'actions', and .*demo_0 has"),
        ({"actions": np.array(["up"] * 5, "S2")}, {}, "demo_7, actions: expected numbers"),
        ({"obs/state": np.zeros((6, 4), "f4"), "obs/image": np.zeros((6, 2, 3, 3), "u1")}, {},
         "demo_7: has a final observation, unlike .*demo_0"),
        ({"done": np.array([0, 1, 0, 0, 1])}, {"columns": {**MAPPED, "terminated": "done"}},
         "terminated is 1.0 at row 4, and the episode goes on"),
        ({"done": np.array([0, 0, 0, 0, np.nan])}, {"columns": {**MAPPED, "terminated": "done"}},
         "terminated"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path, change, options, message):
    first, second = episodes([3, 5])
    write_hdf5(tmp_path / "a.h5", first, "data/demo_0")
    second = {name: one for name, one in {**second, **change}.items() if one is not None}
    write_hdf5(tmp_path / "a.h5", second, "data/demo_7")
    asked = Options(**{"columns": MAPPED, "episode": "demo_*", **options})
    with pytest.raises(SchemaError, match=message):
        read_files(arrays.FORMAT, tmp_path / "a.h5", tmp_path / "store", asked)


@pytest.mark.parametrize("link", ["a/link.h5", "link"])
def test_a_link_in_a_folder_of_a_folder_is_refused_with_its_path(tmp_path, link):
    given, _, _ = folders_in_a_folder(tmp_path)
    (given[0] / "a").mkdir()
    (given[0] / link).symlink_to(tmp_path)
    options = Options(columns=MAPPED, episode="file")
    with pytest.raises(SchemaError, match=f"runs/{link}: a link"):
        read_files(arrays.FORMAT, given, tmp_path / "store", options)


def test_a_file_that_is_damaged_at_its_start_is_refused(tmp_path):
    write_groups(tmp_path / "a.h5", [3])
    (tmp_path / "a.h5").write_bytes(b"X" + (tmp_path / "a.h5").read_bytes()[1:])
    with pytest.raises(IntegrityError, match=r"a\.h5: cannot be read as HDF5"):
        read_files(arrays.FORMAT, tmp_path / "a.h5", tmp_path / "store", Options(columns=MAPPED, episode="demo_*"))


def test_a_file_of_a_folder_that_is_damaged_at_its_start_is_refused(tmp_path):
    for number in range(3):
        np.savez(tmp_path / f"episode_{number}.npz", obs=np.zeros((5, 2)), act=np.zeros((5, 1)))
    damaged = tmp_path / "episode_1.npz"
    damaged.write_bytes(b"X" + damaged.read_bytes()[1:])
    (tmp_path / "notes.txt").write_text("not an episode")
    with pytest.raises(IntegrityError, match=r"episode_1\.npz: not what \.npz files beside it"):
        read_files(
            arrays.FORMAT,
            tmp_path,
            tmp_path / "store",
            Options(columns={"observation": "obs", "action": "act"}, episode="file"),
        )


def write_arrays(place, folder, body):
    """Write arrays into an HDF5 or npz file, a folder of npy, or Zarr."""
    path = folder / f"a.{place}"
    if place == "npz":
        write_npz(path, **body)
    elif place == "h5":
        write_hdf5(path, body)
    elif place == "npy":
        path.mkdir()
        for name, values in body.items():
            np.save(path / f"{name}.npy", values)
    else:
        root = zarr.open_group(path, mode="w", zarr_format=2 if place == "zarr2" else 3)
        for name, values in body.items():
            root.create_array(name, data=values)
    return path


PLACES = ("h5", "npz", "npy", "zarr2", "zarr3")


@pytest.mark.parametrize("place", PLACES)
def test_an_episode_that_nothing_is_called_is_refused(tmp_path, place):
    body = {"state": np.zeros((10, 4)), "action": np.zeros((10, 1)), "episode_ends": [4, 10]}
    path = write_arrays(place, tmp_path, {name: np.array(one) for name, one in body.items()})
    columns = {"observation": "state", "action": "action"}
    options = Options(columns=columns, episode="episode_end")
    with pytest.raises(SchemaError, match=r"episode_end'.* did you mean episode_ends\?"):
        read_files(arrays.FORMAT, path, tmp_path / "store", options)
    options = Options(columns=columns, episode="episode_ends")
    dataset, _ = read_files(arrays.FORMAT, path, tmp_path / "store", options)
    assert dataset.episode_lengths.tolist() == [3, 5]


@pytest.mark.parametrize(("place", "block_bytes"), [*zip(PLACES, (1, 500, 2**22, 500, 2**22), strict=True)])
@pytest.mark.parametrize(
    ("name", "values", "length"),
    [
        ("other", None, ""),
        ("mask", "mask", ""),  # by its name
        ("len", "lengths", "len"),
        ("late", "late", "late"),  # filled up in front
    ],
)
@pytest.mark.parametrize("has_final", [False, True])
def test_rows_of_arrays_are_episodes(
    tmp_path, monkeypatch, place, name, values,
    length, has_final, block_bytes
):  # fmt: skip
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    rng, steps = np.random.default_rng(0), 9
    lengths = np.array([9, 0, 4, 7]) if values else np.full(4, steps)
    starts = steps - lengths if values == "late" else np.zeros(4, int)
    step = np.arange(steps)
    mask = (starts[:, None] <= step) & (step < (starts + lengths)[:, None])
    body = {
        "obs": rng.normal(size=(4, steps + has_final, 3)).astype("f4"),
        "act": rng.normal(size=(4, steps, 2)),
        "r": rng.normal(size=(4, steps)),
        name: {"lengths": lengths, None: np.arange(4)}.get(values, mask),
    }
    path = write_arrays(place, tmp_path, body)
    options = Options(columns={"observation": "obs", "action": "act", "reward": "r"}, episode="row", length=length)
    dataset, found = read_files(arrays.FORMAT, path, tmp_path / "store", options)
    kept = [row for row in range(4) if lengths[row]]
    assert dataset.episode_lengths.tolist() == [lengths[row] - (not has_final) for row in kept]
    for row, episode in zip(kept, dataset, strict=True):
        rows = slice(starts[row], starts[row] + len(episode))
        np.testing.assert_array_equal(episode.actions, body["act"][row, rows])
        np.testing.assert_array_equal(episode.rewards, body["r"][row, rows])
        after = slice(rows.start, rows.stop + 1)
        np.testing.assert_array_equal(episode.observations, body["obs"][row, after])
    said = " ".join(sentences(found.notes))
    assert ("were taken from mask" in said) == (values == "mask")
    assert ("Left out, not named: other" in said) == (values is None)
    assert ("1 row of the arrays hold" in said) == (values is not None)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"episode": "file"}, "Give episode='row' if these are 6 episodes of 20 steps"),
        ({"actions": np.zeros((6, 20), int)}, {"episode": "file"}, "Give episode='row'"),
        ({}, {"length": "msk"}, r"length='msk': there is no such array.*mask\?"),
        ({"mask": np.eye(6, 20) + np.eye(6, 20, 2)}, {}, "the steps of episode 0 do not follow"),
        ({"mask": np.full(6, 21)}, {}, "says 21 steps of episode 0"),
        ({"mask": np.zeros((6, 20))}, {}, "no episode has a step"),
        ({"mask": np.full((6, 20), 2)}, {}, "expected the steps of each of 6 episodes"),
        ({"obs": np.zeros((6, 19, 4))}, {}, r"obs: expected \[6, 20, ..\] as of actions"),
        ({"actions": np.zeros(6)}, {}, r"needs actions \[episodes, time, ..\]"),
        ({}, {"episode": "", "length": "mask"}, "give episode='row' too"),
    ],
)  # fmt: skip
def test_rows_that_are_no_episodes_are_refused(tmp_path, change, options, message):
    body = {"obs": np.zeros((6, 20, 4)), "actions": np.zeros((6, 20, 1)), "mask": np.ones((6, 20))}
    path = write_arrays("npz", tmp_path, body | change)
    columns = {"observation": "obs", "action": "actions"}
    asked = Options(**{"columns": columns, "episode": "row", **options})
    with pytest.raises(SchemaError, match=message):
        read_files(arrays.FORMAT, path, tmp_path / "store", asked)


def test_rows_of_few_columns_are_steps(tmp_path):
    """Three agents, whose observations and actions have an axis in common."""
    body = {"obs": np.zeros((20, 3, 4)), "actions": np.zeros((20, 3, 1))}
    options = Options(columns={"observation": "obs", "action": "actions"}, episode="file")
    path = write_arrays("npz", tmp_path, body)
    dataset, _ = read_files(arrays.FORMAT, path, tmp_path / "store", options)
    assert dataset.observation_space.shape == (3, 4)


@pytest.mark.parametrize("episode", ["", "#"])
@pytest.mark.parametrize("place", PLACES)
def test_arrays_of_one_number_are_an_episode(tmp_path, place, episode):
    rng, body = np.random.default_rng(0), {}
    for number in (10, 9, 2):
        body[f"states_{number}"] = rng.normal(size=(number, 3))
        body[f"actions_{number}"] = rng.normal(size=(number, 2))
    path = write_arrays(place, tmp_path, body | {"rate": np.ones(1)})
    columns = {"observation": "states_#", "action": "actions_#"}
    options = Options(columns=columns, episode=episode)
    dataset, found = read_files(arrays.FORMAT, path, tmp_path / "store", options)
    assert dataset.episode_lengths.tolist() == [1, 8, 9]
    np.testing.assert_array_equal(dataset[1].observations, body["states_9"])
    assert "Left out, not named: rate." in sentences(found.notes)
    options = Options(columns=columns | {"action": "action_#"}, episode="#")
    with pytest.raises(SchemaError, match=r"called action_#.*did you mean actions_#\?"):
        read_files(arrays.FORMAT, path, tmp_path / "other", options)
    more = write_arrays("npz", tmp_path / "store", body | {"states_11": np.zeros((2, 3))})
    with pytest.raises(SchemaError, match="has states_11, and no actions_11"):
        read_files(arrays.FORMAT, more, tmp_path / "third", Options(columns=columns))


def test_an_npy_file_alone_is_refused_with_its_folder(tmp_path):
    folder = write_arrays("npy", tmp_path, {"obs": np.zeros((3, 2)), "act": np.zeros((3, 1))})
    options = Options(columns={"observation": "obs", "action": "act"}, episode="file")
    with pytest.raises(SchemaError, match=f"name the folder that holds it and the others: {folder}"):
        read_files(arrays.FORMAT, folder / "obs.npy", tmp_path / "store", options)


JOINTS = ["hip", "knee", "ankle"]


def named(folder, kind, body, names):
    """Write an episode into a file of its own, with names of numbers in an array, or an attribute of it or its group."""
    ending, _, where = kind.partition(" ")
    if where == "array":
        body = body | {"dof_names": np.array(names, "S9" if ending == "h5" else "U9")}
    path = write_arrays(ending, folder, body)
    path = path.rename(folder / f"{len(list(folder.iterdir()))}{path.suffix}")
    with contextlib.ExitStack() as stack:
        root = None
        if where != "array":
            is_hdf5 = ending == "h5"
            root = stack.enter_context(h5py.File(path, "a")) if is_hdf5 else zarr.open_group(path)
        if where == "group":
            root.attrs["dof_names"] = names
        for name in ("dof_pos", "actions") if where == "attribute" else ():
            root[name].attrs["names"] = names
    return path


@pytest.mark.parametrize(
    "kind", ["h5 attribute", "h5 group", "h5 array", "zarr2 attribute", "zarr2 group", "zarr2 array", "npz array"]
)  # fmt: skip
def test_lists_of_names_beside_arrays_name_and_order_their_numbers(tmp_path, kind):
    """The second episode has its joints in the other order; a pose of as many numbers has no joints."""
    body = {
        "body_names": np.array(["a", "b", "c"], "S1" if "h5" in kind else "U1"),
        "dof_pos": np.arange(12.0).reshape(4, 3),
        "actions": np.ones((4, 3)),
        "ee_pose": np.ones((4, 3)),
    }
    turned = body | {"dof_pos": body["dof_pos"][:, ::-1].copy()}
    (folder := tmp_path / "files").mkdir()
    files = [named(folder, kind, body, JOINTS), named(folder, kind, turned, JOINTS[::-1])]
    columns = {"observation/dof": "dof_pos", "observation/ee": "ee_pose", "action": "actions"}
    options = Options(columns=columns, episode="file")
    dataset, found = read_files(arrays.FORMAT, files, tmp_path / "store", options)
    assert dataset.dimension_names == {"observations/dof": JOINTS, "actions": JOINTS}
    for one in dataset:
        np.testing.assert_array_equal(one.observations["dof"][:3], np.arange(9.0).reshape(3, 3))
    assert "_names" not in " ".join(sentences(found.notes)).replace("body_names", "")


def test_episodes_whose_numbers_have_other_names_are_refused(tmp_path):
    for number, names in enumerate((["hip", "knee"], ["hip", "wrist"])):
        write_npz(tmp_path / f"{number}.npz", q=np.ones((3, 2)), a=np.ones((3, 1)), joint_names=np.array(names))
    with pytest.raises(SchemaError, match=r"1.npz, q: holds hip, wrist; before it held hip, knee"):
        read_files(
            arrays.FORMAT,
            [tmp_path / "0.npz", tmp_path / "1.npz"],
            tmp_path / "store",
            Options(columns={"observation": "q", "action": "a"}, episode="file"),
        )


@pytest.mark.parametrize("place", PLACES)
def test_values_of_episodes_in_arrays_with_a_row_for_each(tmp_path, place):
    """A row of the arrays that holds no step is no episode, and has no value."""
    body = {"obs": np.zeros((4, 9, 3)), "act": np.zeros((4, 9, 2)), "score": np.arange(4.0)}
    path = write_arrays(place, tmp_path, body | {"lengths": np.array([9, 0, 3, 4])})
    columns = {"observation": "obs", "action": "act", "episodes/score": "score"}
    options = Options(columns=columns, episode="row")
    dataset, _ = read_files(arrays.FORMAT, path, tmp_path / "store", options)
    assert dataset.column("episodes/score").tolist() == [0, 2, 3]


def test_arrays_of_unknown_meaning_are_shown_once_for_those_that_differ_in_numbers(tmp_path):
    arrays_of_each = {f"demo_{number}/{name}": np.ones((4, 2), "f4") for number in range(300) for name in ("x", "y")}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in (arrays_of_each | {"odd": np.arange(3)}).items():
            file[name] = values
    with pytest.raises(ValueError, match="no known format") as refused:
        orlog.import_dataset(tmp_path / "a.h5", "lab/x-v1")
    lines = [line.strip() for line in str(refused.value).splitlines() if line.startswith("    ")]
    assert lines == ["demo_0/x  (4, 2) float32", "demo_0/y  (4, 2) float32", "odd  (3,) int64"]
    assert "columns={'observation': 'NAMES', 'action': 'NAME'}" in str(refused.value)
