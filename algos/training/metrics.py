"""The log of a run, `metrics.jsonl`: one line of JSON for each logged step."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orlog.base.files import replace_file
from orlog.errors import IntegrityError, NotFoundError

METRICS_FILE = "metrics.jsonl"


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the logged lines; a last line that a kill cut off is left out."""
    path = Path(folder).expanduser() / METRICS_FILE
    return [_parse_metrics(path, number, line) for number, line in enumerate(_metric_lines(path), 1)]


def _metric_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a log, with their line ends."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"{path}: no readable metrics: {error.strerror or error}.") from error
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def _parse_metrics(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        body, reason = None, f"is not JSON: {error}"
    else:
        reason = "has no whole number 'step'"
    if not isinstance(body, dict) or type(body.get("step")) is not int:
        raise IntegrityError(
            f"{path}: line {number} {reason}; remove the line, or train again in another folder.", file=str(path)
        )
    return body


def metrics_sha256(folder: Path, step: int) -> str:
    """Return the hex SHA-256 of the lines up to a step, which stay as they are when a run goes on."""
    path = folder / METRICS_FILE
    digest = hashlib.sha256()
    for number, line in enumerate(_metric_lines(path), 1):
        if _parse_metrics(path, number, line)["step"] <= step:
            digest.update(line)
    return digest.hexdigest()


def keep_metrics(folder: Path, step: int) -> list[dict[str, Any]]:
    """Drop lines logged after a step, because they will be logged again; return the others."""
    path = folder / METRICS_FILE
    lines = _metric_lines(path) if path.exists() else []
    parsed = [_parse_metrics(path, number, line) for number, line in enumerate(lines, 1)]
    kept = [(line, body) for line, body in zip(lines, parsed, strict=True) if body["step"] <= step]
    data = b"".join(line for line, _ in kept)
    if not path.exists() or path.read_bytes() != data:
        replace_file(path, data)
    return [body for _, body in kept]


def log_metrics(folder: Path, line: Mapping[str, Any]) -> None:
    """Append a line to the log; the file is opened each time, so that closing cannot fail later."""
    with (folder / METRICS_FILE).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
