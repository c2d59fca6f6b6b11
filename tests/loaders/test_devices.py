"""Sampling on another device, watched without one: nothing of two devices may meet in a call.

The "meta" device has shapes but no numbers. What is gathered there shows that every kind of batch
moves its choice to the arrays' device first, as a GPU needs it. Whole episodes are left out, since
their shapes go by numbers. Where there is a real GPU, all batches from it are compared.
"""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import orlog
from orlog.loaders.arrays import read_arrays

FLAT = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
IMAGES = spaces.Box(0, 255, (4, 4, 3), np.uint8), spaces.Discrete(3)

COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, as CUDA does, and tells copies between them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation if all its tensors are on one device."""
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        devices = {one.device.type for one in tensors if one.dim()}
        if func in COPIES and "meta" in devices and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        assert len(devices) <= 1 or func in COPIES, f"{func} on {devices}"
        return func(*args, **kwargs)


KINDS = {
    "transitions": lambda arrays: orlog.transitions(arrays, 4, seed=0),
    "n-step": lambda arrays: orlog.transitions(arrays, 4, seed=0, n_steps=3),
    "sequences": lambda arrays: orlog.sequences(arrays, 4, length=3, seed=0),
    "left": lambda arrays: orlog.sequences(arrays, 4, length=3, seed=0, padding="left"),
    "next": lambda arrays: orlog.sequences(arrays, 4, length=3, seed=0, with_next=True),
    "chunks": lambda arrays: orlog.action_chunks(arrays, 4, length=3, seed=0),
    "goals": lambda arrays: orlog.goals(arrays, 4, seed=0),
    "subgoals": lambda arrays: orlog.subgoals(arrays, 4, seed=0, steps=2),
    "preferences": lambda arrays: orlog.preferences(arrays, 4, length=2, seed=0),
    "priorities": lambda arrays: orlog.transitions(arrays, 4, seed=0, prioritized=True),
    "stacks": lambda arrays: orlog.transitions(arrays, 4, stacks=2, seed=0),
    "stacks n-step": lambda arrays: orlog.transitions(arrays, 4, stacks=2, seed=0, n_steps=2),
}


OF_NUMBERS = {
    "episodes": lambda arrays: orlog.episodes(arrays, 4, seed=0),
    "packed": lambda arrays: orlog.episodes(arrays, 4, seed=0, layout="packed"),
}


@pytest.fixture(scope="module")
def flat(write, make):
    rng = np.random.default_rng(0)
    return read_arrays(write([make(*FLAT, length=n, end="cut", rng=rng) for n in (4, 5)], *FLAT))


@pytest.fixture(scope="module")
def images(write, make):
    rng = np.random.default_rng(0)
    episodes = [make(*IMAGES, length=n, end="cut", rng=rng) for n in (4, 5)]
    return read_arrays(write(episodes, *IMAGES))


@pytest.mark.parametrize("name", ["flat", "images"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_made_where_the_arrays_are(kind, name, request):
    if kind.startswith("stacks") and name == "flat":
        pytest.skip("no images to stack")
    arrays = request.getfixturevalue(name)
    expected = next(iter(KINDS[kind](arrays)))
    with OneDevice():
        batch = next(iter(KINDS[kind](arrays.to("meta"))))
    for field in expected.__dataclass_fields__:
        found, wanted = getattr(batch, field), getattr(expected, field)
        for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
            if isinstance(other, torch.Tensor):
                assert (one.device.type, one.dtype) == ("meta", other.dtype), field
                assert one.shape == other.shape, field


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["flat", "images"])
@pytest.mark.parametrize("kind", [*KINDS, *OF_NUMBERS])
def test_the_same_batches_from_a_gpu(kind, name, request):
    if kind.startswith("stacks") and name == "flat":
        pytest.skip("no images to stack")
    arrays = request.getfixturevalue(name)
    make = (KINDS | OF_NUMBERS)[kind]
    expected, found = next(iter(make(arrays))), next(iter(make(arrays.to("cuda"))))
    for field in expected.__dataclass_fields__:
        pair = tree_leaves(getattr(found, field)), tree_leaves(getattr(expected, field))
        for one, other in zip(*pair, strict=True):
            if isinstance(other, torch.Tensor):
                assert one.device.type == "cuda", field
                torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0)
