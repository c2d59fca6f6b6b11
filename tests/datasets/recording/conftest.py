"""Fixtures for tests of recording."""

from __future__ import annotations

import os

import pytest

from orlog.datasets.store import encoding


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few steps fill a shard; no disk loses power here, so none is waited for."""
    fill_shards(monkeypatch, 128, 512)


@pytest.fixture
def tiny_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step or two fill a shard."""
    fill_shards(monkeypatch, 64, 128)


def fill_shards(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, shard_bytes: int) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(encoding, "SHARD_BYTES", shard_bytes)
    monkeypatch.setattr(os, "fsync", lambda _: None)
