"""Where a run computes: devices by name, data that are put there, and records that say so."""

import numpy as np
import pytest
import torch

import orlog
from orlog.algos.training import data
from orlog.algos.training import train as training
from orlog.algos.training.data import batches_on, find_device, put_arrays
from orlog.algos.training.policy import make_policy
from tests.training import short


def test_the_names_of_devices(monkeypatch):
    def gpus(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    gpus(0)
    assert find_device("cpu") == find_device("auto") == "cpu"
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=f"there is no device {name}: PyTorch finds no GPU"):
            find_device(name)
    gpus(2)
    names = ("cpu", "auto", "cuda", "cuda:0", "cuda:1")
    assert [find_device(name) for name in names] == ["cpu", "cuda:0", "cuda:0", "cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ValueError, match="cuda:2: PyTorch finds cuda:0, cuda:1; choose another"):
        find_device("cuda:2")
    for name in ("gpu", "cuda:", "cuda:x", "mps", ""):
        with pytest.raises(ValueError, match="device must be"):
            find_device(name)


def test_arrays_go_to_a_gpu_with_room_and_batches_are_moved_there_from_others(mini, monkeypatch):
    packed = orlog.load_arrays(mini)
    assert put_arrays(packed, "cpu") is packed
    for room, device in ((1, "cpu"), (2, "meta")):
        memory = type("Memory", (), {"gpu_bytes": {"meta": room * packed.rows.nbytes}})
        monkeypatch.setattr(data, "measure_memory", lambda memory=memory, **_: memory)
        assert put_arrays(packed, "meta").rows.device.type == device
    batches = orlog.transitions(packed, 4, seed=0)
    assert batches_on(batches, "meta", "meta") is batches
    if torch.cuda.is_available():  # page-locked memory needs it
        assert next(iter(batches_on(batches, "cuda", "cpu"))).observations.device.type == "cuda"


def test_a_record_holds_the_device_and_a_run_goes_on_on_the_same_kind(mini, tmp_path, monkeypatch):
    device = "auto" if not torch.cuda.is_available() else "cpu"
    assert short("cql", mini, tmp_path, device=device).record.device == "cpu"
    monkeypatch.setattr(training, "find_device", lambda _: "cuda:1")
    monkeypatch.setattr(training, "device_versions", lambda _: {"gpu": "G"})
    with pytest.raises(FileExistsError, match="device cpu, not device cuda; "):
        short("cql", mini, tmp_path, resume=True, device="cuda")


def test_the_policy_of_an_algorithm_elsewhere_takes_observations_there(mini):
    class Elsewhere:
        def act(self, observations):
            assert observations.device.type == "meta"
            return torch.zeros(len(observations), 2)

    observations = {key: np.stack([one, one]) for key, one in mini.observation_space.sample().items()}
    assert make_policy(Elsewhere(), mini, None, device="meta")(observations).shape == (2, 2)
