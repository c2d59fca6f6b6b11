"""Updates elsewhere than on the CPU, watched without a GPU: nothing of two devices may meet.

The "meta" device has shapes but no numbers, and refuses whatever would wait for one (`.item()`, a
branch on a tensor), which on a GPU would stop the work there.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orlog.algos import networks
from orlog.algos.algorithms import ALGORITHMS, algorithm_forms
from orlog.algos.cdt import CDT
from orlog.algos.dt import DT
from orlog.algos.networks import Scaling
from tests.algos import plain

COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
FORMS = [
    form
    for name in ALGORITHMS
    for form in algorithm_forms(name)
    if form not in (DT, CDT) and "text" not in form.ACTIONS and form.OBSERVATIONS != ("numbered",)
]
"""But for those that pick slots of their sequences and so wait for their number: DT and CDT, those in words; and tables."""


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, and copies from one to another."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation if all its tensors are on one device."""
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        devices = {one.device.type for one in tensors if one.dim()}
        assert len(devices) <= 1, f"{func} on {devices}"
        assert func not in COPIES or "device" not in kwargs or {str(kwargs["device"])} == devices
        return func(*args, **kwargs)


class MetaGenerator(torch.Generator):
    """A generator that says it is on the device without memory, where nothing is drawn."""

    device = torch.device("meta")

    def __new__(cls, *_):
        return super().__new__(cls)


@pytest.mark.parametrize("form", FORMS)
def test_an_update_stays_on_its_device_and_waits_for_nothing(form, make, batches_of, monkeypatch):
    batches = [batch.to("meta") for batch in batches_of(make(form), 2)]
    monkeypatch.setattr(torch, "Generator", MetaGenerator)
    monkeypatch.setattr(Scaling, "__post_init__", lambda _: None)  # it looks at the numbers
    made = make(form, device="meta")
    for part in vars(made).values():
        if isinstance(part, torch.optim.Optimizer):
            part.step = lambda: None  # no fused Adam there
    with OneDevice():
        first, metrics = (made.update(batch) for batch in batches)
    assert first.keys() == metrics.keys()
    assert {value.device.type for value in metrics.values()} == {"meta"}
    assert plain.act(made, torch.zeros((2, 3), device="meta")).device.type == "meta"
    assert networks.make_generator(0, 0, "meta").device.type == "meta"
