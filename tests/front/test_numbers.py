"""Numbers for people: what rounds to zero has no sign, in tables, pages and lines alike."""

from __future__ import annotations

import re
from pathlib import Path

from orlog.normalize.comparison import Estimate
from orlog.normalize.metrics.metrics import Number

ROOT = Path(__file__).parents[2]
ROOMS = (
    *("src/orlog/cli", "src/orlog/reports", "src/orlog/results", "src/orlog/scoring"),
    *("src/orlog/experiments", "normalize"),
)


def test_a_score_that_rounds_to_zero_has_no_sign() -> None:
    assert str(Estimate(-0.02, (-0.04, 0.01))) == "0.0 (0.0 to 0.0)"
    assert str(Estimate(-0.06, None)) == "-0.1"
    number = Number(metric="lost_value", name="lost value", value=-0.001, digits=1)
    assert number.short == "lost value 0.0"


def test_every_rounded_number_is_written_without_the_sign_of_zero() -> None:
    without_z = re.compile(r"[:\"][+]?,?\.(?:\d|\{[\w.]+\})[f%]")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in enumerate(path.read_text("utf-8").splitlines(), 1)
        if without_z.search(text)
    ]
    assert found == [], "write :z.1f in place of :.1f, so that -0.02 is 0.0"
