"""The dataset cards of a registry on the Hugging Face Hub.

README.md              the card that the Hub shows: that of the version that was published last
NAME/README.md         the card of the newest version of each dataset
NAME/card.svg          the picture of both
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from pathlib import Path

from orlog.datasets.audit.findings import Audit
from orlog.datasets.publish.card import Card, dataset_card, is_own_card, marker
from orlog.datasets.publish.targets import Change, Target, apply_changes
from orlog.datasets.reading.given import as_dataset
from orlog.manifests.manifest import Manifest

CARD, PICTURE = "README.md", "card.svg"
LARGEST_CARD = 2**24


def publish_card(
    registry: Target,
    folder: Path,
    manifest: Manifest,
    names: Collection[str],
    audited: Callable[[], Audit | None],
) -> None:
    """Write the card of the newest version of a name, unless it is there; cards that a person wrote stay.

    `names` are all datasets in the registry. `audited` returns the audit, and is called if a card is written.
    """
    name = manifest.name
    own = f"{name}/{CARD}"

    audit_once = functools.cache(audited)

    @functools.cache
    def card() -> Card:
        place = f"{registry.url}/{name}/{manifest.version}"
        return dataset_card(as_dataset(folder), audit_once(), place)

    def changes() -> list[Change]:
        found = {path: registry.read(path, LARGEST_CARD) for path in (CARD, own)}
        texts = {
            path: "" if data is None else data.decode("utf-8", "replace")
            for path, (data, _) in found.items()
        }
        if any(marker(manifest) in text for text in texts.values()):
            return []
        ours = [path for path in found if found[path][0] is None or is_own_card(texts[path])]
        if not ours or _is_unreadable(audit_once()):
            return []
        whole = {
            CARD: card().text(f"{name}/{PICTURE}") + _others(name, names),
            own: card().text(PICTURE),
        }
        return [
            *(Change(path, whole[path].encode(), found[path][1]) for path in ours),
            Change(f"{name}/{PICTURE}", card().picture.encode()),
        ]

    apply_changes(registry, changes, "the version is published and listed; its card is not written")


def _is_unreadable(audit: Audit | None) -> bool:
    """Return whether an audit could not read the data, which then have no figures."""
    return audit is not None and any(one.check == "damage" for one in audit.findings)


def _others(name: str, names: Collection[str]) -> str:
    """Return the list of the other datasets in a registry."""
    lines = [f"- [{other}]({other}/{CARD})" for other in sorted(names) if other != name]
    return "\n".join(["\n## Also in this repository\n", *lines, ""]) if lines else ""
