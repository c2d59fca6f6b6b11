"""Audits that are made twice: the data as one job, and each few episodes as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import orlog
from orlog.datasets.audit import audit as audits
from orlog.datasets.audit.findings import Audit

JOBS = 16


@pytest.fixture
def findings_do_not_depend_on_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the findings of one job with those of several."""

    def in_several(dataset: orlog.Dataset, _size: int) -> list[range]:
        step = max(1, -(-dataset.total_episodes // JOBS))
        whole = range(dataset.total_episodes)
        return [whole[first : first + step] for first in whole[::step]]

    def here(function: Any, jobs: Any, **_: object) -> Iterator[Any]:
        yield from map(function, jobs)

    def audit(*given: Any, **options: Any) -> Audit:
        found = audits.audit(*given, **options)
        with monkeypatch.context() as patch:
            patch.setattr(audits, "episode_ranges", in_several)
            patch.setattr(audits, "do_jobs", here)
            assert audits.audit(*given, **options | {"workers": 2}) == found
        return found

    monkeypatch.setattr(orlog, "audit", audit)
