"""D4RL's functions: against digests of what theirs gave, and against a slow version of both.

How the digests were made: `d4rl/__init__.py` of Farama-Foundation/D4RL at commit 89141a6 was
executed with its environments stubbed out; its `qlearning_dataset` and `sequence_dataset` were
called with `seeded_arrays(..)` and an object with `_max_episode_steps = 7` as the environment, and
`digest_of` was taken of what they returned.
"""

import hashlib

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.errors import SchemaError
from orlog.loaders.d4rl import d4rl_arrays, qlearning_dataset, sequence_dataset, transitions_dataset
from tests.datasets.formats.test_d4rl import read, write
from tests.levels import scaled

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-2, 3, (2,), np.float32)
LIMIT = 7
THEIRS = {
    (True, "float32"): {
        "qlearning": "4512959bb0b791defb572fd8f06584d62e920add394e99b7b1dcf7087e3a212a",
        "terminate_on_end": "751a584ed9db8d9d38c3ca33d72ad862db57db656a316c8c9f188074f16f5373",
        "sequence": "33190cde43cc3a0eb7036b1676b149b13d75c1db194adbfb93741f338c0f417c",
    },
    (True, "float64"): {
        "qlearning": "4512959bb0b791defb572fd8f06584d62e920add394e99b7b1dcf7087e3a212a",
        "terminate_on_end": "751a584ed9db8d9d38c3ca33d72ad862db57db656a316c8c9f188074f16f5373",
        "sequence": "8926430fdd90ac8d93fb89608d1751ee75abdc24b5e2ba9f52316d8025a406eb",
    },
    (False, "float32"): {
        "qlearning": "cf1ae40acf312e964ad8f0bbbfef7b683b752aa4226db31e226e626940155d7d",
        "terminate_on_end": "751a584ed9db8d9d38c3ca33d72ad862db57db656a316c8c9f188074f16f5373",
        "sequence": "8b21f0b5030b83b5ab79c8a057021a953a0385a7f6e3c11fc034ba92343361dd",
    },
    (False, "float64"): {
        "qlearning": "cf1ae40acf312e964ad8f0bbbfef7b683b752aa4226db31e226e626940155d7d",
        "terminate_on_end": "751a584ed9db8d9d38c3ca33d72ad862db57db656a316c8c9f188074f16f5373",
        "sequence": "6c36cbcaed7d2081a19c800c17f919e52a7683ec7bb9f42df223d8c196fd340b",
    },
}


def seeded_arrays(seed, *, rows, timeouts, dtype):
    """Return arrays as in D4RL's files, of a generator whose words are fixed for good."""
    words = np.random.Philox(key=seed).random_raw(rows * 8).reshape(rows, 8)
    numbers = (words >> np.uint64(11)) * 2.0**-51 - 2.0
    arrays = {
        "observations": numbers[:, :3].astype(dtype),
        "actions": numbers[:, 3:5].astype(dtype),
        "rewards": numbers[:, 5].astype(dtype),
        "terminals": numbers[:, 6] < -1.8,
    }
    if timeouts:
        arrays["timeouts"] = numbers[:, 7] < -1.7
    return arrays


def digest_of(parts):
    """Return the SHA-256 of names, dtypes, shapes and bytes of some dicts of arrays."""
    digest = hashlib.sha256()
    for part in parts:
        for name, values in part.items():
            digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("timeouts", [True, False])
def test_results_are_those_of_d4rl_bit_for_bit(timeouts, dtype):
    arrays = seeded_arrays(5, rows=500, timeouts=timeouts, dtype=dtype)
    found = {
        "qlearning": digest_of([qlearning_dataset(arrays, max_episode_steps=LIMIT)]),
        "terminate_on_end": digest_of([qlearning_dataset(arrays, True, max_episode_steps=LIMIT)]),
        "sequence": digest_of(sequence_dataset(arrays, max_episode_steps=LIMIT)),
    }
    assert found == THEIRS[timeouts, dtype]


def slow_qlearning(arrays, *, keep_ends):
    """Return D4RL's transitions, one at a time."""
    found = []
    for row in range(len(arrays["rewards"]) - 1):
        if arrays["timeouts"][row] and not keep_ends:
            continue
        found.append(
            (
                arrays["observations"][row].tolist(),
                arrays["actions"][row].tolist(),
                arrays["observations"][row + 1].tolist(),
                arrays["rewards"][row].item(),
                bool(arrays["terminals"][row]),
            )
        )
    return found


@settings(max_examples=scaled(60), deadline=None)
@given(
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
    keep_ends=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_results_are_those_of_a_slow_version(flags, keep_ends, seed):
    rng = np.random.default_rng(seed)
    arrays = {
        "observations": rng.normal(size=(len(flags), 3)).astype(np.float32),
        "actions": rng.normal(size=(len(flags), 2)).astype(np.float32),
        "rewards": rng.normal(size=len(flags)).astype(np.float32),
        "terminals": np.array([terminal for terminal, _ in flags], np.bool_),
        "timeouts": np.array([timeout for _, timeout in flags], np.bool_),
    }
    expected = slow_qlearning(arrays, keep_ends=keep_ends)
    found = qlearning_dataset(arrays, keep_ends)
    columns = ("observations", "actions", "next_observations", "rewards", "terminals")
    assert list(found) == list(columns)
    assert list(zip(*(found[name].tolist() for name in columns), strict=True)) == expected

    episodes, episode = [], []
    for row, ends in enumerate(flags):
        episode.append(row)
        if any(ends):
            episodes.append(episode)
            episode = []
    pieces = list(sequence_dataset(arrays))
    assert len(pieces) == len(episodes)
    for piece, rows in zip(pieces, episodes, strict=True):
        assert list(piece) == list(arrays)
        for name, values in arrays.items():
            np.testing.assert_array_equal(piece[name], values[rows], strict=True)


def three_episodes(write, make):
    """Return episodes of 3, 2 and 4 steps that end in each of the three ways."""
    rng = np.random.default_rng(0)
    ends = [(3, "truncation"), (2, "termination"), (4, "cut")]
    episodes = [make(BOX, ACTION, length=length, end=end, rng=rng) for length, end in ends]
    return write(episodes, BOX, ACTION)


def test_arrays_are_the_steps_without_final_observations(write, make):
    dataset = three_episodes(write, make)
    arrays = d4rl_arrays(dataset)
    assert list(arrays) == ["observations", "actions", "rewards", "terminals", "timeouts"]
    rows = []
    for episode in dataset:
        assert isinstance(episode.observations, np.ndarray)
        rows += [*episode.observations[:-1]]
    np.testing.assert_array_equal(arrays["observations"], np.stack(rows), strict=True)
    assert np.flatnonzero(arrays["terminals"]).tolist() == [4]
    assert np.flatnonzero(arrays["timeouts"]).tolist() == [2, 8]
    assert len(list(sequence_dataset(dataset))) == 3


def test_where_d4rl_differs_from_what_happened(write, make):
    dataset = three_episodes(write, make)
    real = transitions_dataset(dataset)
    assert len(real["rewards"]) == 9
    assert np.flatnonzero(real["terminations"]).tolist() == [4]
    assert np.flatnonzero(real["truncations"]).tolist() == [2]
    start = 0
    for episode in dataset:
        assert isinstance(episode.observations, np.ndarray)
        stop = start + len(episode)
        np.testing.assert_array_equal(real["next_observations"][start:stop], episode.observations[1:])
        start = stop

    left_out = qlearning_dataset(dataset)  # steps 2 (timed out) and 8 (last row)
    kept = [0, 1, 3, 4, 5, 6, 7]
    np.testing.assert_array_equal(left_out["observations"], real["observations"][kept])
    wrong = (left_out["next_observations"] != real["next_observations"][kept]).any(1)
    assert [kept[row] for row in np.flatnonzero(wrong)] == [4]  # it terminated: not used
    with_ends = qlearning_dataset(dataset, terminate_on_end=True)  # only step 8
    wrong = (with_ends["next_observations"] != real["next_observations"][:8]).any(1)
    assert np.flatnonzero(wrong & ~with_ends["terminals"]).tolist() == [2]  # the next episode's


def test_infos_and_nested_spaces_are_flat_columns(mini):
    arrays = d4rl_arrays(mini)
    assert all(len(values) == mini.total_steps for values in arrays.values())
    found = qlearning_dataset(mini)
    assert found["observations"].ndim == 2
    assert found["observations"].dtype == np.float32


def test_arrays_that_do_not_fit_are_refused():
    arrays = seeded_arrays(0, rows=9, timeouts=False, dtype="float32")
    with pytest.raises(ValueError, match="give max_episode_steps"):
        qlearning_dataset(arrays)
    with pytest.raises(ValueError, match="give max_episode_steps"):
        list(sequence_dataset(arrays))
    with pytest.raises(SchemaError, match=r"metadata has shape \(\), but rewards have 9 rows"):
        qlearning_dataset({**arrays, "metadata": np.array(3)}, max_episode_steps=5)
    del arrays["terminals"]
    with pytest.raises(SchemaError, match="found no terminals"):
        qlearning_dataset(arrays, max_episode_steps=5)


def test_what_has_no_fixed_shape_is_refused_by_name(write, make):
    rng = np.random.default_rng(0)
    space = spaces.Dict({"text": spaces.Text(5), "place": BOX})
    dataset = write([make(space, ACTION, length=3, end="cut", rng=rng)], space, ACTION)
    with pytest.raises(SchemaError, match="column observations/text holds no numbers"):
        d4rl_arrays(dataset)


@pytest.fixture
def from_file(tmp_path):
    """Return a function that writes D4RL's arrays into a file and reads that into a dataset."""

    def read_back(arrays):
        path = write(tmp_path / "file.hdf5", arrays)
        return read(path, tmp_path / "store")[0]

    return read_back


def arrays_of_a_file(*, rows, last):
    arrays = seeded_arrays(3, rows=rows, timeouts=True, dtype="float32")
    before = np.append(True, (arrays["terminals"] | arrays["timeouts"])[:-1])
    arrays["timeouts"] &= ~before  # episodes of one step that timed out are not read
    for name in ("terminals", "timeouts"):
        arrays[name][-2:] = [False, name == last]
    return arrays


@pytest.mark.parametrize("last", ["terminals", "timeouts", "cut"])
def test_transitions_of_a_file_are_d4rls(from_file, last):
    arrays = arrays_of_a_file(rows=500, last=last)
    dataset = from_file(arrays)
    assert dataset.total_steps < 500
    assert digest_of([qlearning_dataset(dataset)]) == digest_of([qlearning_dataset(arrays)])


def test_last_steps_that_were_never_read_are_missing_with_a_warning(from_file):
    arrays = arrays_of_a_file(rows=500, last="timeouts")
    dataset = from_file(arrays)
    lost = int((arrays["timeouts"] & ~arrays["terminals"]).sum())
    with pytest.warns(UserWarning, match=f"last steps of {lost} episodes"):
        pieces = list(sequence_dataset(dataset))
    theirs = list(sequence_dataset(arrays))
    assert len(pieces) == len(theirs)
    for ours, piece in zip(pieces, theirs, strict=True):
        kept = len(piece["rewards"]) - (not piece["terminals"][-1])
        for name, values in ours.items():
            np.testing.assert_array_equal(values, piece[name][:kept], strict=True)
    with pytest.warns(UserWarning, match=f"last steps of {lost - 1} episodes"):  # the last row never counts
        found = qlearning_dataset(dataset, terminate_on_end=True)
    assert len(found["rewards"]) == 500 - lost
