"""Sets as robots record them: smooth motion with pauses, sensors with noise, cameras that see the arm."""

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.episodes import record_episodes, whole_episode

Draft = dict[str, Any]
JOINTS, SIZE = 6, 32


def path(rng, rows, numbers, idle=0, start=None):
    """Return positions that move smoothly from one random point to the next, with pauses."""
    here = rng.uniform(-1.2, 1.2, numbers) if start is None else np.asarray(start, float)
    parts = [np.repeat(here[None], idle, axis=0)]
    made = idle
    while made < rows:
        there = rng.uniform(-1.2, 1.2, numbers)
        share = np.linspace(0, 1, rng.integers(10, 25))[:, None]
        parts.append(here + (there - here) * (3 * share**2 - 2 * share**3))
        if rng.random() < 0.4:
            parts.append(np.repeat(there[None], rng.integers(3, 12), axis=0))
        here = there
        made = sum(map(len, parts))
    return np.concatenate(parts)[:rows]


def picture(points, rng, noise=2.0):
    """Return frames of two colored balls, whose places points (rows, 4) give, on a warm ground."""
    grid = np.linspace(-1.5, 1.5, SIZE)
    frames = np.zeros((len(points), SIZE, SIZE, 3))
    frames += np.array([150.0, 110.0, 70.0]) + 30 * grid[:, None, None]
    for ball, color in enumerate(([-120.0, 60, 40], [60.0, -80, 150])):
        x, y = points[:, 2 * ball, None, None], points[:, 2 * ball + 1, None, None]
        near = np.exp(-((grid[None, :, None] - x) ** 2 + (grid[None, None] - y) ** 2) / 0.08)
        frames += near[..., None] * np.array(color)
    return (frames + rng.normal(0, noise, frames.shape)).clip(0, 255).astype(np.uint8)


def turning(rng, real):
    """Return the pose of a hand: a place, and a quaternion that turns without jumps."""
    half = path(rng, len(real), 3) * 0.6
    pose = np.concatenate([real[:, :3], np.cos(half[:, :1]), np.sin(half[:, :1])], axis=1)
    pose = np.concatenate([pose[:, :3], pose[:, 3:] * np.cos(half[:, 1:2]), pose[:, 3:] * np.sin(half[:, 1:2])], axis=1)
    return {"pose": pose.astype(np.float32)}


def arm(seed, *, episodes=16, steps=120, action="next", images=False, noise=1e-3, idle=0, home=False, extra=None):
    """Return episodes of an arm with a gripper, as `Episode` takes them.

    `action`: the next position, the `target` that the arm follows with a lag, or a `delta`.
    """
    rng = np.random.default_rng(seed)
    place = rng.uniform(-1, 1, JOINTS)
    drafts = []
    for _ in range(episodes):
        rows = steps + 1
        wanted = path(rng, rows, JOINTS, idle, place if home else None)
        if home:  # it comes back, and rests
            share = np.append(np.linspace(0, 1, 30), np.ones(12))[:, None]
            wanted[-42:] += (place - wanted[-42:]) * (3 * share**2 - 2 * share**3)
        grip = np.where(np.cumsum(rng.random(rows) < 0.03) % 2, 0.0, 1.0)
        grip[: max(8, idle)] = 1.0
        if home:
            grip[-30:] = 1.0
        real, closed = wanted.copy(), grip.copy()
        for row in range(1, rows):
            closed[row] = closed[row - 1] + 0.4 * (grip[row - 1] - closed[row - 1])
            if action == "target":
                real[row] = real[row - 1] + 0.35 * (wanted[row - 1] - real[row - 1])
        seen = real + rng.normal(0, noise, real.shape)
        state = np.concatenate([seen, (closed + rng.normal(0, noise, rows))[:, None]], axis=1)
        taken = {"next": seen[1:], "target": wanted[:-1], "delta": np.diff(seen, axis=0)}[action]
        observations = {"state": state.astype(np.float32)}
        if images:
            observations["image"] = picture(real[:, :4], rng)
        if extra is not None:
            observations |= extra(rng, real)
        drafts.append(
            {
                "observations": observations,
                "actions": np.concatenate([taken, grip[:-1, None]], axis=1).astype(np.float32),
            }
        )
    return drafts


def record(drafts, name="lab/arm-v1", **facts):
    """Write episodes, which end by a truncation, and open them."""
    first = drafts[0]["observations"]
    space = spaces.Dict(
        {
            key: spaces.Box(0, 255, rows.shape[1:], np.uint8)
            if rows.dtype == np.uint8
            else spaces.Box(-np.inf, np.inf, rows.shape[1:], rows.dtype)
            for key, rows in first.items()
        }
    )
    number = drafts[0]["actions"].shape[1]
    written = (
        whole_episode(one["observations"], one["actions"], end="truncation", **one.get("more", {})) for one in drafts
    )
    return record_episodes(name, written, space, spaces.Box(-np.inf, np.inf, (number,), np.float32), **facts)
