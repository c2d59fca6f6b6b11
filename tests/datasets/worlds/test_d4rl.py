"""Each counterpart against D4RL's own formulas, written again here from Farama-Foundation/D4RL@89141a689b
(and gym's for locomotion), on states that a test sets."""

import math

import mujoco
import numpy as np
import pytest

from orlog.datasets.worlds.d4rl import ANT_MAPS
from orlog.datasets.worlds.environments import make_environment
from orlog.manifests.counterparts import benchmark_environments

CASES = {one.name: one for one in benchmark_environments()}


def made(name):
    record = CASES[name].record
    return make_environment(record.id, record.kwargs)


def actions_of(env, count):
    rng = np.random.default_rng(1)
    return [rng.uniform(-1, 1, env.action_space.shape).astype(np.float32) for _ in range(count)]


# Locomotion: gym's Hopper-v2, HalfCheetah-v2, Walker2d-v2 and Ant-v2 (openai/gym@0.17:gym/envs/mujoco).


def hopper(before, data, action, dt):
    q, v = data.qpos, data.qvel
    state = np.concatenate([q, v])
    reward = (q[0] - before) / dt + 1 - 1e-3 * np.square(action).sum()
    good = np.isfinite(state).all() and (abs(state[2:]) < 100).all() and q[1] > 0.7
    return np.concatenate([q[1:], np.clip(v, -10, 10)]), reward, not (good and abs(q[2]) < 0.2)


def halfcheetah(before, data, action, dt):
    reward = (data.qpos[0] - before) / dt - 0.1 * np.square(action).sum()
    return np.concatenate([data.qpos[1:], data.qvel]), reward, False


def walker2d(before, data, action, dt):
    q, v = data.qpos, data.qvel
    reward = (q[0] - before) / dt + 1 - 1e-3 * np.square(action).sum()
    good = 0.8 < q[1] < 2.0 and -1.0 < q[2] < 1.0
    return np.concatenate([q[1:], np.clip(v, -10, 10)]), reward, not good


def ant(before, data, action, dt):
    q, v = data.qpos, data.qvel
    forces = np.zeros(84)  # mujoco-py leaves them at 0
    reward = (data.xpos[1][0] - before) / dt + 1 - 0.5 * np.square(action).sum()
    return np.concatenate([q[2:], v, forces]), reward, not 0.2 <= q[2] <= 1.0


@pytest.mark.parametrize("formula", [hopper, halfcheetah, walker2d, ant])
def test_locomotion_is_gyms(formula):
    env = made(formula.__name__)
    env.reset(seed=5)
    data = env.unwrapped.data
    for action in actions_of(env, 30):
        before = data.xpos[1][0] if formula is ant else data.qpos[0]
        observation, reward, terminated, _, _ = env.step(action)
        expected = formula(float(before), data, action, env.unwrapped.dt)
        np.testing.assert_array_equal(observation, expected[0])
        np.testing.assert_allclose(reward, expected[1], rtol=1e-12)
        assert terminated == expected[2]
        if terminated:
            break
    env.close()


# maze2d


def test_the_ball_obeys_newton():
    """A ball of 4.19 kg with a motor of 100 N and damping 1, by MuJoCo's semi-implicit step."""
    env = made("maze2d-open-v0")
    env.reset(seed=0)
    mass = 1000 * 4 / 3 * math.pi * 0.1**3
    place, velocity = np.array([2.0, 2.0]), np.array([6.0, -1.0])
    env.unwrapped.set_state(place, velocity)
    for action in actions_of(env, 5):
        velocity = np.clip(velocity, -5, 5)
        velocity = velocity + 0.01 * (100 * action.astype(np.float64) - velocity) / (mass + 0.01)
        place = place + 0.01 * velocity
        observation, *_ = env.step(action)
        np.testing.assert_allclose(observation, [*place, *velocity], rtol=1e-9)


def test_walls_are_where_the_map_has_them():
    env = made("maze2d-umaze-v1")
    env.reset(seed=0)
    # World places are 1.2 more than the ball's; a wall's middle is at its row and column plus 1.
    for push, stop in (([1, 0], 4 + 1 - 0.5 - 0.1 - 1.2), ([-1, 0], 2 + 1 + 0.5 + 0.1 - 1.2)):
        env.unwrapped.set_state(np.array([3.0, 1.0]), np.zeros(2))
        observation = np.zeros(4)
        for _ in range(100):
            observation, *_ = env.step(np.array(push, np.float32))
        assert observation[0] == pytest.approx(stop, abs=0.02)


@pytest.mark.parametrize(
    ("name", "target", "places"),
    [
        ("maze2d-open-v0", (2, 3), 15),
        ("maze2d-umaze-v1", (1, 1), 7),
        ("maze2d-medium-dense-v1", (6, 6), 26),
        ("maze2d-large-v1", (7, 9), 46),
        ("maze2d-eval-umaze-v1", (1, 3), 7),
    ],
)
def test_a_maze_pays_at_its_goal(name, target, places):
    env = made(name)
    cells = set()
    for seed in range(300):
        observation, _ = env.reset(seed=seed)
        cell = tuple(np.round(observation[:2]).astype(int).tolist())
        assert abs(observation[:2] - cell).max() <= 0.1
        cells.add(cell)
    assert len(cells) == places
    assert target in cells
    for offset in ((0.0, 0.0), (0.3, 0.39), (0.3, 0.41), (-0.49, 0.0), (0.5, 0.5)):
        env.unwrapped.set_state(np.array(target) + offset, np.zeros(2))
        observation, reward, terminated, _, _ = env.step(np.zeros(2, np.float32))
        distance = math.dist(observation[:2], target)
        expected = math.exp(-distance) if "dense" in name else float(distance <= 0.5)
        assert reward == pytest.approx(expected, rel=1e-12)
        assert not terminated


# antmaze


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("antmaze-umaze-v2", (0, 8)),
        ("antmaze-medium-v2", (20, 20)),
        ("antmaze-large-v2", (32, 24)),
        ("antmaze-eval-umaze-v0", (0, 8)),
        ("antmaze-eval-medium-v0", (20, 0)),
        ("antmaze-eval-large-v0", (32, 0)),
    ],
)
def test_an_ant_is_paid_once_at_the_goal(name, cell):
    env = made(name)
    inner = env.unwrapped
    goals = []
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        goals.append(info["goal"])
        assert (goals[-1] >= cell).all()
        assert (goals[-1] <= np.array(cell) + 1.5).all()
        np.testing.assert_array_equal(observation, [*inner.data.qpos, *inner.data.qvel])
        assert abs(observation[:2]).max() <= 0.1
        assert observation[2] == pytest.approx(0.75, abs=0.1)
    assert len({tuple(goal) for goal in goals}) == (20 if name.endswith("v2") else 1)
    paid = set()
    for offset in ((0.8, 0), (0.2, 0.2)):
        qpos = inner.model.qpos0.copy()
        qpos[:2] = goals[-1] + offset
        inner.set_state(qpos, np.zeros(14))
        observation, reward, terminated, _, _ = env.step(np.zeros(8, np.float32))
        assert reward == (math.dist(observation[:2], goals[-1]) <= 0.5)
        assert terminated == bool(reward)
        paid.add(reward)
    assert paid == {0, 1}


def test_the_ant_of_the_mazes_is_d4rls():
    env = made("antmaze-large-v2")
    env.reset(seed=0)
    inner = env.unwrapped
    model, data = inner.model, inner.data
    assert model.opt.timestep == 0.02
    env.step(np.full(8, 0.5, np.float32))
    assert data.time == pytest.approx(0.1)
    np.testing.assert_allclose(data.actuator_force, 15)  # half of 30
    np.testing.assert_allclose(data.qfrc_actuator[6:], 15)  # without gears
    names = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_JOINT, joint) for joint in range(9)]
    assert names[1:] == [f"{part}_{leg}" for leg in (1, 2, 3, 4) for part in ("hip", "ankle")]
    rows = ANT_MAPS["large"].split()
    walls = [geom for geom in range(model.ngeom) if model.geom_type[geom] == 6]
    assert len(walls) == sum(row.count("#") for row in rows)
    np.testing.assert_array_equal(model.geom_size[walls], [[2, 2, 1]] * len(walls))
    x, y = model.geom_pos[walls, :2].T
    there = {(round(b / 4) + 1, round(a / 4) + 1) for a, b in zip(x, y, strict=True)}
    assert there == {(row, column) for row, cells in enumerate(rows) for column, c in enumerate(cells) if c == "#"}
    np.testing.assert_allclose(model.geom_solimp[walls][:, :3], [[0.8, 0.8, 0.01]] * len(walls))


# Adroit


def named(env, kind, name):
    place = mujoco.mj_name2id(env.unwrapped.model, getattr(mujoco.mjtObj, f"mjOBJ_{kind}"), name)
    assert place >= 0, name
    return place


def euler(quaternion):
    """The angles of a rotation, as `d4rl.utils.quatmath.quat2euler` has them."""
    w, x, y, z = quaternion
    return np.array(
        [
            math.atan2(-2 * (y * z - w * x), w * w - x * x - y * y + z * z),
            math.asin(np.clip(2 * (x * z + w * y), -1, 1)),
            math.atan2(-2 * (x * y - w * z), w * w + x * x - y * y - z * z),
        ]
    )


class Hand:
    """The numbers that D4RL's formulas use, looked up by name."""

    def __init__(self, env):
        self.env, self.data = env, env.unwrapped.data
        self.q, self.v = self.data.qpos.copy(), self.data.qvel.copy()

    def site(self, name):
        return np.array(self.data.site_xpos[named(self.env, "SITE", name)])

    def body(self, name):
        return np.array(self.data.xpos[named(self.env, "BODY", name)])


def norm(one):
    return math.sqrt(float((one * one).sum()))


def door(h):
    hinge = h.q[h.env.unwrapped.model.jnt_qposadr[named(h.env, "JOINT", "door_hinge")]]
    palm, handle = h.site("S_grasp"), h.site("S_handle")
    reward = -0.1 * norm(palm - handle) - 0.1 * (hinge - 1.57) ** 2 - 1e-5 * (h.v**2).sum()
    reward += (2 if hinge > 0.2 else 0) + (8 if hinge > 1 else 0) + (10 if hinge > 1.35 else 0)
    ends = [*palm, *handle, *(palm - handle), 1.0 if hinge > 1 else -1.0]
    return np.array([*h.q[1:-2], h.q[-1], hinge, *ends]), reward


def hammer(h):
    body, palm, tool = h.body("Object"), h.site("S_grasp"), h.site("tool")
    nail, goal = h.site("S_target"), h.site("nail_goal")
    reward = -0.1 * norm(palm - body) - norm(tool - nail) - 10 * norm(nail - goal)
    reward -= 1e-2 * norm(h.v)
    reward += 2 if body[2] > 0.04 and tool[2] > 0.04 else 0
    reward += (25 if norm(nail - goal) < 0.02 else 0) + (75 if norm(nail - goal) < 0.01 else 0)
    turn = euler(h.data.xquat[named(h.env, "BODY", "Object")])
    force = np.clip(h.data.sensordata[named(h.env, "SENSOR", "S_nail")], -1, 1)
    velocity = np.clip(h.v, -1, 1)[-6:]
    return np.array([*h.q[:-6], *velocity, *palm, *body, *turn, *nail, force]), reward


def pen(h):
    body, wanted = h.body("Object"), h.site("eps_ball")
    axis, target = (h.site(f"{one}_top") - h.site(f"{one}_bottom") for one in ("object", "target"))
    axis, target = axis / norm(axis), target / norm(target)
    alike = float(axis @ target)
    reward = alike - norm(body - wanted)
    if norm(body - wanted) < 0.075:
        reward += (10 if alike > 0.9 else 0) + (50 if alike > 0.95 else 0)
    reward -= 5 if body[2] < 0.075 else 0
    ends = [*body, *h.v[-6:], *axis, *target, *(body - wanted), *(axis - target)]
    return np.array([*h.q[:-6], *ends]), reward


def relocate(h):
    ball, palm, target = h.body("Object"), h.site("S_grasp"), h.site("target")
    reward = -0.1 * norm(palm - ball)
    if ball[2] > 0.04:
        reward += 1 - 0.5 * norm(palm - target) - 0.5 * norm(ball - target)
    reward += (10 if norm(ball - target) < 0.1 else 0) + (20 if norm(ball - target) < 0.05 else 0)
    return np.array([*h.q[:-6], *(palm - ball), *(palm - target), *(ball - target)]), reward


def states(task, env, rng):
    """States with every bonus and penalty among them."""
    inner = env.unwrapped
    found = []
    for value in (None, 0.3, 1.1, 1.4):
        q = inner.init_qpos + rng.normal(0, 0.02, inner.model.nq)
        if task == "door" and value is not None:
            q[inner.model.jnt_qposadr[named(env, "JOINT", "door_hinge")]] = value
        elif task == "hammer" and value is not None:
            q[inner.model.jnt_qposadr[named(env, "JOINT", "nail_dir")]] = value / 16
            q[-4] += 0.3 * (value > 1)
        elif task == "pen" and value is not None:
            q[-4] -= 0.2 * (value > 1)
        elif task == "relocate" and value is not None:
            inner.model.site_pos[named(env, "SITE", "target")] = inner.model.body_pos[named(env, "BODY", "Object")] + [
                0,
                0,
                0.2,
            ]
            q[-6:-3] = [0, 0, 0.2 - 0.05 * value]
        found.append((q, rng.normal(0, 0.05, inner.model.nv)))
    return found


@pytest.mark.parametrize("formula", [door, hammer, pen, relocate])
def test_the_hand_is_d4rls(formula):
    task = formula.__name__
    env = made(f"{task}-v1")
    rng = np.random.default_rng(0)
    rewards = set()
    for seed in range(2):
        env.reset(seed=seed)
        for q, v in states(task, env, rng):
            env.unwrapped.set_state(q, v)
            if task == "pen" and seed:  # the target turned as the pen is
                hand = env.unwrapped
                turn = hand.data.xquat[named(env, "BODY", "Object")]
                hand.model.body_quat[named(env, "BODY", "target")] = turn
            action = rng.uniform(-1.2, 1.2, env.action_space.shape)
            observation, reward, terminated, _, _ = env.step(action)
            expected = formula(Hand(env))
            np.testing.assert_allclose(observation, expected[0], rtol=1e-9, atol=1e-9)
            assert reward == pytest.approx(expected[1], rel=1e-9)
            assert terminated == (task == "pen" and Hand(env).body("Object")[2] < 0.075)
            rewards.add(round(reward / 8))
    assert len(rewards) > 1, "no bonus was paid"
    env.close()


# Kitchen (d4rl/kitchen/kitchen_envs.py)

PLACES = {
    "bottom burner": ([11, 12], [-0.88, -0.01]),
    "light switch": ([17, 18], [-0.69, -0.05]),
    "slide cabinet": ([19], [0.37]),
    "microwave": ([22], [-0.75]),
    "kettle": (list(range(23, 30)), [-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06]),
}
TASKS = {
    "kitchen-v0": ["microwave", "kettle", "light switch", "slide cabinet"],
    "kitchen-mixed-v0": ["microwave", "kettle", "bottom burner", "light switch"],
}


@pytest.mark.parametrize("name", [pytest.param("kitchen-v0", marks=pytest.mark.thorough), "kitchen-mixed-v0"])
def test_the_kitchen_pays_each_subtask_once(name):
    env = made(name)
    inner = env.unwrapped
    goal = np.zeros(30)
    for task in TASKS[name]:
        goal[PLACES[task][0]] = PLACES[task][1]
    start, _ = env.reset(seed=1)
    np.testing.assert_array_equal(start[30:], goal)
    data = inner.robot.data
    paid = []
    for tasks in ([], TASKS[name][:1], TASKS[name][:1], TASKS[name][:3], TASKS[name]):
        q = data.qpos.copy()
        for task in tasks:
            q[PLACES[task][0]] = PLACES[task][1]
        inner.robot.set_state(q, np.zeros(29))
        observation, reward, terminated, _, _ = env.step(np.zeros(9, np.float32))
        noise = observation[:30] - data.qpos
        assert 0 < abs(noise[:9]).max() <= 0.01
        assert 0 < abs(noise[9:]).max() <= 0.01
        assert abs(noise[[9, 10, 17, 18, 19, 23, 24, 25, 29]]).max() <= 0.0005
        np.testing.assert_array_equal(observation[30:], goal)
        paid.append(reward)
        assert terminated == (len(tasks) == 4)
    assert paid == [0, 1, 0, 2, 1]
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(again, start)
    env.close()
