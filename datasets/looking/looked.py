"""What is looked at: the parts of episodes and datasets that figures and texts about them need."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from orlog.manifests.manifest import Manifest


class LookedEpisode(Protocol):
    """An episode, as `orlog.Episode` documents it."""

    @property
    def observations(self) -> Any:
        """Columns of T + 1 rows."""
        ...

    @property
    def actions(self) -> Any:
        """Columns of T rows."""
        ...

    @property
    def rewards(self) -> np.ndarray:
        """(T,) rewards."""
        ...

    @property
    def terminations(self) -> np.ndarray:
        """(T,) flags."""
        ...

    @property
    def truncations(self) -> np.ndarray:
        """(T,) flags."""
        ...

    @property
    def infos(self) -> dict[str, Any]:
        """Columns of T rows."""
        ...


class Looked(Protocol):
    """A dataset or a view, as `orlog.Dataset` documents it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        ...

    @property
    def schema(self) -> Any:
        """Spaces and dtypes."""
        ...

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""
        ...

    @property
    def total_episodes(self) -> int:
        """Episodes."""
        ...

    @property
    def total_steps(self) -> int:
        """Steps of all of them."""
        ...

    @property
    def episode_lengths(self) -> np.ndarray:
        """Steps of each."""
        ...

    @property
    def episode_starts(self) -> np.ndarray:
        """First step of each."""
        ...

    def column(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows of a column."""
        ...

    def __getitem__(self, index: int) -> LookedEpisode:
        """Return an episode."""
        ...
