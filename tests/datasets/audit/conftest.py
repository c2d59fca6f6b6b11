"""Audits that are made twice: the data as one job, and each few episodes as one."""

import pytest

import orlog
from orlog.datasets.audit import audit as audits

JOBS = 16


@pytest.fixture
def findings_do_not_depend_on_jobs(monkeypatch):
    """Compare the findings of one job with those of several."""

    def in_several(dataset, _size):
        step = max(1, -(-dataset.total_episodes // JOBS))
        whole = range(dataset.total_episodes)
        return [whole[first : first + step] for first in whole[::step]]

    def here(function, jobs, **_):
        yield from map(function, jobs)

    def audit(*given, **options):
        found = audits.audit(*given, **options)
        with monkeypatch.context() as patch:
            patch.setattr(audits, "episode_ranges", in_several)
            patch.setattr(audits, "do_jobs", here)
            assert audits.audit(*given, **options | {"workers": 2}) == found
        return found

    monkeypatch.setattr(orlog, "audit", audit)
