"""All algorithms on a real GPU: no waiting inside an update, numbers of the CPU, the same bits twice."""

import collections
import contextlib
import functools
import warnings
from pathlib import Path

import pytest
import torch

import orlog
from orlog.algos.algorithms import ALGORITHMS, algorithm_forms, own_errors
from orlog.algos.bc import BC
from orlog.algos.repeated_updates import Replays, updates_of
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import first_difference, load_checkpoint, read_run, save_checkpoint
from orlog.errors import AlgorithmError, StoppedError
from tests.algos.test_replays import SETTINGS, STEPS, updated
from tests.training import train_run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FORMS = [form for name in ALGORITHMS for form in algorithm_forms(name) if form.OBSERVATIONS != ("numbered",)]


@contextlib.contextmanager
def no_waiting():
    """Within this, an operation that waits for the GPU is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode itself warns that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def numbers(metrics):
    return {name: float(value) for name, value in metrics.items()}


def draws(algorithm):
    return any(isinstance(one, torch.Generator) for one in vars(algorithm).values())


@pytest.mark.parametrize("form", FORMS)
def test_updates_on_a_gpu(form, make, batches_of, tmp_path):
    there, again = make(form, device="cuda"), make(form, device="cuda")
    here = make(form)
    batches = batches_of(here, 4)
    save_checkpoint(there, tmp_path / "saved", metadata={})
    load_checkpoint(here, tmp_path / "saved", to_act=True)
    waits = not getattr(form, "REPLAYS", True)
    moved = [batch.to("cuda") for batch in batches]
    for step, (batch, same) in enumerate(zip(batches, moved, strict=True)):
        with contextlib.nullcontext() if waits or not step else no_waiting():
            metrics = there.update(same)
        found = numbers(metrics)
        assert found == numbers(again.update(same))
        expected = numbers(here.update(batch))
        if not draws(there):
            assert found == pytest.approx(expected, rel=2e-3, abs=2e-4), step
    tensors = there.__dict__.values()
    assert all(one.device.type == "cuda" for one in tensors if isinstance(one, torch.Tensor))


@pytest.mark.parametrize("form", [one for one in FORMS if getattr(one, "REPLAYS", True)])
def test_recorded_updates_have_the_bits_of_those_one_by_one(form, make, batches_of):
    known = form.CONFIG.__struct_fields__
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    plain = make(form, device="cuda", **settings)
    repeated = make(form, device="cuda", **settings)
    update = Replays(repeated)
    for step, given in enumerate(batches_of(make(form, **settings), STEPS)):
        batch = given.to("cuda")
        expected = numbers(updated(plain, batch))
        assert numbers(update(batch)) == expected, step
    assert update._kept
    assert not first_difference(plain, repeated)


def is_over(calls, after):
    return next(calls) >= after


def test_a_run_on_a_gpu_goes_on_to_the_same_bits(mini, tmp_path):
    options = {"seed": 0, "evaluations": 0, "device": "cuda", "steps": 60}
    options["settings"] = {"hidden": [16, 16], "batch_size": 32}
    for name in ("iql", "cql", "fql", "td3bc"):
        whole, parts = tmp_path / f"{name}-whole", tmp_path / f"{name}-parts"
        train_run(name, mini, whole, **options)
        for after in (7, 23):
            stop = functools.partial(is_over, iter(range(1000)), after)
            with pytest.raises(StoppedError):
                train_run(name, mini, parts, resume=parts.exists(), stop=stop, **options)
        train_run(name, mini, parts, resume=True, **options)
        assert read_run(whole).device == "cuda:0"
        files = sorted(one.relative_to(whole) for one in whole.rglob("*.safetensors"))
        assert files
        for file in files:
            assert (whole / file).read_bytes() == (parts / file).read_bytes(), (name, file)
        _, evaluation = evaluate_run(whole, dataset=mini, episodes=1)
        assert len(evaluation.returns) == 1


@pytest.mark.parametrize("name", ["iql", "calql", "qcfql", "rlpd"])
def test_fine_tuning_on_a_gpu(name, mini, tmp_path):
    """Steps in the environment come between updates that are repeated from a recording."""
    few = {"hidden": [16, 16], "batch_size": 32}
    few |= {"critics": 3, "updates": 2, "random_steps": 20} if name == "rlpd" else {}
    options = {"evaluations": 0, "settings": few, "device": "cuda"}
    run = orlog.train(name, mini, steps=5, out=tmp_path / "run", **options)
    if name == "rlpd":
        assert run.record.device == "cuda:0"
        return
    twice = [
        orlog.finetune(run, out=tmp_path / f"{number}", steps=60, warm_up_steps=9, evaluations=0, device="cuda")
        for number in range(2)
    ]
    assert twice[0].record.device == "cuda:0"
    one, other = (max(Path(run.folder).rglob("*.safetensors")) for run in twice)
    assert one.read_bytes() == other.read_bytes()


class Mine(BC):
    """A class of a user, whose updates may be recorded."""

    REPLAYS = True


class Waiting(Mine):
    """One that reads a number in each update, which it says it does not."""

    def update(self, batch):
        metrics = super().update(batch)
        assert float(metrics["policy/loss"]) < 1e9
        return metrics


def test_a_class_of_your_own_may_be_recorded_and_is_told_where_it_waits(make, batches_of):
    batches = [one.to("cuda") for one in batches_of(make(BC), 6)]
    update, plain = updates_of(make(Mine, device="cuda")), make(BC, device="cuda")
    assert isinstance(update, Replays)
    for batch in batches:
        assert numbers(update(batch)) == pytest.approx(numbers(plain.update(batch)), rel=1e-5)
    waits = updates_of(make(Waiting, device="cuda"))
    with pytest.raises(AlgorithmError, match=r"test_on_a_gpu\.py"), own_errors(Waiting):
        collections.deque(map(waits, batches), 0)
