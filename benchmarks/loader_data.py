"""What `benchmarks.loaders` measures with, made once: files for peers and versions for orlog."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import Arrays, halfcheetah_like, save_npz

EPISODES, LENGTH = 1000, 1000
SHORTEST, LONGEST = 20, 400
FRAMES, FRAMES_PER_EPISODE = 20_000, 500
INFOS = "infos/"
SAID = [f"word{number}" for number in range(500)]
SHAPES = {"gray": (84, 84, 1), "rgb": (64, 64, 3)}


def make_data(scratch: Path) -> None:
    """Make the data to measure, if they are not there yet: files for peers, versions for orlog."""
    os.environ["ORLOG_HOME"] = str(scratch / "home")
    makers: dict[str, Callable[[], Arrays]] = {"equal": equal_episodes, "variable": variable}
    for name, make in makers.items():
        if not (scratch / f"{name}.npz").exists():
            columns = make()
            write_version(name, columns)
            save_npz(np.savez, columns, scratch / f"{name}.npz")
    for name, shape in SHAPES.items():
        if not (scratch / f"{name}.npy").exists():
            frames = np.random.default_rng(0).integers(0, 256, (FRAMES, *shape), np.uint8)
            write_version(name, episodes_of(frames))
            np.save(scratch / f"{name}.npy", frames)


def equal_episodes() -> Arrays:
    """Return flat columns of episodes of equal lengths."""
    return halfcheetah_like(EPISODES, LENGTH) | {"lengths": np.full(EPISODES, LENGTH)}


def variable() -> Arrays:
    """Return flat columns of as many steps in episodes of many lengths, which terminate."""
    lengths = np.random.default_rng(5).integers(SHORTEST, LONGEST + 1, EPISODES * LENGTH // 180)
    lengths = lengths[: np.searchsorted(lengths.cumsum(), EPISODES * LENGTH)]
    columns = halfcheetah_like(len(lengths), LONGEST)
    for name, column in columns.items():
        blocks = column.reshape(len(lengths), -1, *column.shape[1:])
        is_kept = np.arange(blocks.shape[1]) < (lengths + (name == "observations"))[:, None]
        columns[name] = blocks[is_kept]
    columns["truncations"][:] = False
    columns["terminations"][lengths.cumsum() - 1] = True
    return columns | {"lengths": lengths}


def episodes_of(frames: np.ndarray) -> Arrays:
    """Return flat columns of episodes of frames."""
    episodes = len(frames) // FRAMES_PER_EPISODE
    lengths = np.full(episodes, FRAMES_PER_EPISODE - 1)
    steps = int(lengths.sum())
    truncations = np.zeros(steps, np.bool_)
    truncations[lengths.cumsum() - 1] = True
    return {
        "observations": frames,
        "actions": np.zeros((steps, 6), np.float32),
        "rewards": np.zeros(steps, np.float32),
        "terminations": np.zeros(steps, np.bool_),
        "truncations": truncations,
        "lengths": lengths,
    }


def write_version(name: str, columns: Arrays) -> None:
    """Write flat columns as a version of orlog."""
    from gymnasium import spaces

    import orlog

    observations: Any = columns["observations"]

    def space_of(values: np.ndarray) -> spaces.Box:
        low, high = (0, 255) if values.dtype == np.uint8 else (-np.inf, np.inf)
        return spaces.Box(low, high, values.shape[1:], values.dtype.type)

    by_key: dict[str, Any] = observations if isinstance(observations, dict) else {"": observations}
    leaves: dict[str, Any] = {key: space_of(values) for key, values in by_key.items()}
    with orlog.DatasetWriter(
        f"bench/{name}-v0",
        version="1.0.0",
        observation_space=leaves.get("") or spaces.Dict(leaves),
        action_space=spaces.Box(-1, 1, columns["actions"].shape[1:], np.float32),
        reward_dtype=np.float32,
        description="",
        license="CC0-1.0",
    ) as writer:
        end = 0
        for episode, length in enumerate(columns["lengths"].tolist()):
            start, end = end, end + length
            rows = {key: one[start + episode : end + episode + 1] for key, one in by_key.items()}
            writer.add_episode(
                orlog.Episode(
                    observations=rows.get("", rows),
                    actions=columns["actions"][start:end],
                    rewards=columns["rewards"][start:end],
                    terminations=columns["terminations"][start:end],
                    truncations=columns["truncations"][start:end],
                    infos={
                        column.removeprefix(INFOS): values[start:end]
                        for column, values in columns.items()
                        if column.startswith(INFOS)
                    },
                    seed=None,
                )
            )


def dialogues() -> Any:
    """Return arrays of 200 episodes of 100 steps, in which the agent is told ten words and says two."""
    import torch

    from orlog.loaders.arrays import Arrays, Leaf

    rng = np.random.default_rng(0)
    lengths = np.full(200, 100)
    rows = torch.zeros(int((lengths + 1).sum()), 3)
    texts = {
        name: tuple(" ".join(rng.choice(SAID, count)) for _ in range(1000))
        for name, count in (("observations", 10), ("actions", 2))
    }
    others = {name: torch.from_numpy(rng.integers(0, 1000, len(rows))) for name in texts}
    leaves = {"": Leaf(column="observations")}
    return Arrays(
        rows=rows, lengths=lengths, obs_dim=0, action_dim=0, others=others, texts=texts, observation_leaves=leaves
    )


def tokenizer() -> Any:
    """Return a tokenizer with a token for each word."""
    import tokenizers

    known = {word: number for number, word in enumerate(["[unk]", "[action]", "[end]", *SAID])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[unk]"))  # noqa: S106
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[action]", "[end]"])
    return made
