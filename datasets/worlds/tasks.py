"""Meta-World's tasks for one arm as one environment, whose episodes take turns with the tasks.

    ids          `orlog/metaworld-mt10-v0` and `orlog/metaworld-mt50-v0`: the tasks of MT10 and MT50, in the order of
                 the package (https://arxiv.org/abs/1910.10897)
    episode      200 steps, as in Continual World; success does not end it. The episode of seed `s` plays task
                 `s` modulo the number of tasks; without a seed comes the task after the last one
    observation  Meta-World's 39 numbers, the goal among them, then one number for each task: 1 for the task that
                 is played, 0 for the others; float32
    action, reward  Meta-World's: three numbers that move the hand and one for the gripper, within -1 and 1;
                 0 to 10 for each step
    info         `success` after each step, the number of the `task`, and its `instruction` in words

What differs from the package: places of objects and goals are drawn anew in each episode, from its seed, where
the package's benchmarks draw 50 of each task once; the goal is seen, as in its benchmarks of several tasks.

Recipes of the `tasks/...` datasets: noisy demonstrations of many tasks, one policy's observations for all.

Meta-World's scripted policies act, and Gaussian noise is added to their actions, which are then cut off at the
bounds. Episodes take turns with the tasks; each task takes turns with the recipe's amounts of noise. Every episode
keeps the number of its task, the task in words, its noise and whether it succeeded.

    episode i:  SeedSequence((seed, i)) -> reset seed, lowered to one that plays task i % tasks; generator of noise
                noises[(i // tasks) % noises]
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode

STATE = 39  # numbers of an observation that are Meta-World's own


class MetaWorld(gymnasium.Env[np.ndarray, np.ndarray]):
    """The environment.

    Attributes:
        tasks: Names of the tasks, such as `pick-place-v3`.
        task: Number of the task of this episode.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012  # Gymnasium's own name

    def __init__(
        self, benchmark: str = "MT10", *, render_mode: str | None = None, width: int = 240, height: int = 240
    ) -> None:
        self.tasks = tasks_of(benchmark)
        self.task = -1
        self.render_mode = render_mode
        self.observation_space = spaces.Box(
            np.array([-np.inf] * STATE + [0.0] * len(self.tasks), np.float32),
            np.array([np.inf] * STATE + [1.0] * len(self.tasks), np.float32),
        )
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self._picture = {"render_mode": render_mode, "width": width, "height": height}
        # A simulator for each task, made when it is first played: it takes a tenth of a second.
        self._simulators: dict[int, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self.task = (self.task + 1 if seed is None else seed) % len(self.tasks)
        simulator = self._simulators.get(self.task)
        if simulator is None:
            simulator = self._simulators[self.task] = self._make()
        simulator.seed(int(self.np_random.integers(2**31)))
        state, _ = simulator.reset()
        return self._observed(state), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move hand and gripper."""
        state, reward, _, _, info = self._simulators[self.task].step(action)
        infos = {**self._info(), "success": bool(info["success"])}
        return self._observed(state), float(reward), False, False, infos

    def render(self) -> Any:
        """Return a picture of the scene, if `render_mode` asks for pictures."""
        return self._simulators[self.task].render() if self.render_mode else None

    def close(self) -> None:
        """Close all simulators."""
        for simulator in self._simulators.values():
            simulator.close()
        self._simulators = {}

    def _make(self) -> Any:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS

        made = ALL_V3_ENVIRONMENTS[self.tasks[self.task]](**self._picture)
        # As the package's benchmarks set it, but for where objects and goals come from. The space is cached
        # since the constructor, which hides the goal, and observations are cut off at its bounds.
        made._partially_observable = False
        made.__dict__.pop("sawyer_observation_space", None)
        made._freeze_rand_vec, made.seeded_rand_vec, made._set_task_called = False, True, True
        return made

    def _observed(self, state: np.ndarray) -> np.ndarray:
        observation = np.zeros(STATE + len(self.tasks), np.float32)
        observation[:STATE] = state
        observation[STATE + self.task] = 1
        return observation

    def _info(self) -> dict[str, Any]:
        return {"task": self.task, "instruction": instruction_of(self.tasks[self.task])}


def fifty_tasks(**arguments: Any) -> MetaWorld:
    """Return the environment of all fifty tasks."""
    return MetaWorld("MT50", **arguments)


def tasks_of(benchmark: str) -> list[str]:
    """Return the names of the tasks of `MT10`, `MT25` or `MT50`, in the order of the package."""
    from metaworld import env_dict

    return [*getattr(env_dict, f"{benchmark}_V3")]


def instruction_of(task: str) -> str:
    """Return a task in words: `pick-place-v3` is `pick place`."""
    return task.rpartition("-")[0].replace("-", " ")


def scripted_actions(observations: np.ndarray, tasks: list[str]) -> np.ndarray:
    """Return what the package's scripted policies do, cut off at the bounds: [batch, 4] float32."""
    from metaworld.policies import ENV_POLICY_MAP

    actions = []
    with warnings.catch_warnings():
        # Its policies ask for more than the bounds allow, and say so.
        warnings.filterwarnings("ignore", r"Constant\(s\) may be too high")
        for observation in observations:
            policy = ENV_POLICY_MAP[tasks[int(observation[STATE:].argmax())]]()
            actions.append(np.clip(policy.get_action(observation[:STATE].astype(np.float64)), -1, 1))
    return np.array(actions, np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `tasks` dataset.

    Attributes:
        environment_id: The registered environment that records and scores; it decides which tasks there are.
        length: Steps of each episode.
        noises: Standard deviations of the noise.
    """

    environment_id: str
    count: int
    length: int = 200
    noises: tuple[float, ...] = (0.1, 0.2, 0.4)
    seed: int = 0

    name = "tasks"

    @property
    def steps(self) -> int:
        """Steps in the dataset."""
        return self.count * self.length

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        noises = ", ".join(f"{noise:g}" for noise in self.noises)
        return f"Meta-World's scripted policy of each task, with noise of {noises} in turn"

    def episode(self, env: Any, drawn: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode, whose seed is the next drawn one of its task."""
        tasks: list[str] = env.get_wrapper_attr("tasks")
        noise = self.noises[index // len(tasks) % len(self.noises)]
        seed = drawn - drawn % len(tasks) + index % len(tasks)

        def choose(observation: Any) -> tuple[np.ndarray, dict[str, Any]]:
            (chosen,) = scripted_actions(observation[None], tasks)
            action = np.clip(chosen + noise * rng.standard_normal(4), -1, 1).astype(np.float32)
            return action, {}

        made = play_episode(env, seed, choose, infos=("success", "task", "instruction"))
        infos = {name: [*values] for name, values in made.infos.items()}
        metadata = {
            "task": int(infos["task"][0]),
            "instruction": infos["instruction"][0],
            "noise": noise,
            "success": any(infos["success"]),
        }
        return dataclasses.replace(made, infos={}, metadata=metadata)

    def expert(self) -> Expert:
        """Return the scripted policies without noise."""
        return Expert(name="Meta-World's scripted policies, without noise", policy=self._act)

    def _act(self, observations: np.ndarray) -> np.ndarray:
        benchmark = f"MT{observations.shape[1] - STATE}"
        return scripted_actions(observations, tasks_of(benchmark))


def _demonstrations(which: str, recipe: TasksRecipe) -> CatalogueEntry:
    return CatalogueEntry(
        description=(
            f"The {which} of Meta-World, which one policy is to play: noisy demonstrations by its scripted "
            f"policies, with number and words of each task. {recipe.steps:,} steps."
        ),
        recipe=recipe,
    )


DATASETS = {
    "tasks/mt10-v1": _demonstrations(
        "ten tasks of MT10", TasksRecipe(environment_id="orlog/metaworld-mt10-v0", count=300, seed=40)
    ),
    "tasks/mt50-v1": _demonstrations(
        "fifty tasks of MT50", TasksRecipe(environment_id="orlog/metaworld-mt50-v0", count=300, seed=41)
    ),
}
