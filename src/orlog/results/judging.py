"""Verdicts on seeds of a result that were run again, and whether a note's verdict follows from its returns."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

from orlog.normalize.references import Protocol, is_measured_alike
from orlog.normalize.verdicts import Verdict, compare_runs
from orlog.results.documents import Note, SharedResult, TrainedSeed

Kind = Literal["confirmation", "contradiction", "unsettled"]
KINDS: Mapping[str, Kind] = {
    "identical": "confirmation",
    "same": "confirmation",
    "consistent": "confirmation",
    "not consistent": "contradiction",
    "contradicted": "contradiction",
    "unsettled": "unsettled",
}
"""What each verdict makes of seeds that were run again."""


def verdict_of(
    result: SharedResult,
    seeds: Sequence[TrainedSeed],
    protocol: Protocol,
    *,
    digest: str,
    device: str,
    same_code: bool = False,
) -> Verdict:
    """Return the verdict on seeds that were run again, against all seeds of a result.

    `same_code` is whether code, versions and processor are those that the result states, so that bits are equal.

    Raises ValueError if the result has no references, in whose unit verdicts are.
    """
    scale = result.references
    if scale is None:
        raise ValueError("references: there are none, so there are no scores to compare.")

    return compare_runs(
        result.played(seeds),
        result.played(result.seeds),
        scale.normalize,
        same_run=digest == result.dataset.digest and is_measured_alike(protocol, result.protocol),
        same_code=same_code,
        processor=device,
        recorded_processor=result.compute.device,
    )


def note_problem(result: SharedResult, note: Note) -> str:
    """Return what is wrong with a reproduction, whose verdict follows from its returns; empty if nothing is."""
    if note.protocol is None:
        return ""
    if note.digest_of_data != result.dataset.digest:
        return "digest_of_data: it is of other data than its result."
    unlike = other_measure(note.protocol, result.protocol)
    if unlike:
        return f"protocol.{unlike}: it is not that of its result."
    # Who ran it again knew whether the code was the same; a note does not say.
    judge = functools.partial(
        verdict_of,
        result,
        note.seeds,
        note.protocol,
        digest=note.digest_of_data,
        device=note.device,
    )
    try:
        found, by_code = judge(), judge(same_code=True)
    except ValueError as error:
        return str(error)
    if (note.verdict, note.kind) not in [(one.word, KINDS[one.word]) for one in (found, by_code)]:
        return f"verdict: says {note.verdict} ({note.kind}), but its returns are {found.word}."
    return ""


def other_measure(here: Protocol, stated: Protocol) -> str:
    """Return in what returns were not measured in one environment; empty if they were."""
    names = ("environment_id", "environment_kwargs", "max_episode_steps", "first_seed")
    return next((one for one in names if getattr(here, one) != getattr(stated, one)), "")
