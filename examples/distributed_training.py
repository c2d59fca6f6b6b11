"""Several processes train one network on one stream of batches, and go on with another number of processes.

    python examples/distributed_training.py                                    # one process
    torchrun --nproc-per-node 2 examples/distributed_training.py               # the same batches and losses
    torchrun --nproc-per-node 3 examples/distributed_training.py --steps 200   # goes on where the others stopped

Sampling takes rank and ranks from torch.distributed: each process gets its slice of each batch of 240, and DistributedDataParallel
averages their gradients, so that an update is that of the whole batch. The checkpoint holds no state of a sampler but its step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import orlog

CHECKPOINT = Path("distributed.pt")
SAVE_EVERY = 20


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Join the other processes, if torchrun has started any."""
    if "RANK" not in os.environ:
        yield
        return
    distributed.init_process_group("gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def mean_of_all(value: torch.Tensor) -> float:
    """Return the mean of a value over all processes."""
    value = value.detach().clone()
    if distributed.is_initialized():
        distributed.all_reduce(value)
        value /= distributed.get_world_size()
    return float(value)


def main() -> None:
    """Clone the behavior policy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="pointmaze/umaze-mini-v1")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    is_first = int(os.environ.get("RANK", "0")) == 0
    with process_group():
        if is_first:  # the others wait until it is built
            orlog.load_dataset(options.dataset, build=True)
        if distributed.is_initialized():
            distributed.barrier()
        arrays = orlog.load_arrays(options.dataset)
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(arrays.obs_dim, 64), nn.ReLU(), nn.Linear(64, arrays.action_dim))
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        begin = 0
        if CHECKPOINT.exists():
            state = torch.load(CHECKPOINT, weights_only=True)
            network.load_state_dict(state["network"])
            optimizer.load_state_dict(state["optimizer"])
            begin = state["step"]
        model = DistributedDataParallel(network) if distributed.is_initialized() else network
        batches = orlog.transitions(arrays, 240, seed=0, start=begin)
        for step, batch in zip(range(begin, options.steps), batches, strict=False):
            loss = (model(batch.observations) - batch.actions).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = mean_of_all(loss)
            if is_first:
                print(f"step {step} loss {shown:.6f}", flush=True)
            if is_first and (step + 1) % SAVE_EVERY == 0:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(state, CHECKPOINT.with_suffix(".part"))
                CHECKPOINT.with_suffix(".part").replace(CHECKPOINT)


if __name__ == "__main__":
    main()
