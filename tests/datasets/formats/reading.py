"""Reads files by a format into a dataset, and damages files, for the tests of all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.formats._shared.episodes import Asked, Found, Options
from orlog.datasets.formats.formats import Format, Wanted, read_version
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError
from orlog.manifests.manifest import MANIFEST_FILE


def read_files(
    file_format: Format, files: Path | Sequence[Path], folder: Path, options: Options | None = None
) -> tuple[Dataset, Found]:
    """Return the dataset that files hold, stored in a new folder, and what was found in them."""
    paths = [files] if isinstance(files, Path) else list(files)
    sources = [path.name for path in paths]
    asked = Asked(files=paths, sources=sources, options=options or Options())
    wanted = Wanted(name="lab/test-v0", version="1.0.0")
    manifest, found = read_version(file_format, asked, folder, wanted)
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), "utf-8")
    return load_dataset(folder), found


def damaged(good: bytes, count: int, *, seed: int = 0) -> Iterator[bytes]:
    """Yield copies of a file with a few flipped bits, a fifth of them cut off too."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        data = np.frombuffer(good, np.uint8).copy()
        for place in rng.integers(0, len(data), 4):
            data[place] ^= 1 << int(rng.integers(8))
        cut = int(rng.integers(1, len(data))) if number % 5 == 0 else len(data)
        yield data[:cut].tobytes()


def refuses_or_reads(read: Callable[[], object]) -> None:
    """Read a damaged file: an error of orlog is right, and values that decode are too."""
    try:
        read()
    except OrlogError:
        return
