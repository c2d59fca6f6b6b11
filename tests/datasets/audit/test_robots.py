"""Faults of robots' sets are found and called by their name; the same sets without them are not accused."""

import functools
import itertools

import numpy as np
import pytest

import orlog
from tests.datasets.audit.robots import arm, path, picture, record, turning


def hold(times, *names, actions=False):
    """Return what holds each row of some observations for some steps."""

    def plant(drafts):
        for one in drafts:
            rows = np.arange(len(one["actions"]) + 1) // times * times
            for name in names or one["observations"]:
                one["observations"][name] = one["observations"][name][rows]
            if actions:
                one["actions"] = one["actions"][rows[:-1]]

    return plant


def double_some(drafts):
    """Store ten rows of some episodes twice, one after the other."""
    for one in drafts[::3]:
        count = len(one["actions"])
        times = np.where((np.arange(count + 1) >= 40) & (np.arange(count + 1) < 50), 2, 1)
        one["actions"] = np.repeat(one["actions"], times[:-1], axis=0)
        for name, rows in one["observations"].items():
            one["observations"][name] = np.repeat(rows, times, axis=0)


def stale(drafts):
    for before, one in itertools.pairwise(drafts):
        one["observations"]["image"][0] = before["observations"]["image"][-1]


def stale_all(drafts):
    for before, one in itertools.pairwise(drafts):
        one["observations"]["state"][0] = before["observations"]["state"][-1]


def late(steps):
    def plant(drafts):
        for one in drafts:
            frames = one["observations"]["image"]
            one["observations"]["image"] = frames[np.maximum(np.arange(len(frames)) - steps, 0)]

    return plant


def same_row(drafts):
    for one in drafts:
        one["actions"][:, :6] = one["observations"]["state"][:-1, :6]


def copycat(start):
    def plant(drafts):
        for one in drafts:
            first = one["actions"][:1] * (start == "action")
            before = np.concatenate([first, one["actions"]])
            one["observations"]["state"] = np.concatenate([one["observations"]["state"], before], axis=1)

    return plant


def flip(drafts):
    for one in drafts[::3]:
        one["observations"]["pose"][30:60, 3:] *= -1


def scale(factor, numbers, chosen, *names):
    def plant(drafts):
        for index in np.arange(len(drafts))[chosen]:
            for name in names or ("state",):
                rows = one_of(drafts[index], name)
                rows[:, numbers] *= np.float32(factor)

    return plant


def one_of(draft, name):
    return draft["actions"] if name == "actions" else draft["observations"][name]


def to_delta(drafts):
    for one in drafts[len(drafts) // 2 :]:
        one["actions"][:, :6] = np.diff(one["observations"]["state"][:, :6], axis=0)


def invert_gripper(*names):
    def plant(drafts):
        for one in drafts[len(drafts) // 2 :]:
            for name in names:
                rows = one_of(one, name)
                rows[:, 6] = 1 - rows[:, 6]

    return plant


def swap_colors(drafts):
    for one in drafts[len(drafts) // 2 :]:
        one["observations"]["image"] = one["observations"]["image"][..., ::-1].copy()


def stand(noise):
    def plant(drafts):
        state = drafts[5]["observations"]["state"]
        rng = np.random.default_rng(9)
        state[:] = state[0] + rng.normal(0, noise, state.shape)

    return plant


def one_arm_commands(drafts):
    for one in drafts:
        one["actions"][:, 3:6] = 0


def lost_joint(drafts):
    for one in drafts:
        one["actions"] = np.delete(one["actions"], 4, axis=1)


def faint(rng, real):
    """Return frames of a noisy camera far away: what moves between two of them is hardly more than the noise."""
    return {"image": picture(0.12 * real[:, :4], rng)}


ARM = {}
FAINT = {"extra": faint}
SEEN = {"images": True}
POSE = {"extra": turning}
PLANTS = {
    "frames-x2": (SEEN, hold(2, "image"), "held", "observations/image", "frame is held for 2"),
    "frames-x3": (SEEN, hold(3, "image"), "held", "observations/image", "frame is held for 3"),
    "faint-x2": (FAINT, hold(2, "image"), "held", "observations/image", "frame is held for 2"),
    "all-x2": (SEEN, hold(2), "held", "observations", "observation is held for 2 steps"),
    "all-x3": (SEEN, hold(3), "held", "observations", "observation is held for 3 steps"),
    "doubled-rows": (ARM, hold(2, actions=True), "held", "observations", "rows are doubled"),
    "doubled-all": (SEEN, hold(2, actions=True), "held", "observations", "rows are doubled"),
    "doubled-some": (SEEN, double_some, "duplicates", "steps", "60 rows are stored twice"),
    "stale-frame": (SEEN, stale, "frames", "observations/image", "stale"),
    "stale-rows": (ARM, stale_all, "final observations", "observations", "episode before: stale"),
    "late-1": (SEEN, late(1), "frames", "observations/image", "the camera is 1 step late"),
    "late-5": (SEEN, late(5), "frames", "observations/image", "the camera is 5 steps late"),
    "late-1-target": (
        {"images": True, "action": "target"},
        late(1),
        "frames",
        "observations/image",
        "the camera is 1 step late",
    ),
    "action-is-state": (ARM, same_row, "copies", "actions[0] to [5]", "of the same row"),
    "copycat-0": (ARM, copycat("0"), "copies", "observations/state[7] to [12]", "the step before"),
    "copycat-delta": (
        {"action": "delta"},
        copycat("action"),
        "copies",
        "observations/state[7] to [12]",
        "the step before",
    ),
    "copycat-rest": (
        {"action": "target", "idle": 10},
        copycat("action"),
        "copies",
        "observations/state[7] to [12]",
        "the step before",
    ),
    "quaternion": (POSE, flip, "quaternions", "observations/pose[3] to [6]", "flips in"),
    "degrees-half": (
        ARM,
        scale(180 / np.pi, slice(6), slice(8, None)),
        "units",
        "observations/state[0] to [5]",
        "degrees and radians",
    ),
    "degrees-some": (
        ARM,
        scale(180 / np.pi, slice(6), [2, 7, 11], "state", "actions"),
        "units",
        "actions[0] to [5]",
        "in 3 of 16 episodes: values and changes are about 57 times as large",
    ),
    "millimeters": (
        POSE,
        scale(1000, slice(3), slice(10, None), "pose"),
        "units",
        "observations/pose[0] to [2]",
        "meters and millimeters",
    ),
    "delta-half": (ARM, to_delta, "sense of actions", "actions[0] to [5]", "changes of position"),
    "gripper-action": (ARM, invert_gripper("actions"), "sense of actions", "actions[6]", "goes the other way in"),
    "gripper-both": (
        ARM,
        invert_gripper("actions", "state"),
        "sense of actions",
        "actions[6]",
        "begins at 1 in the first 8 episodes and at 0",
    ),
    "bgr-half": (SEEN, swap_colors, "frames", "observations/image", "red and blue are swapped in 8"),
    "stands-still": (ARM, stand(0), "stuck", "observations", "nearly nothing moves in 1 episode"),
    "stands-in-noise": (ARM, stand(1e-3), "stuck", "observations", "nearly nothing moves in 1"),
    "lost-joint": (
        {"action": "target"},
        lost_joint,
        "unused actions",
        "observations/state[4]",
        "moves, and no action is about it",
    ),
    "no-action": (
        ARM,
        one_arm_commands,
        "unused actions",
        "actions[3] to [5]",
        "though observations/state[3] to [5] move",
    ),
}


def alarms(drafts, name="lab/arm-v1", **facts):
    return orlog.audit(record(drafts, name, **facts)).findings


ALSO_IN_JOBS = {"all-x2", "doubled-some", "stale-frame", "quaternion", "delta-half", "bgr-half"}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_and_called_so(name, seed, request):
    if name in ALSO_IN_JOBS:
        request.getfixturevalue("findings_do_not_depend_on_jobs")
    options, plant, check, column, text = PLANTS[name]
    drafts = arm(seed, **options)
    plant(drafts)
    found = alarms(drafts)
    texts = [each.text for each in found if (each.check, each.column) == (check, column)]
    assert any(text in each for each in texts), found
    assert len(found) <= 4, found  # which is short


def things(rng, real):
    """Return the poses of two things on a table: one lies still, the other is moved once, in most episodes."""
    poses = np.repeat(rng.uniform(-1, 1, (1, 14)), len(real), axis=0)
    if rng.random() < 0.8:
        first = int(rng.integers(30, 60))
        last = int(rng.integers(first + 20, len(real)))
        poses[first:last, :3] += real[first:last, :3] - real[first, :3]
        poses[last:, :3] = poses[last - 1, :3]
    return {"things": poses.astype(np.float32)}


def fixed_camera(seed, keyframes=2, noise=2.0):
    """Return an arm that a camera does not see; its frames are stored with a keyframe in every second one."""
    rng = np.random.default_rng(seed)
    drafts = arm(seed)
    ground = picture(np.full((1, 4), 9.0), rng, 0)[0].astype(float)
    for one in drafts:
        count = len(one["actions"]) + 1
        frames = ground + rng.normal(0, noise, (count, *ground.shape))
        rows = np.arange(count) // keyframes * keyframes
        one["observations"]["image"] = frames.clip(0, 255).astype(np.uint8)[rows]
    return drafts


def turtle(seed, straight=0.4):
    """Return drives of a turtle: pose and speeds in a plane, often straight on at one speed."""
    rng = np.random.default_rng(seed)
    drafts = []
    for number in range(20):
        steps = 150
        actions = []
        while len(actions) < steps:
            is_straight = number % 7 == 0 or rng.random() < straight
            turn = 0.0 if is_straight else rng.uniform(-1, 1)
            actions += [[0.5, turn]] * int(rng.integers(20, 60))
        taken = np.array(actions[:steps])
        heading = rng.uniform(-3, 3) + np.append(0, np.cumsum(taken[:, 1]) * 0.1)
        x, y = (
            rng.uniform(2, 8) + np.append(0, np.cumsum(taken[:, 0] * 0.1 * turned))
            for turned in (np.cos(heading[:-1]), np.sin(heading[:-1]))
        )
        speeds = np.concatenate([[[0, 0]], taken])
        pose = np.stack([x, y, heading], axis=1)
        rows = np.concatenate([pose, speeds], axis=1).astype(np.float32)
        drafts.append({"observations": {"pose": rows}, "actions": taken.astype(np.float32)})
    return drafts


def runner(seed):
    """Return runs of a legged robot: springs under noise, speeds that contacts kick, actions of a noisy policy."""
    rng = np.random.default_rng(seed)
    drafts = []
    for _ in range(12):
        steps = int(rng.integers(60, 300))
        pose, speed, rows, taken = rng.normal(0, 0.1, 5), np.zeros(5), [], []
        for _ in range(steps):
            rows.append(np.concatenate([pose, speed]))
            action = np.tanh(-1.5 * pose + 0.3 * speed + rng.normal(0, 0.6, 5))
            kick = rng.normal(0, 4, 5) * (rng.random(5) < 0.05)
            speed = 0.8 * speed + 1.2 * action - 0.6 * pose + kick
            pose = pose + 0.05 * speed
            taken.append(action)
        rows.append(np.concatenate([pose, speed]))
        drafts.append({"observations": {"state": np.array(rows, np.float32)}, "actions": np.array(taken, np.float32)})
    return drafts


def two_fingers(seed):
    """Return an arm whose state has a second finger, which mirrors the one before it and has no action."""
    drafts = arm(seed, action="target")
    for one in drafts:
        state = one["observations"]["state"]
        one["observations"]["state"] = np.insert(state, 4, -state[:, 3], axis=1)
    return drafts


def shy(seed):
    """Return an arm that starts late, in one episode very late; until then all actions rest, one of them at its least."""
    drafts = []
    rng = np.random.default_rng(seed)
    for number in range(24):
        idle = 70 if number == 7 else 10
        (one,) = arm(100 * seed + number, episodes=1, idle=idle, action="target")
        throttle = 0.2 + np.abs(path(rng, len(one["actions"]), 1, idle))
        throttle[:idle] = 0
        one["actions"] = np.concatenate([one["actions"], throttle.astype(np.float32)], axis=1)
        drafts.append(one)
    return drafts


def test_findings_are_one_line_with_the_names_of_the_joints(monkeypatch):
    joints = ["waist", "shoulder", "elbow", "roll", "pitch", "yaw", "gripper"]
    names = property(lambda _self: {"actions": joints, "observations/state": joints})
    monkeypatch.setattr(orlog.Dataset, "dimension_names", names)
    drafts = arm(0)
    same_row(drafts)
    (finding,) = alarms(drafts)
    assert finding.column == "actions[0] to [5] (waist to yaw)"
    assert "observations/state[0] to [5] (waist to yaw) of the same row" in finding.text


NEVER = "of the step before", "no action is about it"  # not even in notes
CLEAN = {
    **{f"arm-{one}": functools.partial(arm, action=one) for one in ("next", "target", "delta")},
    "arm-exact": functools.partial(arm, noise=0, action="target"),
    "arm-idle": functools.partial(arm, home=True, idle=25, action="target"),
    "arm-idle-exact": functools.partial(arm, home=True, idle=25, noise=0),
    "camera": functools.partial(arm, images=True),
    "faint-camera": functools.partial(arm, extra=faint),
    "camera-target": functools.partial(arm, images=True, action="target"),
    "pose": functools.partial(arm, extra=turning),
    "rests-between-takes": functools.partial(arm, home=True, idle=15, noise=0, action="target"),
    "things-on-a-table": functools.partial(arm, extra=things),
    "fixed-camera-2": fixed_camera,
    "fixed-camera-10": functools.partial(fixed_camera, keyframes=10),
    "fixed-camera-30": functools.partial(fixed_camera, keyframes=30),
    "fixed-camera-noise": functools.partial(fixed_camera, keyframes=1, noise=6.0),
    "turtle": turtle,
    "turtle-rarely-straight": functools.partial(turtle, straight=0.05),
    "runner": runner,
    "shy-start": shy,
    "two-fingers": two_fingers,
}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", CLEAN)
def test_sets_without_a_fault_are_not_accused(name, seed):
    found = alarms(CLEAN[name](seed))
    wrong = [one for one in found if one.severity != "note" or any(map(one.text.count, NEVER))]
    assert wrong == []
