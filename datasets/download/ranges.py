"""Reads ranges of objects where they are, from whichever mirror gives the right bytes.

Servers are not trusted: an answer must be the range that was asked for, of an object of the manifest's size, and
pass the check of who asked. One that does not is asked again, and then the next mirror is. Mirrors share the
patience and the back-off of downloads.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping

from orlog.datasets.download.http import Failure, Patience, fsspec_errors, is_http, over_http
from orlog.datasets.download.mirrors import Mirror, Tries
from orlog.errors import IntegrityError, TransferError, clause

WRONG_ANSWERS = 2  # of one mirror, after which it is not asked for these bytes again


@dataclasses.dataclass(frozen=True, kw_only=True)
class RangeSource:
    """The objects of a version at one or several places; it can be pickled, and used in threads.

    Attributes:
        mirrors: URLs of the version's folder, in the order in which they are tried.
        sizes: Size of each object, by path.
        patience: How long each mirror is tried.
    """

    mirrors: tuple[str, ...]
    sizes: Mapping[str, int]
    patience: Patience = Patience()

    def get(self, path: str, start: int, stop: int, check: Callable[[bytes], None]) -> bytes:
        """Return the bytes `start` to `stop - 1` of an object, once they pass a check.

        Raises IntegrityError if the mirrors that answer give other bytes; TransferError if none answers.
        """
        left = list(_mirrors(os.getpid(), self.mirrors))
        wrong = dict.fromkeys(left, 0)
        reasons: dict[Mirror, str] = {}
        damage: IntegrityError | None = None
        tries = Tries(left, reasons, self.patience)
        while left:
            mirror = tries.free()
            began = time.monotonic()
            try:
                data = read_range(mirror.url_of(path), start, stop, self.sizes[path], self.patience)
                check(data)
            except IntegrityError as error:
                damage = error
                wrong[mirror] += 1
                reasons[mirror] = clause(error)
                if wrong[mirror] == WRONG_ANSWERS:
                    left.remove(mirror)
            except Failure as failure:
                tries.failed(mirror, failure, began)
            else:
                mirror.works()
                mirror.moved_at = time.monotonic()
                return data
            finally:
                mirror.leave()
        attempts = [f"{one.url_of(path)}: {reason}" for one, reason in reasons.items()]
        where = f"{path}, bytes {start} to {stop - 1}"
        if damage is not None:
            raise IntegrityError(
                f"{'; '.join(attempts)}; tell who publishes it, or name another mirror.",
                file=path,
                expected=damage.expected,
                found=damage.found,
            ) from damage
        raise TransferError(
            f"{where}: {'; '.join(attempts)}; what was read so far is kept: run the same command again.",
            attempts=attempts,
        )


def read_range(url: str, start: int, stop: int, size: int, patience: Patience) -> bytes:
    """Return bytes `start` to `stop - 1` of a file of a known size.

    Raises Failure if the server sends other ones, or a file of another size.
    """
    if not is_http(url):
        return _through_fsspec(url, start, stop)
    with over_http(url, start, patience, stop) as stream:
        if stream.total not in (None, size):
            raise Failure(f"has {stream.total} bytes, expected {size}", is_final=True)
        if stream.is_whole and (start, stop) != (0, size):
            raise Failure("sends whole files, and no ranges of them", is_final=True)
        blocks, left = [], stop - start
        while left > 0 and (block := stream.read(left)):
            blocks.append(block)
            left -= len(block)
    if left:
        raise Failure(f"sent {stop - start - left} of the {stop - start} bytes from {start} on")
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _through_fsspec(url: str, start: int, stop: int) -> bytes:
    import fsspec

    with fsspec_errors(url):
        system, path = fsspec.core.url_to_fs(url)
        data = bytes(system.cat_file(path, start=start, end=stop))
    if len(data) != stop - start:
        raise Failure(f"sent {len(data)} bytes for the {stop - start} from {start} on")
    return data


@functools.lru_cache(64)
def _mirrors(_process: int, urls: tuple[str, ...]) -> tuple[Mirror, ...]:
    """Return what is known of mirrors, which all threads of a process share; a forked one asks anew."""
    return tuple(map(Mirror, urls))
