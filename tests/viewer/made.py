"""Datasets that the tests of the viewer open: pictures, depth, texts, tokens, states, hostile names."""

import gymnasium
import numpy as np
from gymnasium import spaces

import orlog
from tests.episodes import record_episodes, whole_episode

SCRIPT = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


def robot_episode(seed, steps, *, text="pick up the cube"):
    """Return an episode with a camera, depth, a state, an instruction, tokens and values of any length."""
    rng = np.random.default_rng(seed)
    rows = steps + 1
    frames = np.zeros((rows, 32, 48, 3), np.uint8)
    for step in range(rows):
        frames[step, :, :, 2] = np.linspace(20, 200, 48)
        frames[step, 8:16, (step * 2) % 40 : (step * 2) % 40 + 8] = 255, step % 256, 0
    state = rng.normal(size=(rows, 3)).cumsum(0).astype(np.float32)
    return whole_episode(
        {
            "camera": frames,
            "depth": rng.random((rows, 24, 24), dtype=np.float32) + 0.5,
            "instruction": [text] * rows,
            "position": state,
        },
        rng.uniform(-1, 1, (steps, 2)).clip(-0.8, 0.8).astype(np.float32),
        rng.normal(size=steps),
        end="termination" if seed % 2 else "truncation",
        infos={
            "tokens": [np.arange(step % 5, dtype=np.int64) for step in range(steps)],
            "said": [f"step {step}: {text}" for step in range(steps)],
        },
        seed=seed,
        metadata={"success": bool(seed % 2), "task": text, "goal": np.arange(2.0)},
    )


ROBOT_SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (32, 48, 3), np.uint8),
        "depth": spaces.Box(0, 2, (24, 24), np.float32),
        "instruction": spaces.Text(500, charset=frozenset(map(chr, range(32, 127)))),
        "position": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    }
)
ARM_SPACE = spaces.Box(-1, 1, (2,), np.float32)


def write_robot(name="lab/robot-v1", *, episodes=6, steps=40, **about):
    """Write the dataset of a robot and return it."""
    text = about.pop("text", "pick up the cube")
    return record_episodes(
        name,
        (robot_episode(seed, steps + seed, text=text) for seed in range(episodes)),
        ROBOT_SPACE,
        ARM_SPACE,
        **about,
    )


def write_numbers(name="lab/numbers-v1", *, episodes=300, steps=20):
    """Write many short episodes of numbers, the return of episode i being i, and return the dataset."""
    with orlog.DatasetWriter(
        name,
        observation_space=spaces.Box(-np.inf, np.inf, (4,), np.float32),
        action_space=spaces.Discrete(3),
        behavior_policy="counts up",
    ) as writer:
        for index in range(episodes):
            rewards = np.zeros(steps)
            rewards[-1] = index
            values = np.arange(4 * (steps + 1), dtype=np.float32).reshape(-1, 4)
            writer.add_episode(whole_episode(values + index, np.arange(steps) % 3, rewards))
    return orlog.load_dataset(name)


def record_cartpole(name="lab/cartpole-v1", *, episodes=3, state=True):
    """Record CartPole, with the states of its simulator unless told not to, and return the dataset."""
    env = orlog.record(gymnasium.make("CartPole-v1"), name, state=state)
    for seed in range(episodes):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(seed % 2)
            ended = terminated or truncated
    env.close()
    return orlog.load_dataset(name)
