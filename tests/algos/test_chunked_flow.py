"""The flow policy over windows and chunks: what it asks for and acts out."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.algos.chunked_flow import ChunkedFlow, ChunkedFlowConfig
from orlog.algos.networks import make_generator

SMALL = {"hidden": (8,), "seen": 2, "planned": 3, "executed": 2, "flow_steps": 4}


def weights_of(network):
    return [one.detach().numpy().astype(np.float64) for one in network.parameters()]


def velocity(weights, inputs):
    """Return what the network of one hidden layer gives, with the tanh form of GELU."""
    first, bias, last, last_bias = weights
    hidden = inputs @ first.T + bias
    hidden = hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
    return np.asarray(hidden @ last.T + last_bias)


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
