"""The dataset card of a version: Markdown with the YAML header that the Hugging Face Hub reads, and a picture.

A card is computed from the manifest and the data, and equal versions have equal cards. Its first line after
the header says that orlog wrote it: a card without this line was written by a person and is never replaced.
Texts of the manifest, which anybody may have written, are escaped and never reach the header.

A registry on the Hugging Face Hub shows cards:

    README.md              the card that the Hub shows: that of the version that was published last
    NAME/README.md         the card of the newest version of each dataset
    NAME/card.svg          the picture of both
"""

from __future__ import annotations

import functools
import html
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from orlog.datasets.audit.findings import Audit, place_text
from orlog.datasets.looking.card_picture import card_picture
from orlog.datasets.looking.leaves import first_frames
from orlog.datasets.publish.targets import Change, Target
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.facts import facts_of
from orlog.datasets.reading.opening import as_dataset
from orlog.manifests.columns import axis_of, is_part
from orlog.manifests.manifest import Manifest
from orlog.manifests.names import counted

MOST_NUMBERS = 8  # of the observations and of the actions whose ranges are shown
MOST_FINDINGS = 10
LONGEST_FACT = 300
LONGEST_ROW = 256  # longer rows, such as images, have no ranges worth reading
BLOCK_ROWS = 2**16
FRAMES = 8
MISSING = "episodes/final_observation_missing"
CARD, PICTURE = "README.md", "card.svg"
LARGEST_CARD = 2**24

_MARKER = "<!-- Written by orlog"
# The Hub's identifiers of licenses that data have; of any other it is told the name.
_LICENSES = (
    "afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 cc cc0-1.0 "
    "cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 "
    "cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 "
    "cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 eupl-1.1 gpl-2.0 gpl-3.0 isc lgpl-2.1 lgpl-3.0 "
    "mit mpl-2.0 ncsa odbl odc-by osl-3.0 pddl postgresql unlicense wtfpl zlib"
)
_OWN_NAMES = {"odbl-1.0": "odbl", "odc-by-1.0": "odc-by", "pddl-1.0": "pddl"}


class Card(NamedTuple):
    """A card: the text below its header, the header, and the picture as SVG."""

    header: str
    body: str
    picture: str

    def text(self, picture_file: str) -> str:
        """Return the whole card; `picture_file` is the picture's path beside it."""
        return f"{self.header}{self.body.replace('PICTURE_FILE', picture_file, 1)}"


def dataset_card(dataset: Dataset, audit: Audit | None, place: str) -> Card:
    """Return the card of a version; `place` is what `orlog.load_dataset` takes: a name, or its URL in a registry."""
    manifest = dataset.manifest
    returns, lengths = dataset.column("episodes/returns"), dataset.episode_lengths
    ranges = [*_ranges(dataset, "observations"), *_ranges(dataset, "actions")]
    parts = [
        marker(manifest),
        f"# {escaped(manifest.name)}",
        escaped(manifest.description or "No description."),
        f"![Returns, lengths and ranges of {escaped(manifest.name)}](PICTURE_FILE)",
        "## Load it",
        f"```python\nimport orlog\n\ndataset = orlog.load_dataset({json.dumps(place)})\n```",
        "## Quality",
        _table(("", ""), _quality(dataset, audit, returns, lengths)),
        *_findings(audit),
    ]
    if ranges:
        parts += [
            "## Ranges",
            f"The first {MOST_NUMBERS} numbers, at most, of the observations and of the actions.",
            _table(
                ("number", "smallest", "mean", "standard deviation", "largest"),
                [(name, *(f"{value:.4g}" for value in values)) for name, *values in ranges],
            ),
        ]
    columns = [
        (escaped(column.name), column.dtype, str(tuple(column.shape)), f"{column.rows:,}")
        for column in manifest.columns
    ]
    parts += ["## Columns", _table(("column", "type", "row", "rows"), columns)]
    picture = card_picture(returns, lengths, ranges, first_frames(dataset, FRAMES))
    return Card(_header(manifest), "\n\n".join(parts) + "\n", picture)


def marker(manifest: Manifest) -> str:
    """Return the line by which orlog knows the cards that it wrote, and of what version one is."""
    return (
        f"{_MARKER} for {manifest.name}@{manifest.version}, {manifest.digest}. It replaces this file when the "
        "next version is published; delete this line to keep what you change here. -->"
    )


def is_own_card(text: str) -> bool:
    """Return whether orlog wrote a card, and nobody has taken its line away."""
    return any(line.startswith(_MARKER) for line in text.splitlines()[:40])


def escaped(text: str) -> str:
    """Return a text in one line of Markdown that shows it as it is, with no markup, link or HTML of its own."""
    plain = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    marked = re.sub(r"([\\`*_{}\[\]#|~@$])", r"\\\1", plain)
    # At its start, a text could be a list, a quotation or a rule; and addresses become links by themselves.
    marked = re.sub(r"^([-+=>]|\d+[.)](?= ))", lambda start: f"{start[0][:-1]}\\{start[0][-1]}", marked)
    marked = marked.replace("://", ":\\//").replace("www.", "www\\.")
    return html.escape(marked, quote=False)


def _header(manifest: Manifest) -> str:
    """Return the header; names and digits only, so that every value is plain YAML."""
    license_name = manifest.license.lower().removesuffix("-only").removesuffix("-or-later")
    identifier = _OWN_NAMES.get(license_name, license_name)
    lines = ["---"]
    if identifier in _LICENSES.split():
        lines += [f"license: {identifier}"]
    elif manifest.license:
        slug = re.sub(r"[^a-z0-9]+", "-", license_name).strip("-")[:60] or "unknown"
        lines += ["license: other", f'license_name: "{slug}"']
    lines += [
        f'pretty_name: "{manifest.name}"',
        "task_categories:\n- reinforcement-learning",
        f"size_categories:\n- {size_category(manifest.total_steps)}",
        "tags:\n- offline-reinforcement-learning\n- trajectories\n- orlog",
        # The Hub's viewer knows tables of files, not chunks of columns.
        "viewer: false",
        "---\n",
    ]
    return "\n".join(lines)


def size_category(rows: int) -> str:
    """Return the Hub's word for a number of rows: `1K<n<10K`."""
    edges = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    index = sum(rows >= 10 ** (3 + power) for power in range(len(edges)))
    if index == 0:
        return f"n<{edges[0]}"
    return f"n>{edges[-1]}" if index == len(edges) else f"{edges[index - 1]}<n<{edges[index]}"


def _quality(dataset: Dataset, audit: Audit | None, returns: np.ndarray, lengths: np.ndarray) -> list[tuple[str, str]]:
    manifest, audited = dataset.manifest, "not audited"
    if audit is not None:
        word = "passed" if audit.is_good else "failed"
        audited = f"{word}: {audit.summary()}, in {counted(len(audit.checks), 'check')}"
    facts = [
        (name, text) for name, text in facts_of(manifest, dataset) if name not in ("name", "digest", "description")
    ]
    return [
        ("version", f"{manifest.version}, `{manifest.digest}`"),
        *((escaped(name), escaped(text[:LONGEST_FACT]) or "unknown") for name, text in facts),
        ("length of an episode", _spread(lengths)),
        ("return of an episode", _spread(returns)),
        ("ends of episodes", _ends(dataset)),
        ("audit", audited),
    ]


def _spread(values: np.ndarray) -> str:
    if not len(values):
        return ""
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return (
        f"{low:,.6g} to {high:,.6g}; mean {values.mean():,.6g}, median {middle:,.6g}, standard deviation "
        f"{values.std():,.4g}"
    )


def _ends(dataset: Dataset) -> str:
    lasts = dataset.episode_starts + dataset.episode_lengths - 1
    terminated = dataset.column("terminations")[lasts]
    truncated = dataset.column("truncations")[lasts]
    neither = int((~terminated & ~truncated).sum())
    text = f"{int(terminated.sum()):,} by termination, {int(truncated.sum()):,} by truncation"
    return f"{text}, {neither:,} without a flag" if neither else text


def _findings(audit: Audit | None) -> list[str]:
    if audit is None or not audit.findings:
        return []
    rows = [
        tuple(map(escaped, (finding.severity, finding.check, finding.column, place_text(finding), finding.text)))
        for finding in audit.findings[:MOST_FINDINGS]
    ]
    parts = ["## What the audit found", _table(("", "check", "column", "first at", "finding"), rows)]
    if len(audit.findings) > MOST_FINDINGS:
        parts.append(f"And {len(audit.findings) - MOST_FINDINGS} more: `orlog audit` shows all.")
    return parts


def _ranges(dataset: Dataset, root: str) -> list[tuple[str, float, float, float, float]]:
    """Return name, smallest value, mean, standard deviation and largest value of the first numbers under a root."""
    specs = dataset.schema.columns()
    ranges: list[tuple[str, float, float, float, float]] = []
    for name in dataset.columns:
        spec, left = specs[name], MOST_NUMBERS - len(ranges)
        numbers = math.prod(spec.shape)
        is_wanted = name.partition("/")[0] == root and not is_part(name) and spec.dtype.kind in "fiu"
        if left <= 0 or not is_wanted or not 0 < numbers <= LONGEST_ROW:
            continue
        for index, values in enumerate(_moments(_blocks(dataset, name), left).T.tolist()):
            place = "".join(f"[{axis}]" for axis in np.unravel_index(index, spec.shape))
            ranges.append((f"{name}{place}", *values))
    return [bounds for bounds in ranges if np.isfinite(bounds[1:]).all()]


def _moments(blocks: Iterator[np.ndarray], most: int) -> np.ndarray:
    """Return smallest value, mean, standard deviation and largest value of the first numbers of rows."""
    count, start, total, squares, low, high = 0, *np.zeros((5, 1))
    for values in blocks:
        chosen = values.reshape(len(values), -1)[:, :most].astype(np.float64)
        if count == 0:
            start, low, high = chosen[0].copy(), chosen[0], chosen[0]
        low, high = np.minimum(low, chosen.min(axis=0)), np.maximum(high, chosen.max(axis=0))
        # Without the first row, so that large numbers that hardly change keep their digits.
        total = total + (chosen - start).sum(axis=0)
        squares = squares + np.square(chosen - start).sum(axis=0)
        count += len(chosen)
    mean = total / max(1, count)
    deviation = np.sqrt(np.maximum(squares / max(1, count) - mean**2, 0))
    return np.array([low, start + mean, deviation, high])


def _blocks(dataset: Dataset, name: str) -> Iterator[np.ndarray]:
    """Yield the rows of a column, but for the final observations that were never recorded."""
    rows = dataset.total_steps
    missing = np.zeros(0, np.int64)
    if axis_of(name) == "observation":
        rows += dataset.total_episodes
        if MISSING in dataset.columns:
            finals = dataset.episode_lengths.cumsum() + np.arange(dataset.total_episodes)
            missing = finals[dataset.column(MISSING).astype(np.bool_)]
    for first in range(0, rows, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, rows)
        here = missing[(missing >= first) & (missing < last)]
        values = np.delete(dataset.column(name, first, last), here - first, axis=0)
        if len(values):
            yield values


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def publish_card(
    registry: Target, folder: Path, manifest: Manifest, names: Collection[str], audited: Callable[[], Audit | None]
) -> None:
    """Write the card of the newest version of a name, unless it is there; cards that a person wrote stay."""
    name = manifest.name
    own, audit_once = f"{name}/{CARD}", functools.cache(audited)

    @functools.cache
    def card() -> Card:
        place = f"{registry.url}/{name}/{manifest.version}"
        return dataset_card(as_dataset(folder), audit_once(), place)

    def changes() -> list[Change]:
        there = {path: registry.read(path, LARGEST_CARD) for path in (CARD, own)}
        texts = {path: (data or b"").decode("utf-8", "replace") for path, (data, _) in there.items()}
        if any(marker(manifest) in text for text in texts.values()):
            return []
        ours = [path for path in there if there[path][0] is None or is_own_card(texts[path])]
        audit = audit_once() if ours else None
        # Data that an audit could not read have no figures.
        if not ours or (audit and any(finding.check == "damage" for finding in audit.findings)):
            return []
        others = [f"- [{other}]({other}/{CARD})" for other in sorted(names) if other != name]
        heading = "\n## Also in this repository\n\n" if others else ""
        listed = heading + "".join(f"{line}\n" for line in others)
        whole = {CARD: card().text(f"{name}/{PICTURE}") + listed, own: card().text(PICTURE)}
        return [
            *(Change(path, whole[path].encode(), there[path][1]) for path in ours),
            Change(f"{name}/{PICTURE}", card().picture.encode()),
        ]

    registry.apply_all(changes, "the version is published and listed; its card is not written")
