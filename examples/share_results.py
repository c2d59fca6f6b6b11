"""Adds a result with every episode's return to a folder, has it confirmed, and shows it in a table.

pip install "orlog[mujoco]"
python share_results.py
"""

from __future__ import annotations

from pathlib import Path

import orlog
from orlog.results.making import Stated, results_of_runs
from orlog.results.places import add_documents, collect
from orlog.results.reproducing import reproduce_result
from orlog.results.tables import make_board

NAME = "pointmaze/umaze-mini-v1"
RESULTS = "results"


def main() -> None:
    """Run the example."""
    dataset = orlog.load_dataset(NAME, build=True)
    for seed in range(2):
        out = Path("shared", f"seed-{seed}")
        run = orlog.train(
            "bc",
            dataset,
            seed=seed,
            steps=100,
            evaluations=1,
            curve_episodes=2,
            out=out,
            overwrite=True,
        )
        orlog.evaluate(run, episodes=4)
    (result,) = results_of_runs(["shared"], Stated(by="Ada, Lab A", tried=1))
    add_documents(RESULTS, {result.path: result})
    note, verdict = reproduce_result(result, Path("again"), seeds=[0], by="Bob, Lab B")
    add_documents(RESULTS, {note.path_beside(result.path): note})
    print(f"{note.kind}: {verdict.word}")
    (table,) = make_board(collect([RESULTS]), [NAME], others=False).tables
    for row in table.rows:
        print(
            f"{row.name}: {row.score}, {len(row.entry.result.seeds)} seeds, {'; '.join(row.state)}"
        )


if __name__ == "__main__":
    main()
