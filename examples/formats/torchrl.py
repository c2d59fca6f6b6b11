"""A dataset becomes tensors in files, as TorchRL opens them, and such tensors a dataset.

python torchrl.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium

import orlog


def main(folder: Path) -> None:
    """Record two episodes, write them for TorchRL, and read them again."""
    env = orlog.record(gymnasium.make("Pendulum-v1"), "lab/pendulum-v1")
    for _ in range(2):
        env.reset()
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    env.close()
    orlog.export_dataset("lab/pendulum-v1", folder / "out", to="torchrl", lossy=True)
    print("written:", *sorted(path.name for path in (folder / "out").iterdir()))
    # In TorchRL: buffer.extend(TensorDict.load_memmap("out"))
    orlog.import_dataset(
        folder / "out",
        "lab/again-v1",
        on_found=lambda found: print(found.episodes, "episodes of", found.steps, "steps came back"),
    )


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
