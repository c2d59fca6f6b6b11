"""Episodes of Pendulum, really recorded: by random torques, or by a controller."""

import gymnasium
import numpy as np

import orlog
from tests.episodes import whole_episode


def swing_up(seen):
    """Return the torque that pumps energy into the pendulum, and balances it at the top."""
    cosine, sine, speed = (float(one) for one in seen)
    angle = np.arctan2(sine, cosine)
    if cosine > 0.85:
        torque = -10 * angle - 2 * speed
    else:
        torque = 2.0 * np.sign(speed) * (1 if speed**2 / 2 + 15 * (cosine - 1) < 0 else -1)
    return np.clip(np.array([torque], np.float32), -2, 2)


def pendulum(name="lab/pendulum-v1", *, choose=None, named=True, episodes=2, **arguments):
    """Return recorded episodes of Pendulum.

    Args:
        name: Name of the dataset.
        choose: What chooses the actions; random ones by default.
        named: Whether the dataset names its environment.
        episodes: Number of episodes.
        arguments: Arguments of the environment.
    """
    with (
        gymnasium.make("Pendulum-v1", **arguments) as env,
        orlog.DatasetWriter(
            name,
            observation_space=env.observation_space,
            action_space=env.action_space,
            environment=env if named else None,
        ) as writer,
    ):
        env.action_space.seed(0)
        for episode in range(episodes):
            seen, _ = env.reset(seed=episode)
            observations, actions, rewards, truncated = [seen], [], [], False
            while not truncated:
                actions.append(choose(seen) if choose else env.action_space.sample())
                seen, reward, _, truncated, _ = env.step(actions[-1])
                observations.append(seen)
                rewards.append(float(reward))
            writer.add_episode(
                whole_episode(np.array(observations), np.array(actions), np.array(rewards), end="truncation")
            )
    return orlog.load_dataset(name)
