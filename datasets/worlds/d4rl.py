"""D4RL's mazes, a ball on a plane (maze2d) and an ant (antmaze), and its ant without a maze, in MuJoCo.

Maps, models, resets, rewards and ends of episodes are those of Farama-Foundation/D4RL@89141a689b,
`d4rl/pointmaze/maze_model.py`, `d4rl/locomotion/maze_env.py`, `ant.py` and `goal_reaching_env.py`.
Those ran in mujoco-py; these run in MuJoCo's own bindings and draw random numbers from Gymnasium's
generator, so episodes are alike and not the same. Gymnasium-Robotics has mazes too, with other
coordinates and with an ant five times as strong, whose steps are half as long.

    maze2d   (row, column) is a place of the map: the middle of cell (1, 2) is at 1, 2
    antmaze  x grows along a row of the map and y along a column; 0, 0 is where the ant starts, and
             a cell is 4 wide

D4RL's ant is gym's Ant-v2: 13 positions, 14 velocities and 84 contact forces. The forces are zeros:
MuJoCo 2.0 and later compute none unless they are asked for, and mujoco-py never asked
(Farama-Foundation/D4RL#143, openai/gym#1541). So their cost is 0 too, as in Ant-v4.

D4RL's robots: Adroit's hand and the Franka arm in a kitchen, on Gymnasium-Robotics' models.

The models equal D4RL's: compiled by one MuJoCo, all masses, shapes, joints, contacts and motors are
the same numbers (the kitchen lacks one invisible body). Observations of the hand are the same too.
Rewards and ends differ, so they are computed here as in Farama-Foundation/D4RL@89141a689b,
`d4rl/hand_manipulation_suite/*_v0.py`: Gymnasium-Robotics 1.4 pays for the distance between palm and
object where D4RL asks a price for it, and goes on after the pen has fallen. The kitchen's
observations, noise and rewards are those of `d4rl/kitchen/kitchen_envs.py` and
`adept_envs/franka/robot/franka_robot.py`.
"""

from __future__ import annotations

import functools
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, Literal

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco.ant_v4 import AntEnv
from gymnasium.spaces import Box
from gymnasium_robotics.envs.adroit_hand.adroit_door import AdroitHandDoorEnv
from gymnasium_robotics.envs.adroit_hand.adroit_hammer import AdroitHandHammerEnv
from gymnasium_robotics.envs.adroit_hand.adroit_pen import AdroitHandPenEnv
from gymnasium_robotics.envs.adroit_hand.adroit_relocate import AdroitHandRelocateEnv
from gymnasium_robotics.envs.franka_kitchen.kitchen_env import OBS_ELEMENT_GOALS, OBS_ELEMENT_INDICES, KitchenEnv

# "#" is a wall, "G" the goal.
MAPS = {
    "open": "####### #.....# #..G..# #.....# #######",
    "umaze": "##### #G..# ###.# #...# #####",
    "medium": "######## #..##..# #..#...# ##...### #..#...# #.#..#.# #...#.G# ########",
    "large": "############ #....#.....# #.##.#.#.#.# #......#...# #.####.###.# #..#.#.....# "
    "##.#.#.#.### #..#...#.G.# ############",
    "eval-umaze": "##### #..G# #.### #...# #####",
    "eval-medium": "######## #.....G# #.#.##.# #....#.# ###..### #......# #..##..# ########",
    "eval-large": "############ #..#...#.G.# ##.###.#.#.# #..#.#.....# #.##.#..##.# #......#...# "
    "#.##.#.#.### #....#.....# ############",
}
# The same, and "R" is where the ant starts.
ANT_MAPS = {
    "umaze": "##### #R..# ###.# #G..# #####",
    "medium": "######## #R.##..# #..#...# ##...### #..#...# #.#..#.# #...#.G# ########",
    "large": "############ #R...#.....# #.##.#.#.#.# #......#...# #.####.###.# #..#.#.....# "
    "##.#.#.#.### #..#...#.G.# ############",
    "eval-umaze": "##### #..R# #.### #..G# #####",
    "eval-medium": "######## #R....G# #.#.##.# #....#.# ###..### #......# #..##..# ########",
    "eval-large": "############ #R.#...#.G.# ##.###.#.#.# #..#.#.....# #.##.#..##.# #......#...# "
    "#.##.#.#.### #....#.....# ############",
}
GOAL_RADIUS = 0.5
CELL = 4.0  # antmaze
FASTEST = 5.0  # maze2d
FORCES = 84  # ant


class Ant(gymnasium.ObservationWrapper[np.ndarray, np.ndarray, np.ndarray]):
    """Gymnasium's Ant-v4 with the 111 numbers that D4RL's datasets hold: 84 zeros follow its observations."""

    def __init__(self, render_mode: str | None = None) -> None:
        make: Any = AntEnv
        super().__init__(make() if render_mode is None else make(render_mode=render_mode))
        self.observation_space = Box(-np.inf, np.inf, (27 + FORCES,), np.float64)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the observation with forces of zero."""
        return np.concatenate([observation, np.zeros(FORCES)])


class _Simulated(gymnasium.Env[np.ndarray, np.ndarray]):
    """An environment that is one MuJoCo model.

    Attributes:
        model: The compiled model.
        data: Its state.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own attribute)

    def __init__(self, xml: str, observation: int, actions: int) -> None:
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)
        self.observation_space = Box(-np.inf, np.inf, (observation,), np.float64)
        self.action_space = Box(-1.0, 1.0, (actions,), np.float32)

    def set_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        self.data.qpos[:] = qpos
        self.data.qvel[:] = qvel
        mujoco.mj_forward(self.model, self.data)

    def _state(self) -> np.ndarray:
        return np.concatenate([self.data.qpos, self.data.qvel])


class Maze2d(_Simulated):
    """A ball that is pushed through a maze; episodes end at the time limit only.

    Observation: place (row, column) and velocity. Reward: 1 within 0.5 of the goal, else 0
    (`sparse`), or exp(-distance) (`dense`).

    Attributes:
        target: The place that pays: the goal of the map.
    """

    def __init__(self, maze: str, reward: Literal["sparse", "dense"]) -> None:
        rows = MAPS[maze].split()
        super().__init__(_maze2d_xml(rows), 4, 2)
        self._reward = reward
        self._starts = _cells(rows, ".") + _cells(rows, "G")
        self.target = np.array(_cells(rows, "G")[0], np.float64)

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 (Gymnasium's own)
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the ball near the middle of a free cell."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        cell = self._starts[self.np_random.integers(len(self._starts))]
        self.set_state(np.array(cell) + self.np_random.uniform(-0.1, 0.1, 2), self.np_random.standard_normal(2) * 0.1)
        return self._state(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push the ball for 0.01 s."""
        self.set_state(self.data.qpos.copy(), np.clip(self.data.qvel, -FASTEST, FASTEST))
        self.data.ctrl[:] = np.clip(action, -1.0, 1.0)
        mujoco.mj_step(self.model, self.data)
        distance = float(np.linalg.norm(self.data.qpos - self.target))
        sparse = 1.0 if distance <= GOAL_RADIUS else 0.0
        reward = sparse if self._reward == "sparse" else float(np.exp(-distance))
        return self._state(), reward, False, False, {}


class AntMaze(_Simulated):
    """An ant that walks to a goal; the episode ends there with reward 1, all other steps pay 0.

    Observation: the ant's 15 positions, x and y first, and its 14 velocities. The goal is not part
    of it.

    Attributes:
        target: The goal (x, y) of this episode.
    """

    def __init__(self, maze: str, new_goals: bool) -> None:
        """Build the maze, a key of `ANT_MAPS`.

        With `new_goals` each episode draws a goal, as ids of version 2 do. Else the first episode's goal
        stays.
        """
        rows = ANT_MAPS[maze].split()
        ((row, column),) = _cells(rows, "R")
        super().__init__(_antmaze_xml(rows, row, column), 29, 8)
        self._new_goals = new_goals
        ((goal_row, goal_column),) = _cells(rows, "G")
        self._goal = np.array([goal_column - column, goal_row - row]) * CELL
        self._ranges = self.model.actuator_ctrlrange
        self.target: np.ndarray | None = None

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 (Gymnasium's own)
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the ant at its start; the goal is drawn from the goal's cell."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        # Drawn even if it is not used, so that a seed gives the same start in every episode.
        noise = self.np_random.uniform(0, 0.25 * CELL, 2)
        noise = noise + self.np_random.uniform(0, 0.5, 2) * 0.25 * CELL
        if self.target is None or self._new_goals:
            self.target = np.maximum(self._goal + noise, 0)
        self.set_state(
            self.model.qpos0 + self.np_random.uniform(-0.1, 0.1, self.model.nq),
            self.np_random.standard_normal(self.model.nv) * 0.1,
        )
        return self._state(), {"goal": self.target}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Drive the joints for 0.1 s; an action of 1 is the strongest torque of a motor."""
        low, high = self._ranges.T
        self.data.ctrl[:] = np.clip(low + (np.asarray(action) + 1.0) * 0.5 * (high - low), low, high)
        mujoco.mj_step(self.model, self.data, nstep=5)
        is_there = float(np.linalg.norm(self.data.qpos[:2] - self.target)) <= GOAL_RADIUS
        return self._state(), float(is_there), is_there, False, {"goal": self.target}


def _cells(rows: list[str], kind: str) -> list[tuple[int, int]]:
    return [(row, column) for row, cells in enumerate(rows) for column, cell in enumerate(cells) if cell == kind]


def _maze2d_xml(rows: list[str]) -> str:
    """Return the model of `maze_model.point_maze`; what is only seen is left out."""
    walls = "".join(
        f'<geom type="box" pos="{row + 1} {column + 1} 0" size="0.5 0.5 0.2" conaffinity="1"/>'
        for row, column in _cells(rows, "#")
    )
    return f"""
    <mujoco>
      <compiler inertiafromgeom="true" angle="radian"/>
      <option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler"/>
      <default>
        <joint damping="1" limited="false"/>
        <geom friction=".5 .1 .1" density="1000" margin="0.002" condim="1" contype="2"
          conaffinity="1"/>
      </default>
      <worldbody>
        <geom type="plane" size="40 40 0.25" pos="0 0 -0.1" contype="1" conaffinity="0"/>
        <body pos="1.2 1.2 0">
          <geom type="sphere" size="0.1" contype="1"/>
          <joint name="ball_x" type="slide" pos="0 0 0" axis="1 0 0"/>
          <joint name="ball_y" type="slide" pos="0 0 0" axis="0 1 0"/>
        </body>
        {walls}
      </worldbody>
      <actuator>
        <motor joint="ball_x" ctrlrange="-1 1" ctrllimited="true" gear="100"/>
        <motor joint="ball_y" ctrlrange="-1 1" ctrllimited="true" gear="100"/>
      </actuator>
    </mujoco>"""


@functools.cache
def _ant_xml() -> str:
    """Return Gymnasium's ant, whose bodies, joints and shapes are those of D4RL's."""
    import gymnasium.envs.mujoco.mujoco_env as place

    return (Path(place.__file__).parent / "assets" / "ant.xml").read_text("utf-8")


def _antmaze_xml(rows: list[str], start_row: int, start_column: int) -> str:
    """Return D4RL's ant between walls: other time step, motors and contacts than Gymnasium's."""
    root = ET.fromstring(_ant_xml())  # noqa: S314 (a file of Gymnasium)
    _find(root, "option").set("timestep", "0.02")
    geom = _find(root, "default/geom")
    geom.set("solref", ".02 1")
    geom.set("solimp", ".8 .8 .01")
    for motor in root.iterfind("actuator/motor"):
        motor.set("ctrlrange", "-30 30")
        motor.set("gear", "1")
    world = _find(root, "worldbody")
    for row, column in _cells(rows, "#"):
        x, y = (column - start_column) * CELL, (row - start_row) * CELL
        place = {"pos": f"{x} {y} {CELL / 4}", "size": f"{CELL / 2} {CELL / 2} {CELL / 4}"}
        ET.SubElement(world, "geom", {"type": "box", "contype": "1", "conaffinity": "1", **place})
    return ET.tostring(root, "unicode")


def _find(root: ET.Element, path: str) -> ET.Element:
    element = root.find(path)
    assert element is not None, path
    return element


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

    def __init__(self, task: Literal["door", "hammer", "pen", "relocate"], render_mode: str | None = None) -> None:
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
        self.tasks = _TASKS[tasks]
        self.kitchen = KitchenEnv(tasks_to_complete=list(self.tasks), robot_noise_ratio=NOISE, render_mode=render_mode)
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
            if _distance(observation[OBS_ELEMENT_INDICES[task]], self.goal[OBS_ELEMENT_INDICES[task]]) < NEAR_GOAL
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


def _distance(point: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(point - other))
