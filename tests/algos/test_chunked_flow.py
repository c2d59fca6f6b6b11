"""The flow policy over windows and chunks: its loss by hand, and what it acts out."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.algos.chunked_flow import ChunkedFlow, ChunkedFlowConfig
from orlog.algos.networks import make_generator
from orlog.loaders.batch import WindowBatch

SMALL = {"hidden": (8,), "seen": 2, "planned": 3, "executed": 2, "flow_steps": 4}


def batch_of(scaling, rows=6):
    rng = np.random.default_rng(0)
    unit = torch.from_numpy(rng.uniform(-0.95, 0.95, (rows, 3, 2)).astype(np.float32))
    seen = torch.from_numpy(rng.normal(size=(rows, 2, 3)).astype(np.float32))
    valid = torch.from_numpy(rng.random((rows, 3)) < 0.6)
    return WindowBatch(
        observations=seen * scaling.obs_std + scaling.obs_mean,
        actions=scaling.actions_from_unit(unit),
        observations_valid=valid[:, :2],
        valid=valid,
    )


def weights_of(network):
    return [one.detach().numpy().astype(np.float64) for one in network.parameters()]


def velocity(weights, inputs):
    """Return what the network of one hidden layer gives, with the tanh form of GELU."""
    first, bias, last, last_bias = weights
    hidden = inputs @ first.T + bias
    hidden = hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
    return np.asarray(hidden @ last.T + last_bias)


def test_its_loss_is_that_of_a_calculation_by_hand(make, scaling):
    algorithm, batch = make(ChunkedFlow, **SMALL), batch_of(scaling)
    weights = weights_of(algorithm.flow)
    found = algorithm.update(batch)["flow/loss"].item()
    generator = make_generator(0, 1)
    noise = torch.randn((6, 6), generator=generator).numpy().astype(np.float64)
    times = torch.rand((6, 1), generator=generator).numpy().astype(np.float64)
    assert isinstance(batch.observations, torch.Tensor)
    seen = (batch.observations - scaling.obs_mean) / scaling.obs_std
    low, high = scaling.action_low.numpy(), scaling.action_high.numpy()
    total = 0.0
    for row in range(6):
        window = seen[row].numpy().astype(np.float64).reshape(-1)
        chunk = 2 * (batch.actions[row].numpy().astype(np.float64) - low) / (high - low) - 1
        wanted = chunk.reshape(-1) - noise[row]
        point = (1 - times[row]) * noise[row] + times[row] * chunk.reshape(-1)
        guess = velocity(weights, np.concatenate([window, point, times[row]])[None])[0]
        total += np.square(guess - wanted).mean()  # slots past the end count like others
    assert found == pytest.approx(total / 6, rel=1e-4)
    assert not np.allclose(weights_of(algorithm.flow)[0], weights[0])


def test_it_asks_for_windows_and_chunks():
    function, arguments = ChunkedFlow.loader(ChunkedFlowConfig(seen=3, planned=4, executed=1))
    assert function == "orlog.loaders.windows:windows"
    assert [*arguments["observations"]] == [-2, -1, 0]
    assert [*arguments["actions"]] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="executed must be at most planned, found 5 of 4"):
        ChunkedFlowConfig(planned=4, executed=5)


def test_a_plan_is_acted_out_in_part_from_the_last_observations(make, scaling):
    algorithm = make(ChunkedFlow, **SMALL)
    weights = weights_of(algorithm.flow)
    rng = np.random.default_rng(1)
    seen = rng.normal(size=(5, 2, 3)).astype(np.float32)
    actor, generator = algorithm.actor(2), make_generator(0, 3)
    expected = [[], []]
    for step in range(5):
        begins = torch.tensor([step == 0, step in (0, 3)])  # the second has a new episode at step 3
        actor.begin(begins)
        observations = torch.from_numpy(seen[step]) * scaling.obs_std + scaling.obs_mean
        acted = scaling.actions_to_unit(actor.act(observations)).numpy()
        actor.reward(torch.zeros(2))
        noise = torch.randn((2, 6), generator=generator).numpy()  # drawn in every step for all
        for index in range(2):
            since = step - (3 if index == 1 and step >= 3 else 0)
            if since % 2 == 0:  # two of three planned actions were taken
                before = seen[step if since == 0 else step - 1, index]
                window = np.concatenate([before, seen[step, index]])
                chunk = noise[index].astype(np.float64)
                for euler in range(4):
                    inputs = np.concatenate([window, chunk, [euler / 4]])
                    chunk = chunk + velocity(weights, inputs[None])[0] / 4
                expected[index] = list(chunk.clip(-1, 1).reshape(3, 2))
            np.testing.assert_allclose(acted[index], expected[index].pop(0), atol=2e-5)
    fresh = torch.from_numpy(seen[0]) * scaling.obs_std + scaling.obs_mean
    assert torch.equal(algorithm.act(fresh), algorithm.actor(2).act(fresh))


def test_it_goes_one_way_where_demonstrations_go_either(tmp_path):
    space = spaces.Box(-1, 1, (1,))
    with orlog.DatasetWriter("lab/fork-v1", observation_space=space, action_space=space) as writer:
        for number in range(20):
            way = 0.8 if number % 2 else -0.8
            writer.add_steps(
                observations=np.zeros((5, 1), np.float32),
                actions=np.full((4, 1), way, np.float32),
                rewards=np.zeros(4),
                terminations=np.arange(4) == 3,
                truncations=np.zeros(4, bool),
            )
            writer.end_episode()
    settings = {"hidden": (64, 64), "planned": 4, "executed": 4, "learning_rate": 3e-3}
    run = orlog.train("chunked_flow", "lab/fork-v1", settings=settings, steps=400, evaluations=0, out=tmp_path / "run")
    policy = orlog.load_policy(run)
    first = policy(np.zeros((64, 1), np.float32))
    assert 0.2 < (first > 0).mean() < 0.8
    assert (np.abs(first) > 0.4).mean() > 0.8  # the mean of both ways, 0, would be neither
