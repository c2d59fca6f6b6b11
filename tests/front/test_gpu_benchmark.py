"""The benchmark of GPUs runs as a whole without one, and says so where it was not asked to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.update_peers import make_peer


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    gpu.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    said = capsys.readouterr().out
    assert said.startswith("nothing was measured: there is no device cuda")
    assert said.count("\n") == 1


def test_all_of_it_runs_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    monkeypatch.setattr(gpu, "WARM", 1)
    threads = torch.get_num_threads()
    run(monkeypatch, "--device", "cpu", "--steps", "2000", "--seconds", "0.001")
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    for name in gpu.NAMES:
        assert f"{name}, updates in float32" in said
    assert "transitions from the device's memory, batch 256" in said
    assert "CORL was left out" in said


@pytest.mark.parametrize(
    "wrong", [["--only", "sac"], ["--steps", "10"], ["--seconds", "0"], ["--corl", "/nowhere"]]
)
def test_options_that_make_no_sense(monkeypatch: pytest.MonkeyPatch, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--device", "cpu", *wrong)
    assert ended.value.code == 2


def test_peers_are_told_their_device(tmp_path: Path) -> None:
    """A stand-in for a file of CORL, whose classes say where they were made."""
    folder = tmp_path / "algorithms" / "offline"
    folder.mkdir(parents=True)
    (folder / "any_percent_bc.py").write_text(
        "import torch\n"
        "class ReplayBuffer:\n"
        "    def __init__(self, obs, act, size, device='cpu'): self.device = device\n"
        "    def load_d4rl_dataset(self, data): pass\n"
        "    def sample(self, size): return [torch.zeros(1)]\n"
        "class Actor(torch.nn.Linear):\n"
        "    def __init__(self, obs, act, bound): super().__init__(obs, act)\n"
        "class BC:\n"
        "    def __init__(self, bound, actor, optimizer, device='cpu'):\n"
        "        self.said = device, actor.weight.device.type\n"
        "    def train(self, batch): return *self.said, batch[0].device.type\n"
    )
    arrays = gpu.random_arrays(1000)
    update = make_peer(tmp_path, "bc", gpu.flat(arrays), 256, "meta")
    assert update() == ("meta", "meta", "meta")
