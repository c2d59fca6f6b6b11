"""All algorithms on a real GPU: no waiting inside an update, numbers of the CPU, the same bits twice."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orlog.algos.algorithms import ALGORITHMS, algorithm_forms
from orlog.algos.training.checkpoint import first_difference, load_checkpoint, save_checkpoint
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.replays import Replays
from orlog.algos.training.runs import read_run
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import StoppedError
from tests.algos.plain import BatchesOf, Make
from tests.algos.training.test_replays import SETTINGS, STEPS
from tests.training import train_run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FORMS = [
    form
    for name in ALGORITHMS
    for form in algorithm_forms(name)
    if form.OBSERVATIONS != ("numbered",)
]


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Within this, an operation that waits for the GPU is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode itself warns that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def numbers(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def draws(algorithm: Any) -> bool:
    return any(isinstance(one, torch.Generator) for one in vars(algorithm).values())


@pytest.mark.parametrize("form", FORMS)
def test_updates_on_a_gpu(
    form: type[Any], make: Make, batches_of: BatchesOf, tmp_path: Path
) -> None:
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
def test_recorded_updates_have_the_bits_of_those_one_by_one(
    form: type[Any], make: Make, batches_of: BatchesOf
) -> None:
    known = form.CONFIG.__dataclass_fields__
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    plain = make(form, device="cuda", **settings)
    repeated = make(form, device="cuda", **settings)
    optimizers = [one for one in vars(plain).values() if hasattr(one, "keep_rates")]
    update = Replays(repeated)
    for step, given in enumerate(batches_of(make(form, **settings), STEPS)):
        batch = given.to("cuda")
        if hasattr(plain, "set_rates"):
            plain.set_rates()
        for one in optimizers:
            one.keep_rates()
        expected = numbers(plain.update(batch))
        assert numbers(update(batch)) == expected, step
    assert update._kept
    assert not first_difference(plain, repeated)


def is_over(calls: Iterator[int], after: int) -> bool:
    return next(calls) >= after


def test_a_run_on_a_gpu_goes_on_to_the_same_bits(mini: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"seed": 0, "evaluations": 0, "device": "cuda", "steps": 60}
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
