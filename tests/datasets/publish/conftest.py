"""The audit before publishing: tests publish the same few versions hundreds of times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orlog.datasets.audit.audit import audit
from orlog.datasets.audit.findings import Audit
from orlog.datasets.publish import publish
from orlog.manifests.manifest import read_manifest

KNOWN: dict[str, Audit] = {}


@pytest.fixture(autouse=True)
def audited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audit each version once in a process; a damaged copy of it is not remembered."""

    def audit_once(folder: Path, **options: Any) -> Audit:
        digest = read_manifest(folder / "manifest.json").digest
        if digest in KNOWN:
            return KNOWN[digest]
        found = audit(folder, **options)
        if not any(one.check == "damage" for one in found.findings):
            KNOWN[digest] = found
        return found

    monkeypatch.setattr(publish, "audit_dataset", audit_once)
