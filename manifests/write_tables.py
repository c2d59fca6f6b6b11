"""Writes the tables that ship from a folder of reference tables.

python -m orlog.manifests.write_tables FOLDER

Numbers stay as they are written there. Only references to unnamed copies are reworded. Beside the
tables lies `checksums.json`, with the SHA-256 of each table and of the file that it was made from.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import sys
from pathlib import Path

from orlog.manifests.documents import write_json
from orlog.manifests.tables import TABLES, checksums_file, table_file

# Some sources are texts in repositories whose names are not known; who found them says nothing.
_REWORDED = (
    (
        re.compile(r"GitHub text index,? (?:file ids? )?\d+(?: and \d+)*"),
        "copy of unknown repository",
    ),
    (re.compile(r"baselines file \d+"), "baselines in a copy of unknown repository"),
    (re.compile(r"[,;] repository name not given by the index"), ""),
    (re.compile(r"[,;] path and commit not given by the index"), ""),
    (re.compile(r"[,;] text index \d+(?: for \w+)?"), ""),
    (re.compile(r" \(text index \d+(?: for \w+)?\)"), ""),
)


def copy_table(text: str) -> str:
    """Return the table that ships, from the text of a reference table."""
    for pattern, replacement in _REWORDED:
        text = pattern.sub(replacement, text)
    copied = io.StringIO()
    csv.writer(copied, lineterminator="\n").writerows(csv.reader(io.StringIO(text), strict=True))
    return copied.getvalue()


def write_tables(folder: Path) -> None:
    """Write every table that ships, and their checksums, from a folder of reference tables."""
    checksums = {}
    for name in TABLES:
        source = (folder / f"{name}.csv").read_bytes()
        made = copy_table(source.decode()).encode()
        table_file(name).write_bytes(made)
        checksums[f"{name}.csv"] = {
            "made_from_sha256": hashlib.sha256(source).hexdigest(),
            "sha256": hashlib.sha256(made).hexdigest(),
        }
    write_json(checksums_file(), checksums)


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
