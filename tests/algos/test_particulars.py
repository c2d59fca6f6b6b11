"""What single algorithms have of their own, beside the contract of all."""

import dataclasses
import math

import pytest
import torch

import orlog
from orlog.algos.algorithms import ALGORITHMS, algorithm_forms, find_algorithm
from orlog.algos.critics import conservative_gaps, weighted_cloning_loss
from orlog.algos.edac import similarity
from orlog.algos.flows import ChunkActor, flow_actions
from orlog.algos.ifql import IFQL
from orlog.algos.networks import make_generator
from orlog.algos.percent_bc import PercentBC, PercentBCDiscrete
from orlog.algos.qcfql import QCFQL
from orlog.algos.rlpd import RLPD
from orlog.algos.td3bc import TD3BC
from orlog.algos.training.runs import read_metrics
from orlog.errors import NotFoundError
from tests.algos.plain import tensors_of
from tests.pendulum import pendulum

FEW = {"hidden": (4,), "critics": 3, "updates": 2, "batch_size": 8, "random_steps": 210}


def test_weights_that_would_overflow_are_the_largest():
    advantages = torch.tensor([0.0, 1000.0, math.log(2) / 3])
    found = weighted_cloning_loss(torch.tensor([-1.0, -2.0, 3.0]), advantages, 3.0, 100.0)
    assert found.item() == pytest.approx(-(1 * -1 + 100 * -2 + 2 * 3) / 3)


def test_gaps_of_cql_do_not_overflow():
    found = conservative_gaps(
        torch.tensor([[[1000.0, 0.0]], [[-1000.0, -1000.0]]]), torch.zeros(1, 2), torch.zeros(2, 1)
    )
    torch.testing.assert_close(found, torch.tensor([1000.0, -1000 + math.log(2)]))


def test_td3bc_shows_the_policys_loss_until_the_next_one(make, make_batch):
    algorithm = make(TD3BC, policy_interval=2)
    shown = [algorithm.update(make_batch(index))["policy/loss"].item() for index in range(5)]
    assert shown[1] == shown[2] != shown[3] == shown[4]


def test_td3bc_explores_with_the_noise_of_td3(make, scaling, make_batch):
    algorithm, observations = make(TD3BC), make_batch(0, rows=4096).observations
    unit = scaling.actions_to_unit(algorithm.explore(observations, make_generator(0, 0)))
    apart = unit - scaling.actions_to_unit(algorithm.act(observations))
    assert torch.std(apart).item() == pytest.approx(0.1, rel=0.05)


def test_similarity_is_the_number_of_critics_where_all_agree_and_0_without_gradients():
    assert similarity(torch.randn(1, 6, 2).expand(5, -1, -1)).item() == pytest.approx(5.0)
    assert similarity(torch.zeros(5, 6, 2)).item() == 0


@pytest.mark.parametrize("kind", [PercentBC, PercentBCDiscrete])
def test_percent_bc_clones_the_best_episodes(kind):
    function, arguments = kind.loader(kind.CONFIG(percent=25.0, batch_size=64))
    assert function == "orlog.loaders.best_episodes:best_transitions"
    assert arguments == {"batch_size": 64, "percent": 25.0}


def test_ifql_gives_each_observation_the_best_of_its_own_actions(make, scaling, make_batch):
    algorithm = make(IFQL, sampled_actions=5)
    observations = make_batch(0, rows=3).observations
    found = algorithm.actor(3).act(observations)
    noise = torch.randn((15, 2), generator=make_generator(0, 3))
    for row, s in enumerate(scaling.observations(observations)):
        many, z = s.expand(5, -1), noise[5 * row : 5 * row + 5]
        actions = flow_actions(algorithm.policy, many, z, 10)
        best = algorithm.critic(many, actions).amin(0).argmax()
        torch.testing.assert_close(found[row], scaling.actions_from_unit(actions[best]))


def test_chunks_are_acted_out_in_full_in_each_environment():
    plans = iter(range(100))

    def plan(observations, _generator):
        step = next(plans)
        starts = 100 * observations[:, :1, None] + 10 * step
        return starts + torch.arange(3)[None, :, None]

    actor = ChunkActor(plan, 2, make_generator(0, 0))
    found = []
    for step in range(8):
        actor.begin(torch.tensor([step == 0, step in (0, 4)]))
        found.append(actor.act(torch.tensor([[1.0], [2.0]]))[:, 0].tolist())
        actor.reward(torch.zeros(2))
    first, second = zip(*found, strict=True)
    assert first == (100, 101, 102, 130, 131, 132, 160, 161)
    assert second == (200, 201, 202, 230, 240, 241, 242, 270)  # a new episode at step 4


def test_an_evaluation_of_qcfql_begins_with_what_act_would_do(make, make_batch):
    algorithm, observations = make(QCFQL), make_batch(0).observations
    algorithm.acting = make_generator(0, 3)
    expected = algorithm.act(observations)
    assert torch.equal(algorithm.actor(32).act(observations), expected)


def test_rlpd_starts_with_random_steps_in_the_environment(home, tmp_path):
    del home
    data = pendulum(episodes=2)
    folder = tmp_path / "run"
    run = orlog.train("rlpd", data, settings=FEW, steps=5, evaluations=1, out=folder)
    last = read_metrics(folder)[-1]
    assert last["online/steps"] == 215
    assert len(last["returns"]) == 20
    assert run.record.online is not None
    assert (run.record.online.run, run.record.online.prior) == ("", 0.5)
    assert orlog.evaluate(run, episodes=1).step == 5
    assert orlog.finetune(run, steps=2, evaluations=0, out=tmp_path / "more").record.steps == 2
    nameless = pendulum("lab/nameless-v1", named=False)
    with pytest.raises(NotFoundError, match="names no environment"):
        orlog.train("rlpd", nameless, steps=1, evaluations=0, out=tmp_path / "x")


def test_half_of_each_batch_of_rlpd_is_demonstrations_and_half_of_the_environment(tmp_path, monkeypatch):
    shown = torch.tensor([0.1234])
    demonstrations = pendulum("lab/shown-v1", choose=lambda _seen: shown.numpy())
    counts = []
    update = RLPD._update_critics

    def counting(self, batch):
        counts.append((int((batch.actions == shown).sum()), len(batch.actions)))
        return update(self, batch)

    monkeypatch.setattr(RLPD, "_update_critics", counting)
    orlog.train("rlpd", demonstrations, settings=FEW, steps=6, evaluations=0, out=tmp_path / "run")
    assert counts == [(4, 8)] * 12  # 6 steps with 2 updates each, of 8 transitions


N_STEPS = [form for name in ALGORITHMS for form in algorithm_forms(name) if "n_steps" in form.CONFIG.__struct_fields__]


@pytest.mark.parametrize("form", N_STEPS, ids=[form.__name__ for form in N_STEPS])
def test_targets_discount_by_the_steps_that_were_summed(form, make, batches_of):
    """Over steps of which each item summed two, n-step targets are single steps by the discount of two."""
    single = make(form, seed=3, discount=0.81)
    several = make(form, seed=3, discount=0.9, n_steps=5)
    assert several.loader(several.config)[1]["n_steps"] == 5
    assert "n_steps" not in single.loader(single.config)[1]
    for batch in batches_of(single, 3):
        single.update(batch)
        count = len(batch.rewards)
        several.update(dataclasses.replace(batch, discounts=torch.full((count,), 0.81)))
    for (name, one), (_, other) in zip(tensors_of(single).items(), tensors_of(several).items(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7, msg=name)


def test_batches_of_several_steps_end_where_episodes_do(make, batches_of):
    algorithm = make(find_algorithm("iql"), seed=0, n_steps=3, discount=0.5)
    batch = batches_of(algorithm, 1)[0]
    assert {*batch.discounts.tolist()} == {0.5, 0.25, 0.125}
    shorter = batch.discounts > 0.125
    assert ((batch.terminations + batch.truncations)[shorter] > 0).all()
