import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import torch

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.algos.training.evaluating import FIRST_SEED
from orlog.algos.training.runs import kept_checkpoints
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.runs.off_policy import _check_policy
from tests.command_line import orlog as command

SMALL = {"hidden": [4], "batch_size": 8}
QUICK = FQESettings(hidden=(4,), batch_size=8, steps=10, fits=2)
DISCOUNT = 0.99


def cartpole(name="lab/cartpole-v1", *, log_probs=True, factor=1.0):
    """Return episodes of CartPole, by a policy that pushes right with probability 0.1."""
    rng = np.random.default_rng(0)
    made = gymnasium.make("CartPole-v1")
    with orlog.record(made, name, action_log_probs=log_probs) as env:
        for episode in range(8):
            env.reset(seed=episode)
            done = False
            while not done:
                action = int(rng.random() < 0.1)
                chance = {"action_log_prob": factor * math.log(0.1 if action else 0.9)}
                _, _, ended, cut, _ = env.step(action, **(chance if log_probs else {}))
                done = ended or cut
    return orlog.load_dataset(name)


@pytest.fixture
def data(empty):
    """Return them, in an empty folder that is the current one."""
    assert empty.is_dir()
    return cartpole()


@pytest.fixture
def empty(home, tmp_path, monkeypatch):
    """Return the current folder, beside an empty home."""
    assert home.name
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(dataset, algorithm="cql", **options):
    chosen = {"steps": 20, "evaluations": 2, "keep_checkpoints": True, "settings": SMALL}
    return orlog.train(algorithm, dataset, **{**chosen, **options})


def weights_and_returns(policy, episodes):
    """Return the weight of each episode under a policy without noise, and its discounted return."""
    weights, returns = [], []
    for episode in episodes:
        follows = (policy(episode.observations[:-1]) == episode.actions).all()
        weights.append(follows / np.exp(episode.infos["action_log_probs"].sum()))
        returns.append((episode.rewards * DISCOUNT ** np.arange(len(episode.rewards))).sum())
    return np.array(weights), np.array(returns)


def test_estimates_of_each_kept_checkpoint_equal_those_by_hand(data):
    run = trained(data, "bc", steps=60, settings={**SMALL, "learning_rate": 0.03})
    kept = kept_checkpoints(run.folder)
    assert list(kept) == [30, 60]
    last = run.folder / "checkpoint.safetensors"
    assert kept[60].read_bytes() == last.read_bytes() != kept[30].read_bytes()

    found = orlog.evaluate_off_policy(run, episodes=3, settings=QUICK)
    assert [one.step for one in found.policies] == [30, 60]
    assert found.discount == DISCOUNT
    assert found.left_out == {"critic": "bc trains no critic."}
    of_last = found.policies[1]
    assert list(of_last.estimates) == ["fqe", "wis", "pdwis", "dr", "wdr"]

    policy = orlog.load_policy(run)
    weighed, returns = weights_and_returns(policy, data)
    expected = (weighed * returns).sum() / weighed.sum()
    assert of_last.estimates["wis"].value == pytest.approx(expected)
    expected = weighed.sum() ** 2 / np.square(weighed).sum()
    assert of_last.effective_episodes == pytest.approx(expected)

    played = []
    with gymnasium.make("CartPole-v1") as env:
        for seed in range(FIRST_SEED, FIRST_SEED + 3):
            seen, _ = env.reset(seed=seed)
            total, weight, done = 0.0, 1.0, False
            while not done:
                seen, reward, ended, cut, _ = env.step(policy(seen))
                total += weight * float(reward)
                weight *= DISCOUNT
                done = ended or cut
            played.append(total)
    assert of_last.value.value == pytest.approx(np.mean(played))
    errors = [abs(one.estimates["fqe"].value - one.value.value) for one in found.policies if one.value]
    assert found.quality["fqe"]["absolute_error"].value == pytest.approx(np.mean(errors))
    assert set(found.quality["fqe"]) <= {"absolute_error", "rank_correlation", "regret_at_1"}
    assert orlog.evaluate_off_policy(run, episodes=3, settings=QUICK) == found


def test_the_command_prints_tables_or_json(data):
    run = trained(data, "bc")
    asked = ["ope", str(run.folder), "--episodes", "2", "--fqe-steps", "5", "--fqe-fits", "2", "--discount", "0.9"]
    done = command(*asked)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert "absolute error" in shown
    assert "left out: critic: bc trains no critic." in shown
    assert "value (discount 0.9)" in shown
    assert shown.splitlines()[-1].endswith("More: docs/ope.md")
    assert shown.count("note: ") == 1
    body = json.loads(command(*asked, "--json").stdout)
    assert [one["step"] for one in body["policies"]] == [10, 20]
    assert body["policies"][0]["run"] == str(run.folder)
    assert len(body["policies"][0]["estimates"]["fqe"]["interval"]) == 2
    assert body["protocol"]["episodes"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
def test_without_probabilities_or_a_density_one_line_says_so():
    plain = cartpole("lab/plain-v1", log_probs=False)
    found = orlog.evaluate_off_policy(trained(plain), episodes=0, settings=QUICK)
    assert found.left_out["wis"].startswith("lab/plain-v1 has no column infos/action_log_probs")
    assert list(found.policies[0].estimates) == ["fqe", "critic"]
    assert found.policies[0].value is None
    assert found.quality == {}

    with orlog.record(gymnasium.make("Pendulum-v1"), "lab/box-v1", action_log_probs=True) as env:
        env.reset(seed=0)
        for _ in range(200):
            env.step(env.action_space.sample(), action_log_prob=-math.log(4))
    run = trained(orlog.load_dataset("lab/box-v1"), "iql", evaluations=0)
    found = orlog.evaluate_off_policy(run, episodes=1, settings=QUICK)
    assert "no density" in found.left_out["dr"]
    assert list(found.policies[0].estimates) == ["fqe", "critic"]


def test_the_value_of_the_trained_critic_is_its_own(data):
    run = trained(data)
    from orlog.algos.training.evaluating import find_run
    from orlog.algos.training.policy import make_from_record
    from orlog.algos.training.runs import load_state

    record, dataset, kind = find_run(run.folder)
    made = make_from_record(record, dataset, kind)
    load_state(made, run.folder, to_act=True)
    starts = torch.from_numpy(np.stack([episode.observations[0] for episode in data]))
    with torch.no_grad():
        expected = made.critic(made.encoder(starts)).amax(-1).mean()
    found = orlog.evaluate_off_policy(run, episodes=0, settings=QUICK)
    assert found.policies[1].estimates["critic"].value == pytest.approx(float(expected), rel=1e-5)


def test_a_critic_whose_loss_is_no_expectation_is_left_out(data):
    run = trained(data, preset="d3rlpy")
    assert run.record.config["bellman_loss"] == "huber"
    found = orlog.evaluate_off_policy(run, episodes=0, settings=QUICK)
    assert "critic" not in found.policies[0].estimates
    assert "Huber" in found.left_out["critic"]


def test_what_is_fitted_and_what_corrects_it_share_no_episode(data, tmp_path):
    train, validation = orlog.split_dataset(data, [0.5, 0.5], seed=0)
    validation.save(tmp_path / "validation.json")
    run = trained(train, "bc", keep_checkpoints=False)
    found = orlog.evaluate_off_policy(run, on=validation, episodes=0, settings=QUICK)
    assert found.digest == train.digest
    assert (found.on, found.on_digest) == (validation.name, validation.digest)

    weights, returns = weights_and_returns(orlog.load_policy(run), validation)
    estimates = found.policies[0].estimates
    if weights.any():
        assert estimates["wis"].value == pytest.approx(np.average(returns, weights=weights))
    else:
        assert "wis" in found.left_out

    fewer = orlog.evaluate_off_policy(run, on=validation[:2], episodes=0, settings=QUICK)
    assert fewer.policies[0].estimates["fqe"].value != estimates["fqe"].value
    asked = ["ope", str(run.folder), "--episodes", "0", "--fqe-steps", "5", "--json"]
    body = json.loads(command(*asked, "--on", "validation.json").stdout)
    assert body["on_digest"] == validation.digest
    with pytest.raises(ValueError, match="that the runs were trained on"):
        orlog.evaluate_off_policy(run, on=data, episodes=0, settings=QUICK)
    with orlog.record(gymnasium.make("Pendulum-v1"), "lab/box-v1") as env:
        env.reset(seed=0)
        env.step(env.action_space.sample())
    with pytest.raises(SchemaError, match="observation_space"):
        orlog.evaluate_off_policy(run, on="lab/box-v1", episodes=0, settings=QUICK)


@pytest.mark.usefixtures("empty")
def test_the_interval_of_fqe_has_the_spread_of_its_fits():
    with orlog.record(gymnasium.make("FrozenLake-v1"), "lab/lake-v1") as env:  # one start
        for episode in range(6):
            seen, _ = env.reset(seed=episode)
            done = False
            while not done:
                seen, _, ended, cut, _ = env.step((seen + episode) % 4)
                done = ended or cut
    run = trained(orlog.load_dataset("lab/lake-v1"), "bc", evaluations=0)
    one, several = (
        orlog.evaluate_off_policy(run, episodes=0, settings=msgspec.structs.replace(QUICK, fits=fits))
        for fits in (1, 3)
    )
    assert one.policies[0].estimates["fqe"].interval is None
    low, high = several.policies[0].estimates["fqe"].interval or (0.0, 0.0)
    assert low < several.policies[0].estimates["fqe"].value < high


class OnePlace(gymnasium.Env[Any, Any]):
    """Episodes of three steps that are truncated, or terminate."""

    observation_space, action_space = gymnasium.spaces.Discrete(1), gymnasium.spaces.Discrete(2)

    def __init__(self, truncates):
        self.truncates, self.count = truncates, 0

    def reset(self, **_):
        self.count = 0
        return 0, {}

    def step(self, _action):
        self.count += 1
        last = self.count == 3
        return 0, 1.0, last and not self.truncates, last and self.truncates, {}


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("truncates", [True, False])
def test_what_stands_for_steps_after_truncations_is_stated(truncates):
    with orlog.record(OnePlace(truncates), "lab/place-v1") as env:
        for _ in range(12):
            if env.unwrapped.count % 3 == 0:
                env.reset()
            env.step(0)
    run = trained(orlog.load_dataset("lab/place-v1"), "bc", evaluations=0)
    found = orlog.evaluate_off_policy(run, episodes=0, settings=QUICK)
    policy = found.policies[0]
    expected = DISCOUNT**3 * policy.estimates["fqe"].value if truncates else 0
    assert policy.beyond_truncations == pytest.approx(expected)


@pytest.mark.usefixtures("empty")
def test_weights_that_are_too_large_for_a_number_are_said_to_be():
    unlikely = cartpole("lab/unlikely-v1", factor=1000.0)
    settings = {**SMALL, "learning_rate": 0.03}
    run = trained(unlikely, "bc", steps=60, settings=settings, keep_checkpoints=False)
    found = orlog.evaluate_off_policy(run, episodes=0, settings=QUICK)
    assert found.left_out["dr"].startswith("the weights under the policy of step 60 are too large")
    assert {"wis", "pdwis", "wdr"} <= {*found.policies[0].estimates}


def test_bad_input_is_refused_with_what_to_do(data, tmp_path):
    run = trained(data, evaluations=0, steps=2)
    other = cartpole("lab/other-v1", log_probs=False)
    another = trained(other, evaluations=0, steps=2)
    with pytest.raises(ValueError, match="evaluate runs of one dataset at a time"):
        orlog.evaluate_off_policy([run, another])
    with pytest.raises(IntegrityError, match="name the dataset that it was trained on"):
        orlog.evaluate_off_policy(run, dataset=other)
    with pytest.raises(NotFoundError, match=r"there is no run\.json"):
        orlog.evaluate_off_policy(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"are the same run; name it once"):
        orlog.evaluate_off_policy([run, run.folder.resolve()])
    with pytest.raises(ValueError, match=r"discount must be in \(0, 1\], found 1.5"):
        orlog.evaluate_off_policy(run, discount=1.5)
    (run.folder / "checkpoint.safetensors").unlink()
    with pytest.raises(NotFoundError, match="no checkpoint yet; run: orlog train"):
        orlog.evaluate_off_policy(run)


def test_policies_that_are_no_function_of_the_observation_are_refused(data):
    class Remembering:
        actor = scaling = None

    class Reaching:
        GOALS, scaling = True, None

    for kind, reason in ((Remembering, "remembers the episode"), (Reaching, "acts for goals")):
        with pytest.raises(SchemaError, match=f"{reason}.*; leave this run out"):
            _check_policy(Path("run"), kind(), data)
