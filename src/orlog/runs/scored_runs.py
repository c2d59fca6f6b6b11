"""`ScoredRuns`: what a method scores on a dataset, with every episode's return of every seed.

It is made of the folders of runs, or read from a file. A file states the SHA-256 of itself, which finds damage and careless edits. It may come from anybody: it is checked as
a whole when it is read, its size is bounded, and nothing that it names is opened, imported or run.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from orlog.base.files import make_folder, replace_file, storage_errors
from orlog.errors import FormatVersionError, ManifestError, clause
from orlog.manifests.documents import canonical_json, convert_json, parse_json, read_small_file, refuse_newer
from orlog.manifests.names import counted, is_name, is_version
from orlog.normalize.metrics import EpisodeOutcomes, of_fields
from orlog.normalize.references import Anchors, Protocol, PublishedReturn, References
from orlog.normalize.statistics import check_finite
from orlog.runs.run_folders import RunSummary
from orlog.runs.scores import trained_policy

LARGEST_FILE = 2**24
MOST_VALUES = 2_000_000
LAYOUT = "scored_runs"  # the field with the version of the layout, by which such a file is known among others
CURVE_POLICY = "last point of the learning curve"
_OPTIONS = ("settings", "steps", "preset", "evaluations", "curve_episodes", "precision", "stream", "weights")
_Text = Annotated[str, Meta(max_length=4000)]
_Line = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
_Named = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
_Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
_Count = Annotated[int, Meta(ge=0, le=10**15)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What parts of the file have in common."""


class DatasetUsed(_Part, frozen=True):
    """What a method learned from; `version` is empty if it is not known."""

    name: _Named
    digest: _Digest
    version: _Line = ""


class Method(_Part, frozen=True):
    """What was trained.

    Attributes:
        name: Name under which it is compared.
        algorithm: Name of the algorithm; for one from elsewhere, module and class with a colon.
        settings: Every setting, apart from the seed.
        tried: How many settings were tried to choose these, itself counted; None if that was not said.
        source: Where the settings come from.
        options: Options that train it again with orlog (`TrainOptions`); None if orlog did not train it, or not by
            these alone, as a fine-tuned run.
        online: Whether it also learned from steps in the environment.
    """

    name: _Named
    algorithm: _Named
    settings: dict[str, Any]
    tried: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    source: _Text = ""
    options: dict[str, Any] | None = None
    online: bool = False


class ScoredSeed(_Part, frozen=True):
    """One training seed: the return of each episode, and what metrics counted in each, by their names."""

    seed: _Count
    returns: Annotated[list[float], Meta(min_length=1)]
    metrics: dict[str, list[bool | float | list[float]]] = {}


class Scale(Anchors, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which returns are the scores 0 and 100, for readers who do not know it of this dataset."""

    random: PublishedReturn
    expert: PublishedReturn
    source: _Text

    @classmethod
    def of(cls, references: References) -> Scale:
        """Return what a file states of reference returns."""
        low, high = references.random, references.expert
        return cls(
            random=PublishedReturn(policy=low.policy, mean=low.mean),
            expert=PublishedReturn(policy=high.policy, mean=high.mean),
            source=references.source,
        )


class CodeUsed(_Part, frozen=True):
    """What computed the numbers."""

    # Hex SHA-256 of each room that decides the numbers (`orlog.base.code_version`), by its name; empty if it is not
    # known
    files: dict[str, Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]] = {}
    versions: dict[str, _Line] = {}  # versions of packages
    repository: _Line = ""  # where the code is; empty if that is not known
    commit: _Line = ""  # its commit there


class Compute(_Part, frozen=True):
    """What it took: gradient steps of a seed, hours of all seeds together, processor or GPU; None if not known."""

    steps: Annotated[int, Meta(ge=1, le=10**15)]
    hours: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    device: _Line = ""


class ScoredRuns(_Part, frozen=True):
    """What a method scores on a dataset.

    Attributes:
        scored_runs: Version of this layout.
        dataset: What it learned from.
        method: What was trained.
        protocol: How returns were measured: environment, versions, episodes.
        policy: Which policy of a run was evaluated, and how it acts.
        step: Gradient steps that it had taken.
        seeds: Each seed with every episode's return.
        compute: What it took.
        references: Which returns are the scores 0 and 100; None if none are known.
        code: What computed it.
        created: When it was made, in UTC.
        digest: `sha256:` and the SHA-256 of the canonical JSON of all else.
    """

    dataset: DatasetUsed
    method: Method
    protocol: Protocol
    policy: _Line
    step: _Count
    seeds: Annotated[list[ScoredSeed], Meta(min_length=1, max_length=10_000)]
    compute: Compute
    references: Scale | None = None
    code: CodeUsed = CodeUsed()
    created: Annotated[str, Meta(pattern=r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?\Z")] = ""
    digest: str = ""
    scored_runs: Literal[1] = 1

    def played(self) -> dict[int, EpisodeOutcomes]:
        """Return what came of the episodes, by seed."""
        return {
            seed.seed: EpisodeOutcomes(
                returns=np.array(seed.returns, float),
                metrics=of_fields({"metrics": seed.metrics}),
                dataset=self.dataset.name,
                settings=self.method.settings,
            )
            for seed in self.seeds
        }


def write_scored_runs(path: Path, runs: ScoredRuns) -> ScoredRuns:
    """Write a file of scored runs, with its time and digest, and return what a reader gets of it.

    Raises ManifestError if its parts do not agree.
    """
    created = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = msgspec.to_builtins(msgspec.structs.replace(runs, created=created))
    body["digest"] = _digest_of(body)
    # Each field has a line of its own, and so has each seed, which git can merge and people can read.
    seeds = ",\n".join(f"  {_line(seed)}" for seed in body["seeds"])
    fields = [f' "{name}": ' + (f"[\n{seeds}\n ]" if name == "seeds" else _line(body[name])) for name in sorted(body)]
    data = ("{\n" + ",\n".join(fields) + "\n}\n").encode()
    checked = _checked(data.decode(), path)
    make_folder(path.parent)
    with storage_errors(path):
        replace_file(path, data)
    return checked


def read_scored_runs(path: Path) -> ScoredRuns:
    """Return what a file of scored runs holds, once all of it that can be checked without anything else is.

    Raises ManifestError that names file and field if it is malformed or damaged, or its parts do not agree;
    FormatVersionError if a newer orlog wrote it.
    """
    try:
        text = read_small_file(path, LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: cannot be read: {clause(error)}.", file=str(path)) from error
    return _checked(text, path)


def _checked(text: str, path: Path) -> ScoredRuns:
    try:
        body = parse_json(text, MOST_VALUES)
        refuse_newer(body, {LAYOUT: 1}, str(path))
        runs = convert_json(body, ScoredRuns)
        _check(runs, _digest_of(body))
    except FormatVersionError:
        raise
    except (ValueError, OverflowError) as error:
        raise ManifestError(
            f"{path}: not a file of scored runs as orlog evaluate --out writes them: {clause(error)}.", file=str(path)
        ) from error
    return runs


def _check(runs: ScoredRuns, digest: str) -> None:
    """Refuse what does not agree, or has another digest; the ValueError begins with the field."""
    if runs.digest != digest:
        raise ValueError(
            "digest: its content has another one, so it is damaged or was edited; take it again from whoever wrote it."
        )
    name, version, protocol = runs.dataset.name, runs.dataset.version, runs.protocol
    if not is_name(name) or "@" in name:
        raise ValueError(f"dataset.name: {name!r:.80} is not the name of a dataset.")
    if version and not is_version(version):
        raise ValueError(f"dataset.version: {version!r:.80} is not a version.")
    if runs.step > runs.compute.steps:
        raise ValueError(f"step: {runs.step:,} is more than the {runs.compute.steps:,} of the run.")
    if protocol.environments < 1 or protocol.first_seed < 0:
        raise ValueError("protocol: environments and first_seed are not those of an evaluation.")
    if len({seed.seed for seed in runs.seeds}) < len(runs.seeds):
        raise ValueError("seeds: a seed is there twice.")
    for index, seed in enumerate(runs.seeds):
        where = f"seeds[{index}]"
        if len(seed.returns) != protocol.episodes:
            raise ValueError(
                f"{where}.returns: {counted(len(seed.returns), 'episode')}, but protocol.episodes is "
                f"{protocol.episodes}."
            )
        check_finite(np.array(seed.returns), f"{where}.returns")
        for metric, values in seed.metrics.items():
            if len(values) != len(seed.returns):
                raise ValueError(f"{where}.metrics.{metric:.80}: not one value for each episode.")
        for metric, array in of_fields({"metrics": seed.metrics}).items():
            check_finite(array.astype(float), f"{where}.metrics.{metric:.80}")


def scored_run(run: RunSummary) -> ScoredRuns | None:
    """Return what a run scores by its last evaluation, else by the last point of its learning curve; None without."""
    record, last, evaluation = run.record, run.last, run.evaluation
    if record is None or last is None or run.protocol is None:
        return None
    step, episodes = last
    device = record.versions.get("gpu", record.device)
    if record.device == "cpu":
        device = "" if evaluation is None else evaluation.processor
    seed = ScoredSeed(
        seed=record.seed,
        returns=episodes.returns.tolist(),
        metrics={name: values.tolist() for name, values in episodes.metrics.items()},
    )
    return ScoredRuns(
        dataset=DatasetUsed(name=record.dataset, version=record.version, digest=record.digest),
        method=Method(
            name=record.algorithm,
            algorithm=record.algorithm,
            settings=record.every_setting,
            online=record.online is not None,
            source="; ".join(filter(None, [record.preset, record.source])),
            options={name: getattr(record, name) for name in _OPTIONS} if record.online is None else None,
        ),
        protocol=run.protocol,
        policy=CURVE_POLICY if evaluation is None else trained_policy(record.config),
        step=step,
        seeds=[seed],
        references=None if run.anchors is None else Scale.of(run.anchors),
        code=CodeUsed(versions=record.versions),
        compute=Compute(steps=record.steps, hours=None if run.seconds is None else run.seconds / 3600, device=device),
    )


def _digest_of(body: dict[str, Any]) -> str:
    rest = {name: value for name, value in body.items() if name != "digest"}
    return f"sha256:{hashlib.sha256(canonical_json(rest)).hexdigest()}"


def _line(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
