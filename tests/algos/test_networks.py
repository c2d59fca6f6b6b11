import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from orlog.algos.networks import Critics, Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import frozen
from orlog.algos.relu_networks import BLOCK, WIDE, products_in

FLOATS = st.floats(-100, 100, width=32)


def scaling_of(low, high, *, std=1.0):
    return Scaling(
        obs_mean=torch.zeros(1),
        obs_std=torch.tensor([std]),
        action_low=torch.tensor([low]),
        action_high=torch.tensor([high]),
    )


@settings(deadline=None)
@given(low=FLOATS, width=st.floats(0.125, 100, width=32), unit=st.floats(-1, 1, width=32))
def test_the_maps_of_actions_are_inverse_and_meet_the_bounds(low, width, unit):
    scaling = scaling_of(low, low + width)
    actions = scaling.actions_from_unit(torch.tensor([[unit], [-1.0], [1.0]]))
    assert actions[1].item() == pytest.approx(low, rel=1e-6)
    assert actions[2].item() == pytest.approx(low + width, rel=1e-5, abs=1e-5)
    back = scaling.actions_to_unit(actions)
    assert back[0].item() == pytest.approx(unit, abs=4e-7 * (100 + abs(low)) / width)


def test_observations_are_standardized(scaling):
    found = scaling.observations(torch.tensor([[3.0, -2.0, -1.0]]))
    assert found.tolist() == [[1.0, 0.0, -1.0]]


@pytest.mark.parametrize(("low", "high"), [(-math.inf, 1), (-1, math.inf), (-math.inf, math.inf), (1, 1), (1, -1)])
def test_bounds_that_no_unit_fits_are_refused(low, high):
    with pytest.raises(ValueError, match="finite action bounds"):
        scaling_of(low, high)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan])
def test_a_deviation_that_is_not_positive_is_refused(std):
    with pytest.raises(ValueError, match="must be positive"):
        scaling_of(-1, 1, std=std)


def test_initial_weights_fill_one_over_the_root_of_the_inputs():
    network = make_network(400, 100, (250,), generator=make_generator(0, 0))
    first, relu, last = network
    assert isinstance(first, nn.Linear)
    assert isinstance(relu, nn.ReLU)
    assert isinstance(last, nn.Linear)
    for linear, bound in ((first, 1 / 20), (last, 1 / math.sqrt(250))):
        for values in (linear.weight, linear.bias):
            largest = values.abs().max().item()
            assert 0.97 * bound < largest <= bound
        # uniform, not normal: the standard deviation is bound / sqrt(3)
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)


@pytest.mark.parametrize("rows", [(40,), (4, 10)])
def test_a_network_gives_the_bits_of_its_layers_one_after_another(rows):
    network = make_network(7, 3, (64, 32), generator=make_generator(1, 0))
    chain = nn.Sequential(*copy.deepcopy(network))
    values = torch.randn(*rows, 7, generator=make_generator(0, 1))
    found = gradients(network, values)
    for one, other in zip(found, gradients(chain, values), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.equal(network(values), found[0])


def test_twin_critics_give_the_bits_of_their_layers_one_after_another():
    critic = TwinCritic(5, 2, (64, 64), generator=make_generator(1, 0))
    chain = copy.deepcopy(critic)
    chain.first, chain.second = nn.Sequential(*chain.first), nn.Sequential(*chain.second)
    observations = torch.randn(50, 5, generator=make_generator(0, 1))
    actions = torch.randn(50, 2, generator=make_generator(0, 2))
    found = gradients(critic, observations, actions)
    for one, other in zip(found, gradients(chain, observations, actions), strict=True):
        assert torch.equal(one, other)
    actions.requires_grad_(True)
    with frozen(critic):
        values = critic(observations, actions)
    values.sin().sum().backward()
    expected = gradients(chain, observations, actions)[2]
    assert actions.grad is not None
    assert all(one.grad is None and one.requires_grad for one in critic.parameters())
    assert torch.equal(actions.grad, expected)


def gradients(network, *inputs):
    """Return the outputs, and the gradients of inputs and parameters."""
    inputs = tuple(one.detach().clone().requires_grad_(True) for one in inputs)
    outputs = network(*inputs)
    wanted = [*inputs, *network.parameters()]
    return [outputs.detach(), *torch.autograd.grad(outputs.sin().sum(), wanted)]


def test_many_rows_pass_wide_networks_in_blocks():
    critic = TwinCritic(5, 2, (WIDE, WIDE), generator=make_generator(1, 0))
    chain = copy.deepcopy(critic)
    chain.first, chain.second = nn.Sequential(*chain.first), nn.Sequential(*chain.second)
    observations = torch.randn(4 * BLOCK + 37, 5, generator=make_generator(0, 1))
    actions = torch.randn(4 * BLOCK + 37, 2, generator=make_generator(0, 2))
    found = gradients(critic, observations, actions)
    for one, other in zip(found, gradients(chain, observations, actions), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(critic(observations, actions), found[0])


@pytest.mark.parametrize("kind", ["plain", "gelu", "layer_norm", "critics"])
def test_products_in_bfloat16_are_those_between_hidden_layers(kind):
    def make(hidden):
        generator = make_generator(1, 0)
        if kind == "critics":
            return Apart(Critics(3, 4, 3, hidden, generator=generator))
        if kind == "gelu":
            return make_network(7, 3, hidden, generator=generator, style="gelu")
        return make_network(7, 3, hidden, generator=generator, layer_norm=kind == "layer_norm")

    network, shallow = make((64, 64, 64)), make((64,))
    values = torch.randn(40, 7, generator=make_generator(0, 1))
    exact = gradients(network, values)
    with products_in("bf16"):
        found = gradients(network, values)
        without = gradients(shallow, values)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.1 * other.norm()
    assert not torch.equal(found[0], exact[0])
    assert torch.equal(gradients(network, values)[0], exact[0])
    # without two hidden layers there is no such product; only what enters the last layer is rounded
    for one, other in zip(without, gradients(shallow, values), strict=True):
        assert (one - other).norm() < 0.01 * other.norm()


class Apart(nn.Module):
    """Critics of observations and actions that lie next to each other."""

    def __init__(self, critics):
        super().__init__()
        self.critics = critics

    def forward(self, pairs):
        return self.critics(pairs[:, :4], pairs[:, 4:])


def test_networks_can_be_differentiated_twice():
    critic = TwinCritic(3, 2, (6, 5), generator=make_generator(1, 0)).double()
    generator = make_generator(0, 1)
    pairs = [torch.randn(4, width, generator=generator, dtype=torch.float64, requires_grad=True) for width in (3, 2)]
    weights = list(critic.parameters())
    assert torch.autograd.gradgradcheck(lambda *_: critic(*pairs), (*pairs, *weights))
    assert torch.autograd.gradgradcheck(
        lambda *_: critic.first(torch.cat(pairs, -1)), (*pairs, *critic.first.parameters())
    )


def test_generators_depend_on_seed_and_purpose_alone():
    def numbers(seed, purpose):
        return tuple(torch.rand(3, generator=make_generator(seed, purpose)).tolist())

    first = numbers(0, 0)
    torch.rand(7)
    assert numbers(0, 0) == first
    assert len({numbers(seed, purpose) for seed in range(5) for purpose in range(3)}) == 15


@pytest.mark.parametrize("hidden", [(8,), (8, 5)])
def test_each_of_many_critics_is_a_network_of_the_joined_inputs(hidden):
    critics = Critics(4, 3, 2, hidden, generator=make_generator(0, 0))
    observations = torch.randn(6, 3, generator=make_generator(0, 1))
    actions = torch.randn(6, 2, generator=make_generator(0, 2))
    each = torch.randn(4, 6, 2, generator=make_generator(0, 3))
    shared, apart = critics(observations, actions), critics(observations, each)
    assert shared.shape == apart.shape == (4, 6)
    for one in range(4):
        network = make_network(5, 1, hidden, generator=make_generator(9, 0))
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, weight, bias in zip(linear, critics.weights, critics.biases, strict=True):
                layer.weight.copy_(weight[one].T)
                layer.bias.copy_(bias[one, 0])
        for found, taken in ((shared, actions), (apart, each[one])):
            expected = network(torch.cat([observations, taken], 1))[:, 0]
            torch.testing.assert_close(found[one], expected)


def test_networks_can_start_as_edacs_do():
    network = make_network(400, 50, (300,), generator=make_generator(0, 0), last_bound=3e-3)
    critics = Critics(3, 300, 100, (300,), generator=make_generator(0, 0), last_bound=3e-3)
    first, last = network[0], network[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    for weight, bound in (
        (first.weight, 1 / 20),
        (critics.weights[0], 1 / 20),
        (last.weight, 3e-3),
        (last.bias, 3e-3),
        (critics.weights[1], 3e-3),
    ):
        assert 0.9 * bound < weight.abs().max().item() <= bound
    for bias in (first.bias, critics.biases[0]):
        assert (bias == 0.1).all()


def test_smooth_networks_start_as_glorot_and_bengio_say():
    network = make_network(300, 200, (100,), generator=make_generator(0, 0), style="gelu")
    first, _, last = network
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    for linear, bound in ((first, math.sqrt(6 / 400)), (last, math.sqrt(6 / 300))):
        assert 0.97 * bound < linear.weight.abs().max().item() <= bound
        assert not linear.bias.any()
