"""Ed25519 signatures of manifests and indexes, each in a small JSON file next to what it signs.

    manifest.json.sig    {"signature_version": 1, "signatures": [{"key": "ed25519:..", "signature": ".."}, ..]}

One of the signatures has to match. There may be several: by several keys, and of the file's earlier
content. A file and its signatures cannot be replaced in one step, so the new signatures are written
first and include those of the old file. That proves no more than the old pair did.

What is signed is `orlog manifest signature 1`, a line feed and the SHA-256 of the file. For an
index the text says `index`, so a signature of one kind is never taken for one of the other. A public key is `ed25519:` and 64 hexadecimal digits. A private
key is a PEM file (PKCS8, no password).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from orlog.base.files import sync
from orlog.errors import FormatVersionError, NotFoundError, SignatureError, StorageError, clause, needing
from orlog.manifests.documents import convert_json, parse_json, refuse_newer
from orlog.manifests.manifest import MANIFEST_FILE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE_SUFFIX = ".sig"
SIGNATURE_VERSION: Literal[1] = 1
LARGEST_SIGNATURE = 4096
MOST_SIGNATURES = 12  # about 3,200 bytes
LARGEST_KEY_FILE = 4096
_PUBLIC_KEY = r"ed25519:[0-9a-f]{64}"

SignedKind = Literal["manifest", "index"]


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    key: Annotated[str, Meta(pattern=rf"^{_PUBLIC_KEY}\Z")]
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]


class _Signatures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    signature_version: Literal[1]
    signatures: Annotated[list[_Signature], Meta(min_length=1, max_length=MOST_SIGNATURES)]


def is_public_key(text: str) -> bool:
    """Return whether the text has the form of a public key: `ed25519:` and 64 digits."""
    return re.fullmatch(_PUBLIC_KEY, text) is not None


def new_key(path: Path) -> str:
    """Write a new private key to a file and return its public key.

    Only the owner can read the file. Whoever has it can sign: keep it secret, and keep a copy.

    Raises StorageError if the path exists already, and is left as it is, or the disk cannot be written;
    MissingExtraError if `cryptography` is not installed.
    """
    with _needs_cryptography():
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a Path opens no descriptor)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            sync(path.parent)
        except OSError:
            path.unlink()
            raise
    except OSError as error:
        is_there = error.errno == errno.EEXIST
        hint = "; a key is never overwritten: name another file" if is_there else ""
        raise StorageError(
            f"{path}: cannot write a new key: {error.strerror or error}{hint}.", errno=error.errno
        ) from error
    return _public_text(key)


def public_key(path: Path) -> str:
    """Return the public key that belongs to a private key file.

    Raises NotFoundError if there is no such file; SignatureError if it is not an Ed25519 private key;
    MissingExtraError if `cryptography` is not installed.
    """
    return _public_text(_read_key(path))


def sign(data: bytes, kind: SignedKind, key_file: Path) -> bytes:
    """Return the `.sig` file's content for all bytes of a file; equal input gives equal bytes.

    `key_file` is an Ed25519 private key, as `new_key` writes it.
    """
    key = _read_key(key_file)
    return _to_json([_Signature(key=_public_text(key), signature=key.sign(_message(data, kind)).hex())])


def signers(signature: bytes, where: str = "the signature") -> frozenset[str]:
    """Return the public keys that a `.sig` file names; only its form is checked.

    Raises SignatureError if it is malformed; `where` names it in the message.
    """
    return frozenset(signer.key for signer in _parse(signature, where))


def add_signature(signature: bytes, others: bytes | None) -> bytes:
    """Return the content of a `.sig` file with the signatures of two such files, the first's first.

    If they are too many, the last ones are left out. Malformed `others` count as none: they sign nothing.
    """
    both = _parse(signature, "the signature")
    if others is not None:
        with contextlib.suppress(SignatureError):
            both += [other for other in _parse(others, "") if other not in both]
    return _to_json(both[:MOST_SIGNATURES])


def check_signature(
    data: bytes, kind: SignedKind, signature: bytes | None, trusted: Collection[str], where: str
) -> str:
    """Return the trusted public key that signed all bytes of a manifest or an index; any of `trusted` is enough.

    `signature` is the content of its `.sig` file; if that is too large, any start of it longer than
    `LARGEST_SIGNATURE`; None if there is no such file. A SignatureError says what is wrong with it.
    """
    expected = f"a signature by {' or '.join(sorted(trusted)) or 'a trusted key (there are none)'}"
    if signature is None:
        raise SignatureError(
            f"{where}: not signed: expected {expected}, found no {SIGNATURE_SUFFIX} file; ask who "
            "publishes it to sign it. Only if you are sure of its origin in another way, add the "
            "registry again without a key.",
            expected=expected,
            found="none",
        )
    signatures = _parse(signature, f"{where}{SIGNATURE_SUFFIX}")
    keys = " and ".join(dict.fromkeys(signer.key for signer in signatures))
    candidates = [signer for signer in signatures if signer.key in trusted]
    if not candidates:
        raise SignatureError(
            f"{where}: signed by a key that is not trusted: expected {expected}, found one by "
            f"{keys}; ask who publishes it, but not through this URL, whether the key was changed. "
            "If so, add the registry again with the new key.",
            expected=expected,
            found=keys,
        )
    message = _message(data, kind)
    for signer in candidates:
        if _is_right(signer, message):
            return signer.key
    digest = f"bytes with sha256 {hashlib.sha256(data).hexdigest()}"
    raise SignatureError(
        f"{where}: wrong signature: expected a {kind} signed by {candidates[0].key}, found {digest}, "
        f"which that key did not sign; the {kind} or its signature was changed, or one of them is "
        "older than the other. Run the same command again; if that fails, ask who publishes it.",
        expected=expected,
        found=digest,
    )


def _is_right(signature: _Signature, message: bytes) -> bool:
    with _needs_cryptography():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key.partition(":")[2]))
    try:
        key.verify(bytes.fromhex(signature.signature), message)
    except InvalidSignature:
        return False
    return True


def _to_json(signatures: list[_Signature]) -> bytes:
    body = _Signatures(signature_version=SIGNATURE_VERSION, signatures=signatures)
    return f"{json.dumps(msgspec.to_builtins(body), indent=1, sort_keys=True)}\n".encode()


def _parse(data: bytes, where: str) -> list[_Signature]:
    advice = "; ask who publishes it to sign it again"
    if len(data) > LARGEST_SIGNATURE:
        raise SignatureError(
            f"{where}: too large for a signature: expected up to {LARGEST_SIGNATURE} bytes, found more{advice}."
        )
    try:
        body = parse_json(data)
    except ValueError as error:
        raise SignatureError(f"{where}: not the JSON of a signature: {clause(error)}{advice}.") from error
    try:
        refuse_newer(body, {"signature_version": SIGNATURE_VERSION}, where)
        return convert_json(body, _Signatures).signatures
    except FormatVersionError as error:
        raise SignatureError(str(error)) from error
    except ValueError as error:
        raise SignatureError(f"{where}: not a signature: {clause(error)}{advice}.") from error


def _message(data: bytes, kind: SignedKind) -> bytes:
    if kind not in get_args(SignedKind):
        raise ValueError(f"only a manifest or an index can be signed, found {kind!r}.")
    return b"orlog " + kind.encode() + b" signature 1\n" + hashlib.sha256(data).digest()


def _read_key(path: Path) -> Ed25519PrivateKey:
    with _needs_cryptography():
        from cryptography.exceptions import InternalError, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    wrong = f"{path}: expected an Ed25519 private key (PEM, no password), found"
    advice = "name the file that `orlog registry key --new` wrote"
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_KEY_FILE + 1)
    except OSError as error:
        message = f"{path}: cannot read the key: {error.strerror or error}"
        if error.errno == errno.ENOENT:
            raise NotFoundError(f"{message}; to make one, run: orlog registry key {path} --new") from error
        raise StorageError(f"{message}; {advice}.", errno=error.errno) from error
    if len(text) > LARGEST_KEY_FILE:
        raise SignatureError(f"{wrong} more than {LARGEST_KEY_FILE} bytes; {advice}.")
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError) as error:
        # The reason comes from OpenSSL and does not help.
        raise SignatureError(f"{wrong} something else; {advice}.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(f"{wrong} {type(key).__name__}; {advice}.")
    return key


def _public_text(key: Ed25519PrivateKey) -> str:
    return f"ed25519:{key.public_key().public_bytes_raw().hex()}"


def _needs_cryptography() -> contextlib.AbstractContextManager[None]:
    return needing("signatures need cryptography", "orlog[sign]")


SIGNATURE_FILE = MANIFEST_FILE + SIGNATURE_SUFFIX  # next to it in a registry
