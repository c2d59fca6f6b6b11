"""Chooses by size where a dataset's arrays are kept: in RAM, in mapped files, or on a GPU."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from typing import Literal

from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import wrong_type
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.filling import layout_of
from orlog.loaders.infos import check_names, info_layout
from orlog.loaders.memory import Memory, measure_memory
from orlog.loaders.packs import is_packed, open_pack
from orlog.loaders.tensors import torch
from orlog.loaders.videos import without_videos
from orlog.manifests.names import did_you_mean, size_text

RAM_SHARE = 0.5  # of free memory that `auto` takes; networks and workers need some too
GPU_SHARE = 0.9  # of free memory of a GPU that a dataset may take, asked for by name

_logger = logging.getLogger("orlog")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to put a dataset.

    Attributes:
        kind: In anonymous memory, or in mapped files.
        device: The GPU to copy it to after that; empty for none.
        needed_bytes: Size of its arrays.
        reason: A sentence that says why.
    """

    kind: Literal["ram", "mmap"]
    device: str = ""
    needed_bytes: int
    reason: str


def load_arrays(
    dataset: Given, where: str = "auto", *, allow_non_finite: bool = False, infos: Sequence[str] = ()
) -> Arrays:
    """Return a dataset's arrays in RAM, in mapped files or on a GPU, to sample from.

    The same seed gives the same batches wherever they are.

    Args:
        dataset: What to read.
        where: `ram`; `mmap`, files that are made once per digest and shared by processes;
            `gpu` for the current CUDA device, or `cuda:0`; `auto` for `ram` where the arrays take
            no more than half of the free memory, else `mmap`. `choose_place` returns the choice and
            the reason; the logger `orlog` reports them at level info.
        allow_non_finite: Take NaN and infinity as they are.
        infos: Other columns that batches can then give with their `infos`: names of infos of steps
            such as "cost", or "episodes/NAME" for the same value in all steps of an episode.

    Raises:
        NotFoundError: there is no such info.
        ValueError: there is no such place, or no such GPU, or it has too little memory.
        SchemaError: as `orlog.transitions`.
        IntegrityError: a file is damaged.
        StorageError: the disk has no room for mapped files.
    """
    dataset, names = as_dataset(dataset), check_names(infos)
    place = choose_place(dataset, where, infos=names)
    _logger.info("%s", place.reason)
    arrays: Arrays
    if place.kind == "mmap":
        arrays = open_pack(dataset, allow_non_finite=allow_non_finite, infos=names)
    else:
        arrays = read_arrays(dataset, allow_non_finite=allow_non_finite, infos=names)
    return arrays.to(place.device) if place.device else arrays


def choose_place(
    dataset: Given, where: str = "auto", memory: Memory | None = None, *, infos: Sequence[str] = ()
) -> Place:
    """Return where `load_arrays` would put a dataset, and why; the free `memory` is measured by default."""
    dataset = as_dataset(dataset)
    if not isinstance(where, str):
        raise wrong_type("where", "a text such as 'auto'", where)
    device = where if where.startswith("cuda:") else ""
    if where in ("gpu", "cuda"):
        device = f"cuda:{torch.cuda.current_device() if torch.cuda.is_available() else 0}"
    if not device and where not in ("auto", "ram", "mmap"):
        hint = did_you_mean(where, ("auto", "ram", "mmap", "gpu", "cuda:0")) or "."
        raise ValueError(f"{dataset.name}: where must be auto, ram, mmap, gpu or cuda:NUMBER, found {where!r}{hint}")
    needed = without_videos(dataset, layout_of(dataset))[0].total_bytes
    if names := check_names(infos):
        needed += info_layout(dataset, names).total_bytes
    kind: Literal["ram", "mmap"] = "mmap"
    why = "as asked for"
    if where != "mmap":
        memory = memory or measure_memory(gpus=bool(device))
        kind, why = ("ram", why) if where == "ram" else _kind_of(dataset, needed, memory)
        if device:
            why = f"{_check_gpu(dataset, device, needed, memory)}; copied from {kind}: {why}"
    reason = f"{dataset.name}: {size_text(needed)} of arrays in {device or kind}: {why}"
    return Place(kind=kind, device=device, needed_bytes=needed, reason=reason)


def _kind_of(dataset: Dataset, needed: int, memory: Memory) -> tuple[Literal["ram", "mmap"], str]:
    share = f"half of the {size_text(memory.ram_bytes)} of free memory"
    if needed <= RAM_SHARE * memory.ram_bytes:
        return "ram", f"within {share}"
    if not is_packed(dataset):
        home = datasets_folder()
        disk = shutil.disk_usage(next(folder for folder in (home, *home.parents) if folder.exists())).free
        if needed > disk:
            raise ValueError(
                f"{dataset.name}: {size_text(needed)} of arrays are more than {share}, and more than the "
                f"{size_text(disk)} of free disk at {home.parent}; use stream=True, set "
                "ORLOG_HOME to another disk, or take fewer episodes or columns."
            )
    return "mmap", f"more than {share}"


def _check_gpu(dataset: Dataset, device: str, needed: int, memory: Memory) -> str:
    """Return why the dataset fits on a GPU; ValueError if it does not."""
    if device not in memory.gpu_bytes:
        usable = ", ".join(memory.gpu_bytes) or "none"
        raise ValueError(
            f"{dataset.name}: no GPU {device} that PyTorch can use (found: {usable}); use where='ram' or where='mmap'."
        )
    free = memory.gpu_bytes[device]
    if needed > GPU_SHARE * free:
        raise ValueError(
            f"{dataset.name}: {size_text(needed)} of arrays do not fit into {device}, which has "
            f"{size_text(free)} free, of which {GPU_SHARE:.0%} may be taken; use where='mmap' or 'ram' and move "
            "batches to the GPU, or take fewer episodes or columns."
        )
    return f"as asked for, with {size_text(free)} free there"
