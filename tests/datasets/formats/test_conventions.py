"""Rows that are off by one, frames upside down, swapped colors: what users mend at import, in every format."""

import itertools
import json

import gymnasium
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orlog
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.episodes import Opened, Options, Steps
from orlog.datasets.formats.overrides import put_conventions
from orlog.errors import SchemaError

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)


def pieces_of(count, cuts, *, missing):
    """Return an episode whose values are the numbers of their rows, in pieces."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < count}), count]
    rows = np.arange(count + 1.0)
    return [
        Steps(
            observations={
                "joint": rows[start + (start > 0) : stop + 1, None],
                "n": (rows[start + (start > 0) : stop + 1],),
            },
            actions=rows[start:stop, None],
            rewards=rows[start:stop],
            infos={"text": [str(int(one)) for one in rows[start:stop]], "force": rows[start:stop]},
            ends=stop == count,
            terminated=stop == count,
            seed=7 if stop == count else None,
            metadata={"final_observation_missing": missing} if stop == count else {},
        )
        for start, stop in itertools.pairwise(bounds)
    ]


def opened_of(pieces):
    schema = Schema(observation_space=BOX, action_space=BOX)
    return Opened(schema=schema, steps=iter(pieces))


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 8), max_size=4),
    action=st.integers(-3, 3),
    force=st.none() | st.integers(-3, 3),
)
def test_a_shift_is_the_same_in_any_pieces_and_stays_within_episodes(counts, cuts, action, force):
    shift = {"action": action} | ({} if force is None else {"infos/force": force})
    counts.append(9)  # one is long enough
    opened = opened_of([one for n in counts for one in pieces_of(n, cuts, missing=True)])
    put_conventions(opened, Options(shift=shift), "a.h5")
    episodes = [[]]
    for piece in opened.steps:
        episodes[-1].append(piece)
        episodes += [[]] if piece.ends else []
    low, high = (
        min(action, force or 0 if force is not None else action),
        max(action, action if force is None else force),
    )
    start, short = max(0, high), max(0, high) - min(0, low)
    left = [count for count in counts if count > short]
    assert episodes.pop() == []
    assert len(episodes) == len(left)
    for count, pieces in zip(left, episodes, strict=True):
        rows = np.arange(start, count + min(0, low))
        observed = np.concatenate([one.observations["joint"] for one in pieces])[:, 0]
        assert observed.tolist() == [*rows, rows[-1] + 1]
        assert np.concatenate([one.observations["n"][0] for one in pieces]).tolist() == observed.tolist()
        assert np.concatenate([one.actions for one in pieces])[:, 0].tolist() == (rows - action).tolist()
        assert np.concatenate([one.rewards for one in pieces]).tolist() == (rows - action).tolist()
        texts = [text for one in pieces for text in one.infos["text"]]
        assert texts == [str(row) for row in rows - action]
        moved = action if force is None else force
        assert np.concatenate([one.infos["force"] for one in pieces]).tolist() == (rows - moved).tolist()
        assert pieces[-1].terminated
        assert pieces[-1].metadata["final_observation_missing"] == (low >= 0)
        assert pieces[-1].seed == (7 if start == 0 else None)


def write_libero(path, lengths=(5, 4)):
    """Write demonstrations as LIBERO's create_dataset.py does: each observation is that after the action of its row."""
    rng = np.random.default_rng(0)
    states = []
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["macros_image_convention"] = "opengl"
        data.attrs["bddl_file_name"] = "libero/bddl_files/turn_on_the_stove.bddl"
        data.attrs["problem_info"] = json.dumps({"problem_name": "libero", "language_instruction": "turn on the stove"})
        data.attrs["env_args"] = json.dumps({"type": 1, "env_name": "Libero", "env_kwargs": {}})
        data.attrs["total"] = sum(lengths)
        for number, count in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = count
            state = rng.normal(size=(count + 1, 12))
            states.append(state)
            demo["states"] = state[:-1]
            demo["actions"] = np.arange(count * 7.0).reshape(count, 7) / 100
            demo["rewards"] = (np.arange(count) == count - 1).astype(np.uint8)
            demo["dones"] = (np.arange(count) == count - 1).astype(np.uint8)
            demo["obs/joint_states"] = state[1:, 1:8]
            frames = rng.integers(0, 255, (count, 4, 6, 3), np.uint8)
            demo["obs/agentview_rgb"] = frames
            demo["obs/eye_in_hand_rgb"] = frames
    return states


def imported(path, name="lab/arm-v1", **options):
    return orlog.load_dataset(orlog.import_dataset(path, name, **options))


def test_libero_is_paired_and_turned(tmp_path):
    states = write_libero(tmp_path / "a.hdf5")
    dataset = imported(
        tmp_path / "a.hdf5", shift={"action": -1}, flip="observation/agentview_rgb", bgr="observation/agent*"
    )
    with h5py.File(tmp_path / "a.hdf5") as file:
        for episode, state, number in zip(dataset, states, range(2), strict=True):
            demo = file[f"data/demo_{number}"]
            np.testing.assert_array_equal(episode.actions, demo["actions"][1:])
            np.testing.assert_array_equal(episode.observations["joint_states"], state[1:, 1:8])
            np.testing.assert_array_equal(episode.infos["states"][:, 1:8], state[1:-1, 1:8])
            assert episode.rewards.tolist() == demo["rewards"][1:].tolist()
            assert episode.terminations[-1]
            assert not episode.metadata["final_observation_missing"]
            frames = demo["obs/agentview_rgb"][:][:, ::-1, :, ::-1]
            np.testing.assert_array_equal(episode.observations["agentview_rgb"], frames)
            frames = demo["obs/eye_in_hand_rgb"][:]
            np.testing.assert_array_equal(episode.observations["eye_in_hand_rgb"], frames)
    told = dataset.manifest.description
    assert "(--shift): action, reward, infos/done, infos/states by -1." in told
    assert "1 step in each of 2 episodes" in told
    assert "Frames were turned upside down (--flip): observation/agentview_rgb." in told
    assert "(--bgr): observation/agentview_rgb." in told
    assert "final_observation_missing" not in told
    assert "macros" not in told


def test_rows_without_a_final_observation_lose_one_step_alone(tmp_path):
    lines = [f"{run},{t},{t},{t}" for run in "ab" for t in range(5)]
    (tmp_path / "a.csv").write_text("\n".join(["episode,obs_0,action,reward", *lines]))
    dataset = imported(tmp_path / "a.csv", shift={"action": -1})
    for episode in dataset:
        assert episode.observations[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert episode.rewards.tolist() == [1, 2, 3, 4]
        assert episode.truncations[-1]
        assert not episode.metadata["final_observation_missing"]
    assert "left out, since what followed" not in dataset.manifest.description


def test_rewards_that_are_made_see_what_was_moved(tmp_path):
    write_libero(tmp_path / "a.hdf5")
    (tmp_path / "r.py").write_text("def r(before, actions, after): return actions[:, 0] * 100")
    dataset = imported(tmp_path / "a.hdf5", shift={"action": -1}, reward=f"{tmp_path / 'r.py'}:r")
    assert dataset[0].rewards == pytest.approx([7, 14, 21, 28])
    assert "(--shift): action, reward" in dataset.manifest.description


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shift": {"actions": -1}}, "no column of steps has this name; did you mean action?"),
        ({"shift": {"observation": -1}}, "they are action, reward, infos/done"),
        ({"shift": {"infos/states": -5}}, "no episode is long enough"),
        ({"flip": "observation/agentview"}, "did you mean observation/agentview_rgb?"),
        ({"flip": ["agentview_rgb"]}, "did you mean observation/agentview_rgb?"),
        ({"bgr": "observation/joint_states"}, r"expected frames .*, found rows of shape \(7,\)"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path, options, message):
    write_libero(tmp_path / "a.hdf5")
    with pytest.raises(SchemaError, match=message.replace("?", r"\?")):
        imported(tmp_path / "a.hdf5", **options)


@pytest.mark.parametrize(
    ("shape", "flipped", "swapped"),
    [
        ((2, 4, 6, 3), np.s_[:, ::-1], np.s_[..., ::-1]),
        ((2, 3, 4, 6), np.s_[:, :, ::-1], np.s_[:, ::-1]),
        ((2, 5, 4, 6, 4), np.s_[:, :, ::-1], np.s_[..., [2, 1, 0, 3]]),
        ((2, 4, 6), np.s_[:, ::-1], None),
    ],
)
def test_frames_of_any_order_of_axes(shape, flipped, swapped):
    frames = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    for said, chosen in ((Options(flip=("observation",)), flipped), (Options(bgr=("observation",)), swapped)):
        opened = opened_of([Steps(observations=frames, actions=np.zeros((1, 1)), rewards=np.zeros(1))])
        put_conventions(opened, said, "a.h5")
        if chosen is None:
            with pytest.raises(SchemaError, match="expected frames of 3 or 4 channels"):
                next(opened.steps)
        else:
            np.testing.assert_array_equal(next(opened.steps).observations, frames[chosen])
