"""Fixtures for tests of recording."""

import os

import pytest

from orlog.datasets.store import encoding


@pytest.fixture
def small_shards(monkeypatch):
    """Let a few steps fill a shard; no disk loses power here, so none is waited for."""
    fill_shards(monkeypatch, 128, 512)


@pytest.fixture
def tiny_shards(monkeypatch):
    """Let a step or two fill a shard."""
    fill_shards(monkeypatch, 64, 128)


def fill_shards(monkeypatch, chunk_bytes, shard_bytes):
    monkeypatch.setattr(encoding, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(encoding, "SHARD_BYTES", shard_bytes)
    monkeypatch.setattr(os, "fsync", lambda _: None)
