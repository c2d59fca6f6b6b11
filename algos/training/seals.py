"""Seals: JSON files that hold a SHA-256 of themselves and of the files beside them.

    {"step": 600, "returns": [..], "seal": {"files": {"run.json": "3fa9..", ..}, "sha256": "77c0.."}}

`sha256` is that of the canonical JSON of all else in the document, `seal.files` included. A seal finds
damage and careless edits. It is no signature: whoever computes it again can state anything.

Checkpoints name the SHA-256 of `run.json` as it was before the first step, so what is added to it later, by which
other code a run went on and that it takes more steps, is not in that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orlog.base.files import replace_file
from orlog.manifests.documents import canonical_json, convert_json, parse_json, read_json_file, write_json

Kind = TypeVar("Kind")

_SEAL, _LATER, _EARLIER = "seal", "later_code", "earlier"


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a file says of itself and of the files beside it.

    Attributes:
        files: Hex SHA-256 of each file beside it, by name.
        sha256: Hex SHA-256 of the document's canonical JSON without this field.
    """

    files: dict[str, str]
    sha256: str


def write_sealed(path: Path, body: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Write a JSON document with its seal; `files` are the hex SHA-256 of files beside it by name."""
    seal = {"files": dict(files), "sha256": _digest(body, files)}
    write_json(path, {**body, _SEAL: seal})


def read_sealed(path: Path, kind: type[Kind], *, version: tuple[str, int], repair: str) -> tuple[Kind, Seal]:
    """Return the content of a sealed file, and its seal.

    Arguments are those of `read_json_file`. A file that is not what was sealed is refused.
    """
    seal = Seal(files={}, sha256="")

    def opened(body: Any) -> Any:
        nonlocal seal
        if not isinstance(body, dict) or _SEAL not in body:
            raise ValueError("its seal is missing")
        seal = convert_json(body.pop(_SEAL), Seal)
        outside = [name for name in seal.files if Path(name).name != name]
        if outside:
            raise ValueError(f"its seal names {outside[0]!r:.80}, which is no file beside it")
        if _digest(body, seal.files) != seal.sha256:
            raise ValueError("its content does not have the SHA-256 that it states: it is damaged or was edited")
        return body

    content = read_json_file(path, kind, version=version, repair=repair, opened=opened)
    return content, seal


def _digest(body: Mapping[str, Any], files: Mapping[str, str]) -> str:
    return hashlib.sha256(canonical_json({**body, _SEAL: {"files": dict(files)}})).hexdigest()


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write the record of a new run."""
    fields = msgspec.to_builtins(record)
    # Algorithm and dataset come first, which a reader looks for.
    body = {name: fields[name] for name in ("algorithm", "dataset")} | fields
    for name in ("online", "stream", _LATER, _EARLIER):  # as in records from before there was such a thing
        if not body[name]:
            del body[name]
    replace_file(path, _record_bytes(body), alone=False)


def note_code(path: Path, code: str) -> None:
    """Let a record say that its run goes on with this code, if another one trained it so far.

    A record whose bytes are not those that orlog writes stays as it is, since checkpoints name them.
    """
    body = parse_json(path.read_bytes())
    codes = [body.get("code", ""), *body.get(_LATER, [])]
    if codes[-1] == code:
        return
    data = _record_bytes({**body, _LATER: [*codes[1:], code]})
    if _sha256(data) == record_sha256(path):
        replace_file(path, data, alone=False)


def record_sha256(path: Path) -> str:
    """Return the SHA-256 of a record as it was before the first step."""
    return _sha256(path.read_bytes())


def _sha256(data: bytes) -> str:
    if any(f'"{name}"'.encode() in data for name in (_LATER, _EARLIER)):
        body = parse_json(data)
        body.pop(_LATER, None)
        body |= next(iter(body.pop(_EARLIER, [])), {})
        data = _record_bytes(body)
    return hashlib.sha256(data).hexdigest()


def _record_bytes(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=1, allow_nan=False) + "\n").encode()
