import copy

import torch
from torch import nn

from orlog.algos.networks import make_generator, make_network
from orlog.algos.optimizers import Adam


def test_adam_takes_the_steps_of_pytorch_to_the_bit():
    network = make_network(4, 2, (8, 8), generator=make_generator(0, 0))
    rate = nn.Parameter(torch.ones(()))
    groups = [{"params": list(network.parameters())}, {"params": [rate], "lr": 0.1}]
    ours = Adam(groups, 1e-2)
    other, other_rate = copy.deepcopy(network), copy.deepcopy(rate)
    groups = [{"params": list(other.parameters())}, {"params": [other_rate], "lr": 0.1}]
    theirs = torch.optim.Adam(groups, 1e-2, fused=True)
    generator = make_generator(0, 1)
    for step in range(12):
        values = torch.randn(5, 4, generator=generator)
        for optimizer, one, factor in ((ours, network, rate), (theirs, other, other_rate)):
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
            optimizer.zero_grad()
            loss = one(values).square().mean()
            # In some steps a parameter has no gradient, and then it stays as it is.
            (loss if step in (0, 5) else loss * factor).backward()
            optimizer.step()
        if step == 8:  # as a checkpoint does
            ours.load_state_dict(copy.deepcopy(ours.state_dict()))
        expected = [*other.parameters(), other_rate]
        torch.testing.assert_close([*network.parameters(), rate], expected, rtol=0, atol=0)
    found, wanted = ours.state_dict(), theirs.state_dict()
    assert found["param_groups"] == wanted["param_groups"]
    torch.testing.assert_close(found["state"], wanted["state"], rtol=0, atol=0)
