"""Results that others can add: a JSON file for each method and dataset, and notes about it beside it.

    RESULTS/arm-v1/iql-3f9ac2d1.json                            a result, with every episode's return
    RESULTS/arm-v1/iql-3f9ac2d1.json.sig                        who signed it, if anyone did
    RESULTS/arm-v1/iql-3f9ac2d1.confirmation-77c0b1e2.json      a seed was run again: as stated
    RESULTS/arm-v1/iql-3f9ac2d1.contradiction-..                .. not as stated
    RESULTS/arm-v1/iql-3f9ac2d1.unsettled-..                    .. and neither can be told

Every file has a digest of itself, by which notes name their result, and which is in the name. No file ever
changes. The digest finds damage and careless edits; only a signature shows who states a number.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from orlog.errors import FormatVersionError, ManifestError, clause
from orlog.manifests.documents import canonical_json, convert_json, parse_json, refuse_newer
from orlog.manifests.names import counted, is_name, is_version
from orlog.normalize.metrics import EpisodeOutcomes, of_fields
from orlog.normalize.references import Anchors, Protocol, PublishedReturn, References, simulator_of
from orlog.normalize.statistics import check_finite

LARGEST_RESULT = 2**24
MOST_VALUES = 2_000_000
NAME_DIGITS = 8
"""Digits of its digest in the name of a file."""

TRANSFORMS = ("reward_scale", "reward_shift", "standardize_observations", "precision")
"""What stands among the settings of a result that orlog trained, and is none of its algorithm's."""

REPRODUCTIONS = ("confirmation", "contradiction", "unsettled")
"""Kinds of notes that say what came of running seeds again."""

_Text = Annotated[str, Meta(max_length=4000)]
_Line = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
_Named = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
_Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
_Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Count = Annotated[int, Meta(ge=0, le=10**15)]
_Time = Annotated[str, Meta(pattern=r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?\Z")]
_ROUNDING = 1e-9


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What parts of these documents have in common."""


class UsedData(_Part, frozen=True):
    """What a method learned from.

    Attributes:
        name: Name of the dataset.
        version: Its version; empty if it was not stated.
        digest: Its digest.
    """

    name: _Named
    version: _Line
    digest: _Digest


class Method(_Part, frozen=True):
    """What was trained.

    Attributes:
        name: Name under which it is compared.
        algorithm: Name of the algorithm; for one from elsewhere, module and class with a colon.
        settings: Every setting, apart from the seed.
        tried: How many settings were tried to choose these, itself counted; None if that was not said.
        source: Where the settings come from: preset, and its source.
        options: Options that train it again with orlog (`TrainOptions`); None if orlog did not train it. Of runs
            that go on with others also how, and how these are trained again (`going_on.py`).
        online: Whether it also learned from steps in the environment.
    """

    name: _Named
    algorithm: _Named
    settings: dict[str, Any]
    tried: Annotated[int, Meta(ge=1, le=10**9)] | None
    source: _Text
    options: dict[str, Any] | None
    online: bool

    @property
    def steps_before(self) -> list[int]:
        """Gradient steps of the runs that it goes on with, the first one first."""
        found: list[int] = []
        before = (self.options or {}).get("goes_on_with")
        while isinstance(before, dict) and isinstance(before.get("step"), int):
            found.insert(0, before["step"])
            before = (before.get("options") or {}).get("goes_on_with")
        return found


class TrainedSeed(_Part, frozen=True):
    """One training seed.

    Attributes:
        seed: The seed.
        returns: Undiscounted return of each episode.
        metrics: What metrics counted in each episode, by their names.
    """

    seed: _Count
    returns: Annotated[list[float], Meta(min_length=1)]
    metrics: dict[str, list[bool | float | list[float]]]


class Scale(Anchors, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The reference returns of a result: which returns are the scores 0 and 100.

    Attributes:
        random: The policy with score 0.
        expert: The policy with score 100.
        source: Where they come from.
        simulator: What they were measured in.
    """

    random: PublishedReturn
    expert: PublishedReturn
    source: _Text
    simulator: _Text

    @classmethod
    def of(cls, references: References) -> Scale:
        """Return what a result states of reference returns."""
        low, high = references.random, references.expert
        return cls(
            random=PublishedReturn(policy=low.policy, mean=low.mean),
            expert=PublishedReturn(policy=high.policy, mean=high.mean),
            source=references.source,
            simulator=references.simulator or simulator_of(references.protocol),
        )


class Scores(_Part, frozen=True):
    """Normalized scores, which follow from returns and references.

    Attributes:
        mean: Mean over seeds.
        seeds: Mean of each seed.
    """

    mean: float
    seeds: dict[str, float]


class UsedCode(_Part, frozen=True, omit_defaults=True):
    """What computed the numbers.

    Attributes:
        digest: Hex SHA-256 of the canonical JSON of `files`; empty if the code is not known.
        files: Hex SHA-256 of each source that decides the numbers (`orlog.base.code_version`).
        versions: Versions of packages.
        repository: Where the code is; empty if that was not said.
        commit: Its commit there.
        trained_by: By seed, a SHA-256 of each code that trained it, in order (`code` and `later_code` of
            `run.json`), which is empty where it is not known; left out where one code trained all seeds.
    """

    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    files: dict[str, _Hex]
    versions: dict[str, _Line]
    repository: _Line
    commit: _Line
    trained_by: dict[str, list[Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]]] = {}


class Compute(_Part, frozen=True):
    """What it took; None where it is not known.

    Attributes:
        steps: Gradient steps of a seed.
        batch_size: Transitions, or sequences, of a batch.
        parameters: Numbers that are trained, without copies of networks that only follow others.
        hours: Hours of training, all seeds together.
        device: Processor or GPU.
    """

    steps: Annotated[int, Meta(ge=1, le=10**15)]
    batch_size: _Count | None
    parameters: _Count | None
    hours: Annotated[float, Meta(ge=0, le=1e12)] | None
    device: _Line


class Signed(_Part, frozen=True):
    """What results and notes have in common.

    Attributes:
        by: Who states it, in words.
        signed_by: Public key of who signed it; empty for a document without signature.
        created: When it was made, in UTC; empty if that is not known.
        digest: `sha256:` and the SHA-256 of the canonical JSON of all else.
    """

    by: _Line
    signed_by: Annotated[str, Meta(pattern=r"^(ed25519:[0-9a-f]{64})?\Z")]
    created: _Time
    digest: _Digest

    @property
    def short(self) -> str:
        """The first digits of the digest, as in names of files."""
        return self.digest.removeprefix("sha256:")[:NAME_DIGITS]


class SharedResult(Signed, frozen=True):
    """The result of a method on a dataset.

    Attributes:
        result_version: Version of this layout.
        dataset: What it learned from.
        method: What was trained.
        protocol: How returns were measured: environment, versions, episodes.
        checkpoint: Which policy of a run was evaluated, and how it acts.
        step: Gradient steps that it had taken.
        seeds: Each seed with every episode's return.
        references: Which returns are the scores 0 and 100; None if none are known.
        scores: What follows from returns and references; None without references.
        code: What computed it.
        compute: What it took.
        note: What else is to be said.
    """

    result_version: Literal[1]
    dataset: UsedData
    method: Method
    protocol: Protocol
    checkpoint: _Line
    step: _Count
    seeds: Annotated[list[TrainedSeed], Meta(min_length=1, max_length=10_000)]
    references: Scale | None
    scores: Scores | None
    code: UsedCode
    compute: Compute
    note: _Text

    @property
    def returns(self) -> np.ndarray:
        """Returns [seeds, episodes]."""
        return np.array([one.returns for one in self.seeds], float)

    @property
    def values(self) -> np.ndarray:
        """Normalized scores [seeds, episodes], or returns where there are no references."""
        return self.returns if self.references is None else self.references.normalize(self.returns)

    def played(self, seeds: Iterable[TrainedSeed]) -> dict[int, EpisodeOutcomes]:
        """Return what came of the episodes of seeds that were trained as it says, by seed."""
        return {
            one.seed: EpisodeOutcomes(
                returns=np.array(one.returns, float),
                metrics=of_fields({"metrics": one.metrics}),
                dataset=self.dataset.name,
                settings=self.method.settings,
            )
            for one in seeds
        }

    @property
    def path(self) -> str:
        """Where it lies in a folder of results."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.method.name.lower()).strip("-")[:40] or "method"
        return f"{self.dataset.name.rpartition('/')[2]}/{slug}-{self.short}.json"


class Note(Signed, frozen=True):
    """What is said of a result.

    Attributes:
        note_version: Version of this layout.
        kind: What it says.
        of: Digest of the result.
        reason: Why, in words; of a reproduction the verdict in one line.
        seeds: Of a reproduction, what was run again.
        protocol: Of a reproduction, how its returns were measured.
        verdict: Of a reproduction, the verdict's word.
        digest_of_data: Of a reproduction, the digest of what it learned from.
        versions: Of a reproduction, versions of packages.
        device: Of a reproduction, processor or GPU.
    """

    note_version: Literal[1]
    kind: Literal["confirmation", "contradiction", "unsettled"]
    of: _Digest
    reason: _Text
    seeds: list[TrainedSeed] = []
    protocol: Protocol | None = None
    verdict: _Line = ""
    digest_of_data: Annotated[str, Meta(pattern=r"^(sha256:[0-9a-f]{64})?\Z")] = ""
    versions: dict[str, _Line] = {}
    device: _Line = ""

    def path_beside(self, result_path: str) -> str:
        """Return where it lies in a folder of results, beside its result."""
        return f"{result_path.removesuffix('.json')}.{self.kind}-{self.short}.json"


Document: TypeAlias = SharedResult | Note
NO_DIGEST = f"sha256:{'0' * 64}"


def digest_of(document: Document) -> str:
    """Return the digest that a document must state."""
    body = msgspec.to_builtins(document)
    del body["digest"]
    return f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"


def with_digest(document: Any) -> Any:
    """Return a document with its digest, once what it says is shown to agree.

    Raises ValueError if it does not.
    """
    found = msgspec.structs.replace(document, digest=digest_of(document))
    # As a reader has it: the order of keys is gone, and numbers are what JSON makes of them.
    return parse_document(document_bytes(found), "the new document")


def document_bytes(document: Document) -> bytes:
    """Return the file of a document: JSON with sorted keys, a field in each line, and each seed in its own."""

    def text(value: object) -> str:
        return json.dumps(value, sort_keys=True, allow_nan=False)

    body = msgspec.to_builtins(document)
    seeds = ",\n".join(f"  {text(one)}" for one in body["seeds"])
    fields = [
        f' "{name}": ' + (f"[\n{seeds}\n ]" if name == "seeds" and seeds else text(body[name]))
        for name in sorted(body)
    ]
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def parse_document(data: bytes, where: str) -> Document:
    """Return the result or note that a file holds, with all that can be checked without anything else.

    Raises ManifestError that names file and field if it is malformed, or its parts do not agree;
    FormatVersionError if a newer orlog wrote it.
    """
    try:
        body = parse_json(data, MOST_VALUES)
        refuse_newer(body, {"result_version": 1, "note_version": 1}, where)
        found: Document
        if isinstance(body, dict) and "note_version" in body:
            found = convert_json(body, Note)
            _check_note(found)
        else:
            found = convert_json(body, SharedResult)
            _check_result(found)
        _check_digest(found)
    except FormatVersionError:
        raise
    except (ValueError, OverflowError) as error:
        raise ManifestError(f"{where}: {clause(error)}.", file=where) from error
    return found


def _check_digest(one: Document) -> None:
    if digest_of(one) != one.digest:
        raise ValueError(
            "digest: its content has another one, so it is damaged or was edited; results never change: add a "
            "new one."
        )


def _check_result(one: SharedResult) -> None:
    """Refuse a result whose parts do not agree; the ValueError begins with the field."""
    name, version = one.dataset.name, one.dataset.version
    if not is_name(name) or "@" in name:
        raise ValueError(f"dataset.name: {name!r:.80} is not the name of a dataset.")
    if version and not is_version(version):
        raise ValueError(f"dataset.version: {version!r:.80} is not a version.")
    _check_seeds(one.seeds, one.protocol)
    if one.step > one.compute.steps:
        raise ValueError(f"step: {one.step:,} is more than the {one.compute.steps:,} of the run.")
    if bool(one.code.files) != bool(one.code.digest) or (
        one.code.files and code_digest(one.code.files) != one.code.digest
    ):
        raise ValueError("code.digest: it is not that of code.files.")
    if not one.code.trained_by.keys() <= {str(seed.seed) for seed in one.seeds}:
        raise ValueError("code.trained_by: it is of other seeds.")
    expected = scores_of(one.seeds, one.references)
    if (expected is None) != (one.scores is None):
        raise ValueError("scores: they are there with references, and only then.")
    if expected is not None and one.scores is not None:
        if one.scores.seeds.keys() != expected.seeds.keys():
            raise ValueError("scores.seeds: they are not those of the seeds.")
        pairs = {
            f"scores.seeds.{seed}": (one.scores.seeds[seed], expected.seeds[seed])
            for seed in expected.seeds
        }
        for field, (said, is_so) in {
            **pairs,
            "scores.mean": (one.scores.mean, expected.mean),
        }.items():
            if not math.isclose(said, is_so, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
                raise ValueError(
                    f"{field}: {said:g} does not follow from returns and references, which give {is_so:g}."
                )


def _check_note(one: Note) -> None:
    if not one.seeds or one.protocol is None or not one.verdict:
        raise ValueError(
            f"seeds: a {one.kind} has what was run again, its protocol and its verdict."
        )
    _check_seeds(one.seeds, one.protocol)


def _check_seeds(seeds: Sequence[TrainedSeed], protocol: Protocol) -> None:
    """Refuse seeds that are there twice, have other numbers of episodes than stated, or no numbers."""
    if protocol.environments < 1 or protocol.first_seed < 0:
        raise ValueError("protocol: environments and first_seed are not those of an evaluation.")
    if len({one.seed for one in seeds}) < len(seeds):
        raise ValueError("seeds: a seed is there twice.")
    for index, one in enumerate(seeds):
        where = f"seeds[{index}]"
        if len(one.returns) != protocol.episodes:
            raise ValueError(
                f"{where}.returns: {counted(len(one.returns), 'episode')}, but protocol.episodes is "
                f"{protocol.episodes}."
            )
        check_finite(np.array(one.returns), f"{where}.returns")
        for name, values in one.metrics.items():
            if len(values) != len(one.returns):
                raise ValueError(f"{where}.metrics.{name:.80}: not one value for each episode.")
        for name, array in of_fields({"metrics": one.metrics}).items():
            check_finite(array.astype(float), f"{where}.metrics.{name:.80}")


def trained_seed(
    seed: int, returns: Iterable[float], counted: Mapping[str, np.ndarray]
) -> TrainedSeed:
    """Return what documents hold of a seed: its returns, and what metrics counted in each episode."""
    metrics: dict[str, Any] = {name: values.tolist() for name, values in counted.items()}
    return TrainedSeed(seed=seed, returns=[float(one) for one in returns], metrics=metrics)


def now() -> str:
    """Return the time as documents have it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def scores_of(seeds: Sequence[TrainedSeed], scale: Scale | None) -> Scores | None:
    """Return the scores that follow from returns and references; None without references."""
    if scale is None:
        return None
    means = {
        str(one.seed): float(scale.normalize(np.array(one.returns, float)).mean()) for one in seeds
    }
    return Scores(mean=float(np.mean([*means.values()])), seeds=means)


def code_digest(files: dict[str, str]) -> str:
    """Return the digest of the hashes of sources; empty without any."""
    return hashlib.sha256(canonical_json(files)).hexdigest() if files else ""
