"""Frames of videos in place of a tensor of all of them: rows are decoded when a batch is gathered."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxtyping import Int64, UInt8

from orlog.datasets.reading.dataset import Dataset
from orlog.loaders.filling import Layout
from orlog.loaders.tensors import Tensor, torch


@dataclasses.dataclass(frozen=True)
class VideoRows:
    """All rows of a column of videos; `gather_rows` takes it like a tensor.

    Attributes:
        dataset: What is read.
        column: Its column, (height, width, channels) uint8 a row.
        device: Where gathered rows go.
    """

    dataset: Dataset
    column: str
    device: torch.device | str = "cpu"
    is_cpu = False  # so that nothing looks for its memory
    dtype = torch.uint8
    nbytes = 0  # in memory

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, height, width and channels."""
        return self.dataset.selection().count_rows(self.column), *self.dataset.schema.columns()[self.column].shape

    @property
    def ndim(self) -> int:
        """Four."""
        return len(self.shape)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def to(self, device: torch.device | str) -> VideoRows:
        """Return the same for batches on another device."""
        return dataclasses.replace(self, device=device)

    def index_select(
        self, _dimension: int, rows: Int64[Tensor, " rows"]
    ) -> UInt8[Tensor, "rows height width channels"]:
        """Return some rows, decoded."""
        frames = torch.from_numpy(self.dataset.rows(self.column, rows.cpu().numpy()))
        return frames.to(self.device)


def without_videos(dataset: Dataset, layout: Layout) -> tuple[Layout, dict[str, Any]]:
    """Return a layout of what is read into memory, and the columns of videos, whose rows are not."""
    videos = {name: spec.name for name, spec in layout.others.items() if spec.name in dataset.videos}
    others = {name: spec for name, spec in layout.others.items() if name not in videos}
    rows = {name: VideoRows(dataset, column) for name, column in videos.items()}
    return dataclasses.replace(layout, others=others), rows
