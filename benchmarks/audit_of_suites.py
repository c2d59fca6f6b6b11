"""What the audit finds in every dataset of the suites: none of them has a defect, so anything but a note is a false alarm.

    python -m benchmarks.audit_of_suites                        # all of them: hours
    python -m benchmarks.audit_of_suites classic pixels         # those that begin so

Datasets that are not in ORLOG_HOME are built there. The findings are printed and written to
`benchmarks/results/audit_of_suites.txt` after each dataset, where those that were not run stand as such. It exits with 1 if
there is an error or a warning.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orlog
from benchmarks.recording import machine
from orlog.datasets.audit.findings import Audit, place_text
from orlog.datasets.worlds.recipe import catalogue
from orlog.errors import NotFoundError
from orlog.manifests.names import counted

RESULTS = Path(__file__).resolve().parent / "results" / "audit_of_suites.txt"


def main(prefixes: list[str]) -> int:
    """Audit the datasets whose names begin so; return how many false alarms there are."""
    found: dict[str, list[str]] = {}
    alarms = 0
    for name in catalogue():
        if prefixes and not name.startswith(tuple(prefixes)):
            continue
        audit = orlog.audit(built(name))
        alarms += len(audit.of("error")) + len(audit.of("warning"))
        found[name] = _lines(audit)
        print("\n".join(found[name]), flush=True)
        RESULTS.write_text("\n".join([*_all(found), "", machine()]) + "\n")
    print(f"{counted(alarms, 'false alarm')} in {counted(len(found), 'dataset')}")
    return alarms


def built(name: str) -> orlog.Dataset:
    """Return a dataset of the catalogue, which is built unless it is here."""
    try:
        return orlog.load_dataset(name)
    except NotFoundError:
        return orlog.load_dataset(name, build=True)


def _lines(audit: Audit) -> list[str]:
    """Return the outcome of one audit, and its findings below."""
    of = f"{counted(audit.episodes, 'episode')}, {counted(audit.steps, 'step')}"
    return [
        f"{audit.name} {audit.digest[:19]}: {of}, {counted(len(audit.checks), 'check')}: {audit.summary()}",
        *(f"    {one.severity}: {one.check}, {one.column}, {place_text(one)}: {one.text}" for one in audit.findings),
        *(f"    not checked: {check}: {reason}" for check, reason in audit.not_checked.items()),
    ]


def _all(found: dict[str, list[str]]) -> list[str]:
    """Return the lines of all datasets of the catalogue, in its order."""
    return [line for name in catalogue() for line in found.get(name, [f"{name}: not run"])]


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
