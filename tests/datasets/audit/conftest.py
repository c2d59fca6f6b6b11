"""Every audit of these tests is made twice: the data as one job, and each few episodes as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import orlog
from orlog.datasets.audit import audit as audits
from orlog.datasets.audit.findings import Audit

JOBS = 16


@pytest.fixture(autouse=True)
def findings_do_not_depend_on_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the findings of one job with those of several, which end in any order."""

    def in_several(dataset: orlog.Dataset, _size: int) -> list[range]:
        step = max(1, -(-dataset.total_episodes // JOBS))
        whole = range(dataset.total_episodes)
        return [whole[first : first + step] for first in whole[::step]]

    def backwards(function: Any, jobs: Any, **_: object) -> Iterator[tuple[int, Any]]:
        yield from reversed([(index, function(job)) for index, job in enumerate(list(jobs))])

    def audit(*given: Any, **options: Any) -> Audit:
        found = audits.audit(*given, **options)
        with monkeypatch.context() as patch:
            patch.setattr(audits, "episode_ranges", in_several)
            assert audits.audit(*given, **options, execute=backwards) == found
        return found

    monkeypatch.setattr(orlog, "audit", audit)
