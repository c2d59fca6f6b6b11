"""Families of datasets: one table, with its page of the docs."""

from __future__ import annotations

from pathlib import Path

from orlog.manifests.families import FAMILIES
from orlog.manifests.roles import ROLES

ROOT = Path(__file__).parents[2]


def test_the_page_of_families_has_both_tables() -> None:
    page = (ROOT / "docs" / "families.md").read_text("utf-8")
    for family in FAMILIES.values():
        assert f"| `{family.name}` | {family.about} |" in page
    for role in ROLES.values():
        of = f"`{role.family}`" if role.family else ""
        axes = ", ".join(f"{axis}s" for axis in role.axes)
        usual = " ".join(f"`{one}`" for one in role.usual)
        row = f"| `{role.name}` | {of} | {axes} | {role.meaning} | {usual} |"
        assert row in page, role.name
