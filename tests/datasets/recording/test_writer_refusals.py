"""What does not fit is refused whole, and nothing of it is written."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.recording.writer import DatasetWriter
from orlog.errors import SchemaError
from tests.datasets.recording.arms import (
    ACTIONS,
    EPISODES,
    NAME,
    add_in_pieces,
    append,
    assert_same_episode,
    digest_of,
    make_episode,
    opened,
    pieces_of,
    record,
    start,
)

pytestmark = pytest.mark.usefixtures("small_shards")


def changed(**fields: Any) -> Callable[[Episode], Episode]:
    """Return a change of fields; a function is called with the value that was there."""

    def change(episode: Episode) -> Episode:
        new = {
            name: value(getattr(episode, name)) if callable(value) else value
            for name, value in fields.items()
        }
        return dataclasses.replace(episode, **new)

    return change


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {key: value for key, value in values.items() if key != name}


def with_(**more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {
        **values,
        **{
            key: value(values.get(key)) if callable(value) else value for key, value in more.items()
        },
    }


def flag_at(step: int) -> np.ndarray:
    flags = np.zeros(8, np.bool_)
    flags[step] = True
    return flags


NO_FLAGS = np.zeros(8)
UNFIT: dict[str, tuple[Callable[[Episode], Episode], str]] = {
    "too few actions": (
        changed(actions=lambda a: a[:-1]),
        r"column actions: expected int64 \(8,\), found int64 \(7,\)",
    ),
    "too many actions": (
        changed(actions=lambda a: np.append(a, 0)),
        r"column actions: expected int64 \(8,\), found int64 \(9,\)",
    ),
    "as many observations as actions": (
        changed(observations=lambda o: o[:-1]),
        r"column observations: expected float32 \(9, 3\), found float32 \(8, 3\).*one row more",
    ),
    "too few rewards": (changed(rewards=lambda r: r[:-1]), r"column .*expected .*, found "),
    "short terminations": (
        changed(terminations=flag_at(7)[:-1]),
        r"column terminations: expected bool \(8,\), found bool \(7,\)",
    ),
    "short truncations": (
        changed(truncations=flag_at(7)[:-1]),
        r"column truncations: expected bool \(8,\), found bool \(7,\)",
    ),
    "observations of double precision": (
        changed(observations=lambda o: o.astype(np.float64)),
        r"column observations: expected float32 \(9, 3\), found float64 \(9, 3\)",
    ),
    "wide observations": (
        changed(observations=lambda o: np.repeat(o, 2, 1)),
        r"column observations: expected float32 \(9, 3\), found float32 \(9, 6\)",
    ),
    "a dict of observations": (
        changed(observations=lambda o: {"position": o}),
        r"column observations: expected float32 \(9, 3\), found a dict of 1",
    ),
    "actions of 32 bits": (
        changed(actions=lambda a: a.astype(np.int32)),
        r"column actions: expected int64 \(8,\), found int32 \(8,\)",
    ),
    "an action that there is not": (
        changed(actions=np.array([0, 1, 2, 3, 4, 0, 0, 0])),
        r"column actions, row 4: expected 0 to 3, found 4",
    ),
    "a column of rewards": (
        changed(rewards=lambda r: r[:, None]),
        r"column rewards: expected .*, found float64 \(8, 1\)",
    ),
    "rewards as a list of texts": (
        changed(rewards=lambda r: list(map(str, r))),
        r"column rewards: expected .*, found a list of 8 str",
    ),
    "terminations as numbers": (
        changed(terminations=NO_FLAGS),
        r"column terminations: expected bool \(8,\), found float64 \(8,\).*astype\(bool\)",
    ),
    "truncations with NaN": (
        changed(truncations=np.where(flag_at(7), np.nan, 0.0)),
        r"column truncations: expected bool \(8,\), found float64 \(8,\), 1 of them not finite",
    ),
    "a termination inside": (
        changed(terminations=flag_at(3)),
        r"column terminations: true at step 3 of 8",
    ),
    "a truncation inside": (
        changed(truncations=flag_at(0)),
        r"column truncations: true at step 0 of 8",
    ),
    "no steps": (
        changed(
            **{
                name: lambda values: values[:0]
                for name in ("actions", "rewards", "terminations", "truncations")
            },
            observations=lambda o: o[:1],
        ),
        "has no steps",
    ),
    "short infos": (
        changed(infos=with_(torque=lambda t: t[:-1])),
        r"column infos/torque: expected float32 \(8, 2\), found float32 \(7, 2\)",
    ),
    "a text too few": (
        changed(infos=with_(note=lambda texts: texts[:-1])),
        r"column infos/note: expected a list of 8 texts, found a list of 7 str",
    ),
    "a text that is none": (
        changed(infos=with_(note=lambda texts: [*texts[:-1], b"x"])),
        r"column infos/note: expected text, found b'x' \(bytes\)|infos/note: expected an array",
    ),
    "a text that UTF-8 does not know": (
        changed(infos=with_(note=lambda texts: [*texts[:-1], "\ud800"])),
        r"column infos/note: not valid UTF-8",
    ),
    "a row of another shape": (
        changed(infos=with_(hits=lambda hits: [*hits[:-1], np.zeros((1, 3), np.int64)])),
        r"column infos/hits: expected int64 \(1, 2\), found int64 \(1, 3\)",
    ),
    "a row of another type": (
        changed(infos=with_(hits=lambda hits: [*hits[:-1], np.zeros((1, 2))])),
        r"column infos/hits: expected int64 \(1, 2\), found float64 \(1, 2\)",
    ),
    "a negative seed": (changed(seed=-1), r"a seed lies in \[0, 2\^63\), found -1"),
    "a seed of 64 bits": (changed(seed=2**63), rf"a seed lies in \[0, 2\^63\), found {2**63}"),
    "half a seed": (changed(seed=1.5), r"seed.*1\.5"),
    "a seed in words": (changed(seed="seven"), r"seed.*seven"),
    "rows of metadata that are not alike": (
        changed(metadata=with_(weight=[[1.0], [1.0, 2.0]])),
        "column episodes/weight: expected",
    ),
    "no rewards at all": (changed(rewards=None), "column rewards: expected"),
    "one reward": (changed(rewards=np.float64(1)), "column rewards: expected"),
}
# What the first episode has, the others must have.
UNLIKE_THE_FIRST: dict[str, tuple[Callable[[Episode], Episode], str]] = {
    "infos that are missing": (
        changed(infos=without("note")),
        r"expected the columns \['infos/hits', 'infos/note', .*found \['infos/hits', 'infos/torque'\]",
    ),
    "infos that are new": (
        changed(infos=with_(force=np.zeros(8))),
        r"expected the columns \['infos/hits'.*found \['infos/force', 'infos/hits'",
    ),
    "metadata that are missing": (
        changed(metadata={}),
        r"expected the columns \['episodes/task', 'episodes/weight'\].*found \[\]",
    ),
    "metadata that are new": (
        changed(metadata=with_(height=1.0)),
        r"expected the columns \['episodes/task', 'episodes/weight'\].*'episodes/height'",
    ),
    "infos of another type": (
        changed(infos=with_(torque=lambda t: t.astype(np.float64))),
        r"column infos/torque: expected float32 \(8, 2\), found float64 \(8, 2\)",
    ),
    "numbers in place of text": (
        changed(infos=with_(note=np.zeros(8))),
        r"column infos/note: expected a list of 8 texts, found float64 \(8,\)",
    ),
    "a number in place of text": (
        changed(metadata=with_(task=3.0)),
        r"column episodes/task: expected a list of 1 texts, found float64 \(1,\)",
    ),
    "a text in place of a number": (
        changed(metadata=with_(weight="heavy")),
        r"column episodes/weight: expected float64 \(1,\), found a list of 1 str",
    ),
    "a whole number in place of another": (
        changed(metadata=with_(weight=3)),
        r"column episodes/weight: expected float64 \(1,\), found int64 \(1,\)",
    ),
    "nothing in place of a number": (
        changed(metadata=with_(weight=None)),
        r"column episodes/weight: expected float64 \(1,\), found",
    ),
}


def not_refused(
    writer: DatasetWriter, where: str, wrong: Mapping[str, tuple[Callable[[Episode], Episode], str]]
) -> dict[str, str]:
    """Add wrong episodes; return those that were taken, or refused in other words or at length."""
    found = {}
    for name, (change, message) in wrong.items():
        try:
            writer.add_episode(change(make_episode(99, 8)))
        except SchemaError as error:
            if re.search(f"{where}.*{message}", str(error)) is None or len(str(error)) >= 1000:
                found[name] = str(error)
        else:
            found[name] = "taken"
    return found


def check_refused(
    before: int, wrong: Mapping[str, tuple[Callable[[Episode], Episode], str]]
) -> None:
    """Try wrong episodes after some good ones, and compare with a run that never saw them."""
    with start() as writer:
        for episode in EPISODES[:before]:
            writer.add_episode(episode)
        assert not_refused(writer, rf"{NAME}@1\.0\.0, episode {before}\b", wrong) == {}
        assert writer.total_episodes == before
        for episode in EPISODES[before:3]:
            writer.add_episode(episode)
    assert opened(writer).digest == digest_of(3)


@pytest.mark.parametrize("before", [0, 1])
def test_what_does_not_fit_is_refused_whole(before: int) -> None:
    check_refused(before, UNFIT)


def test_what_is_unlike_the_first_episode_is_refused_whole() -> None:
    check_refused(1, UNLIKE_THE_FIRST)


@pytest.mark.parametrize("kind", ["infos", "metadata"])
def test_what_cannot_name_a_column_is_refused(kind: str) -> None:
    values = {"infos": np.zeros(8), "metadata": 1.0}[kind]
    names = ["", "/", "a/", "/a", "../a", "a/..", ".a", "a b", "a@b", "a\\b", "ä", "a\n", "x" * 200]
    check_refused(
        0, {name: (changed(**{kind: {name: values}}), "cannot name a column") for name in names}
    )


def test_names_that_every_dataset_has_are_not_taken() -> None:
    names = ("lengths", "returns", "seeds")
    check_refused(
        0, {name: (changed(metadata={name: 1.0}), "cannot name a column") for name in names}
    )


def test_names_that_would_clash_with_each_other_or_with_files_are_refused() -> None:
    clashing: list[tuple[Any, ...]] = [("a", "a/b"), ("a", "a/c"), ("a/c", "a"), ("zarr.json",)]
    clashing += [("a/zarr.json",), (5,)]
    check_refused(
        0,
        {
            str(names): (
                changed(infos=dict.fromkeys(names, np.zeros(8))),
                "cannot name a column|name",
            )
            for names in clashing
        },
    )


def test_infos_of_no_type_that_can_be_stored_are_refused() -> None:
    values: list[Any] = [
        None,
        [],
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
    message = r"column infos/x: expected an array of numbers"
    check_refused(0, {repr(value): (changed(infos={"x": value}), message) for value in values})


@pytest.mark.parametrize(
    "value",
    [np.zeros((8, 0)), [np.zeros((2, 0))] * 8, [np.zeros(0)] * 8, [""] * 8],
    ids=["rows of nothing", "arrays of nothing", "empty arrays", "empty texts"],
)
def test_infos_may_hold_nothing(value: Any) -> None:
    episode = make_episode(0, 8, infos={"x": value}, metadata={"a": "", "b": np.zeros((0, 2))})
    dataset = record([episode, episode])
    for found in dataset:
        assert_same_episode(found, episode)


def test_observations_may_have_no_numbers() -> None:
    nothing = spaces.Box(0, 1, (0,), np.float32)
    episodes = [
        make_episode(number, 4, observations=np.zeros((5, 0), np.float32)) for number in range(3)
    ]

    def begin(**arguments: Any) -> DatasetWriter:
        return DatasetWriter(NAME, observation_space=nothing, action_space=ACTIONS, **arguments)

    writer = begin()
    writer.add_episode(episodes[0])
    writer.checkpoint()
    writer.close()
    with begin(resume=True) as writer:
        writer.add_episode(episodes[1])
        writer.add_episode(episodes[2])
    for found, expected in zip(opened(writer), episodes, strict=True):
        assert_same_episode(found, expected)


@pytest.mark.parametrize(
    "reward", [np.inf, -np.inf, np.nan, 1e308], ids=["inf", "minus inf", "nan", "overflow"]
)
def test_a_return_that_is_no_number_does_not_stop_the_recording(reward: float) -> None:
    long = make_episode(0, 4, rewards=np.full(4, reward))
    opposite = make_episode(1, 2, rewards=np.array([np.inf, -np.inf]))
    with start() as writer:
        for episode in (long, opposite):
            writer.add_episode(episode)
            add_in_pieces(writer, episode, [1])
    returns = opened(writer).column("episodes/returns")
    np.testing.assert_array_equal(returns[[0, 2]], returns[[1, 3]])
    assert np.isnan(returns[2])


def test_steps_that_do_not_fit_are_refused_and_the_episode_goes_on() -> None:
    episode = make_episode(4, 20)
    writer = start(version="1.0.0")
    add_in_pieces(writer, episode, [8])
    writer.finish()
    expected = opened(writer).digest
    shutil.rmtree(datasets_folder())

    first, second = pieces_of(episode, [8])
    writer = start()
    wrong: dict[str, dict[str, Any]] = {
        "expected float32 \\(9, 3\\), found float32 \\(8, 3\\)": {
            **first,
            "observations": first["observations"][:-1],
        },
        "column actions": {**first, "actions": first["actions"][:-1]},
        "true at step 2": {**first, "truncations": flag_at(2)},
        "no steps": {name: values[:0] for name, values in first.items() if name != "infos"},
        "expected bool": {**first, "terminations": NO_FLAGS},
    }
    for message, steps in wrong.items():
        with pytest.raises(SchemaError, match=f"{NAME}@1.0.0, episode 0.*{message}"):
            writer.add_steps(**steps)
    writer.add_steps(**first)
    wrong = {
        "found float32 \\(13, 3\\)": {
            **second,
            "observations": np.concatenate([first["observations"][-1:], second["observations"]]),
        },
        "expected the columns": {**second, "infos": {}},
        "infos/torque": {**second, "infos": {**second["infos"], "torque": np.zeros((12, 2))}},
    }
    for message, steps in wrong.items():
        with pytest.raises(SchemaError, match=f"{NAME}@1.0.0, episode 0.*{message}"):
            writer.add_steps(**steps)
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


def test_what_is_appended_fits_what_is_there() -> None:
    base = record(EPISODES[:1])
    expected = append(base, EPISODES[1:3], version="1.0.5").manifest
    with DatasetWriter.append(base) as writer:
        where = rf"{NAME}@1\.1\.0, episode \d+\b"
        assert not_refused(writer, where, {**UNFIT, **UNLIKE_THE_FIRST}) == {}
        with pytest.raises(SchemaError, match=rf"{NAME}@1\.1\.0"):
            add_in_pieces(writer, make_episode(98, 8, infos={"other": np.zeros(8)}), [])
        for episode in EPISODES[1:3]:
            writer.add_episode(episode)
    assert opened(writer).manifest.columns == expected.columns
