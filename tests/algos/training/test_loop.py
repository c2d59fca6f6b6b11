import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.algos.training.loop import train
from orlog.errors import AlgorithmError
from orlog.loaders.batch import Batch


class Recorder:
    """An algorithm whose loss is the first reward of the batch."""

    def __init__(self):
        self.seen = []

    def update(self, batch):
        self.seen.append(batch.rewards.item())
        return {"loss": batch.rewards[0], "double": 2 * batch.rewards[0]}

    def act(self, observations):
        return observations


def numbered(first=0, *, diverges_at=-1, value=math.nan):
    for index in itertools.count(first):
        number = torch.tensor([value if index == diverges_at else float(index)])
        yield Batch(number[None], number[None], number, number[None], number, number)


@settings(deadline=None)
@given(first=st.integers(0, 20), count=st.integers(0, 20), every=st.integers(1, 8))
def test_it_yields_means_at_multiples_and_at_the_end(first, count, every):
    recorder = Recorder()
    last = first + count
    found = list(train(recorder, numbered(first), first_step=first, last_step=last, every=every))
    steps = [step for step in range(first + 1, last + 1) if step % every == 0 or step == last]
    assert [step for step, _ in found] == steps
    assert recorder.seen == list(range(first, last))
    for before, (step, metrics) in zip([first, *steps], found, strict=False):
        batches = range(before, step)  # step n takes batch n - 1
        mean = sum(batches) / len(batches)
        assert metrics == pytest.approx({"loss": mean, "double": 2 * mean})


@settings(deadline=None)
@given(cut=st.integers(1, 19), every=st.integers(1, 8))
def test_a_loop_that_is_cut_at_any_step_goes_on_with_the_same_means(cut, every):
    whole = list(train(Recorder(), numbered(), last_step=20, every=every))
    sums = {}
    first = []
    for step, metrics in train(Recorder(), numbered(), last_step=20, every=every, sums=sums, pauses=lambda: True):
        if step % every == 0:
            first.append((step, metrics))
        else:
            assert metrics == {}
        if step == cut:
            break
    saved = {name: float(value) for name, value in sums.items()}
    second = train(Recorder(), numbered(cut), first_step=cut, last_step=20, every=every, sums=saved)
    assert first + list(second) == whole


def test_no_batch_is_taken_that_is_not_used():
    batches = numbered()
    list(train(Recorder(), batches, last_step=3, every=2))
    assert next(batches).rewards.item() == 3


def test_means_do_not_change_the_metrics_of_the_algorithm():
    class Constant(Recorder):
        value = torch.ones(())

        def update(self, batch):
            super().update(batch)
            return {"loss": self.value}

    constant = Constant()
    means = [metrics["loss"] for _, metrics in train(constant, numbered(), last_step=9, every=3)]
    assert means == [1, 1, 1]
    assert constant.value.item() == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverges_stops_at_the_next_report(value):
    recorder = Recorder()
    reports = train(recorder, numbered(diverges_at=6, value=value), last_step=100, every=5)
    assert next(reports)[0] == 5
    with pytest.raises(FloatingPointError, match="loss is not finite after 10 steps"):
        next(reports)
    assert len(recorder.seen) == 10


def test_batches_that_run_out_are_an_error():
    with pytest.raises(ValueError, match="no more batches after step 2 of 5"):
        list(train(Recorder(), itertools.islice(numbered(), 2), last_step=5, every=5))


class Returning:
    """An algorithm whose update returns what it was made with."""

    def __init__(self, result):
        self.result = result

    def update(self, _batch):
        return self.result


def test_updates_may_return_any_number_or_nothing():
    gradient = torch.tensor(1.5, requires_grad=True)
    for number in (1.5, np.float32(1.5), np.array(1.5), torch.tensor([1.5]), gradient):
        assert [*train(Returning({"loss": number}), numbered(), last_step=3, every=3)] == [(3, {"loss": 1.5})]
    assert [*train(Returning(None), numbered(), last_step=3, every=3)] == [(3, {})]


@pytest.mark.parametrize("result", [0.5, torch.zeros(()), {"loss": torch.zeros(2)}, {"loss": "low"}])
def test_what_else_updates_return_is_refused_in_one_line(result):
    with pytest.raises(AlgorithmError, match=r"Returning\.update: expected a dict"):
        [*train(Returning(result), numbered(), last_step=3, every=3)]
