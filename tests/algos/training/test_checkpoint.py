"""Checkpoints of an algorithm's declared state: to the bit, or refused."""

import math
import struct
import subprocess
import sys
import unittest.mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from orlog.algos.algorithms import make_algorithm
from orlog.algos.networks import make_network
from orlog.algos.settings import make_config
from orlog.algos.training.runs import first_not_finite, load_checkpoint, save_checkpoint
from orlog.errors import CheckpointError, FormatVersionError


def make_small(name, scaling, *, seed=0, **settings):
    return make_algorithm(name, make_config(name, {"hidden": [4], **settings}), scaling, seed=seed)


@pytest.fixture
def saved(scaling, make_batch, tmp_path):
    """Return a small algorithm that has learned, and its checkpoint."""
    made = make_small("bc", scaling)
    made.update(make_batch(0))
    save_checkpoint(made, tmp_path / "checkpoint", metadata={})
    return made, tmp_path / "checkpoint"


def test_metadata_come_back_and_the_last_save_replaces_the_first(saved, scaling, make_batch):
    made, path = saved
    made.update(make_batch(1))
    save_checkpoint(made, path, metadata={"step": "2", "name": "Yggdrasil / äß \n"})
    again = make_small("bc", scaling, seed=5)
    assert load_checkpoint(again, path) == {"step": "2", "name": "Yggdrasil / äß \n"}
    for one, other in zip(again.policy.parameters(), made.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint"]


def test_a_damaged_file_is_refused(saved):
    made, path = saved
    whole = path.read_bytes()
    (header,) = struct.unpack("<Q", whole[:8])
    places = [
        whole.index(text, 0, header + 8) + len(text) - 1
        for text in (b"exp_avg", b"policy/", b'"shape":[', b'"data_offsets":[')
    ]
    flipped = [
        whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
        for place in (*places, len(whole) - 10)
        for bit in (1, 16, 128)
    ]
    cut = [whole[:length] for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1)]
    for data in (*flipped, *cut, whole + b"\0"):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="checkpoint"):
            load_checkpoint(made, path)
    path.write_bytes(whole.replace(b'"checkpoint_format":"2"', b'"checkpoint_format":"9"'))
    with pytest.raises(FormatVersionError, match="checkpoint_format 9 is newer"):
        load_checkpoint(made, path)
    for other in (path.parent, path.with_name("none")):
        with pytest.raises(CheckpointError, match="it is not a file"):
            load_checkpoint(made, other)


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (("bc", {"hidden": [8]}), ("bc", {"hidden": [9]})),
        (("bc", {"hidden": [8]}), ("bc", {"hidden": [8, 8]})),
        (("bc", {"hidden": [8, 8]}), ("bc", {"hidden": [8]})),
        (("iql", {"hidden": [8]}), ("cql", {"hidden": [8]})),
        (("cql", {"hidden": [8]}), ("cql", {"hidden": [8], "target_gap": 1.0})),
        (("cql", {"hidden": [8], "target_gap": 1.0}), ("cql", {"hidden": [8]})),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused(scaling, make_batch, tmp_path, saved, loaded):
    made, other = (make_small(name, scaling, **settings) for name, settings in (saved, loaded))
    made.update(make_batch(0))
    for name, one in (("checkpoint", made), ("before", other)):
        save_checkpoint(one, tmp_path / name, metadata={})
    with pytest.raises(CheckpointError, match="another configuration"):
        load_checkpoint(other, tmp_path / "checkpoint")
    save_checkpoint(other, tmp_path / "after", metadata={})
    before, after = (load_file(tmp_path / name) for name in ("before", "after"))
    assert all(torch.equal(before[name], after[name]) for name in {**before, **after})


class Everything:
    """An algorithm with one piece of state of every kind."""

    STATE = ("networks", "optimizer", "scheduler", "generator", "numbers", "best", "history", "average", "step")
    CONSTANTS = ("width",)

    def __init__(self, seed=0):
        self.width = 3
        generator = torch.Generator().manual_seed(seed)
        self.networks = [make_network(2, 1, (self.width,), generator=generator) for _ in range(2)]
        parameters = [one for network in self.networks for one in network.parameters()]
        self.optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.generator = generator
        self.numbers = np.random.default_rng(seed)
        self.best = None
        self.history = []
        self.average = {"loss": torch.zeros(())}
        self.step = 0

    def update(self):
        inputs = torch.randn(4, 2, generator=self.generator)
        inputs = inputs + torch.from_numpy(self.numbers.normal(size=(4, 2)).astype(np.float32))
        loss = torch.stack([network(inputs).square().mean() for network in self.networks]).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.average["loss"].mul_(0.9).add_(0.1 * loss.detach())
        self.best = min(self.best or math.inf, loss.item())
        self.history.append(loss.item())
        self.step += 1


def test_state_of_every_kind_goes_on_to_the_bit(tmp_path):
    whole, half, resumed = Everything(), Everything(), Everything(seed=1)
    for step in range(6):
        whole.update()
        if step < 3:
            half.update()
    save_checkpoint(half, tmp_path / "half", metadata={})
    load_checkpoint(resumed, tmp_path / "half")
    for _ in range(3):
        resumed.update()
    assert (resumed.history, resumed.best, resumed.step) == (whole.history, whole.best, 6)
    assert resumed.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
    for name, made in (("whole", whole), ("resumed", resumed)):
        save_checkpoint(made, tmp_path / name, metadata={})
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "resumed").read_bytes()


def test_state_that_a_checkpoint_would_lose_or_change_is_refused(saved, tmp_path):
    made, path = saved
    before = path.read_bytes()
    made.recent_losses = {0.5}
    with pytest.raises(TypeError, match=r"BC\.recent_losses: checkpoints cannot save a set; name it in BC\.CONSTANTS"):
        save_checkpoint(made, path, metadata={})
    assert path.read_bytes() == before
    for value in ({1: 2.0}, (1, 2), [object()], {"deep": [{1, 2}]}, 1j):
        made = Everything()
        made.best = value
        with pytest.raises(TypeError, match=r"Everything\.best.*cannot save"):
            save_checkpoint(made, tmp_path / "other", metadata={})


def test_equal_states_are_equal_files_in_every_process(tmp_path):
    code = (
        "import sys, pathlib, torch; from orlog.algos.training.runs import save_checkpoint\n"
        "class Tiny:\n"
        "    STATE = ('weights', 'step')\n"
        "made = Tiny(); made.weights = torch.ones(2); made.step = 3\n"
        "metadata = {name: name for name in 'abcdefgh'}\n"
        "for number in range(4):\n"
        "    save_checkpoint(made, pathlib.Path(sys.argv[1] + f'{number}'), metadata=metadata)\n"
    )
    with unittest.mock.patch.object(sys, "argv", ["", str(tmp_path / "here")]):
        exec(code, {})
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "there")], check=True)
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert (len(files), len({*files})) == (8, 1)


def test_infinite_masks_are_no_divergence_but_nan_is():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([0, -math.inf]))
            self.weight = torch.nn.Parameter(torch.ones(2))

    class Holder:
        STATE = ("network", "best")

    made = Holder()
    made.network, made.best = Masked(), torch.tensor(-math.inf)
    assert first_not_finite(made) == ""
    made.best = torch.tensor(math.nan)
    assert first_not_finite(made) == "best"
    made.network.weight.data[1] = math.inf
    assert first_not_finite(made) == "network/weight"


class GpuGenerator(torch.Generator):
    """A generator whose state is as long as that of a GPU's."""

    def get_state(self):
        return torch.zeros(16, dtype=torch.uint8)


class Drawing:
    """An algorithm that draws."""

    STATE = ("generator", "weight")

    def __init__(self, kind):
        self.generator, self.weight = kind(), torch.ones(2)


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
