"""Steps of numbers are kept as they came, compiled or not; what does not fit is left alone."""

from __future__ import annotations

import itertools
import os
import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.recording import recorder, rows
from orlog.datasets.recording.rows import PlainRows, Rows, make_rows
from orlog.errors import SchemaError
from orlog.manifests.manifest import Part
from tests.levels import scaled

COMPILED = pytest.mark.skipif(rows._compiled is None, reason="no compiler was here")
DTYPES = (np.float64, np.float32, np.int64, np.uint8, np.int8)


def both(observation: spaces.Box, action: spaces.Box) -> list[Rows]:
    """Return the compiled form, if it is there, and the other one."""
    sizes = tuple(one.dtype.itemsize * one.shape[0] for one in (observation, action))
    return [
        make_rows(observation, action),
        PlainRows((observation.dtype, action.dtype), (sizes[0], sizes[1])),
    ]


def box(numbers: int, dtype: Any = np.float64) -> spaces.Box:
    return spaces.Box(0, 100, (numbers,), dtype)


@pytest.mark.parametrize("form", [0, 1])
def test_what_fits_is_kept_and_nothing_else(form: int) -> None:
    kept = both(box(3), box(2, np.float32))[form]
    long = np.arange(6.0)
    fitting = long[:3], long[2:5], long.reshape(2, 3)[1], long[:3].tobytes()
    readonly = long[3:].copy()
    readonly.flags.writeable = False
    for value in (*fitting, readonly):
        assert kept.start(value)
    others = (
        long[::2],
        long[:2],
        long,
        long[:3].reshape(3, 1),
        long[:3].reshape(1, 3),
        np.array(1.0),
    )
    swapped = long[:3].astype(">f8")
    for value in (
        *others,
        swapped,
        long[:3].astype(np.int64),
        long[::-1][:3],
        [0, 1, 2],
        None,
        b"",
        3,
    ):
        assert not kept.start(value)
    assert not kept.start(long[:3].view(np.recarray))
    assert kept.take() == (b"", b"", b"")


@pytest.mark.parametrize("form", [0, 1])
def test_results_that_are_odd_leave_everything_as_it_was(form: int) -> None:
    kept = both(box(2), box(1))[form]
    row = np.array([1.0, 2.0])
    kept.start(row)
    assert kept.keep_action(np.ones(1))
    odd_ones: list[Any] = [
        (row, 1, False, False, {}),
        (row, np.float32(1), False, False, {}),
        (row, True, False, False, {}),
        (row[:1], 1.0, False, False, {}),
        (row, 1.0, False, False),
        [row, 1.0, False, False, {}],
        None,
    ]
    for odd in odd_ones:
        assert kept.keep_result(odd, 9) is None
        assert len(kept) == 0
    assert kept.keep_result((row, 0.5, False, np.False_, {}), 9) is True
    assert kept.keep_action(np.zeros(1))
    assert kept.keep_action(np.full(1, 7.0))  # in place of one that was never taken
    assert kept.keep_result((row, np.float64(2), False, True, {}), 9) is False
    assert kept.keep_result((row, 3.0, False, False, {}), 9) is None  # there is no action
    assert kept.keep_action(np.full(1, 8.0))
    assert kept.keep_result((row, 3.0, False, None, {}), 9) is False
    assert kept.keep_action(np.full(1, 9.0))
    assert kept.keep_result((row, 4.0, False, False, {}), 4) is False
    observations, actions, rewards = (np.frombuffer(one) for one in kept.take())
    assert observations.tolist() == [1, 2] * 5
    assert actions.tolist() == [1, 7, 8, 9]
    assert rewards.tolist() == [0.5, 2, 3, 4]
    assert len(kept) == 0


@pytest.mark.parametrize("form", [0, 1])
def test_rows_without_numbers_and_long_ones(form: int) -> None:
    for numbers in (0, 1, 70_000):
        kept = both(box(numbers, np.uint8), box(0))[form]
        row = np.full(numbers, 3, np.uint8)
        assert kept.start(row)
        for _ in range(130):
            assert kept.keep_action(np.zeros(0))
            assert kept.keep_result((row, 1.0, False, False, {}), 999)
        assert kept.take() == (row.tobytes() * 131, b"", np.ones(130).tobytes())


class Scripted(gymnasium.Env[Any, Any]):
    """Gives what a generator says, in many forms, and changes its arrays in place afterwards."""

    def __init__(
        self, rng: np.random.Generator, observation: spaces.Space[Any], action: spaces.Space[Any]
    ) -> None:
        self.observation_space, self.action_space, self.rng = observation, action, rng
        self.given: list[np.ndarray] = []

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation(), {}

    def observation(self) -> Any:
        for old in self.given:
            old[...] = 0
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            return {key: any_form(self.rng, part, self.given) for key, part in space.items()}
        return any_form(self.rng, space, self.given)

    def step(self, action: Any) -> Any:
        chance = self.rng.integers(60)
        if chance == 0:
            raise KeyboardInterrupt
        if isinstance(action, np.ndarray):
            action[...] = 0
        number = self.rng.integers(-3, 4)
        forms = float, np.float64, float, np.float32, int, np.int64
        reward = forms[self.rng.integers(3 if chance < 40 else 6)](number)
        flag = (bool, np.bool_)[self.rng.integers(2)]
        return self.observation(), reward, flag(chance in (1, 2)), flag(chance in (2, 3)), {}


def any_form(rng: np.random.Generator, space: Any, given: list[np.ndarray]) -> np.ndarray:
    """Return numbers of a space, contiguous or not."""
    numbers = rng.integers(0, 100, (2, *space.shape)).astype(space.dtype)
    if rng.integers(4) == 0:
        numbers = np.repeat(numbers, 2, axis=-1)[..., ::2]
    given.append(numbers)
    found: np.ndarray = numbers[0]
    return found


NAMES = (f"lab/form-{number}-v1" for number in itertools.count())


def record(seed: int, observation: spaces.Space[Any], action: spaces.Box) -> list[Part]:
    """Record some steps, refused and interrupted ones among them; return what was stored."""
    rng, name = np.random.default_rng(seed), next(NAMES)
    with orlog.record(Scripted(rng, observation, action), name) as env:
        env.reset(seed=1)
        for _ in range(90):
            ended = False
            if rng.integers(20) == 0:
                with pytest.raises(SchemaError):
                    env.step("no action")
            try:
                _, _, *flags, _ = env.step(any_form(rng, action, []))
                ended = any(flags)
            except KeyboardInterrupt:
                ended = True
            if ended or rng.integers(30) == 0:
                env.reset(seed=int(rng.integers(9)))
    return orlog.load_dataset(name).manifest.parts


@COMPILED
@settings(
    deadline=None,
    max_examples=scaled(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 2**32 - 1),
    numbers=st.tuples(st.integers(0, 40), st.integers(1, 9)),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    block_steps=st.sampled_from([1, 7, 1024]),
    nested=st.booleans(),
)
def test_recordings_are_the_same_without_the_compiled_part(
    seed: int, numbers: tuple[int, int], dtypes: tuple[Any, Any], block_steps: int, nested: bool
) -> None:
    observation: spaces.Space[Any] = box(numbers[0], dtypes[0])
    if nested:
        observation = spaces.Dict({"a": observation, "b": box(2)})
    stored = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(recorder, "BLOCK_STEPS", block_steps)
        for compiled in (rows._compiled, None):
            patch.setattr(rows, "_compiled", compiled)
            stored.append(record(seed, observation, box(numbers[1], dtypes[1])))
    assert stored[0] == stored[1]


def test_a_step_that_is_interrupted_between_action_and_environment_is_forgotten() -> None:
    kept = make_rows(box(1), box(1))
    kept.start(np.zeros(1))
    for number in (1.0, 2.0):
        kept.keep_action(np.full(1, number))
    kept.keep_result((np.ones(1), 0.0, False, False, {}), 9)
    assert np.frombuffer(kept.take()[1]).tolist() == [2]


@COMPILED
def test_the_compiled_part_holds_on_to_nothing() -> None:
    row, reward = np.ones(3), np.float64(0.1)
    result: Any = (row, reward, False, False, {})
    before = [sys.getrefcount(one) for one in (row, reward, row.dtype, np.ndarray, result)]
    kept = make_rows(box(3), box(3))
    kept.start(row)
    for _ in range(200):
        kept.keep_action(row)
        kept.keep_action("nothing")
        kept.keep_result(result, 9)
        kept.keep_result((row, 1, False, False, {}), 9)
    kept.take()
    del kept
    assert [sys.getrefcount(one) for one in (row, reward, row.dtype, np.ndarray, result)] == before


@COMPILED
def test_arguments_that_make_no_sense() -> None:
    compiled: Any = rows._compiled
    with pytest.raises(TypeError):
        compiled()
    for wrong in (-1, 2**40):
        with pytest.raises(ValueError, match="so many bytes"):
            compiled(np.ndarray, np.float64, np.False_, None, wrong, None, 8)
    with pytest.raises(OverflowError):
        compiled(np.ndarray, np.float64, np.False_, None, 2**70, None, 8)
    kept: Any = make_rows(box(1), box(1))
    for arguments in ((), (None,), (None, None), (None, 2**70)):
        with pytest.raises((TypeError, OverflowError)):
            kept.keep_result(*arguments)


def test_it_works_where_nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orlog.datasets.recording._rows", None)
    monkeypatch.setattr(rows, "_compiled", rows._load())
    assert isinstance(make_rows(box(1), box(1)), PlainRows)


def test_what_was_compiled_of_another_version_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = types.SimpleNamespace(Rows=PlainRows)
    monkeypatch.setitem(sys.modules, "orlog.datasets.recording._rows", old)
    assert rows._load() is None
    old.version = rows._VERSION
    assert rows._load() is PlainRows
