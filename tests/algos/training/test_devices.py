"""Training elsewhere than on the CPU, watched without a GPU: nothing of two devices may meet.

The "meta" device has shapes but no numbers, and refuses whatever would wait for one (`.item()`, a
branch on a tensor), which on a GPU would stop the work there.
"""

import gymnasium
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orlog import transitions
from orlog.algos import networks
from orlog.algos.algorithms import ALGORITHMS, algorithm_forms
from orlog.algos.cdt import CDT
from orlog.algos.dt import DT
from orlog.algos.networks import Scaling
from orlog.algos.training import devices
from orlog.algos.training import train as training
from orlog.algos.training.checkpoint import load_checkpoint, save_checkpoint
from orlog.algos.training.devices import batches_on, find_device, put_arrays
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import read_run
from orlog.errors import CheckpointError
from orlog.loaders.arrays import read_arrays
from tests.algos import plain
from tests.training import train_run

COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_the_names_of_devices(monkeypatch):
    gpus(monkeypatch, 0)
    assert find_device("cpu") == find_device("auto") == "cpu"
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=f"there is no device {name}: PyTorch"):
            find_device(name)
    gpus(monkeypatch, 2)
    found = [find_device(name) for name in ("cpu", "auto", "cuda", "cuda:0", "cuda:1")]
    assert found == ["cpu", "cuda:0", "cuda:0", "cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ValueError, match="cuda:2: PyTorch finds cuda:0, cuda:1; choose another"):
        find_device("cuda:2")
    for name in ("gpu", "cuda:", "cuda:x", "mps", ""):
        with pytest.raises(ValueError, match="device must be"):
            find_device(name)


def test_arrays_go_to_a_gpu_with_room_and_batches_are_moved_there_from_others(mini, monkeypatch):
    packed = read_arrays(mini)
    assert put_arrays(packed, "cpu") is packed

    def memory(gpu):
        return lambda **_: type("M", (), {"gpu_bytes": {"meta": gpu}})

    monkeypatch.setattr(devices, "measure_memory", memory(packed.rows.nbytes))
    assert put_arrays(packed, "meta") is packed
    monkeypatch.setattr(devices, "measure_memory", memory(2 * packed.rows.nbytes))
    moved = put_arrays(packed, "meta")
    assert moved.rows.device.type == "meta"
    batches = transitions(moved, 4, seed=0)
    assert batches_on(batches, moved, "meta") is batches
    if torch.cuda.is_available():  # page-locked memory needs it
        batch = next(iter(batches_on(transitions(packed, 4, seed=0), packed, "cuda")))
        assert batch.observations.device.type == "cuda"


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, and copies from one to another."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation if all its tensors are on one device."""
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        found = {one.device.type for one in tensors if one.dim()}
        assert len(found) <= 1, f"{func} on {found}"
        assert func not in COPIES or "device" not in kwargs or {str(kwargs["device"])} == found
        return func(*args, **kwargs)


class MetaGenerator(torch.Generator):
    """A generator that says it is on the device without memory, where nothing is drawn."""

    device = torch.device("meta")

    def __new__(cls, *_):
        return super().__new__(cls)


FORMS = [form for name in ALGORITHMS for form in algorithm_forms(name)]


@pytest.mark.parametrize(
    "form",
    [
        form
        for form in FORMS
        if form not in (DT, CDT) and "text" not in form.ACTIONS and form.OBSERVATIONS != ("numbered",)
    ],
)
def test_an_update_stays_on_its_device_and_waits_for_nothing(form, make, batches_of, monkeypatch):
    """But for those that pick slots of their sequences and so wait for their number: DT and CDT, and those in words; and tables."""
    batches = [batch.to("meta") for batch in batches_of(make(form), 2)]
    monkeypatch.setattr(torch, "Generator", MetaGenerator)
    monkeypatch.setattr(Scaling, "__post_init__", lambda _: None)  # it looks at the numbers
    made = make(form, device="meta")
    for part in vars(made).values():
        if isinstance(part, torch.optim.Optimizer):
            part.step = lambda: None  # no fused Adam there
    with OneDevice():
        first, metrics = (made.update(batch) for batch in batches)
    assert first.keys() == metrics.keys()
    assert {value.device.type for value in metrics.values()} == {"meta"}
    assert plain.act(made, torch.zeros((2, 3), device="meta")).device.type == "meta"
    assert networks.make_generator(0, 0, "meta").device.type == "meta"


class Drawing:
    """An algorithm whose generator has the state of a GPU's."""

    STATE = ("generator", "weight")
    CONSTANTS = ()

    def __init__(self, kind):
        self.generator, self.weight = kind(), torch.ones(2)


class GpuGenerator(torch.Generator):
    """A generator whose state is as long as that of a GPU's."""

    def get_state(self):
        return torch.zeros(16, dtype=torch.uint8)


def test_a_checkpoint_of_a_gpu_acts_on_the_cpu_but_does_not_go_on_there(tmp_path):
    save_checkpoint(Drawing(GpuGenerator), tmp_path / "saved", metadata={})
    made = Drawing(torch.Generator)
    made.weight.zero_()
    before = made.generator.get_state()
    with pytest.raises(CheckpointError, match=r"generator is torch\.uint8"):
        load_checkpoint(made, tmp_path / "saved")
    assert not made.weight.any()
    load_checkpoint(made, tmp_path / "saved", to_act=True)
    assert made.weight.all()
    assert torch.equal(made.generator.get_state(), before)


def test_a_record_holds_the_device_and_a_run_goes_on_on_the_same_kind(mini, tmp_path, monkeypatch):
    options = {"seed": 0, "steps": 4, "evaluations": 0}
    options["settings"] = {"hidden": [4], "batch_size": 8}
    train_run("cql", mini, tmp_path, device="auto" if not torch.cuda.is_available() else "cpu", **options)
    assert read_run(tmp_path).device == "cpu"
    monkeypatch.setattr(training, "find_device", lambda _: "cuda:1")
    monkeypatch.setattr(training, "device_versions", lambda _: {"gpu": "G"})
    with pytest.raises(FileExistsError, match="on the device cpu, not cuda:1; "):
        train_run("cql", mini, tmp_path, resume=True, device="cuda", **options)
    record, evaluation = evaluate_run(tmp_path, dataset=mini, episodes=1)
    assert (record.device, len(evaluation.returns)) == ("cpu", 1)


def test_the_policy_of_an_algorithm_elsewhere_takes_observations_there(mini):
    from orlog.algos.training.policy import make_policy

    class Elsewhere:
        def act(self, observations):
            assert observations.device.type == "meta"
            return torch.zeros(len(observations), 2)

    algorithm = Elsewhere()
    record = None
    space = mini.observation_space
    assert isinstance(space, gymnasium.spaces.Dict)
    observations = {key: np.stack([one, one]) for key, one in space.sample().items()}
    assert make_policy(algorithm, mini, record, device="meta")(observations).shape == (2, 2)
