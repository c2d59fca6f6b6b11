"""D4RL's files against a slow reader of its own, and files that want to do harm."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.formats import mapped_arrays
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import SchemaError
from orlog.manifests.names import counted
from tests.datasets.formats.reading import read_files
from tests.levels import scaled

MISSING = "final_observation_missing"


def rows_of(terminals, timeouts, *, next_observations, seed=0, dtype="float32", sizes=(3, 2)):
    """Return the columns of a file whose observations follow each other as they should."""
    rng = np.random.default_rng(seed)
    steps = len(terminals)
    body = {
        "observations": rng.normal(size=(steps, sizes[0])).astype(dtype),
        "actions": rng.normal(size=(steps, sizes[1])).astype("float32"),
        "rewards": rng.normal(size=steps).astype(dtype),
        "terminals": np.array(terminals),
        "infos/qpos": rng.normal(size=(steps, 4)),
        "infos/step": rng.integers(0, 9, steps),
    }
    if timeouts is not None:
        body["timeouts"] = np.array(timeouts)
    if next_observations:
        after = np.concatenate((body["observations"][1:], body["observations"][:1]))
        ends = np.array(terminals) | np.array(timeouts or [False] * steps)
        after[ends] = rng.normal(size=(int(ends.sum()), sizes[0]))
        body["next_observations"] = after
    return body


def write(path, body, **options):
    with h5py.File(path, "w") as file:
        for key, values in body.items():
            file.create_dataset(key, data=values, **options)
    return path


def read(path, folder, horizon=None):
    dataset, found = read_files(formats()["d4rl"], path, folder, Options(time_limit=horizon))
    return dataset, " ".join(sentences(found.notes))


def slow_episodes(body, horizon=None):
    """Return the episodes of a file, step by step, as the rules are written."""
    steps = len(body["rewards"])
    timeouts = body.get("timeouts", np.zeros(steps, bool))
    open_steps = []
    episodes = []
    for step in range(steps):
        open_steps.append(step)
        terminal = bool(body["terminals"][step])
        ends = terminal or bool(timeouts[step]) or step == steps - 1 or len(open_steps) == horizon
        if not ends and "next_observations" in body:
            ends = body["next_observations"][step].tobytes() != body["observations"][step + 1].tobytes()
        if not ends:
            continue
        kept, missing = list(open_steps), False
        observations = [body["observations"][one] for one in kept]
        if "next_observations" in body:
            observations.append(body["next_observations"][step])
        elif terminal:
            observations.append(np.zeros_like(observations[0]))
            missing = True
        else:
            kept.pop()
        open_steps = []
        if not kept:
            continue
        episodes.append(
            {
                "observations": np.array(observations),
                "steps": kept,
                "termination": terminal,
                "truncation": bool(timeouts[step]) or not terminal,
                "missing": missing,
            }
        )
    return episodes


def check(dataset, body, horizon=None):
    expected = slow_episodes(body, horizon)
    assert dataset.total_episodes == len(expected)
    for found, wanted in zip(dataset, expected, strict=True):
        steps = wanted["steps"]
        assert isinstance(found.observations, np.ndarray)
        assert isinstance(found.actions, np.ndarray)
        columns = [
            (found.observations, wanted["observations"]),
            (found.actions, body["actions"][steps]),
            (found.rewards, body["rewards"][steps]),
            *((found.infos[key], body[f"infos/{key}"][steps]) for key in ("qpos", "step")),
        ]
        for ours, theirs in columns:
            assert isinstance(ours, np.ndarray)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert ours.tobytes() == theirs.tobytes()
        last = np.arange(len(steps)) == len(steps) - 1
        np.testing.assert_array_equal(found.terminations, last & wanted["termination"])
        np.testing.assert_array_equal(found.truncations, last & wanted["truncation"])
        if "next_observations" in body:
            assert found.metadata == {}
        else:
            assert found.metadata == {MISSING: wanted["missing"]}


FLAGS = st.lists(st.sampled_from([(0, 0)] * 6 + [(1, 0), (0, 1), (1, 1)]), min_size=1, max_size=60)


@pytest.mark.slow
@settings(max_examples=scaled(60), deadline=None)
@given(
    flags=FLAGS,
    has_timeouts=st.booleans(),
    has_next=st.booleans(),
    block_rows=st.sampled_from([1, 2, 3, 5, 17, 1000]),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 99),
    joints=st.sets(st.integers(0, 59), max_size=9),
    limit=st.integers(1, 12),
)
def test_any_pattern_of_ends_is_read_as_the_slow_reader_does(
    flags, has_timeouts, has_next, block_rows, dtype, seed, joints, limit
):
    terminals, timeouts = ([bool(one[number]) for one in flags] for number in range(2))
    body = rows_of(terminals, timeouts if has_timeouts else None, next_observations=has_next, seed=seed, dtype=dtype)
    torn = [step for step in joints if has_next and step < len(flags)]
    if has_next:
        body["next_observations"][torn, 0] += 1
    horizon = None if has_timeouts or has_next else limit
    row_bytes = sum(values[:1].nbytes for values in body.values())
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_arrays, "BLOCK_BYTES", block_rows * row_bytes)
        path = write(Path(folder) / "test.hdf5", body)
        if not slow_episodes(body, horizon):
            with pytest.raises(SchemaError, match="at least one episode"):
                read(path, Path(folder) / "store", limit)
            return
        dataset, said = read(path, Path(folder) / "store", limit)
        check(dataset, body, horizon)
        assert ("truncated after" in said) == (horizon is not None)
        left_out = len(flags) - dataset.total_steps
        missing = 0 if has_next else int(body["terminals"].sum())
        assert (f"{counted(left_out, 'last step')} of" in said) == (left_out > 0)
        assert (f"{counted(missing, 'episode')} that" in said) == (missing > 0)
        ends = body["terminals"] | (body["timeouts"] if has_timeouts else False)
        unflagged = sum(1 for step in torn if not ends[step] and step < len(flags) - 1)
        assert (f"In {counted(unflagged, 'place')} next" in said) == (unflagged > 0)


def test_the_horizon_ends_episodes_where_nothing_in_the_file_does(tmp_path):
    body = rows_of([False] * 7 + [True] + [False] * 12, None, next_observations=False)
    path = write(tmp_path / "test.hdf5", body)
    dataset, said = read(path, tmp_path / "store", 5)
    check(dataset, body, 5)
    assert dataset.episode_lengths.tolist() == [4, 3, 4, 4, 1]
    assert "episodes were taken to be truncated after 5 steps" in said


def test_without_timeouts_and_horizon_a_file_is_refused(tmp_path):
    path = write(tmp_path / "test.hdf5", rows_of([False] * 9, None, next_observations=False))
    with pytest.raises(SchemaError, match=r"test\.hdf5: .*timeouts.*horizon="):
        read(path, tmp_path / "store")


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"compression": "lzf"}])
def test_chunks_shapes_and_dtypes_that_occur_are_read(tmp_path, options):
    flags = [False, False, True] * 500
    body = rows_of(flags, None, next_observations=True)
    changed = {
        **body,
        "rewards": body["rewards"][:, None],
        "terminals": body["terminals"][:, None].astype("uint8"),
        "observations": body["observations"].astype(">f4"),
        "metadata/policy/fc0": np.zeros((4, 4)),
        "infos/once": np.zeros(3),
    }
    path = write(tmp_path / "test.hdf5", changed, **options)
    with h5py.File(path, "a") as file:
        file["metadata/algorithm"] = "SAC"
        file["infos/text"] = "a scalar"
    dataset, said = read(path, tmp_path / "store")
    check(dataset, body)
    assert said == (
        "Left out, not one row a step: infos/once, infos/text. Not read: metadata/algorithm, metadata/policy/fc#."
    )


def test_rewards_that_are_integers_keep_their_values(tmp_path):
    body = rows_of([False, True], None, next_observations=True)
    path = write(tmp_path / "test.hdf5", {**body, "rewards": np.array([3, -4])})
    dataset, _ = read(path, tmp_path / "store")
    assert dataset[0].rewards.tolist() == [3.0, -4.0]


def test_nan_is_equal_to_itself(tmp_path):
    body = rows_of([False, False, True], None, next_observations=True)
    body["observations"][1] = body["next_observations"][0] = np.nan
    dataset, _ = read(write(tmp_path / "test.hdf5", body), tmp_path / "store")
    check(dataset, body)


def test_observations_that_are_no_next_ones_name_the_step(tmp_path):
    body = rows_of(([False] * 5 + [True]) * 5, None, next_observations=True)
    body["next_observations"][1:, 1] += 1
    path = write(tmp_path / "test.hdf5", body)
    with pytest.raises(SchemaError, match=r"test\.hdf5, next_observations: .* are not next"):
        read(path, tmp_path / "store")


GOOD = rows_of([False, False, True, False], [False] * 4, next_observations=True)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("rewards", None),
        ("next_observations", np.zeros((4, 3), "f8")),
        ("actions", np.zeros((3, 2), "f4")),
        ("actions", np.zeros((4, 2), "c8")),
        ("rewards", np.zeros((4, 2), "f4")),
        ("terminals", np.array([0, 0, 2, 0])),
        ("infos/qpos", np.zeros(4, [("a", int), ("b", float)])),
    ],
)
def test_what_does_not_fit_names_file_and_key(tmp_path, key, values):
    body = {name: column for name, column in GOOD.items() if name != key}
    if values is not None:
        body[key] = values
    path = write(tmp_path / "test.hdf5", body)
    with pytest.raises(SchemaError, match=rf"test\.hdf5.*({key}|observations|terminated)"):
        read(path, tmp_path / "store")


def test_what_a_file_says_of_its_policy_is_kept_but_for_weights(tmp_path):
    path = tmp_path / "a.hdf5"
    write(path, rows_of([False, False, True], [False] * 3, next_observations=True))
    plain = orlog.import_dataset(path, "lab/plain-v1")
    with h5py.File(path, "a") as file:
        file["metadata/algorithm"] = np.bytes_("SAC")
        file["metadata/iteration"] = np.int64(3)
        file["metadata/policy/fc0/weight"] = np.zeros((4, 3), np.float32)
        file["metadata/policy/fc1/weight"] = np.zeros((4, 3), np.float32)
        file["metadata/policy/nonlinearity"] = np.bytes_("relu")
    orlog.import_dataset(path, "lab/told-v1")
    told = orlog.load_dataset("lab/told-v1").manifest.description
    values = "metadata/algorithm is SAC, metadata/iteration is 3, metadata/policy/nonlinearity is relu."
    assert f"The file says of its policy: {values} Not read: metadata/policy/fc#/weight (2)." in told
    assert "metadata" not in orlog.load_dataset(plain).manifest.description
