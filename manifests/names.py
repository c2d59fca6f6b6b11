"""Dataset names: `pointmaze/umaze-v1`, `pointmaze/umaze-v1@1.0.0`, `pointmaze/umaze-v1@sha256:ab..`.

name     = part *( "/" part ) "/" part "-v" number     at least two parts, lower case; only the
                                                       last one ends in -v and a number
part     = letter or digit, then letters, digits, "_", "." and "-"
version  = "@" major "." minor "." patch [ "+" rebuild ]   the content version
rebuild  = 8 hexadecimal digits                        which rebuild of a recipe it is, or stems from
digest   = "@sha256:" 6 to 64 hexadecimal digits        the start of a manifest's digest
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from orlog.errors import InvalidNameError

_PART = r"[a-z0-9][a-z0-9_.-]*"
_NAME = re.compile(rf"(?P<name>{_PART}(?:/{_PART})*/(?:{_PART}-)?v[0-9]+)")
_LAST = re.compile(rf"(?:{_PART}-)?v[0-9]+")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_VERSION = re.compile(r"(?:0|[1-9][0-9]{0,17})(?:\.(?:0|[1-9][0-9]{0,17})){2}(?:\+[0-9a-f]{8})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{6,64}")
_LONGEST = 200


@dataclasses.dataclass(frozen=True, slots=True)
class DatasetName:
    """A parsed name. `version` and `digest` are empty unless the name pins them."""

    name: str
    version: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """Return the text that parses to this name."""
        pin = self.version or self.digest
        return f"{self.name}@{pin}" if pin else self.name


def parse_name(text: str) -> DatasetName:
    """Return the parsed name.

    Raises InvalidNameError if the text does not follow the grammar above.
    """
    name, at, pin = text.partition("@")
    version, digest = "", ""
    valid = len(text) <= _LONGEST and _NAME.fullmatch(name) is not None
    if at and _VERSION.fullmatch(pin):
        version = pin
    elif at and _DIGEST.fullmatch(pin):
        digest = pin
    elif at:
        valid = False
    # A dataset's folder holds its versions, so no other dataset may lie inside it.
    valid = valid and not any(_LAST.fullmatch(part) for part in name.split("/")[:-1])
    if not valid:
        shown = text if len(text) <= _LONGEST else f"{text[:60]}..."
        if is_url(text):
            raise InvalidNameError(
                f"{shown!r} is a URL; only load_dataset and download_dataset (orlog download) take "
                "one; give what they return, or a dataset's name or path."
            )
        raise InvalidNameError(
            f"{shown!r} is not a dataset name: expected group/name-vN in lower case, optionally "
            "followed by @major.minor.patch or @sha256:digest, for example pointmaze/umaze-v1 or "
            "pointmaze/umaze-v1@1.0.0. A path starts with /, . or ~.",
            name=shown,
        )
    return DatasetName(name, version, digest)


def is_name(text: str) -> bool:
    """Return whether the text follows the grammar of names, with or without version or digest."""
    try:
        parse_name(text)
    except InvalidNameError:
        return False
    return True


def mended(text: str) -> str:
    """Return the name that a text becomes in lower case and with a number at its end; nothing if it becomes none."""
    name, at, pin = text.partition("@")
    name = name.lower().replace(" ", "-")
    if not _LAST.fullmatch(name.rpartition("/")[2]):
        name += "-v1"
    return next((fitting for fitting in (f"{name}{at}{pin}", name) if is_name(fitting)), "")


def is_version(text: str) -> bool:
    """Return whether the text is a content version, `major.minor.patch`, perhaps of a rebuild."""
    return _VERSION.fullmatch(text) is not None


def versioned(name: str) -> str:
    """Return a name that ends in -v and a number, as names do; -v0 if it had none."""
    return name if _LAST.fullmatch(name.rpartition("/")[2].lower()) else f"{name}-v0"


def version_parts(version: str) -> tuple[list[int], str]:
    """Return the numbers of a content version, and its end from the `+` on, empty without one."""
    numbers, plus, rebuild = version.partition("+")
    return [int(part) for part in numbers.split(".")], plus + rebuild


def plain_version(version: str) -> str:
    """Return a content version without the part that names a rebuild."""
    return version.partition("+")[0]


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return content versions sorted by their numbers, newest first; rebuilds come last."""

    def key(version: str) -> tuple[bool, list[int], str]:
        numbers, rebuild = version_parts(version)
        return not rebuild, numbers, rebuild

    return sorted(versions, key=key, reverse=True)


def is_url(name: str | Path) -> bool:
    """Return whether this is a URL, rather than a dataset's name or a path."""
    return isinstance(name, str) and _URL.match(name) is not None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known ones, or nothing."""
    close = nearest(word, known)
    return f"; did you mean {either(close)}?" if close else ""


def either(words: Sequence[str]) -> str:
    """Return words as a choice in a sentence: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def counted(number: int, thing: str) -> str:
    """Return a number of things in words: `1 dataset`, `2,000 datasets`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


_VERBS_OF_ONE = {"have": "has", "are": "is", "were": "was", "belong": "belongs"}
_VERBS_OF_ONE |= {"begin": "begins", "end": "ends", "occur": "occurs"}


def said_of(number: int, clause: str) -> str:
    """Return a clause about a number of things: of `rows have no end`, `3 rows have ..` or `1 row has ..`.

    In the clause, the things are the first word that ends in an s.
    """
    words = clause.split(" ")
    if number == 1:
        thing = next(index for index, word in enumerate(words) if word.endswith("s"))
        words[thing] = words[thing].removesuffix("s")
        verb = next((i for i, word in enumerate(words) if word in _VERBS_OF_ONE), None)
        if verb is not None:
            words[verb] = _VERBS_OF_ONE[words[verb]]
    return f"{number:,} {' '.join(words)}"


def size_text(size_bytes: float | None) -> str:
    """Return a size in words, such as `1.5 MB`; a dash if it is not known."""
    if size_bytes is None:
        return "-"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def bytes_of(text: str) -> int:
    """Return the bytes that a text such as 500M or 1.5G means; raise ValueError if it means none."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([kmgt]?)b?", text.lower())
    if match is None:
        raise ValueError(f"{text!r:.40} is no size; expected one such as 500M or 20G.")
    return int(float(match[1]) * 1000 ** " kmgt".index(match[2] or " "))


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return up to three known words that end in, resemble or contain `word`, nearest first."""
    words = [other for other in known if other != word]
    inner = [other for other in words if other.endswith(f"/{word}")]  # d4rl/hopper-medium-v2 without d4rl
    if inner:
        return sorted(inner, key=len)[:3]
    close = difflib.get_close_matches(word, words, n=3, cutoff=0.72)
    return close or [other for other in words if len(word) >= 3 and word in other][:3]


def squeezed(word: str) -> str:
    """Return the letters and digits of a word in lower case, in which spellings of it agree."""
    return re.sub(r"[^a-z0-9]", "", word.casefold())
