import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.manifests.documents import convert_json, parse_json
from orlog.manifests.shipped import records_folder
from orlog.normalize.references import (
    Baseline,
    Protocol,
    ReferenceReturn,
    ReferenceReturns,
    impossible_return,
    largest_return,
    read_references,
)

FLOATS = st.floats(-1e4, 1e4)
PROTOCOL = Protocol(
    environment_id="PointMaze_UMaze-v3",
    environment_kwargs={"reset_target": False},
    versions={"numpy": "2.0"},
    max_episode_steps=300,
    episodes=3,
    first_seed=7,
    environments=2,
)


def references(random, expert):
    low, high = (
        ReferenceReturn(policy=policy, mean=mean, standard_deviation=1.0, returns=[mean])
        for policy, mean in (("uniform", random), ("controller", expert))
    )
    return ReferenceReturns(random=low, expert=high, protocol=PROTOCOL)


PUBLISHED = {
    "random": {"policy": "uniform", "mean": -280.2},
    "expert": {"policy": "SAC, trained to convergence", "mean": 12135.0},
    "protocol": {
        "environment_id": "HalfCheetah-v2",
        "environment_kwargs": {},
        "versions": {"mujoco_py": "2.0"},
        "episodes": None,
        "description": "means of episodes of 1,000 steps in MuJoCo 2.0",
    },
    "source": "D4RL, https://arxiv.org/abs/2004.07219",
}


def body():
    return msgspec.to_builtins(references(1.5, 80.0))


def read(tmp_path, content):
    path = tmp_path / "references.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return read_references(path)


def test_files_that_are_not_what_they_say_are_refused(tmp_path):
    wrong = body()
    wrong["expert"]["returns"] = [1.0]
    with pytest.raises(ValueError, match=r"mean 80 is not that of its 1 returns, 1"):
        read(tmp_path, wrong)
    with pytest.raises(ValueError, match=r"too far apart, or not finite"):
        read(tmp_path, json.dumps(body()).replace("80.0", "1e999"))
    path = tmp_path / "references.json"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_references(path)
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"it is not a file"):
        read_references(path)


@settings(deadline=None)
@given(random=FLOATS, gap=st.floats(0.01, 1e4), returns=st.tuples(FLOATS, FLOATS, FLOATS))
def test_scores_are_affine_and_monotone(random, gap, returns):
    anchors = references(random, random + gap)
    ends = anchors.normalize(np.array([random, anchors.expert.mean]))
    np.testing.assert_allclose(ends, [0, 100], atol=1e-9)
    one, two, _ = returns
    middle = (one + two) / 2
    scores = anchors.normalize(np.array([one, middle, two]))
    slack = 1e-9 * (1 + np.abs(scores).max())
    assert abs(scores[0] + scores[2] - 2 * scores[1]) <= 4 * slack
    assert (scores[0] <= scores[2] + slack) or one > two
    assert (scores[0] >= scores[2] - slack) or one < two
    beyond = references(10, 60).normalize(np.array([[-40.0, 10.0], [35.0, 110.0]]))
    np.testing.assert_array_equal(beyond, [[-100, 0], [50, 200]])  # not clipped


@pytest.mark.parametrize("expert", [1.0, 0.5, float("nan")])
def test_an_expert_that_is_not_above_random_is_refused(expert):
    with pytest.raises(ValueError, match="no score can be normalized"):
        references(1.0, expert)


@pytest.mark.parametrize("place", [[], ["random"], ["expert"], ["protocol"]])
@pytest.mark.parametrize("whole", [body(), PUBLISHED], ids=["measured", "published"])
def test_unknown_and_missing_keys_are_refused(tmp_path, whole, place):
    for change in (lambda part: part.update(surprise=1), dict.popitem):
        changed = json.loads(json.dumps(whole))
        part = changed
        for key in place:
            part = part[key]
        change(part)
        with pytest.raises(ValueError, match=r"surprise|missing|unknown|expected"):
            read(tmp_path, changed)


def test_a_record_holds_mean_deviation_and_error_of_its_returns(tmp_path):
    record = ReferenceReturn.of("uniform", np.array([1.0, 2.0, 6.0]))
    assert (record.mean, record.returns) == (3.0, [1.0, 2.0, 6.0])
    assert record.standard_deviation == pytest.approx(np.sqrt(7))
    assert record.standard_error == pytest.approx(np.sqrt(7 / 3))
    single = ReferenceReturn.of("any", np.array([3.0]))
    assert (single.standard_deviation, single.standard_error) == (None, None)
    assert b'"standard_deviation":null' in msgspec.json.encode(single)
    assert read(tmp_path, body()) == references(1.5, 80.0)


def test_no_recorded_return_is_more_than_an_episode_can_have():
    bounded = 0
    for path in records_folder().glob("**/baselines/*.json"):
        baseline = convert_json(parse_json(path.read_bytes()), Baseline)
        returns = np.array([*baseline.returns.values()])
        assert impossible_return(baseline.protocol, returns) == "", path
        most = largest_return(baseline.protocol)
        if most is not None:
            bounded += 1
            assert "is more than" in impossible_return(baseline.protocol, np.array([most + 0.001 + abs(most) / 1000]))
    assert bounded > 100
    for path in (records_folder() / "references").glob("*.json"):
        found = read_references(path)
        if isinstance(found, ReferenceReturns):
            for policy in (found.random, found.expert):
                assert impossible_return(found.protocol, np.array(policy.returns)) == "", path
