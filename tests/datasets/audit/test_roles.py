"""What the audit finds in columns with roles; good ones give no finding."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.audit import pieces
from tests.episodes import record_episodes, whole_episode

pytestmark = pytest.mark.usefixtures("findings_do_not_depend_on_jobs")
ROLE_CHECKS = {"costs", "legal actions", "task numbers", "objectives"}
LENGTHS = (7, 5, 9)
CHOICES = 3
AGENTS = ("left", "right")


def episode(length):
    """Return an episode of two agents with costs, legal actions, a task and two objectives."""
    rng = np.random.default_rng(length)
    legal = rng.integers(0, 2, (2, length, CHOICES)).astype(np.int8)
    legal[:, :, 1] = 1
    acts = np.ones((2, length), bool)
    acts[1, length - 2 :] = False  # the second agent leaves early, and its rows are blank
    legal[1, length - 2 :] = 0
    infos = {"cost": rng.random(length), "objectives": rng.random((length, 2)), "action_mask": legal[0].copy()}
    infos["action_mask"][-1] = 0  # after the last step nothing can be done
    for number, agent in enumerate(AGENTS):
        gone = ~np.append(acts[number, 1:], False) & acts[number]
        infos |= {
            f"agents/{agent}/acts": acts[number],
            f"agents/{agent}/legals": legal[number],
            f"agents/{agent}/terminations": gone,
            f"agents/{agent}/truncations": np.zeros(length, bool),
        }
    return whole_episode(
        rng.random((length + 1, 2)).astype(np.float32),
        {"left": np.full(length, 2), "right": np.ones(length, int)},
        rng.random(length),
        infos=infos,
        metadata={"task": 3},
    )


def write(episodes):
    return record_episodes(
        "lab/roles-v1",
        episodes,
        spaces.Box(0, 1, (2,)),
        # The choices of the first agent begin at 1, so 2 is the second one.
        spaces.Dict(left=spaces.Discrete(CHOICES, start=1), right=spaces.Discrete(CHOICES)),
    )


def found(episodes):
    audit = orlog.audit(write(episodes))
    return [one for one in audit.findings if one.check in ROLE_CHECKS]


def test_good_roles_give_no_finding():
    assert found([episode(length) for length in LENGTHS]) == []


@pytest.mark.parametrize(
    ("name", "episode_index", "step", "value", "column", "text"),
    [
        ("cost", 1, 4, -0.5, "infos/cost", "negative or not finite costs: 1 step, first -0.5"),
        ("cost", 2, 0, np.nan, "infos/cost", "first nan"),
        ("agents/left/legals", 0, 3, 0, "infos/agents/left/legals", "no choice is legal: 1 step, first [0 0 0]"),
        (
            *("agents/right/legals", 2, 1, [1, 0, 1], "infos/agents/right/legals"),
            "an action was taken that is not legal: 1 step, first [1 0 1]",
        ),
        ("action_mask", 0, 2, 0, "infos/action_mask", "no choice is legal: 1 step, first [0 0 0]"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 2**21])
def test_a_wrong_value_is_found_where_it_is(monkeypatch, name, episode_index, step, value, column, text, piece_bytes):
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)
    episodes = [episode(length) for length in LENGTHS]
    episodes[episode_index].infos[name][step] = value
    (one,) = found(episodes)
    assert (one.column, one.episode, one.step, one.count) == (column, episode_index, step, 1)
    assert one.severity == "error"
    assert text in one.text


def test_numbers_of_tasks_are_small():
    episodes = [episode(length) for length in LENGTHS]
    episodes[1] = dataclasses.replace(episodes[1], metadata={"task": -1})
    episodes[2] = dataclasses.replace(episodes[2], metadata={"task": 2**40})
    (one,) = found(episodes)
    assert (one.column, one.episode, one.step, one.count) == ("episodes/task", 1, None, 2)
    assert one.text == "a task has no small number from 0 on: 2 episodes, first -1"


def test_objectives_of_unequal_number_are_found():
    episodes = [episode(length) for length in LENGTHS]
    for one in episodes:
        one.infos["agents/left/objectives"] = np.zeros((len(one), 3))
    (finding,) = found(episodes)
    assert finding.column == "infos/objectives"
    assert finding.text == "it has 2 objectives, and infos/agents/left/objectives has 3"


def test_objectives_whose_number_changes_are_found():
    episodes = [episode(length) for length in LENGTHS]
    for one in episodes:
        one.infos["objectives"] = [np.zeros(2) for _ in range(len(one))]
    episodes[1].infos["objectives"][3] = np.zeros(4)
    (finding,) = found(episodes)
    assert (finding.column, finding.episode, finding.step, finding.count) == ("infos/objectives", 1, 3, 1)
    assert finding.text == "another number of objectives than the 2 of the first step: 1 step, first 4"
