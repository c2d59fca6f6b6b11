"""What is exported as flat columns comes back the same, from each format that holds them."""

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.formats.formats import formats
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.datasets.recorded_samples import LENGTHS, record_samples
from tests.episodes import record_episodes, whole_episode


def test_what_flat_columns_cannot_hold_is_refused_or_said(tmp_path):
    record_samples("lab/pair-v1", spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 3]))
    with pytest.raises(SchemaError, match="D4RL's files hold actions that are Box or Discrete"):
        orlog.export_dataset("lab/pair-v1", tmp_path / "out", to="d4rl")
    record_episodes(
        "lab/seeded-v1",
        [whole_episode(np.zeros((2, 1), np.float32), np.zeros(1, int), seed=3, metadata={"task": "left"})],
        spaces.Box(0, 1, (1,), np.float32),
        spaces.Discrete(2),
    )
    with pytest.raises(SchemaError, match=r"lost: episodes/task\. Seeds of episodes are lost\."):
        orlog.export_dataset("lab/seeded-v1", tmp_path / "out", to="npz")
    orlog.export_dataset("lab/seeded-v1", tmp_path / "out", to="npz", lossy=True)


def test_columns_that_say_nothing_are_no_loss(tmp_path):
    space = spaces.Box(-1, 1, (2,), np.float32)
    record_episodes(
        "lab/a-v1",
        (
            whole_episode(
                np.zeros((3, 2), np.float32),
                np.zeros((2, 2), np.float32),
                end="truncation",
                metadata={"note": "", "final_observation_missing": False, "odd": number == 1},
            )
            for number in range(3)
        ),
        space,
        space,
    )
    with pytest.raises(SchemaError, match=r"cannot hold all of it: .* lost: episodes/odd\. Give"):
        orlog.export_dataset("lab/a-v1", tmp_path / "out", to="d4rl")
    view = orlog.load_dataset("lab/a-v1").filter_episodes("not odd")
    orlog.export_dataset(view, tmp_path / "out", to="d4rl")


def test_the_parts_of_a_dict_are_columns_of_a_table(tmp_path):
    space = spaces.Dict({"observation": spaces.Box(-1, 1, (2,)), "goal": spaces.Box(0, 1, (3,))})
    with orlog.DatasetWriter("lab/parts-v1", observation_space=space, action_space=spaces.Discrete(3)) as writer:
        for length in LENGTHS:
            samples = [space.sample() for _ in range(length + 1)]
            writer.add_episode(
                whole_episode(
                    {key: np.stack([one[key] for one in samples]) for key in space},
                    np.arange(length) % 3,
                    np.arange(length) / 4.0,
                )
            )
    orlog.export_dataset("lab/parts-v1", tmp_path / "out", to="parquet")
    file = tmp_path / "out" / "parts-v1.parquet"
    orlog.import_dataset(file, "lab/again-v1")
    first, again = orlog.load_dataset("lab/parts-v1"), orlog.load_dataset("lab/again-v1")
    assert list(again.observation_space) == ["goal", "observation"]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.actions, other.actions)
    for columns, message in (
        ({"observation/goal": "observation/goal", "next_observation/other": "reward"}, "same parts"),
        ({"observation": "reward", "observation/goal": "observation/goal"}, "names both"),
    ):
        with pytest.raises(SchemaError, match=message):
            orlog.import_dataset(file, "lab/x-v1", columns={"action": "action", **columns}, episode="episode")
    orlog.import_dataset(
        file,
        "lab/one-v1",
        format="parquet",
        columns={"observation": "observation/goal", "action": "action"},
        episode="episode",
    )
    assert orlog.load_dataset("lab/one-v1").observation_space.shape == (3,)


@pytest.mark.parametrize("lost", ["next_observations", "infos", "rewards"])
def test_a_file_of_ours_that_lost_a_column_is_refused(tmp_path, lost):
    record_samples("lab/flat-v1", spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,)))
    out = orlog.export_dataset("lab/flat-v1", tmp_path / "out", to="d4rl", lossy=True)
    (out / "SHA256SUMS").unlink()
    file = out / "flat-v1.hdf5"
    with h5py.File(file, "r+") as data:
        written = [name.decode() for name in data.attrs["orlog_columns"]]
        assert "infos/place" in written
        del data[lost]
        if lost == "next_observations":  # neither would one elsewhere do
            data["infos/next_observations"] = np.zeros(sum(LENGTHS))
    said = "infos/place" if lost == "infos" else lost
    with pytest.raises(IntegrityError, match=f"flat-v1.hdf5: has no {said}, which was written"):
        orlog.import_dataset(file, "lab/again-v1", format="d4rl", dry_run=True)
    with h5py.File(file, "r+") as data:
        del data.attrs["orlog_columns"]
        data.attrs["orlog_columns"] = ["none", "of", "ours"]
    if lost == "next_observations":  # which others may lack
        orlog.import_dataset(file, "lab/again-v1", format="d4rl", dry_run=True)


@pytest.mark.parametrize("to", ["d4rl", "d3rlpy"])
def test_a_dict_of_one_part_is_written_as_that_part_and_one_of_several_can_be_chosen(tmp_path, to):
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    picture = spaces.Box(0, 255, (2, 2, 3), np.uint8)
    actions = spaces.Box(-1, 1, (2,), np.float32)
    record_samples("lab/one-v1", spaces.Dict({"state": box}), actions)
    record_samples("lab/several-v1", spaces.Dict({"state": box, "cameras": spaces.Dict({"top": picture})}), actions)
    said = []
    orlog.export_dataset("lab/one-v1", tmp_path / "one", to=to, lossy=True, on_losses=said.extend)
    assert "The only part of the observations, state, is written as the whole of them." in said
    with pytest.raises(SchemaError, match=r"observation=KEY writes one part alone: cameras, state\."):
        orlog.export_dataset("lab/several-v1", tmp_path / "all", to=to, lossy=True)
    orlog.export_dataset("lab/several-v1", tmp_path / "two", to=to, lossy=True, observation="state")
    for name, folder in (("one", "one"), ("several", "two")):
        ours = orlog.load_dataset(f"lab/{name}-v1")
        (file,) = [one for one in (tmp_path / folder).iterdir() if one.name != "SHA256SUMS"]
        theirs, _ = read_files(formats()[to], file, tmp_path / f"store-{name}")
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one.observations["state"][:-1], other.observations[:-1])
    orlog.export_dataset("lab/several-v1", tmp_path / "top", to="minari", lossy=True, observation="cameras/top")
    orlog.import_dataset(tmp_path / "top", "lab/top-v1")
    assert orlog.load_dataset("lab/top-v1").observation_space.shape == (2, 2, 3)
    with pytest.raises(SchemaError, match="observation='cameras/left': the observations have no such part"):
        orlog.export_dataset("lab/several-v1", tmp_path / "no", to=to, observation="cameras/left")
