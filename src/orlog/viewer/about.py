"""What is known of a dataset: facts, columns, versions, where it comes from, references and scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.facts import columns_of, facts_of, versions_of
from orlog.datasets.home.folders import installed_names
from orlog.datasets.home.history import known_versions
from orlog.datasets.home.origin import read_origin
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.operations import operation_text, operation_words
from orlog.errors import NotFoundError, OrlogError
from orlog.manifests.diff import diff_manifests
from orlog.manifests.manifest import Manifest
from orlog.manifests.names import counted
from orlog.manifests.rebuilds import version_of
from orlog.normalize.published_scores import PublishedScore
from orlog.normalize.statistics import mean_interval
from orlog.runs.baseline_scores import baselines, in_sections, score_is_raw
from orlog.runs.references import references_of_dataset
from orlog.viewer.opened import Shown

LONGEST = 2000  # characters of a fact
MOST_NODES = 40
MOST_NAMED = 4


def about(shown: Shown) -> dict[str, Any]:
    """Return all that is known of a dataset without reading its rows, for the page."""
    dataset = shown.dataset
    manifest = dataset.manifest
    nodes = _lineage(shown)
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
        "lineage": nodes,
        "references": _references(dataset),
        "scores": list(_scores(dataset)),
    }


def _versions(manifest: Manifest) -> list[dict[str, Any]]:
    """Return every version that is here or ships with orlog, the newest first, and what is new in it."""
    try:
        known = known_versions(manifest.name)
        versions = versions_of(manifest.name, known)
    except (OrlogError, OSError):
        return []
    manifests = [one for one, _ in known.values()]
    differences = [_difference(old, new) for new, old in itertools.pairwise(manifests)]
    return [
        {
            **version,
            "name": f"{one.name}@{one.version}",
            "differs": differs,
            "shown": one.digest == manifest.digest,
        }
        for version, one, differs in zip(versions, manifests, [*differences, ""], strict=True)
    ]


def _difference(before: Manifest, after: Manifest) -> str:
    """Return in one line what a version has that the one before had not, by their manifests."""
    episodes = after.total_episodes - before.total_episodes
    steps = after.total_steps - before.total_steps
    words = [f"{episodes:+,} episodes, {steps:+,} steps"] if episodes or steps else []
    differences = diff_manifests(before, after)
    for kind, text in (("column", "changed:"), ("values", "other values in")):
        names = [one.name for one in differences if one.kind == kind]
        listed = ", ".join(names) if len(names) <= MOST_NAMED else counted(len(names), "column")
        words += [f"{text} {listed}"] if names else []
    return f"compared with {before.version}: {'; '.join(words) or 'the same data'}"


def _lineage(shown: Shown) -> list[dict[str, Any]]:
    """Return what a dataset was made from, back to recipes and files: nodes, with their parents' places."""
    nodes: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    here = _manifests_here() if shown.dataset.lineage else {}

    def add(key: str, title: str, text: str, level: int) -> int:
        if key not in places:
            places[key] = len(nodes)
            nodes.append({"title": title, "text": text, "level": level, "parents": []})
        return places[key]

    def link(child: int, parent: int, how: str) -> None:
        nodes[child]["parents"].append([parent, how])

    def add_origin(child: int, manifest: Manifest, level: int) -> None:
        if manifest.recipe is not None:
            recipe = manifest.recipe
            title = f"recipe {recipe.name} {recipe.version}"
            said = [
                f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
                for name, value in {"seed": recipe.seed, **recipe.parameters}.items()
            ]
            link(child, add(title, title, ", ".join(said), level), "built by")
        for parent in manifest.lineage:
            add_parent(child, parent.digest, parent.operation, level)

    def add_parent(child: int, digest: str, how: str, level: int) -> None:
        is_new = digest not in places
        if len(nodes) >= MOST_NODES:
            return
        known = here.get(digest)
        title = "a file" if how.startswith("read ") else "a version that is not here"
        title = f"{known.name}@{version_of(known)}" if known else title
        parent = add(digest, title, digest, level)
        link(child, parent, operation_words(how))
        if known and is_new:
            add_origin(parent, known, level + 1)

    def add_dataset(dataset: Dataset, level: int) -> int:
        name = f"{dataset.name}@{dataset.version}"
        is_new = dataset.digest not in places
        own = add(
            dataset.digest, name if dataset.operation is None else "view", dataset.digest, level
        )
        if is_new and dataset.operation is not None and len(nodes) < MOST_NODES:
            for parent in dataset.parents:
                words = operation_words(operation_text(dataset.operation))
                link(own, add_dataset(parent, level + 1), words)
        elif is_new:
            add_origin(own, dataset.manifest, level + 1)
            origin = read_origin(dataset.folder)
            if origin is not None and origin.mirrors:
                place = add(
                    origin.mirrors[0], origin.registry or "a URL", origin.mirrors[0], level + 1
                )
                link(own, place, "downloaded from")
        return own

    try:
        add_dataset(shown.dataset, 0)
    except (OrlogError, OSError) as error:
        add("error", "more cannot be read", str(error), 1)
    return nodes


def _manifests_here() -> dict[str, Manifest]:
    """Return the manifests of all versions on this machine, by digest."""
    found = {}
    for name in installed_names():
        try:
            for manifest, folder in known_versions(name).values():
                if folder is not None:
                    found[manifest.digest] = manifest
        except (OrlogError, OSError):
            continue
    return found


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
        [f"{score} = {word}", f"{one.mean:,.4g}", one.policy, f"{known.source} {measured}".strip()]
        for score, word, one in (("0", "random", known.random), ("100", "expert", known.expert))
    ]


def _scores(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield scores that may be compared with each other, those recorded with orlog first."""
    try:
        known = baselines(dataset)
    except (NotFoundError, OrlogError, OSError):
        return
    own = [score for score in known if score.implementation == "orlog"]
    if own:
        yield _section(own, "Recorded with orlog", "")
    for section in in_sections(score for score in known if score.implementation != "orlog"):
        rows = [one for by_algorithm in section.scores.values() for one in by_algorithm.values()]
        title = f"{section.key.publication}: {section.key.metric}"
        yield _section(rows, title, section.key.protocol)


def _section(scores: Sequence[PublishedScore], title: str, protocol: str) -> dict[str, Any]:
    return {
        "title": title,
        "protocol": protocol,
        "source": scores[0].source,
        "normalized": not score_is_raw(scores[0].metric),
        "scores": sorted(map(_score, scores), key=lambda row: -row["score"]),
    }


def _score(score: PublishedScore) -> dict[str, Any]:
    known = np.array([one for one in score.per_seed if one is not None], float)
    interval = mean_interval(known) if len(known) == len(score.per_seed) else None
    kind = "95 % interval of the mean over seeds"
    if interval is None and score.spread is not None:
        interval = (score.score - score.spread, score.score + score.spread)
        kind = score.spread_kind
    return {
        "algorithm": algorithm_title(score.algorithm),
        "score": score.score,
        "interval": interval,
        "kind": kind if interval else "",
        "each": known.tolist(),
        "seeds": score.seeds,
        "protocol": score.protocol,
        "caveats": score.caveats,
    }
