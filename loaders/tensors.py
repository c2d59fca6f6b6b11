"""PyTorch as loaders use it; where it is missing, the same calls for NumPy arrays, which `to="numpy"` gives anyway."""

from functools import partialmethod
from types import SimpleNamespace
from typing import Any, Generic

import numpy as np


class _Array(np.ndarray):
    """An array with what loaders ask of a tensor and NumPy lacks."""

    device: Any = SimpleNamespace(type="cpu")
    clone = contiguous = np.ndarray.copy
    float = partialmethod(np.ndarray.astype, np.float32, copy=False)
    double = partialmethod(np.ndarray.astype, np.float64, copy=False)
    long = int = partialmethod(np.ndarray.astype, np.int64, copy=False)

    def to(self, *_place: Any, **_how: Any) -> Any:
        return self

    cpu = detach = pin_memory = untyped_storage = to

    def numpy(self, **_how: Any) -> Any:
        return self.view(np.ndarray)

    def data_ptr(self) -> Any:
        return self.__array_interface__["data"][0]

    def is_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def stride(self, axis: Any) -> Any:
        return self.strides[axis] // self.itemsize

    def as_strided(self, shape: Any, strides: Any) -> Any:
        return np.lib.stride_tricks.as_strided(self, shape, [stride * self.itemsize for stride in strides], subok=True)

    def unbind(self, axis: Any) -> Any:
        return tuple(np.moveaxis(self, axis, 0))

    def split_with_sizes(self, sizes: Any, axis: Any) -> Any:
        return np.split(self, np.cumsum(sizes)[:-1], axis)

    def index_select(self, _axis: Any, rows: Any) -> Any:
        return self[rows]

    def index_add_(self, _axis: Any, rows: Any, values: Any) -> None:
        np.add.at(self, rows, values)

    def masked_fill_(self, mask: Any, value: Any) -> Any:
        np.copyto(self, value, where=mask, casting="unsafe")
        return self


def _maker(make: Any) -> Any:
    def made(*given: Any, device: Any = None, **options: Any) -> Any:  # noqa: ARG001
        return make(*given, **options).view(_Array)

    return made


try:
    import torch as torch
    from torch import Tensor as Tensor
    from torch.utils.data import IterableDataset as IterableDataset
    from torch.utils.data import get_worker_info as get_worker_info
    from torch.utils.data._utils.collate import default_collate_fn_map as default_collate_fn_map
except ImportError:
    Tensor, IterableDataset, default_collate_fn_map = _Array, Generic, {}  # type: ignore[assignment,misc]

    def get_worker_info() -> None:
        """Return nothing, since there are no workers."""

    _none = SimpleNamespace(is_available=get_worker_info)
    _names = {"from_numpy": "asarray", "tensor": "array", "cat": "concatenate", "repeat_interleave": "repeat"}
    _names |= {name: name for name in ("arange", "empty", "zeros", "zeros_like", "minimum", "maximum", "isfinite")}
    torch = SimpleNamespace(bfloat16=None, get_num_threads=int, cuda=_none, distributed=_none)  # type: ignore[assignment]
    vars(torch).update({name: _maker(getattr(np, other)) for name, other in _names.items()})
    _same = ("bool", "uint8", "int64", "float32", "cumsum", "searchsorted")
    vars(torch).update({name: getattr(np, name) for name in _same})

HAS_TORCH = not issubclass(Tensor, _Array)
