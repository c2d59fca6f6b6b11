"""Reference returns: the returns of a random and an expert policy, which anchor a score.

    normalized score = 100 (return - random) / (expert - random)          0 = random, 100 = expert

A score may lie below 0 or above 100; it is never clipped. References are measured here, with the
return of each episode, or published: then only means, source and protocol are known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from jaxtyping import Float

from orlog.manifests.documents import convert_json, parse_json

__all__ = [
    "Protocol",
    "PublishedProtocol",
    "PublishedReferences",
    "PublishedReturn",
    "ReferenceReturn",
    "ReferenceReturns",
    "References",
    "read_references",
]


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How returns were measured; repeating it on the same machine gives the same numbers.

    Attributes:
        environment_id: Environment that was run.
        environment_kwargs: Arguments of `gymnasium.make`.
        versions: Version of each package that decides what the environment does.
        max_episode_steps: Steps after which the environment truncates an episode.
        episodes: Episodes of each policy.
        first_seed: Episode i resets with seed `first_seed` + i.
        environments: Environments that step side by side: the batch size of a policy's network.
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
        standard_deviation: Of the return over episodes; None if there is only one episode.
        returns: Return of each episode.
    """

    policy: str
    mean: float
    standard_deviation: float | None
    returns: list[float]

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean; None if there is only one episode."""
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


class PublishedProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of how published returns were measured.

    Attributes:
        environment_id: Environment whose policies are scored with them.
        environment_kwargs: Arguments of `gymnasium.make`.
        versions: Version of each package of the simulator, as far as they were published.
        episodes: Episodes of each policy; None if that was not published.
        description: Simulator, episodes and policies, in the words of the source.
    """

    environment_id: str
    environment_kwargs: dict[str, object]
    versions: dict[str, str]
    episodes: int | None
    description: str


class PublishedReturn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The published mean return of one policy.

    Attributes:
        policy: What it is, in words.
        mean: Mean undiscounted return of an episode.
    """

    policy: str
    mean: float


class Anchors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What measured and published reference returns have in common."""

    random: Any
    expert: Any

    def __post_init__(self) -> None:
        if not self.expert.mean > self.random.mean:
            raise ValueError(
                f"the expert's return {self.expert.mean} is not above the random policy's "
                f"{self.random.mean}: no score can be normalized with them."
            )

    def normalize(self, returns: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Return normalized scores, 0 for the random policy and 100 for the expert."""
        low, high = float(self.random.mean), float(self.expert.mean)
        return 100 * (returns - low) / (high - low)


class ReferenceReturns(Anchors, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The two anchors of a normalized score, with the protocol that measured them."""

    random: ReferenceReturn
    expert: ReferenceReturn
    protocol: Protocol


class PublishedReferences(Anchors, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Two published anchors: only means, without episodes that could be repeated.

    Attributes:
        random: The policy with score 0.
        expert: The policy with score 100.
        protocol: What is known of how they were measured.
        source: Where they were published: title and address.
    """

    random: PublishedReturn
    expert: PublishedReturn
    protocol: PublishedProtocol
    source: str


References: TypeAlias = ReferenceReturns | PublishedReferences


def read_references(path: Path) -> References:
    """Return recorded reference returns; a file with a `source` holds published ones.

    Raises:
        FileNotFoundError: none were recorded there.
        ValueError: the file is malformed.
    """
    body = parse_json(path.read_bytes())
    if isinstance(body, dict) and "source" in body:
        return convert_json(body, PublishedReferences)
    return convert_json(body, ReferenceReturns)
