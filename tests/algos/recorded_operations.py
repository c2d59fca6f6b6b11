"""Stands in for a CUDA graph where there is no GPU: records the operations of a call and repeats them.

As there, a recording changes nothing, whatever was decided in Python stays decided, numbers that were
passed as numbers stay as they were, all memory stays where it was, and waiting for a number is an error.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.repeat_interleave.Tensor,
    torch.ops.aten._unique2.default,
}


BY_FLAGS = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}


class Operations(TorchDispatchMode):
    """Keeps each operation with its arguments and results, and what was in memory before."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.before = {}
        self.made = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation and keep it."""
        kwargs = kwargs or {}
        assert func not in WAITING, f"{func} waits for the GPU"
        flags = [one for one in tree_leaves(args) if _is(one) and one.dtype == torch.bool]
        assert not (flags and func in BY_FLAGS), f"{func} waits for the number of flags"
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor):
                memory = one.untyped_storage().data_ptr()
                if memory not in self.made and memory not in self.before:
                    whole = torch.empty(0, dtype=one.dtype).set_(one.untyped_storage())
                    self.before[memory] = whole, whole.clone()
        given = [one.untyped_storage().data_ptr() for one in tree_leaves(args) if _is(one)]
        kept = (_others(args), _others(kwargs))  # some operations change the shape of what they are given
        results = func(*args, **kwargs)
        for one in tree_leaves(results):
            if _is(one) and one.untyped_storage().data_ptr() not in given:
                self.made.add(one.untyped_storage().data_ptr())
        self.calls.append((func, *kept, _others(results)))
        return results

    def restore(self):
        """Put back what was in memory before."""
        for whole, kept in self.before.values():
            whole.copy_(kept)

    def repeat(self):
        """Run the operations again, with their results in the memory of the first ones."""
        with torch.no_grad():
            for func, args, kwargs, results in self.calls:
                again = func(*_others(args), **_others(kwargs))
                for there, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                    if _is(there) and there.data_ptr() != new.data_ptr():
                        there.copy_(new)


def _others(tree):
    """Return the same with other tensors of the same memory."""
    return tree_map_only(Tensor, lambda one: one.detach(), tree)


def _is(one):
    return isinstance(one, Tensor)


def record(call, generators):
    """Record a call as `orlog.algos.repeated_updates.record_on_gpu` does."""
    states = [one.get_state() for one in generators]
    operations = Operations()
    with operations:
        found = call()
    operations.restore()
    for one, state in zip(generators, states, strict=True):
        one.set_state(state)
    return found, operations.repeat
