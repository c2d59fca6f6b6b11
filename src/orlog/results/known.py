"""What is known here without any run: recorded baselines as results, and what results say that is not so.

Tables need no more than this, so nothing here imports algorithms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from orlog.errors import OrlogError
from orlog.manifests.documents import canonical_json
from orlog.manifests.manifest import Manifest
from orlog.manifests.rebuilds import version_of
from orlog.manifests.shipped import recorded_manifest
from orlog.normalize.baselines import Baseline, read_baselines
from orlog.normalize.references import impossible_return
from orlog.results.documents import (
    NO_DIGEST,
    Compute,
    Method,
    Scale,
    SharedResult,
    UsedCode,
    UsedData,
    scores_of,
    trained_seed,
    with_digest,
)
from orlog.scoring.references import described, references_measured, references_of

_CLOSE = 1e-9


def baseline_results(name: str) -> list[SharedResult]:
    """Return the baselines of a dataset that ship with orlog, as results."""
    return [_result_of_baseline(one) for one in read_baselines(name)]


def _result_of_baseline(baseline: Baseline) -> SharedResult:
    manifest = recorded_manifest(baseline.dataset)
    same = manifest is not None and manifest.digest == baseline.digest
    references = None if manifest is None else references_of(manifest)
    scale = None if references is None else Scale.of(references)
    config = baseline.settings
    batch = config.get("batch_size")
    seeds = [
        trained_seed(
            int(seed), returns, {m: np.array(by[seed]) for m, by in baseline.metrics.items()}
        )
        for seed, returns in baseline.returns.items()
    ]
    found: SharedResult = with_digest(
        SharedResult(
            result_version=1,
            dataset=UsedData(
                name=baseline.dataset,
                version=manifest.version if manifest is not None and same else "",
                digest=baseline.digest,
            ),
            method=Method(
                name=baseline.algorithm,
                algorithm=baseline.algorithm,
                settings={one: v for one, v in config.items() if one not in ("seed", "steps")},
                tried=baseline.settings_tried or None,
                source="orlog's own recipe",
                options={"steps": baseline.steps},
                online=False,
            ),
            protocol=baseline.protocol,
            checkpoint=baseline.policy,
            step=baseline.steps,
            seeds=seeds,
            references=scale,
            scores=scores_of(seeds, scale),
            code=UsedCode(
                digest="", files={}, versions=baseline.versions, repository="", commit=""
            ),
            compute=Compute(
                steps=baseline.steps,
                batch_size=batch if isinstance(batch, int) else None,
                parameters=None,
                hours=None,
                device=baseline.processor,
            ),
            note="",
            by="recorded with orlog",
            signed_by="",
            created="",
            digest=NO_DIGEST,
        )
    )
    return found


def known_problems(result: SharedResult, looked_up: dict[str, Any] | None = None) -> list[str]:
    """Return what a result says that is not so, by what is known here: digest of the data, references.

    Each is a sentence that begins with the field. What is not known here is not compared. Where many results are
    compared, `looked_up` keeps what was found for the next one.
    """
    seen = {} if looked_up is None else looked_up
    data, protocol, scale = result.dataset, result.protocol, result.references
    name = f"{data.name}@{data.version}"
    if name not in seen:
        seen[name] = _known_manifest(data.name, data.version)
    impossible = impossible_return(protocol, result.returns)
    problems = [f"seeds: {impossible}"] if impossible else []
    if seen[name] is not None and seen[name].digest != data.digest:
        problems.append(
            f"dataset.digest: says {data.digest[:19]}, but {name} is {seen[name].digest[:19]}."
        )
    measured = [protocol.environment_id, protocol.environment_kwargs, protocol.max_episode_steps]
    where = canonical_json([data.name, data.digest, *measured, protocol.versions]).decode()
    if where not in seen:
        known = references_measured(data.name, data.digest, protocol)
        seen[where] = None if known is None else Scale.of(known)
    here = seen[where]
    if here is None or scale is None:
        return problems
    if (here.source, here.simulator) != (scale.source, scale.simulator):
        return problems  # other ones, which tables keep apart
    for one in ("random", "expert"):
        said, is_so = getattr(scale, one).mean, getattr(here, one).mean
        if not math.isclose(said, is_so, rel_tol=_CLOSE, abs_tol=_CLOSE):
            problems.append(
                f"references.{one}: says {said:g}, but that of {scale.source} in {scale.simulator} is {is_so:g}."
            )
    return problems


def _known_manifest(name: str, version: str) -> Manifest | None:
    """Return the manifest that is known under a name and version, here or among those that ship."""
    if not version:
        return None
    try:
        found = described(f"{name}@{version}").manifest
    except OrlogError:  # not known, or an orlog.lock pins another one
        return None
    return found if found is not None and version_of(found) == version else None
