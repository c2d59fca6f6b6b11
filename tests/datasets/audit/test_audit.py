"""Defects that are planted in good data are found, and good data give no findings."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.audit import pieces as audit_pieces
from orlog.datasets.home.folders import partial_folder, write_partial
from orlog.errors import SchemaError
from orlog.manifests.manifest import read_manifest
from tests.episodes import record_episodes, whole_episode

pytestmark = pytest.mark.usefixtures("findings_do_not_depend_on_jobs")
NAME = "lab/pendulum-v1"
EPISODES, HORIZON = 8, 200

Draft = dict[str, Any]  # arguments of `Episode`


@pytest.fixture(scope="module")
def recorded():
    """Return episodes of Pendulum with random actions."""
    env = gymnasium.make("Pendulum-v1")
    rng = np.random.default_rng(0)
    drafts = []
    for seed in range(EPISODES):
        observations = [env.reset(seed=seed)[0]]
        actions = rng.uniform(-2, 2, (HORIZON, 1)).astype(np.float32)
        rewards = []
        for action in actions:
            observation, reward, *_ = env.step(action)
            observations.append(observation)
            rewards.append(float(reward))
        truncations = np.zeros(HORIZON, bool)
        truncations[-1] = True
        drafts.append(
            {
                "observations": np.array(observations),
                "actions": actions,
                "rewards": np.array(rewards),
                "terminations": np.zeros(HORIZON, bool),
                "truncations": truncations,
                "infos": {"time": 0.05 * np.arange(HORIZON), "step": np.arange(HORIZON)},
                "metadata": {
                    "length": HORIZON,
                    "return": sum(rewards),
                    "quality": 0.5,
                    "split": "val" if seed > 5 else "train",
                },
                "seed": seed,
            }
        )
    return drafts


def write(drafts):
    with orlog.DatasetWriter(NAME, environment=gymnasium.make("Pendulum-v1")) as writer:
        for draft in drafts:
            writer.add_episode(orlog.Episode(**draft))
    return writer.folder


@dataclasses.dataclass
class Defect:
    """What is planted, and the finding that says so."""

    plant: Callable[[list[Draft]], object]
    check: str
    severity: str
    column: str
    episode: int | None = None
    step: int | None = None
    count: int | None = None


def put(name, episode, step, value):
    """Return what puts a value into a row of a column of an episode."""

    def plant(drafts):
        root, _, key = name.partition("/")
        values = drafts[episode][root]
        (values[key] if key else values)[step] = value

    return plant


def in_all(change):
    return lambda drafts: [change(draft) for draft in drafts]


def say(name, episode, value):
    """Return what changes a column of episodes."""
    return lambda drafts: drafts[episode]["metadata"].update({name: value})


def repeat_finals(draft):
    draft["observations"][-1] = draft["observations"][-2]


def shift_finals(drafts):
    for one, other in itertools.pairwise(drafts):
        one["observations"][-1] = other["observations"][0]


def seam(drafts):
    """Join the start of an episode with the end of another, as where a boundary was lost."""
    one, other = drafts[1], drafts[2]
    step = int(np.abs(one["observations"] - other["observations"]).min(axis=1).argmax())
    for name in ("observations", "actions", "rewards"):
        one[name][step:] = other[name][step:]
    other["observations"][:] += np.float32(1e-3)  # so that nothing occurs twice


def terminate(draft):
    draft["terminations"], draft["truncations"] = draft["truncations"], draft["terminations"]


def lengthen(drafts, number=0):
    one, other = drafts[number], drafts.pop(number + 1)
    one["truncations"][-1] = False
    one["observations"] = np.concatenate([one["observations"], other["observations"][1:]])
    for name in ("actions", "rewards", "terminations", "truncations"):
        one[name] = np.concatenate([one[name], other[name]])
    one["infos"] = {"time": 0.05 * np.arange(400), "step": np.arange(400)}
    one["metadata"]["length"], one["metadata"]["return"] = 400, one["rewards"].sum()


def lengthen_all(drafts):
    for number in range(len(drafts) // 2):
        lengthen(drafts, number)


def shorten(drafts):
    for name in ("actions", "rewards", "terminations", "truncations"):
        drafts[4][name] = drafts[4][name][:150]
    drafts[4]["truncations"][-1] = True
    drafts[4]["observations"] = drafts[4]["observations"][:151]
    drafts[4]["infos"] = {name: values[:150] for name, values in drafts[4]["infos"].items()}
    drafts[4]["metadata"] |= {"length": 150, "return": drafts[4]["rewards"].sum()}


def copy_episode(drafts, one, other):
    drafts[other] |= copy.deepcopy({**drafts[one], "metadata": drafts[other]["metadata"]})
    drafts[other]["metadata"]["return"] = drafts[one]["metadata"]["return"]


def copy_steps(drafts, one, other):
    for name in ("observations", "actions", "rewards"):
        drafts[other][name][50:90] = drafts[one][name][50:90]


def give_next_observations(drafts):
    for draft in drafts:
        draft["infos"]["next_observations"] = draft["observations"][1:].copy()
    drafts[2]["infos"]["next_observations"][7] += 1


def scaled(column, number, factor, low, high):
    def change(draft):
        draft[column][:, number] = np.clip(factor * draft[column][:, number], low, high)

    return in_all(change)


def held(column, episode, number):
    def plant(drafts):
        drafts[episode][column][:, number] = drafts[episode][column][0, number]

    return plant


O, A, R, E = "observations", "actions", "rewards", "error"  # noqa: E741 (short in the table)
DEFECTS = {
    "nan-observation": Defect(put(O, 3, 12, np.nan), "finite", E, O, 3, 12, 3),
    "infinite-observation": Defect(put(O, 5, 200, np.inf), "finite", E, O, 5, 200, 3),
    "nan-action": Defect(put(A, 0, 0, np.nan), "finite", E, A, 0, 0, 1),
    "infinite-reward": Defect(put(R, 7, 199, -np.inf), "finite", E, R, 7, 199, 1),
    "nan-info": Defect(put("infos/time", 2, 40, np.nan), "finite", "warning", "infos/time", 2, 40),
    "nan-of-episode": Defect(say("quality", 4, np.nan), "finite", "warning", "episodes/quality", 4),
    "large-action": Defect(put(A, 1, 30, 2.5), "bounds", "warning", A, 1, 30, 1),
    "large-observation": Defect(put(O, 6, 9, [0, 1, 9]), "bounds", "warning", O, 6, 9, 1),
    "constant-observation": Defect(scaled(O, 1, 0, 0, 0), "constant", "note", f"{O}[1]"),
    "constant-speed": Defect(scaled(O, 2, 0, 3, 3), "constant", "note", f"{O}[2]"),
    "clipped-observation": Defect(scaled(O, 2, 1, -1, 1), "saturated", "note", f"{O}[2]"),
    "half-clipped-observation": Defect(scaled(O, 2, 1, -9, 1), "saturated", "note", f"{O}[2]"),
    "clipped-actions": Defect(scaled(A, 0, 9, -2, 2), "saturated", "note", f"{A}[0]"),
    "stuck-sensor": Defect(held(O, 5, 2), "stuck", "warning", f"{O}[2]", 5, 0, 1),
    "stuck-action": Defect(held(A, 3, 0), "stuck", "warning", f"{A}[0]", 3, 0, 1),
    "dead-action": Defect(scaled(A, 0, 0, 0, 0), "unused actions", "warning", f"{A}[0]"),
    "no-flags": Defect(in_all(lambda one: one["truncations"].fill(False)), "flags", "warning", "truncations", 0),
    "timeouts-as-terminations": Defect(in_all(terminate), "flags", "warning", "terminations", 0),
    "longer-than-the-horizon": Defect(lengthen, "flags", E, "episodes/lengths", 0, None, 1),
    "all-longer-than-the-horizon": Defect(lengthen_all, "flags", "warning", "episodes/lengths", 0, None, 4),
    "shorter-than-the-horizon": Defect(shorten, "flags", "note", "truncations", 4, None, 1),
    "early-flag": Defect(put("truncations", 2, 57, True), "flags", E, "truncations", 2, 57, 1),
    "repeated-finals": Defect(in_all(repeat_finals), "final observations", "warning", O, 0, None, 8),
    "finals-of-the-next": Defect(shift_finals, "final observations", E, O, 0, None, 7),
    "zero-final": Defect(put(O, 6, 200, 0), "final observations", "warning", O, 6, None, 1),
    "other-next-observations": Defect(
        give_next_observations, "final observations", E, "infos/next_observations", 2, 7, 1
    ),
    "other-return": Defect(say("return", 3, 7.5), "returns", "warning", "episodes/return", 3),
    "other-length": Defect(say("length", 5, 199), "lengths", E, "episodes/length", 5, None, 1),
    "time-goes-back": Defect(put("infos/time", 1, 80, 0.1), "times", E, "infos/time", 1, 80, 1),
    "time-stands-still": Defect(put("infos/time", 6, 20, 0.05 * 19), "times", "warning", "infos/time", 6, 20, 1),
    "time-leaps": Defect(
        lambda drafts: drafts[0]["infos"]["time"].__setitem__(slice(60, None), 99 + np.arange(140)),
        "times",
        "warning",
        "infos/time",
        0,
        60,
    ),
    "missing-steps": Defect(
        lambda drafts: drafts[4]["infos"]["step"].__setitem__(slice(33, None), np.arange(40, 207)),
        "times",
        "warning",
        "infos/step",
        4,
        33,
        1,
    ),
    "seam": Defect(seam, "jumps", "warning", O, 1, None, 1),
    "teleport": Defect(put(O, 4, 100, [0, 0, 60]), "jumps", "warning", f"{O}[2]", 4, 99),
    "glitch": Defect(
        lambda drafts: drafts[7]["observations"].__setitem__((150, 0), 40), "jumps", "warning", f"{O}[0]", 7, 149
    ),
    "another-reward": Defect(put(R, 2, 66, 1.0), "rewards", E, R, 2, 66, 1),
    "shifted-rewards": Defect(
        in_all(lambda one: one.update(rewards=np.roll(one["rewards"], 1))), "rewards", "warning", R, 0, 0
    ),
    "scaled-rewards": Defect(
        in_all(lambda one: one.update(rewards=one["rewards"] * 10)), "rewards", "warning", R, 0, 0
    ),
    "episode-twice": Defect(lambda drafts: copy_episode(drafts, 1, 4), "duplicates", "warning", "episodes", 4, None, 1),
    "steps-twice": Defect(lambda drafts: copy_steps(drafts, 1, 4), "duplicates", "warning", "steps", 4, 50, 39),
    "episode-in-both-splits": Defect(
        lambda drafts: copy_episode(drafts, 2, 7), "duplicates", E, "episodes", 7, None, 1
    ),
    "steps-in-both-splits": Defect(lambda drafts: copy_steps(drafts, 2, 7), "duplicates", E, "steps", 7, 50, 39),
    "in-both-splits": Defect(say("split", 3, "train,valid"), "splits", E, "episodes/split", 3, None, 1),
    "in-no-split": Defect(say("split", 5, ""), "splits", "warning", "episodes/split", 5, None, 1),
}


FIRST = {one.check: name for name, one in reversed(DEFECTS.items())}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if FIRST[one.check] == name else pytest.mark.thorough)
        for name, one in DEFECTS.items()
    ],
)
def test_a_planted_defect_is_found(name, recorded, monkeypatch):
    defect = DEFECTS[name]
    drafts = copy.deepcopy(recorded)
    defect.plant(drafts)
    # What the writer itself refuses could still come from elsewhere.
    monkeypatch.setattr("orlog.datasets.columns.schema.check_flags", lambda *_: None)
    audit = orlog.audit(write(drafts))
    found = [one for one in audit.findings if fits(one, defect)]
    assert found, audit.findings
    assert audit.is_good == (not any(one.severity == "error" for one in audit.findings))


def fits(finding, defect):
    expected = [defect.check, defect.severity, defect.column]
    return (
        [finding.check, finding.severity, finding.column[: len(defect.column)]] == expected
        and (defect.episode is None or finding.episode == defect.episode)
        and (defect.step is None or finding.step == defect.step)
        and (defect.count is None or finding.count == defect.count)
    )


def test_forty_defects_of_twelve_kinds_are_planted():
    assert len(DEFECTS) >= 40
    assert len({one.check for one in DEFECTS.values()}) >= 12


def test_good_data_have_no_findings(recorded):
    audit = orlog.audit(write(recorded))
    assert audit.findings == []
    assert audit.not_checked == {}
    assert (audit.episodes, audit.steps) == (EPISODES, EPISODES * HORIZON)


def test_datasets_are_compared_with_held_out_ones(recorded):
    dataset = orlog.load_dataset(write(recorded))
    assert orlog.audit(dataset[:4], against=[dataset[4:]]).findings == []
    found = orlog.audit(dataset[:5], against=[dataset[4:]]).of("error")
    assert {(one.check, one.episode, one.count) for one in found} == {("splits", 5, 1), ("duplicates", 5, 1)}


def test_a_part_of_a_version_is_told_from_a_damaged_one(mini_folder):
    manifest = read_manifest(mini_folder / "manifest.json")
    part = partial_folder(mini_folder)
    mini_folder.rename(part)
    left_out = {path.relative_to(part).as_posix() for path in part.glob("infos/*/c.*")}
    for path in left_out:
        (part / path).unlink()
    objects = [one.path for one in manifest.objects if one.path not in left_out]
    write_partial(part, manifest, objects)
    audit = orlog.audit(part)
    (found,) = [one for one in audit.findings if one.check == "partial"]
    assert (audit.is_good, audit.is_partial, audit.episodes) == (True, True, 67)
    assert "67 of 67 episodes, without infos/behavior_goal" in found.text
    next(part.glob("rewards/c.*")).unlink()  # which the record says is here
    (found,) = orlog.audit(part).findings
    assert (found.check, found.severity) == ("damage", "error")


def test_images_texts_and_episodes_of_any_length_are_audited():
    spaces = gymnasium.spaces
    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (20, 20), np.uint8), "word": spaces.Text(9)})
    rng = np.random.default_rng(0)
    with orlog.DatasetWriter(
        "lab/words-v1", observation_space=observation_space, action_space=spaces.Discrete(2)
    ) as writer:
        for length in (1, 300, 2):
            episode = whole_episode(
                {
                    "image": rng.integers(0, 255, (length + 1, 20, 20), np.uint8),
                    "word": [str(row) for row in range(length + 1)],
                },
                rng.integers(0, 2, length),
                np.ones(length),
            )
            writer.add_episode(episode)
            if length == 300:
                writer.add_episode(episode)
    (found,) = orlog.audit("lab/words-v1").findings
    assert (found.check, found.severity, found.episode) == ("duplicates", "note", 2)


def test_blank_and_frozen_frames_are_found(monkeypatch):
    spaces = gymnasium.spaces
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (6, 201, 12, 12, 3), np.uint8)
    frames[1, 17] = 0
    frames[4, 50:76] = frames[4, 50]
    frames[4, 120:200] = frames[4, 120]
    record_episodes(
        "lab/camera-v1",
        (whole_episode(images, rng.integers(0, 2, 200), np.ones(200)) for images in frames),
        spaces.Box(0, 255, (12, 12, 3), np.uint8),
        spaces.Discrete(2),
    )
    found = [one for one in orlog.audit("lab/camera-v1").findings if one.check == "frames"]
    assert [(one.severity, one.episode, one.step, one.count) for one in found] == [
        ("warning", 1, 17, 1),
        ("warning", 4, 120, 1),
    ]
    assert found[1].text.startswith("stays the same for 79 steps in 1 episode")
    for steps in (25, 75):  # pieces that end inside of a run, and with one
        monkeypatch.setattr(audit_pieces, "LONG_EPISODE_BYTES", steps * 450)
        again = orlog.audit("lab/camera-v1").findings
        assert [one for one in again if one.check == "frames"] == found


def test_long_episodes_are_read_in_pieces(recorded, monkeypatch):
    drafts = copy.deepcopy(recorded)
    for name in ("glitch", "nan-action", "time-goes-back"):
        DEFECTS[name].plant(drafts)
    whole = orlog.audit(write(drafts))
    monkeypatch.setattr(audit_pieces, "LONG_EPISODE_BYTES", 2**12)
    assert orlog.audit(NAME).findings == whole.findings


def test_of_a_maze_only_what_is_true_is_said(mini):
    audit = orlog.audit(mini)
    assert {one.severity for one in audit.findings} == {"note"}
    assert {one.check for one in audit.findings} == {"saturated", "flags"}
    assert list(audit.not_checked) == ["splits"]  # so its rewards were computed again


def test_a_reward_that_a_maze_would_not_give_is_found(mini):
    with orlog.DatasetWriter("lab/maze-v1", environment=mini.recover_environment()) as writer:
        for episode in mini.iterate_episodes(range(3)):
            rewards = episode.rewards.copy()
            rewards[7] += episode.index == 1
            writer.add_episode(dataclasses.replace(episode, rewards=rewards))
    found = [one for one in orlog.audit("lab/maze-v1").findings if one.check == "rewards"]
    assert [(one.severity, one.episode, one.step, one.count) for one in found] == [("error", 1, 7, 1)]


def test_values_of_every_shape_are_audited():
    spaces = gymnasium.spaces
    box = spaces.Box(-1, 1, (2,), np.float32)
    nested = spaces.Dict(
        {"empty": spaces.Box(-1, 1, (0,)), "graph": spaces.Graph(box, None), "some": spaces.Sequence(box)}
    )
    action_space = spaces.Tuple((box, spaces.Discrete(2)))
    record_episodes(
        "lab/nested-v1",
        [whole_episode([nested.sample() for _ in range(5)], [action_space.sample() for _ in range(4)], np.arange(4.0))],
        nested,
        action_space,
    )
    assert orlog.audit("lab/nested-v1").findings == []
    with pytest.raises(SchemaError, match="there is no episode"):
        orlog.audit(orlog.load_dataset("lab/nested-v1")[:0])
