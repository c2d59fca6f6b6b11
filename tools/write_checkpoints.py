"""Writes into the table of published scores at which checkpoints those of DQC and QAM were measured, and on which data.

python tools/write_checkpoints.py

Columns of `manifests/recorded/tables/published_scores.csv`, empty for all other scores:

    step           gradient steps at the checkpoint
    online_steps   how many of them were taken while acting in the environment
    episodes       episodes of each seed; of DQC the least number that gives its shares
    data           the dataset that policies learned from

The scores of seeds themselves are those that the authors released. Running it again changes nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re

from orlog.manifests.tables import table_file

COLUMNS = ("step", "online_steps", "episodes", "data")

# ColinQiyangLi/dqc@df89825: README.md says which tasks have larger data, experiments/reproduce.py how large ones.
DQC_SIZES = {"cube-triple": "100m", "cube-quadruple": "100m", "cube-octuple": "1b", "puzzle-4x6": "1b"}
# Its main.py evaluates 50 episodes of each of five tasks, and seohongpark/horizon-reduction@c298aed, which it is built
# on and which some methods were run with, 15. The least number of which the shares are fractions is taken.
DQC_EPISODES = (75, 150, 250)
# ColinQiyangLi/qam@f93efd2: experiments/reproduce.py, and eval_episodes of main.py
QAM_SIZES = {"cube-quadruple": "100m", "puzzle-4x4": "100m"}
QAM_EPISODES = 50
QAM_OFFLINE, QAM_ONLINE = 1_000_000, 500_000
QAM_POINTS = "of the 30 evaluations that the authors recorded, 20 and 30 only"

Row = dict[str, str]


def written(text: str) -> str:
    """Return the text of the table with the columns filled."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows = list(reader)
    names = [name for name in reader.fieldnames or () if name not in COLUMNS]
    at = names.index("protocol") + 1
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, [*names[:at], *COLUMNS, *names[at:]], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        filled = {**row, **dict.fromkeys(COLUMNS, "")}
        if row["implementation"] == "DQC repository":
            alike = [one for one in rows if all(one[name] == row[name] for name in ("algorithm", "dataset"))]
            filled |= _dqc(row, alike)
        elif row["implementation"] == "QAM repository":
            filled |= _qam(row)
        writer.writerow(filled)
    return out.getvalue()


def _dqc(row: Row, alike: list[Row]) -> Row:
    number, unit = re.fullmatch(r"after (\d+) ([kM]) steps", row["protocol"]).groups()  # type: ignore[union-attr]
    shares = [float(text) / 100 for one in alike for text in one["per_seed"].split()]
    episodes = next(
        count for count in DQC_EPISODES if all(math.isclose(x * count, round(x * count), abs_tol=1e-3) for x in shares)
    )
    return {
        "step": str(int(number) * {"k": 1_000, "M": 1_000_000}[unit]),
        "episodes": str(episodes),
        "data": _data(row["dataset"].replace("-oraclerep-", "-"), DQC_SIZES),
    }


def _qam(row: Row) -> Row:
    is_online = "online" in row["protocol"]
    # RLPD has no offline part.
    offline = 0 if row["algorithm"] == "RLPD" else QAM_OFFLINE
    caveats = [text for text in row["caveats"].split(" | ") if text != QAM_POINTS]
    return {
        "step": str(offline + is_online * QAM_ONLINE),
        "online_steps": str(QAM_ONLINE) if is_online else "",
        "episodes": str(QAM_EPISODES),
        "data": _data(re.sub(r"-singletask-task\d-", "-", row["dataset"]), QAM_SIZES),
        "caveats": " | ".join([*caveats, QAM_POINTS]),
    }


def _data(dataset: str, sizes: dict[str, str]) -> str:
    """Return the name of a dataset of the size that policies learned from."""
    task = "-".join(dataset.removeprefix("ogbench/").split("-")[:2])
    stem, _, version = dataset.rpartition("-")
    return "-".join(filter(None, (stem, sizes.get(task, ""), version)))


def write_checkpoints() -> None:
    """Write the table, and its checksum beside it."""
    table, sums = table_file("published_scores"), table_file("checksums").with_suffix(".json")
    table.write_bytes(written(table.read_bytes().decode()).encode())
    body = json.loads(sums.read_text("utf-8"))
    body[table.name]["sha256"] = hashlib.sha256(table.read_bytes()).hexdigest()
    sums.write_text(json.dumps(body, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    write_checkpoints()
