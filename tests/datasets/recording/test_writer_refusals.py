"""What does not fit is refused whole, and nothing of it is written."""

import dataclasses
import re
import shutil

import numpy as np
import pytest
from gymnasium import spaces

from orlog import DatasetWriter
from orlog.datasets.home.folders import datasets_folder
from orlog.errors import SchemaError
from tests.datasets.recording.arms import (
    ACTIONS,
    EPISODES,
    NAME,
    add,
    add_in_pieces,
    append,
    assert_same_episode,
    digest_of,
    finished,
    make_episode,
    opened,
    pieces_of,
    record,
    start,
)

pytestmark = pytest.mark.usefixtures("small_shards")


# A part of an episode, its new value or what makes it of the old one, and what the error says: in words, or
# what it expected in the part's column and what it found. There, ".." stands for any words.


def flag_at(step):
    flags = np.zeros(8, np.bool_)
    flags[step] = True
    return flags


UNFIT = [
    ("actions", lambda a: a[:-1], "column actions: expected 8 rows, found 7"),
    ("observations", lambda o: o[:-1], "observations: expected 9 rows, found 8 .. one row more"),
    ("truncations", flag_at(7)[:-1], "column truncations: expected 8 rows, found 7"),
    ("observations", lambda o: o.astype(np.float64), "float32 (9, 3)", "float64 (9, 3)"),
    ("observations", lambda o: {"position": o}, "float32 (9, 3)", "a dict of 1"),
    ("actions", np.arange(8) // 2 + 1, "column actions, row 6: expected 0 to 3, found 4"),
    ("actions", lambda a: a[:, None], "int64 (8,)", "int64 (8, 1)"),
    ("rewards", lambda r: [*map(str, r)], "", "a list of 8 str"),
    ("terminations", np.zeros(8), "bool (8,)", "float64 (8,) .. astype(bool)"),
    ("truncations", np.full(8, np.nan), "bool (8,)", "float64 (8,), 8 of them not finite"),
    ("terminations", flag_at(3), "column terminations: true at step 3 of 8"),
    ("infos.note", lambda texts: [*texts[:-1], b"x"], "infos/note: expected "),
    ("infos.note", lambda texts: [*texts[:-1], "\ud800"], "column infos/note: not valid UTF-8"),
    ("infos.hits", lambda hits: [*hits[:-1], np.zeros((1, 2))], "int64 (1, 2)", "float64 (1, 2)"),
    ("seed", 2**63, f"a seed lies in [0, 2^63), found {2**63}"),
    ("seed", 1.5, "seed .. 1.5"),
    ("metadata.weight", [[1.0], [1.0, 2.0]], "column episodes/weight: expected"),
    ("rewards", None, "column rewards: expected"),
]
# What the first episode has, the others must have.
UNLIKE_THE_FIRST = [
    ("infos.force", np.zeros(8), "expected the columns ['infos/hits', .. found ['infos/force'"),
    ("metadata", {}, "expected the columns ['episodes/task', 'episodes/weight'] .. found []"),
    ("infos.torque", lambda t: t.astype(np.float64), "float32 (8, 2)", "float64 (8, 2)"),
    ("infos.note", np.zeros(8), "a list of 8 texts", "float64 (8,)"),
    ("metadata.weight", 3, "float64 (1,)", "int64 (1,)"),
]


def changed(episode, part, value):
    """Return an episode with another part; a function is called with what was there."""
    field, _, key = part.partition(".")
    old = getattr(episode, field)
    if key:
        value = {**old, key: value(old[key]) if callable(value) else value}
    elif callable(value):
        value = value(old)
    return dataclasses.replace(episode, **{field: value})


def not_refused(writer, where, wrong):
    """Add wrong episodes; return those that were taken, or refused in other words or at length."""
    found = {}
    for number, (part, value, *says) in enumerate(wrong):
        if len(says) == 2:
            column = part.replace("metadata.", "episodes.").replace(".", "/")
            says = [f"column {column}: expected {says[0] or ' .. '}, found {says[1]}"]
        message = ".*".join(map(re.escape, says[0].split(" .. ")))
        try:
            writer.add_episode(changed(make_episode(99, 8), part, value))
        except SchemaError as error:
            if re.search(f"({where}|^Episode).*{message}", str(error)) is None or len(str(error)) >= 1000:
                found[f"{number}: {part}"] = str(error)
        else:
            found[f"{number}: {part}"] = "taken"
    return found


def check_refused(before, wrong):
    """Try wrong episodes after some good ones, and compare with a run that never saw them."""
    with start() as writer:
        add(writer, EPISODES[:before])
        assert not_refused(writer, rf"{NAME}@1\.0\.0, episode {before}\b", wrong) == {}
        assert writer.total_episodes == before
        add(writer, EPISODES[before:3])
    assert opened(writer).digest == digest_of(3)


@pytest.mark.parametrize("before", [0, 1])
def test_what_does_not_fit_is_refused_whole(before):
    check_refused(before, UNFIT)


def test_what_is_unlike_the_first_episode_is_refused_whole():
    check_refused(1, UNLIKE_THE_FIRST)


@pytest.mark.parametrize("kind", ["infos", "metadata"])
def test_what_cannot_name_a_column_is_refused(kind):
    value = {"infos": np.zeros(8), "metadata": 1.0}[kind]
    names = ["", "/", "a/", "/a", "../a", "a/..", ".a", "a b", "a@b", "a\\b", "ä", "a\n", "x" * 200]
    # Every dataset has columns of these names.
    names += ["lengths", "returns", "seeds"] if kind == "metadata" else []
    check_refused(0, [(kind, {name: value}, "cannot name a column") for name in names])


def test_infos_of_no_type_that_can_be_stored_are_refused():
    values = [
        None,
        [None] * 8,
        np.float32(3),
        np.array(["a"] * 8),
        np.zeros(8, complex),
        np.zeros(8, "M8[s]"),
        np.zeros(8, np.longdouble),
        np.zeros(8, object),
        tuple(range(8)),
        ["a", 3, *"bcdefg"],
        {"a": np.zeros(8)},
    ]
    message = "column infos/x: expected an array of numbers"
    check_refused(0, [("infos", {"x": value}, message) for value in values])


def test_observations_may_have_no_numbers():
    nothing = spaces.Box(0, 1, (0,), np.float32)
    episodes = [make_episode(number, 4, observations=np.zeros((5, 0), np.float32)) for number in range(3)]

    def begin(**arguments):
        return DatasetWriter(NAME, observation_space=nothing, action_space=ACTIONS, **arguments)

    writer = add(begin(), episodes[:1])
    writer.checkpoint()
    writer.close()
    dataset = finished(begin(resume=True), episodes[1:])
    for found, expected in zip(dataset, episodes, strict=True):
        assert_same_episode(found, expected)


@pytest.mark.parametrize("reward", [np.inf, -np.inf, np.nan, 1e308], ids=["inf", "minus inf", "nan", "overflow"])
def test_a_return_that_is_no_number_does_not_stop_the_recording(reward):
    long = make_episode(0, 4, rewards=np.full(4, reward))
    opposite = make_episode(1, 2, rewards=np.array([np.inf, -np.inf]))
    with start() as writer:
        for episode in (long, opposite):
            writer.add_episode(episode)
            add_in_pieces(writer, episode, [1])
    returns = opened(writer).column("episodes/returns")
    np.testing.assert_array_equal(returns[[0, 2]], returns[[1, 3]])
    assert np.isnan(returns[2])


def test_steps_that_do_not_fit_are_refused_and_the_episode_goes_on():
    episode = make_episode(4, 20)
    writer = start(version="1.0.0")
    add_in_pieces(writer, episode, [8])
    writer.finish()
    expected = opened(writer).digest
    shutil.rmtree(datasets_folder())

    first, second = pieces_of(episode, [8])
    writer = start()
    for message, wrong in {
        "observations: expected 9 rows, found 8": {"observations": first["observations"][:-1]},
        "true at step 2": {"truncations": flag_at(2)},
        "expected bool": {"terminations": np.zeros(8)},
    }.items():
        with pytest.raises(SchemaError, match=f"{NAME}@1.0.0, episode 0.*{message}"):
            writer.add_steps(**{**first, **wrong})
    with pytest.raises(SchemaError, match="no steps"):
        writer.add_steps(**{name: values[:0] for name, values in first.items() if name != "infos"})
    writer.add_steps(**first)
    rows = np.concatenate([first["observations"][-1:], second["observations"]])
    unlike = {"observations: expected 12 rows, found 13": {"observations": rows}, "expected the columns": {"infos": {}}}
    for message, change in unlike.items():
        with pytest.raises(SchemaError, match=f"{NAME}@1.0.0, episode 0.*{message}"):
            writer.add_steps(**{**second, **change})
    with pytest.raises(SchemaError, match=r"has steps already; end_episode closes it"):
        writer.add_episode(episode)
    with pytest.raises(SchemaError, match=r"is not ended; call end_episode"):
        writer.finish()
    writer.add_steps(**second)
    with pytest.raises(SchemaError, match=r"step 20 comes after the episode's end"):
        writer.add_steps(**second)
    for seed, metadata in ((-1, {}), (None, {"bad name": 1}), (None, {"x": object()})):
        with pytest.raises(SchemaError, match="episode 0"):
            writer.end_episode(seed=seed, metadata=metadata)
    writer.end_episode(seed=episode.seed, metadata=episode.metadata)
    with pytest.raises(SchemaError, match="episode 1: has no steps"):
        writer.end_episode()
    writer.finish()
    assert opened(writer).digest == expected


def test_what_is_appended_fits_what_is_there():
    base = record(EPISODES[:1])
    expected = append(base, EPISODES[1:3], version="1.0.5").manifest
    with DatasetWriter.append(base) as writer:
        where = rf"{NAME}@1\.1\.0, episode \d+\b"
        assert not_refused(writer, where, [*UNFIT, *UNLIKE_THE_FIRST]) == {}
        with pytest.raises(SchemaError, match=rf"{NAME}@1\.1\.0"):
            add_in_pieces(writer, make_episode(98, 8, infos={"other": np.zeros(8)}), [])
        add(writer, EPISODES[1:3])
    assert opened(writer).manifest.columns == expected.columns
