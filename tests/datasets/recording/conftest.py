"""Fixtures for tests of recording."""

from __future__ import annotations

import os

import pytest

from orlog.datasets.store import encoding


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few steps fill a shard; no disk loses power here, so none is waited for."""
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 128)
    monkeypatch.setattr(encoding, "SHARD_BYTES", 512)
    monkeypatch.setattr(os, "fsync", lambda _: None)
