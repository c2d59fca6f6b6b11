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
from orlog.algos.training.checkpoint import load_checkpoint, save_checkpoint
from orlog.errors import CheckpointError, FormatVersionError


def make_small(name, scaling, *, seed=0, **settings):
    config = make_config(name, {"hidden": [4], **settings})
    return make_algorithm(name, config, scaling, seed=seed)


def state(algorithm, folder):
    save_checkpoint(algorithm, folder / "state", metadata={})
    return dict(load_file(folder / "state"))


def test_metadata_come_back_and_the_last_save_replaces_the_first(scaling, make_batch, tmp_path):
    made = make_small("bc", scaling)
    path = tmp_path / "checkpoint"
    made.update(make_batch(0))
    save_checkpoint(made, path, metadata={"step": "1"})
    made.update(make_batch(1))
    save_checkpoint(made, path, metadata={"step": "2", "name": "Yggdrasil / äß \n"})
    again = make_small("bc", scaling, seed=5)
    assert load_checkpoint(again, path) == {"step": "2", "name": "Yggdrasil / äß \n"}
    for one, other in zip(again.policy.parameters(), made.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint"]


def test_a_cut_file_is_refused(scaling, make_batch, tmp_path):
    made = make_small("bc", scaling)
    made.update(make_batch(0))
    path = tmp_path / "checkpoint"
    save_checkpoint(made, path, metadata={})
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not a readable checkpoint"):
            load_checkpoint(made, path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        load_checkpoint(made, path)


def test_a_flipped_byte_of_a_name_a_shape_or_a_weight_is_refused(scaling, make_batch, tmp_path):
    made = make_small("bc", scaling)
    made.update(make_batch(0))
    path = tmp_path / "checkpoint"
    save_checkpoint(made, path, metadata={})
    whole = path.read_bytes()
    (header,) = struct.unpack("<Q", whole[:8])
    for text in (b"exp_avg", b"policy/", b'"shape":[', b'"data_offsets":['):
        place = whole.index(text, 0, header + 8) + len(text) - 1
        for bit in (1, 16, 128):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with pytest.raises(ValueError, match="checkpoint"):
                load_checkpoint(made, path)
    path.write_bytes(whole[:-10] + bytes([whole[-10] ^ 64]) + whole[-9:])  # of a weight
    with pytest.raises(ValueError, match="checkpoint"):
        load_checkpoint(made, path)


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
    made = make_small(saved[0], scaling, **saved[1])
    made.update(make_batch(0))
    save_checkpoint(made, tmp_path / "checkpoint", metadata={})
    other = make_small(loaded[0], scaling, **loaded[1])
    before = state(other, tmp_path)
    with pytest.raises(ValueError, match="another configuration"):
        load_checkpoint(other, tmp_path / "checkpoint")
    after = state(other, tmp_path)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name])


def test_a_missing_file_is_not_found(scaling, tmp_path):
    with pytest.raises(FileNotFoundError):
        load_checkpoint(make_small("bc", scaling), tmp_path / "none")


# --- declared state


class Everything:
    """An algorithm with one piece of state of every kind."""

    STATE = ("networks", "optimizer", "scheduler", "generator", "numbers", "best", "history", "average", "step")
    CONSTANTS = ("width",)

    def __init__(self, seed=0):
        self.width = 3
        generator = torch.Generator().manual_seed(seed)
        first = make_network(2, 1, (self.width,), generator=generator)
        second = make_network(2, 1, (self.width,), generator=generator)
        self.networks = [first, second]
        parameters = [*first.parameters(), *second.parameters()]
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
        loss.backward()  # torch has no types for it
        self.optimizer.step()
        self.scheduler.step()
        self.average["loss"].mul_(0.9).add_(0.1 * loss.detach())
        self.best = min(self.best or math.inf, loss.item())
        self.history.append(loss.item())
        self.step += 1


def test_state_of_every_kind_goes_on_to_the_bit(tmp_path):
    whole, half = Everything(), Everything()
    for step in range(6):
        whole.update()
        if step < 3:
            half.update()
    save_checkpoint(half, tmp_path / "half", metadata={})
    resumed = Everything(seed=1)
    load_checkpoint(resumed, tmp_path / "half")
    for _ in range(3):
        resumed.update()
    assert resumed.history == whole.history
    assert (resumed.best, resumed.step) == (whole.best, 6)
    assert resumed.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
    for name, made in (("whole", whole), ("resumed", resumed)):
        save_checkpoint(made, tmp_path / name, metadata={})
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "resumed").read_bytes()


def test_an_attribute_that_cannot_be_saved_is_refused(scaling, make_batch, tmp_path):
    made = make_small("bc", scaling)
    made.update(make_batch(0))
    made.recent_losses = {0.5}
    with pytest.raises(TypeError, match=r"BC\.recent_losses: checkpoints cannot save a set; name it in BC\.CONSTANTS"):
        save_checkpoint(made, tmp_path / "checkpoint", metadata={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [{1: 2.0}, (1, 2), [object()], {"deep": [{1, 2}]}, 1j])
def test_state_that_json_would_change_is_refused(value, tmp_path):
    made = Everything()
    made.best = value
    with pytest.raises(TypeError, match=r"Everything\.best.*cannot save"):
        save_checkpoint(made, tmp_path / "checkpoint", metadata={})


def test_equal_states_are_equal_files_in_every_process(tmp_path):
    code = (
        "import sys, pathlib, torch; from orlog.algos.training.checkpoint import save_checkpoint\n"
        "class Tiny:\n"
        "    STATE = ('weights', 'step')\n"
        "made = Tiny(); made.weights = torch.ones(2); made.step = 3\n"
        "metadata = {name: name for name in 'abcdefgh'}\n"
        "for number in range(4):\n"
        "    save_checkpoint(made, pathlib.Path(sys.argv[1], f'{number}'), metadata=metadata)\n"
    )
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with unittest.mock.patch.object(sys, "argv", ["", str(folders[0])]):
        exec(code, {})
    subprocess.run([sys.executable, "-c", code, str(folders[1])], check=True)
    files = [path.read_bytes() for folder in folders for path in sorted(folder.iterdir())]
    assert len(files) == 8
    assert len(set(files)) == 1


def test_a_checkpoint_of_a_newer_format_says_what_to_do(scaling, tmp_path):
    path = tmp_path / "checkpoint"
    save_checkpoint(make_small("bc", scaling), path, metadata={})
    text = b'"checkpoint_format":"2"'
    data = path.read_bytes()
    assert data.count(text) == 1
    path.write_bytes(data.replace(text, b'"checkpoint_format":"9"'))
    with pytest.raises(FormatVersionError, match="checkpoint_format 9 is newer"):
        load_checkpoint(make_small("bc", scaling), path)


def test_a_folder_in_the_place_of_a_checkpoint_is_refused(scaling, tmp_path):
    with pytest.raises(CheckpointError, match="it is not a file"):
        load_checkpoint(make_small("bc", scaling), tmp_path)
