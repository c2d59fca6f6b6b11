"""A registry in an S3 bucket, through s3fs: conditional writes, and checksums stored by S3."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orlog.datasets.publish.targets import RemoteTarget, check_size, checked_blocks, target_errors
from orlog.manifests.manifest import StoredObject

PART_BYTES = 32 * 2**20


class BucketTarget(RemoteTarget):
    """A registry in S3, which checks and stores the SHA-256 of objects and writes conditionally."""

    def put(self, path: str, item: StoredObject, source: Path) -> None:
        """Send the bytes with their SHA-256, which the service checks, unless it stores that already."""
        if self._holds(path, item, source):
            return
        if item.size_bytes > PART_BYTES:
            self._send_parts(path, checked_blocks(source, item, PART_BYTES))
            return
        data = b"".join(checked_blocks(source, item, PART_BYTES))
        with target_errors(f"{self.url}/{path}"):
            self._call("put_object", path, Body=data, **_checksum(data))

    def _holds(self, path: str, item: StoredObject, source: Path) -> bool:
        """Compare with the SHA-256 that the service stores."""
        with target_errors(f"{self.url}/{path}"):
            try:
                head = self._call("head_object", path, ChecksumMode="ENABLED")
            except FileNotFoundError:
                return False
        if head["ContentLength"] != item.size_bytes or "ChecksumSHA256" not in head:
            return False
        if item.size_bytes <= PART_BYTES:
            return bool(head["ChecksumSHA256"] == _base64(bytes.fromhex(item.sha256)))
        parts = [hashlib.sha256(part).digest() for part in checked_blocks(source, item, PART_BYTES)]
        # S3 stores the SHA-256 of the parts' SHA-256 sums, followed by `-` and the number of parts.
        whole = _base64(hashlib.sha256(b"".join(parts)).digest())
        return bool(head["ChecksumSHA256"].partition("-")[0] == whole)

    def _send_parts(self, path: str, blocks: Iterable[bytes]) -> None:
        with target_errors(f"{self.url}/{path}"):
            begun = self._call("create_multipart_upload", path, ChecksumAlgorithm="SHA256")
            upload = {"UploadId": begun["UploadId"]}
            parts = []
            try:
                for number, block in enumerate(blocks, 1):
                    checksum = _checksum(block)
                    answer = self._call(
                        "upload_part", path, PartNumber=number, Body=block, **upload, **checksum
                    )
                    part = {"PartNumber": number, "ETag": answer["ETag"]}
                    parts.append({**part, "ChecksumSHA256": checksum["ChecksumSHA256"]})
                self._call(
                    "complete_multipart_upload", path, MultipartUpload={"Parts": parts}, **upload
                )
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to report
                    self._call("abort_multipart_upload", path, **upload)
                raise

    def _write(self, path: str, data: bytes, tag: str | None) -> bool:
        condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        try:
            self._call("put_object", path, Body=data, **({} if tag is None else condition))
        except OSError as error:
            if not _is_refused(error):
                raise
            return False
        return True

    def _load(self, path: str, largest: int) -> tuple[bytes, str]:
        from fsspec.asyn import sync as wait_for

        answer = self._call("get_object", path)

        async def read() -> bytes:
            async with answer["Body"] as body:
                check_size(answer["ContentLength"], largest, f"{self.url}/{path}")
                return bytes(await body.read())

        return wait_for(self.system.loop, read), answer["ETag"]

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self.system.split_path(f"{self.root}/{path}")
        return self.system.call_s3(method, Bucket=bucket, Key=key, **arguments)


def _checksum(data: bytes) -> dict[str, str]:
    return {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": _base64(hashlib.sha256(data).digest())}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_refused(error: OSError) -> bool:
    """Return whether S3 refused a write: its condition failed, or another write was under way."""
    response = getattr(error.__cause__, "response", None) or {}
    code = response.get("Error", {}).get("Code")
    return code in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")
