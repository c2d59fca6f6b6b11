"""Writes the tables of recorded baselines into docs/suites.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.manifests.shipped import recorded_manifest
from orlog.normalize.references import read_baselines
from orlog.normalize.statistics import Estimate, bootstrap_interval
from orlog.runs.scores import references_of
from orlog.runs.sweeps import suite_datasets

PAGE = Path(__file__).with_name("suites.md")
TABLE = re.compile(r"<!-- baselines of ([\w-]+) -->\n.*?<!-- end of baselines -->\n", re.DOTALL)


def page_with_tables() -> str:
    """Return the page with the tables as the recorded baselines give them."""

    def table(found: re.Match[str]) -> str:
        lines = "\n\n".join("\n".join(lines) for lines in baseline_tables(found[1]))
        return f"<!-- baselines of {found[1]} -->\n{lines}\n<!-- end of baselines -->\n"

    return TABLE.sub(table, PAGE.read_text("utf-8"))


def baseline_tables(suite: str) -> list[list[str]]:
    """Return the lines of each table: a row for each dataset, a column for each algorithm.

    Datasets that have no algorithm in common are in different tables.
    """
    tables: list[dict[str, dict[str, str]]] = []
    for name in suite_datasets(suite):
        row = baseline_cells(name)
        shared = [one for one in tables if any(row.keys() & other.keys() for other in one.values())]
        if row and not shared:
            tables.append({name: row})
        elif row:
            shared[0][name] = row
    return [_table_lines(rows) for rows in tables]


def _table_lines(rows: dict[str, dict[str, str]]) -> list[str]:
    algorithms = sorted({algorithm for row in rows.values() for algorithm in row})
    lines = [f"| dataset | {' | '.join(f'`{one}`' for one in algorithms)} |", "|---" * (1 + len(algorithms)) + "|"]
    for name, row in rows.items():
        cells = " | ".join(row.get(one, "") for one in algorithms)
        lines.append(f"| `{name}` | {cells} |")
    return lines


def baseline_cells(name: str) -> dict[str, str]:
    """Return each recorded algorithm's mean score, with its 95 % interval, on a dataset.

    Where it was run as what has another name than usual, such as BC-25%, that stands before it.
    """
    manifest = recorded_manifest(name)
    assert manifest is not None, name
    references = references_of(manifest)
    cells = {}
    for baseline in read_baselines(name):
        assert references is not None, name
        scores = np.array([*baseline.scores(references).values()])
        interval = bootstrap_interval(scores, np.random.default_rng(0))
        title = algorithm_title(baseline.algorithm, baseline.settings)
        what = "" if title == algorithm_title(baseline.algorithm) else f"{title}: "
        cells[baseline.algorithm] = f"{what}{Estimate(float(scores.mean()), interval)}"
    return cells


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(), "utf-8")
