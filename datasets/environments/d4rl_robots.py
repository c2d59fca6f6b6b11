"""D4RL's robots: Adroit's hand and the Franka arm in a kitchen, on Gymnasium-Robotics' models.

The models equal D4RL's: compiled by one MuJoCo, all masses, shapes, joints, contacts and motors are
the same numbers (the kitchen lacks one invisible body). Observations of the hand are the same too.
Rewards and ends differ, so they are computed here as in Farama-Foundation/D4RL@89141a689b,
`d4rl/hand_manipulation_suite/*_v0.py`: Gymnasium-Robotics 1.4 pays for the distance between palm and
object where D4RL asks a price for it, and goes on after the pen has fallen. The kitchen's
observations, noise and rewards are those of `d4rl/kitchen/kitchen_envs.py` and
`adept_envs/franka/robot/franka_robot.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium_robotics.envs.adroit_hand.adroit_door import AdroitHandDoorEnv
from gymnasium_robotics.envs.adroit_hand.adroit_hammer import AdroitHandHammerEnv
from gymnasium_robotics.envs.adroit_hand.adroit_pen import AdroitHandPenEnv
from gymnasium_robotics.envs.adroit_hand.adroit_relocate import AdroitHandRelocateEnv
from gymnasium_robotics.envs.franka_kitchen.kitchen_env import (
    OBS_ELEMENT_GOALS,
    OBS_ELEMENT_INDICES,
    KitchenEnv,
)

_HANDS = {
    "door": AdroitHandDoorEnv,
    "hammer": AdroitHandHammerEnv,
    "pen": AdroitHandPenEnv,
    "relocate": AdroitHandRelocateEnv,
}
_TASKS = {
    "microwave-kettle-light-slider": ("microwave", "kettle", "light switch", "slide cabinet"),
    "microwave-kettle-burner-light": ("microwave", "kettle", "bottom burner", "light switch"),
}
ROBOT_JOINTS = 9
NOISE = 0.1
NEAR_GOAL = 0.3


class Adroit(gymnasium.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """A hand of 24 joints that opens a door, hammers, turns a pen or relocates a ball."""

    def __init__(
        self, task: Literal["door", "hammer", "pen", "relocate"], render_mode: str | None = None
    ) -> None:
        """Make Gymnasium-Robotics' environment."""
        options = {} if render_mode is None else {"render_mode": render_mode}
        super().__init__(_HANDS[task](reward_type="dense", **options))
        self._hand: Any = self.env
        self._task = task

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step with D4RL's reward and end."""
        observation, _, _, _, info = self.env.step(action)
        reward = getattr(self, f"_{self._task}")()
        has_fallen = self._task == "pen" and self._body("obj_body_id")[2] < 0.075
        return observation, float(reward), bool(has_fallen), False, info

    def _site(self, name: str) -> np.ndarray:
        place: np.ndarray = self._hand.data.site_xpos[getattr(self._hand, name)]
        return place

    def _body(self, name: str) -> np.ndarray:
        place: np.ndarray = self._hand.data.xpos[getattr(self._hand, name)]
        return place

    def _door(self) -> float:
        hinge = float(self._hand.data.qpos[self._hand.door_hinge_addrs])
        reward = -0.1 * _distance(self._site("grasp_site_id"), self._site("handle_site_id"))
        reward += -0.1 * (hinge - 1.57) * (hinge - 1.57)
        reward += -1e-5 * float(np.sum(self._hand.data.qvel**2))
        return reward + 2 * (hinge > 0.2) + 8 * (hinge > 1.0) + 10 * (hinge > 1.35)

    def _hammer(self) -> float:
        hammer, head = self._body("obj_body_id"), self._site("tool_site_id")
        nail, goal = self._site("target_obj_site_id"), self._site("goal_site_id")
        reward = -0.1 * _distance(self._site("S_grasp_site_id"), hammer)
        reward -= _distance(head, nail)
        reward -= 10 * _distance(nail, goal)
        reward -= 1e-2 * float(np.linalg.norm(self._hand.data.qvel))
        reward += 2 * bool(hammer[2] > 0.04 and head[2] > 0.04)
        return reward + 25 * (_distance(nail, goal) < 0.020) + 75 * (_distance(nail, goal) < 0.010)

    def _pen(self) -> float:
        pen = self._body("obj_body_id")
        axis = (self._site("obj_t_site_id") - self._site("obj_b_site_id")) / self._hand.pen_length
        wanted = (self._site("tar_t_site_id") - self._site("tar_b_site_id")) / self._hand.tar_length
        distance, similarity = _distance(pen, self._site("eps_ball_site_id")), float(axis @ wanted)
        reward = similarity - distance
        is_near = distance < 0.075
        reward += 10 * (is_near and similarity > 0.9) + 50 * (is_near and similarity > 0.95)
        return reward - 5 * bool(pen[2] < 0.075)

    def _relocate(self) -> float:
        ball, palm = self._body("obj_body_id"), self._site("S_grasp_site_id")
        target = self._site("target_obj_site_id")
        reward = -0.1 * _distance(palm, ball)
        if ball[2] > 0.04:
            reward += 1.0 - 0.5 * _distance(palm, target) - 0.5 * _distance(ball, target)
        return reward + 10 * (_distance(ball, target) < 0.1) + 20 * (_distance(ball, target) < 0.05)


class Kitchen(gymnasium.Env[np.ndarray, np.ndarray]):
    """An arm in a kitchen; each of four subtasks pays 1 once, and after the last one it ends.

    Observation: 9 joints of the robot, 21 positions of the objects, both with noise, and the 30
    positions of the goal, which are 0 where the goal has none.

    Attributes:
        kitchen: Gymnasium-Robotics' environment.
        goal: The positions that solve the subtasks, (30,).
        remaining: Subtasks that are not done in this episode.
    """

    metadata = {"render_modes": ["human", "rgb_array", "depth_array"], "render_fps": 12}  # noqa: RUF012

    def __init__(self, tasks: str, render_mode: str | None = None) -> None:
        """Make Gymnasium-Robotics' environment with D4RL's noise; `tasks` says which four subtasks."""
        self.tasks = _TASKS[tasks]
        self.kitchen = KitchenEnv(
            tasks_to_complete=list(self.tasks), robot_noise_ratio=NOISE, render_mode=render_mode
        )
        self.render_mode = render_mode
        self.robot = self.kitchen.robot_env
        self.action_space = Box(-1.0, 1.0, (ROBOT_JOINTS,), np.float32)
        self.observation_space = Box(-8.0, 8.0, (60,), np.float64)
        self.goal = np.zeros(30)
        for task in self.tasks:
            self.goal[OBS_ELEMENT_INDICES[task]] = OBS_ELEMENT_GOALS[task]
        self.remaining = set(self.tasks)

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 (Gymnasium's own)
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put arm and objects where every episode starts."""
        super().reset(seed=seed)
        robot, _ = self.robot.reset(seed=seed)
        self.remaining = set(self.tasks)
        return self._observe(robot), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the arm for 0.08 s; the reward is the number of subtasks done in this step."""
        robot, *_ = self.robot.step(np.asarray(action, np.float64))
        observation = self._observe(robot)
        done = {
            task
            for task in self.remaining
            if _distance(
                observation[OBS_ELEMENT_INDICES[task]], self.goal[OBS_ELEMENT_INDICES[task]]
            )
            < NEAR_GOAL
        }
        self.remaining -= done
        return observation, float(len(done)), not self.remaining, False, {"done": sorted(done)}

    def render(self) -> Any:
        """Return what the render mode shows."""
        return self.robot.render()

    def close(self) -> None:
        """Close the simulator."""
        self.robot.close()

    def _observe(self, robot: np.ndarray) -> np.ndarray:
        """Return the observation; `robot` begins with its joints, which have their noise already."""
        objects = self.robot.data.qpos[ROBOT_JOINTS:]
        noise = self.robot.np_random.uniform(-1.0, 1.0, len(objects))
        amplitudes = NOISE * _object_noise()
        return np.concatenate([robot[:ROBOT_JOINTS], objects + amplitudes * noise, self.goal])


def _object_noise() -> np.ndarray:
    """Return D4RL's amplitudes for the 21 positions of objects (`franka_config.xml`, 9 to 29)."""
    desk, buttons, lights = [0.005] * 2, [0.0005] * 6, [0.005] * 3
    hinges, kettle, kettle_turn, last = [0.1] * 3, [0.005] * 3, [0.1] * 3, [0.005]
    return np.array([*desk, *buttons, *lights, *hinges, *kettle, *kettle_turn, *last])


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other))
