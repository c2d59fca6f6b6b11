"""A recording of a robot, an MCAP file, becomes rows at a rate of your choice.

python bags.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from mcap.writer import Writer

import orlog

SECOND = 10**9


def main(folder: Path) -> None:
    """Record joints at 50 Hz and commands at 20 Hz, as JSON, and import both at 10 Hz."""
    rng = np.random.default_rng(0)
    with (folder / "drive.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        for topic, period in (("/joints", SECOND // 50), ("/cmd", SECOND // 20)):
            kind = writer.register_schema(topic, "jsonschema", b"{}")
            channel = writer.register_channel(topic, "json", kind)
            for time in range(0, 3 * SECOND, period):
                body = json.dumps({"position": rng.normal(size=6).tolist()}).encode()
                writer.add_message(channel, time, body, time)
        writer.finish()  # type: ignore[no-untyped-call]
    orlog.import_dataset(
        folder / "drive.mcap",
        "lab/drive-v1",
        columns={"observation/joints": "/joints", "action": "/cmd"},
        rate=10,
        on_found=lambda found: print(*found.notes, sep="\n"),
    )
    dataset = orlog.load_dataset("lab/drive-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
