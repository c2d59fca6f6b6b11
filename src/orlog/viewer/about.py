"""What is known of a dataset: facts, columns, versions, where it comes from, references and scores."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.home.folders import installed_names
from orlog.datasets.home.records import known_versions, read_origin
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.facts import columns_of, facts_of, versions_of
from orlog.datasets.reading.views import operation_words
from orlog.errors import NotFoundError, OrlogError
from orlog.manifests.manifest import Manifest
from orlog.manifests.names import counted
from orlog.normalize.published_scores import PublishedScore
from orlog.normalize.statistics import mean_interval
from orlog.runs.pictures import Dot, dots
from orlog.runs.scores import baselines, in_sections, references_of_dataset, score_is_raw
from orlog.viewer.shown import Shown

LONGEST = 2000  # characters of a fact
MOST_LINES = 40


def about(shown: Shown) -> dict[str, Any]:
    """Return all that is known of a dataset without reading its rows, for the page."""
    dataset = shown.dataset
    manifest = dataset.manifest
    return {
        "facts": [
            *([name, text[:LONGEST]] for name, text in facts_of(manifest, dataset) if text),
            ["folder", str(shown.selection.versions[0].folder)],
        ],
        "columns": [
            [column["name"], column["dtype"], str(tuple(column["shape"])), column["rows"]]
            for column in columns_of(manifest, dataset)
        ],
        "versions": _versions(manifest),
        "lineage": _lineage(dataset),
        "references": _references(dataset),
        "scores": _scores(dataset),
    }


def _versions(manifest: Manifest) -> list[dict[str, Any]]:
    """Return every version that is here or ships with orlog, the newest first, and what is new in it."""
    try:
        versions = versions_of(manifest.name, known_versions(manifest.name))
    except (OrlogError, OSError):
        return []
    for version in versions:
        version["name"] = f"{manifest.name}@{version['version']}"
        version["shown"] = version["digest"] == manifest.digest
    return versions


def _lineage(dataset: Dataset) -> list[list[Any]]:
    """Return what a dataset was made from, back to recipes and files: lines of (depth, how, title, digest or words)."""
    lines: list[list[Any]] = []
    here = _manifests_here() if dataset.lineage else {}

    def add(depth: int, how: str, title: str, text: str) -> bool:
        is_new = len(lines) < MOST_LINES and [title, text] not in [line[2:] for line in lines]
        lines.extend([[depth, how, title, text]] if is_new else [])
        return is_new

    def add_dataset(dataset: Dataset, depth: int, how: str) -> None:
        title = "view" if dataset.operation is not None else f"{dataset.name}@{dataset.version}"
        if not add(depth, how, title, dataset.digest):
            return
        if dataset.operation is not None:
            for parent in dataset.parents:
                add_dataset(parent, depth + 1, operation_words(dataset.lineage[0].operation))
            return
        add_origin(dataset.manifest, depth + 1)
        origin = read_origin(dataset.folder)
        if origin is not None and origin.mirrors:
            add(depth + 1, "downloaded from", origin.registry or "a URL", origin.mirrors[0])

    def add_origin(manifest: Manifest, depth: int) -> None:
        recipe = manifest.recipe
        if recipe is not None:
            settings = {"seed": recipe.seed, **recipe.parameters}
            words = ", ".join(f"{name} {value}" for name, value in settings.items())
            add(depth, "built by", f"recipe {recipe.name} {recipe.version}", words)
        for parent in manifest.lineage:
            known = here.get(parent.digest)
            title = "a file" if parent.operation.startswith("read ") else "a version that is not here"
            title = f"{known.name}@{known.version}" if known else title
            if add(depth, operation_words(parent.operation), title, parent.digest) and known:
                add_origin(known, depth + 1)

    try:
        add_dataset(dataset, 0, "")
    except (OrlogError, OSError) as error:
        add(1, "", "more cannot be read", str(error))
    return lines


def _manifests_here() -> dict[str, Manifest]:
    """Return the manifests of all versions on this machine, by digest."""
    manifests: dict[str, Manifest] = {}
    for name in installed_names():
        with contextlib.suppress(OrlogError, OSError):
            manifests |= {manifest.digest: manifest for manifest, folder in known_versions(name).values() if folder}
    return manifests


def _references(dataset: Dataset) -> list[list[str]]:
    try:
        known = references_of_dataset(dataset)
    except (OrlogError, OSError) as error:
        return [["error", str(error), "", ""]]
    if known is None:
        return []
    episodes = known.protocol.episodes
    measured = "" if episodes is None else f"{counted(episodes, 'episode')}"
    return [
        [f"{score} = {word}", f"{reference.mean:,.4g}", reference.policy, f"{known.source} {measured}".strip()]
        for score, word, reference in (("0", "random", known.random), ("100", "expert", known.expert))
    ]


def _scores(dataset: Dataset) -> list[dict[str, Any]]:
    """Return sections of scores that may be compared with each other, those recorded with orlog first."""
    try:
        known = baselines(dataset)
    except (NotFoundError, OrlogError, OSError):
        return []
    own = [score for score in known if score.implementation == "orlog"]
    sections = [("Recorded with orlog", "", own)] if own else []
    published = in_sections(score for score in known if score.implementation != "orlog")
    sections += [(f"{table.publication}: {table.metric}", table.protocol, table.rows) for table in published]
    normalized = [score for score in known if not score_is_raw(score.metric)]
    scale = [number for score in normalized for number in _dot(score)[0].numbers]
    panels = []
    for title, protocol, scores in sections:
        drawn = sorted((_dot(score)[0] for score in scores), key=lambda dot: -dot.value)
        ends, shared = ((0,), []) if score_is_raw(scores[0].metric) else ((0, 100), scale)
        kinds = [kind for score in scores if (kind := _dot(score)[1])]
        notes = [f"bars: {'; '.join(dict.fromkeys(kinds))}"] if kinds else []
        notes += [scores[0].source, *(caveat for score in scores for caveat in score.caveats)]
        panels.append(
            {
                "title": title,
                "protocol": protocol,
                "picture": dots(drawn, title, ends=ends, scale=shared),
                "scores": drawn,
                "note": " · ".join(dict.fromkeys(filter(None, notes))),
            }
        )
    return panels


def _dot(score: PublishedScore) -> tuple[Dot, str]:
    """Return a score with its interval, and what kind of interval that is."""
    known = np.array([number for number in score.per_seed if number is not None], float)
    interval = mean_interval(known) if len(known) == len(score.per_seed) else None
    kind = "" if interval is None else "95 % interval of the mean over seeds"
    if interval is None and score.spread is not None:
        interval = (score.score - score.spread, score.score + score.spread)
        kind = score.spread_kind
    seeds = f"{counted(score.seeds, 'seed')}" if score.seeds else ""
    dot = Dot(
        name=algorithm_title(score.algorithm),
        value=score.score,
        interval=interval,
        each=known.tolist(),
        series=0,
        note=": ".join(filter(None, (seeds, score.protocol))),
    )
    return dot, kind
