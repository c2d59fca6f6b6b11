"""Reference returns: the recorded returns of a random and an expert policy that anchor a score.

    normalized score = 100 (return - random) / (expert - random)          0 = random, 100 = expert

A score may lie below 0 or above 100; it is never clipped.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float

from orlog.manifests.documents import convert_json, parse_json

__all__ = ["Protocol", "ReferenceReturn", "ReferenceReturns", "read_references"]


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How returns were measured: whoever repeats it gets the same numbers on the same machine.

    Attributes:
        environment_id: Environment that was run.
        environment_kwargs: Arguments of `gymnasium.make`.
        versions: Version of each package that decides what the environment does.
        max_episode_steps: Steps after which the environment truncates an episode.
        episodes: Episodes of each policy.
        first_seed: Episode i resets with seed `first_seed` + i.
        environments: Environments that step side by side; decides the batch of a policy's network.
    """

    environment_id: str
    environment_kwargs: dict[str, object]
    versions: dict[str, str]
    max_episode_steps: int | None
    episodes: int
    first_seed: int
    environments: int


class ReferenceReturn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The measured returns of one policy.

    Attributes:
        policy: What it is, in words.
        mean: Mean undiscounted return of an episode.
        standard_deviation: Of the return over episodes; None where there is one episode only.
        returns: Return of each episode.
    """

    policy: str
    mean: float
    standard_deviation: float | None
    returns: list[float]

    @property
    def standard_error(self) -> float | None:
        """Of the mean; None where there is one episode only, which says nothing about it."""
        deviation = self.standard_deviation
        return None if deviation is None else deviation / len(self.returns) ** 0.5

    @classmethod
    def of(cls, policy: str, returns: Float[np.ndarray, " episodes"]) -> ReferenceReturn:
        """Return the record of measured returns."""
        return cls(
            policy=policy,
            mean=float(returns.mean()),
            standard_deviation=float(returns.std(ddof=1)) if len(returns) > 1 else None,
            returns=returns.tolist(),
        )


class ReferenceReturns(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The two anchors of a normalized score, with the protocol that measured them."""

    random: ReferenceReturn
    expert: ReferenceReturn
    protocol: Protocol

    def __post_init__(self) -> None:
        if not self.expert.mean > self.random.mean:
            raise ValueError(
                f"the expert's return {self.expert.mean} is not above the random policy's "
                f"{self.random.mean}: no score can be normalized with them"
            )

    def normalize(self, returns: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Return normalized scores, 0 for the random policy and 100 for the expert."""
        return 100 * (returns - self.random.mean) / (self.expert.mean - self.random.mean)


def read_references(path: Path) -> ReferenceReturns:
    """Return recorded reference returns.

    Raises:
        FileNotFoundError: none were recorded there.
        ValueError: the file is malformed.
    """
    return convert_json(parse_json(path.read_bytes()), ReferenceReturns)
