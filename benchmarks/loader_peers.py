"""The peers of `benchmarks.loaders`: each in a process of its own, with its own environment.

    python -m benchmarks.loader_peers TOOL FOLDER [CORL]

prints how many items a second TOOL gives of the data in FOLDER, which `benchmarks.loaders` made.
Peers give what their documentation shows, on one thread; CORL is run from its sources, with
stand-ins for the packages of environments and logging that it imports.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import ANSWER, load_arrays, module

Call = Callable[[], object]
Columns = dict[str, np.ndarray]

BATCHES = (256, 4096)
LENGTHS = (20, 64)
WINDOWS = IMAGES = 64
DISCOUNT = 0.99
LEROBOT_EPISODES = 100  # it writes one step at a time
REPEATS, SECONDS, WARM_SECONDS = 5, 0.3, 0.2

# What is measured, and how the table names it.
TRANSITIONS = {size: f"transitions, batch {size}" for size in BATCHES}
AROUND = 2, 16  # observations and actions of a window
AROUND_ITEM = f"windows, {AROUND[0]} observations and {AROUND[1]} actions, batch {WINDOWS}"
SEQUENCES = {length: f"sequences, length {length}, batch {WINDOWS}" for length in LENGTHS}
STACKS = {"gray": f"4-stacks 84 x 84, batch {IMAGES}", "rgb": f"64 x 64 x 3, batch {IMAGES}"}
SLOTS = {"gray": 5, "rgb": 2}  # frames of an observation and the next one

_generator = np.random.default_rng(0)


def main() -> None:
    """Measure one peer and print one line of JSON."""
    name, folder, *corl = sys.argv[1:]
    torch = module("torch")
    torch.set_num_threads(1)
    peer, package = PEERS[name]
    calls = peer(Path(folder), *corl)
    version = importlib.metadata.version(package) if package else "sources"
    print(ANSWER + json.dumps({"rates": rates(calls), "version": version}))


def rates(calls: Mapping[str, tuple[Call, int]], seconds: float = SECONDS) -> dict[str, float]:
    """Return the median rate of each call, which gives some items; all take turns of some seconds."""
    chunks = {}
    for name, (call, _) in calls.items():
        count, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < min(WARM_SECONDS, seconds) or count < 3:
            call()
            count += 1
        chunks[name] = max(1, int(seconds * count / elapsed))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, (call, items) in calls.items():
            started = time.perf_counter()
            for _ in range(chunks[name]):
                call()
            found[name].append(chunks[name] * items / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in found.items()}


def load_steps(path: Path) -> Columns:
    """Return flat columns of steps, with observations before and after each."""
    columns = load_arrays(path)
    lengths = columns["lengths"]
    rows = np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)), lengths)
    return columns | {
        "observations": columns["observations"][rows],
        "next_observations": columns["observations"][rows + 1],
        "terminals": columns["terminations"],
        "timeouts": columns["truncations"],
    }


def corl(folder: Path, sources: str) -> dict[str, tuple[Call, int]]:
    """Return the calls of CORL: its replay buffer, and its loader for Decision Transformers."""
    steps = load_steps(folder / "variable.npz")
    environment = types.SimpleNamespace(get_dataset=lambda: steps)
    _stand_in("d4rl")
    _stand_in("wandb")
    _stand_in("pyrallis", wrap=lambda: lambda function: function)
    _stand_in("gym", Env=object, make=lambda _: environment)
    sys.path.insert(0, str(Path(sources) / "algorithms" / "offline"))
    buffer = module("any_percent_bc").ReplayBuffer(17, 6, 2_000_000, "cpu")
    buffer.load_d4rl_dataset(load_steps(folder / "equal.npz"))
    transformer = module("dt")
    transformer.trange = lambda count, **_: range(count)
    loader = module("torch.utils.data").DataLoader
    calls: dict[str, tuple[Call, int]] = {}
    for size in BATCHES:
        calls[TRANSITIONS[size]] = functools.partial(buffer.sample, size), size
    for length in LENGTHS:
        dataset = transformer.SequenceDataset("any", seq_len=length, reward_scale=0.001)
        batches = iter(loader(dataset, batch_size=WINDOWS, num_workers=0))
        calls[SEQUENCES[length]] = batches.__next__, WINDOWS
    return calls


def _stand_in(name: str, **content: object) -> None:
    made = types.ModuleType(name)
    vars(made).update(content)
    sys.modules[name] = made


def torchrl(folder: Path) -> dict[str, tuple[Call, int]]:
    """Return the calls of TorchRL: buffers in memory, slices of trajectories, images mapped."""
    torch, data = module("torch"), module("torchrl.data")
    dictionary = module("tensordict").TensorDict
    steps = {name: torch.from_numpy(column) for name, column in _equal_steps(folder).items()}
    count = len(steps["rewards"])
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(count))
    after = {
        "observation": steps["next_observations"],
        "reward": steps["rewards"][:, None],
        "done": steps["terminals"].float()[:, None],
    }
    buffer.extend(
        dictionary({"observation": steps["observations"], "action": steps["actions"], "next": after}, [count])
    )
    calls: dict[str, tuple[Call, int]] = {}
    for size in BATCHES:
        calls[TRANSITIONS[size]] = functools.partial(buffer.sample, size), size

    windows = load_steps(folder / "variable.npz")
    lengths = windows["lengths"]
    first = np.repeat(lengths.cumsum() - lengths, lengths)
    sequence = {
        "observation": torch.from_numpy(windows["observations"]),
        "action": torch.from_numpy(windows["actions"]),
        "return_to_go": torch.from_numpy(returns_to_go(windows["rewards"], lengths))[:, None],
        "episode": torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        "timestep": torch.from_numpy(np.arange(len(first)) - first),
    }
    # A slice as long as the actions of a window has its observations too.
    for item, length in [*zip(SEQUENCES.values(), LENGTHS, strict=True), (AROUND_ITEM, AROUND[1])]:
        sampler = data.SliceSampler(
            slice_len=length,
            traj_key="episode",
            cache_values=True,
            truncated_key=None,
            strict_length=False,
            pad_output=True,
        )
        sliced = data.ReplayBuffer(
            storage=data.LazyTensorStorage(len(first)), sampler=sampler, batch_size=WINDOWS * length
        )
        sliced.extend(dictionary(sequence, [len(first)]))
        calls[item] = sliced.sample, WINDOWS
    for kind in STACKS:
        frames = torch.from_numpy(np.load(folder / f"{kind}.npy", mmap_mode="c"))
        mapped = data.LazyMemmapStorage(len(frames), scratch_dir=tempfile.mkdtemp(dir=folder))
        mapped.set(range(len(frames)), dictionary({"pixels": frames}, [len(frames)]))
        calls[STACKS[kind]] = functools.partial(_frames, mapped, kind), IMAGES
    return calls


def _frames(mapped: Any, kind: str) -> object:
    return mapped.get(slots(len(mapped), kind))["pixels"]


def _equal_steps(folder: Path) -> Columns:
    steps = load_steps(folder / "equal.npz")
    return {name: column for name, column in steps.items() if name != "lengths"}


def slots(frames: int, kind: str) -> np.ndarray:
    """Return where the frames of random observations and the next ones are, flat."""
    first = _generator.integers(0, frames - SLOTS[kind], IMAGES)
    rows: np.ndarray = (first[:, None] + np.arange(SLOTS[kind])).reshape(-1)
    return rows


def returns_to_go(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the sum of rewards from each step to the end of its episode."""
    sums = np.append(np.cumsum(rewards[::-1], dtype=np.float64)[::-1], 0)
    behind: np.ndarray = np.repeat(sums[lengths.cumsum()], lengths)
    found: np.ndarray = (sums[:-1] - behind).astype(np.float32)
    return found


def d3rlpy(folder: Path) -> dict[str, tuple[Call, int]]:
    """Return the calls of d3rlpy: batches as its algorithms are given them."""
    dataset, utility = module("d3rlpy.dataset"), module("d3rlpy.torch_utility")

    def buffer_of(steps: Columns) -> Any:
        ends = steps["lengths"].cumsum()
        return dataset.ReplayBuffer(
            dataset.InfiniteBuffer(),
            episodes=[
                dataset.Episode(
                    steps["observations"][end - length : end].copy(),
                    steps["actions"][end - length : end].copy(),
                    steps["rewards"][end - length : end, None].copy(),
                    bool(steps["terminals"][end - 1]),
                )
                for end, length in zip(ends, steps["lengths"], strict=True)
            ],
        )

    equal = buffer_of(load_steps(folder / "equal.npz"))
    variable = buffer_of(load_steps(folder / "variable.npz"))

    def transitions(size: int) -> object:
        return utility.TorchMiniBatch.from_batch(
            equal.sample_transition_batch(size), gamma=DISCOUNT, compute_returns_to_go=False, device="cpu"
        )

    def windows(length: int) -> object:
        return utility.TorchTrajectoryMiniBatch.from_batch(variable.sample_trajectory_batch(WINDOWS, length), "cpu")

    calls: dict[str, tuple[Call, int]] = {}
    for size in BATCHES:
        calls[TRANSITIONS[size]] = functools.partial(transitions, size), size
    for length in LENGTHS:
        calls[SEQUENCES[length]] = functools.partial(windows, length), WINDOWS
    return calls


def lerobot(folder: Path) -> dict[str, tuple[Call, int]]:
    """Return the calls of LeRobot: items with `delta_timestamps` in a DataLoader, of fewer steps."""
    lerobot_dataset, torch = module("lerobot.datasets.lerobot_dataset"), module("torch")
    steps, fps = load_steps(folder / "variable.npz"), 20
    root, number = folder / "lerobot", "float32"
    if not root.exists():
        features = {
            name: {"dtype": number, "shape": (steps[column].shape[1],), "names": None}
            for name, column in (("observation.state", "observations"), ("action", "actions"))
        }
        made = lerobot_dataset.LeRobotDataset.create("bench/v0", fps, features, root, use_videos=False)
        end = 0
        for length in steps["lengths"][:LEROBOT_EPISODES].tolist():
            for row in range(end, end + length):
                state, action = steps["observations"][row], steps["actions"][row]
                made.add_frame({"observation.state": state, "action": action, "task": "run"})
            end += length
            made.save_episode()
        getattr(made, "finalize", lambda: None)()
    deltas = {
        "observation.state": [(one + 1 - AROUND[0]) / fps for one in range(AROUND[0])],
        "action": [(one - 1) / fps for one in range(AROUND[1])],
    }
    opened = lerobot_dataset.LeRobotDataset("bench/v0", root=root, delta_timestamps=deltas)
    loader = torch.utils.data.DataLoader(opened, batch_size=WINDOWS, shuffle=True, drop_last=True)

    def endless() -> Iterator[object]:
        while True:
            yield from loader

    return {AROUND_ITEM: (endless().__next__, WINDOWS)}


# How a peer is measured, and the package whose version is told; CORL is not installed.
PEERS: dict[str, tuple[Callable[..., dict[str, tuple[Call, int]]], str]] = {
    "CORL": (corl, ""),
    "TorchRL": (torchrl, "torchrl"),
    "d3rlpy": (d3rlpy, "d3rlpy"),
    "LeRobot": (lerobot, "lerobot"),
}


if __name__ == "__main__":
    main()
