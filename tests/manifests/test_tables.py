import csv
import hashlib
import json
import re

import pytest

from orlog.manifests.tables import TABLES, read_table, table_file

CHECKSUMS = table_file("checksums").with_suffix(".json")
ROWS = {
    "atari": 57,
    "d4rl": 183,
    "disagreements": 43,
    "dsrl": 38,
    "minari": 34,
    "neorl2": 8,
    "ogbench": 100,
    "ogmarl": 91,
    "published_scores": 4252,
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def cells(file):
    with file.open(encoding="utf-8", newline="") as opened:
        for row in csv.reader(opened):
            yield from row


def test_every_table_is_there_with_all_its_rows():
    assert {name: len(read_table(name)) for name in TABLES} == ROWS
    assert {path.stem for path in CHECKSUMS.parent.glob("*.csv")} == set(TABLES)


def test_every_row_has_a_source_and_no_row_can_be_changed():
    for name in ("atari", "d4rl", "dsrl", "minari", "neorl2", "ogbench", "ogmarl"):
        assert all(row["source"] for row in read_table(name))
    with pytest.raises(TypeError):
        read_table("atari")[0]["game"] = "other"  # the point of the test


def test_tables_are_those_that_were_checked():
    checksums = json.loads(CHECKSUMS.read_text("utf-8"))
    for name in TABLES:
        found = hashlib.sha256(table_file(name).read_bytes()).hexdigest()
        assert found == checksums[f"{name}.csv"]["sha256"], name
