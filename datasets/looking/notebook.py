"""A dataset as a notebook shows it: totals, histograms of returns and lengths, frames, and paths through a maze."""

from __future__ import annotations

import html

from orlog.datasets.looking.card_picture import card_picture, maze_picture
from orlog.datasets.looking.leaves import first_frames, maze_of, paths_of
from orlog.datasets.looking.looked import Looked
from orlog.manifests.names import size_text

FRAMES = 6
PATHS = 60


def notebook_html(dataset: Looked, text: str) -> str:
    """Return HTML without scripts, of which no part comes from elsewhere; `text` is what `repr` says."""
    manifest = dataset.manifest
    environment = manifest.environment
    facts = {
        "episodes": f"{dataset.total_episodes:,}",
        "steps": f"{dataset.total_steps:,}",
        "size": size_text(manifest.size_bytes),
        "observations": str(manifest.spaces[0]),
        "actions": str(manifest.spaces[1]),
        "environment": "" if environment is None else environment.id,
        "behavior policy": manifest.behavior_policy,
        "license": manifest.license,
    }
    rows = "".join(
        f'<tr><th style="text-align:left">{name}</th>'
        f'<td style="text-align:left">{html.escape(value[:300])}</td></tr>'
        for name, value in facts.items()
        if value
    )
    picture = ""
    if dataset.total_episodes:
        returns, lengths = dataset.column("episodes/returns"), dataset.episode_lengths
        frames = first_frames(dataset, FRAMES)
        maze = maze_of(environment)
        if maze:
            chosen, paths = paths_of(dataset, PATHS)
            picture = maze_picture(maze, paths, returns[chosen], dataset.total_episodes)
        picture += card_picture(returns, lengths, [], frames)
    return f"<div><code>{html.escape(text)}</code><table>{rows}</table>{picture}</div>"
