"""Writes a page for each dataset of the suites from its recorded manifest, when the site is built."""

from __future__ import annotations

import json
import runpy
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.publish.card import escaped
from orlog.manifests.manifest import Manifest
from orlog.manifests.names import size_text
from orlog.manifests.shipped import recorded_manifest, recorded_manifests
from orlog.manifests.spaces import space_from_json
from orlog.normalize.references import read_baseline
from orlog.normalize.statistics import bootstrap_interval
from orlog.runs.pictures import Dot, dots, figure
from orlog.runs.plots import UNIT
from orlog.runs.scores import references_of

OVERVIEW = """# Datasets of the suites

Each is built on your machine from a recipe, without a network. These pages are made from the manifests that ship with
orlog. [Suites](../suites.md) says what the datasets are for, and the [catalogue](../catalogue.md) how to find those of others.
"""
PICTURES = Path(__file__).with_name("images") / "datasets"
_cells = runpy.run_path(str(Path(__file__).with_name("write_suites.py")))["baseline_cells"]


def dataset_pages() -> dict[str, str]:
    """Return the text of each page by its path below `datasets/`, the overview first."""
    names = sorted({manifest.name for manifest in recorded_manifests()})
    newest = [one for name in names if (one := recorded_manifest(name)) is not None]
    rows = [(f"[`{one.name}`]({one.name}.md)", f"{one.total_episodes:,}", f"{one.total_steps:,}") for one in newest]
    pages = {"index.md": f"{OVERVIEW}\n{table(('dataset', 'episodes', 'steps'), rows)}\n"}
    return pages | {f"{one.name}.md": dataset_page(one) for one in newest}


def dataset_page(manifest: Manifest) -> str:
    """Return the page of a version: what is in it, how it was made, and what methods scored on it."""
    columns = [(f"`{one.name}`", one.dtype, str(tuple(one.shape)), f"{one.rows:,}") for one in manifest.columns]
    parts = [
        f"# {manifest.name}",
        escaped(manifest.description),
        *_picture(manifest),
        f"```\norlog build {manifest.name}\norlog show {manifest.name}\norlog open {manifest.name}\n```",
        table(("", ""), _totals(manifest)),
        "## How it was made",
        table(("", ""), _origin(manifest)),
        *_baselines(manifest),
        "## Columns",
        table(("column", "type", "shape of a row", "rows"), columns),
    ]
    return "\n\n".join(parts) + "\n"


def _picture(manifest: Manifest) -> list[str]:
    """Return the picture that `draw_pictures.py` drew of a version, if it did."""
    name = f"{manifest.name.replace('/', '-')}.svg"
    if not (PICTURES / name).is_file():
        return []
    said = f"Returns and lengths of the episodes of {manifest.name}, and ranges of its numbers"
    return [f"![{said}](../../images/datasets/{name})"]


def _totals(manifest: Manifest) -> list[tuple[str, str]]:
    references = references_of(manifest)
    rows = [
        ("version", f"{manifest.version}, `{manifest.digest}`"),
        ("episodes", f"{manifest.total_episodes:,}"),
        ("steps", f"{manifest.total_steps:,}"),
        ("size", f"{size_text(manifest.size_bytes)} in {len(manifest.objects):,} files"),
        ("observations", f"`{space_from_json(manifest.observation_space)}`"),
        ("actions", f"`{space_from_json(manifest.action_space)}`"),
        ("license", escaped(manifest.license)),
    ]
    if references is not None:
        for score, one in ((0, references.random), (100, references.expert)):
            rows.append((f"return that scores {score}", f"{one.mean:,.1f}: {escaped(one.policy)}"))
    return rows


def _origin(manifest: Manifest) -> list[tuple[str, str]]:
    environment, recipe = manifest.environment, manifest.recipe
    rows = [("behavior policy", escaped(manifest.behavior_policy))]
    if environment is not None:
        versions = ", ".join(f"{name} {one}" for name, one in environment.versions.items())
        rows.append(("environment", f"`{environment.id}` ({versions})"))
        rows.append(("steps of an episode, at most", f"{environment.max_episode_steps}"))
    if recipe is not None:
        rows.append(("recipe", f"`{recipe.name}`, version {recipe.version}, seed {recipe.seed}"))
        for name, value in recipe.parameters.items():
            rows.append((f"`{name}`", escaped(json.dumps(value))))
    return rows


def _baselines(manifest: Manifest) -> list[str]:
    rows, drawn = [], []
    references = references_of(manifest)
    for algorithm, score in _cells(manifest.name).items():
        found = read_baseline(algorithm, manifest.name)
        assert found is not None
        assert references is not None
        drawn.append(_dot(algorithm, np.array([*found.scores(references).values()])))
        seeds, episodes = len(found.returns), found.protocol.episodes
        rows.append((f"`{algorithm}`", score, f"{found.steps:,}", f"{seeds}", f"{episodes}"))
    if not rows:
        return []
    headings = ("method", "score", "training steps", "seeds", "episodes for each seed")
    return [
        "## Recorded baselines",
        "Mean scores with their 95 % intervals; `orlog reproduce` trains and scores a method in the same way.",
        figure(dots(drawn, UNIT, ends=(0, 100)), f"{UNIT}: ● mean with its 95 % interval, ○ each seed."),
        table(headings, rows),
    ]


def _dot(algorithm: str, scores: np.ndarray) -> Dot:
    return Dot(
        name=algorithm_title(algorithm),
        value=float(scores.mean()),
        interval=bootstrap_interval(scores, np.random.default_rng(0)),
        series=0,
        each=scores.reshape(len(scores), -1).mean(1).tolist(),
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
