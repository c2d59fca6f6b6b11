"""Small sound files of every format that orlog reads, to be damaged by tests and the fuzzer.

A format that orlog writes has a sample by itself. Any other, and any layout that the writer does not
write, takes one line in `HAND_MADE`.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import formats
from tests.datasets.formats import (
    test_arrays,
    test_bags,
    test_d4rl,
    test_imitation,
    test_layouts,
    test_lerobot,
    test_minari_arrow,
    test_neorl2,
    test_npz,
    test_ogbench,
    test_ogmarl,
    test_open_bandit,
    test_rlds,
    test_rllib,
    test_robomimic,
    test_table,
)
from tests.datasets.formats.reading import read_files

FLAGS = [False, False, True, False, False], [False, False, False, False, True]
NO_OPTIONS = Options()
SAME_READER = {"parquet": "table"}
READERS = tuple(name for name, one in formats().items() if one.open is not None and name not in SAME_READER)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """Sound files.

    Attributes:
        format: Name of the module of their format.
        root: Folder that holds nothing else.
        given: What a user would name of it: the folder itself, or files in it.
        options: What a user would say about them.
    """

    format: str
    root: Path
    given: tuple[Path, ...]
    options: Options


def _d4rl(root, **options):
    body = test_d4rl.rows_of(*FLAGS, next_observations=True)
    test_d4rl.write(root / "a.hdf5", body, **options)


def _minari(root, data_format):
    """Let minari itself write all its spaces."""
    made = test_minari_arrow.odd(root / "minari", data_format, episodes=2)
    shutil.move(made / "data", root / "data")
    shutil.rmtree(root / "minari")


MAPPED = {"observation/state": "obs/state", "observation/image": "obs/image", "action": "actions"}
HAND_MADE = (
    ("aloha", lambda root: test_layouts.write_aloha(root / "episodes"), NO_OPTIONS),
    (
        "arrays",
        lambda root: test_arrays.write_groups(root / "a.h5", [3, 5]),
        Options(columns=MAPPED | {"reward": "r", "terminated": "done"}, episode="demo_*"),
    ),
    ("arrays", lambda root: test_arrays.write_rows(root / "a.npz", [3, 1, 4]), Options(columns=MAPPED, episode="ends")),
    ("bags", lambda root: test_bags.write_mcap(root / "drives" / "drive"), Options(columns=test_bags.MAPPED, rate=20)),
    ("bags", lambda root: test_bags.write_ros1(root / "drive"), Options(columns=test_bags.MAPPED, rate=20)),
    ("calvin", lambda root: test_layouts.write_calvin(root / "training"), NO_OPTIONS),
    ("d4rl", _d4rl, NO_OPTIONS),
    ("d4rl", lambda root: _d4rl(root, compression="gzip", fletcher32=True), NO_OPTIONS),
    ("dqn_replay", lambda root: test_layouts.write_dqn_replay(root / "logs"), NO_OPTIONS),
    ("dsrl", lambda root: test_npz.write_dsrl(root / "a.hdf5"), NO_OPTIONS),
    ("episode_npz", lambda root: test_layouts.write_episode_npz(root / "buffer"), NO_OPTIONS),
    ("imitation", lambda root: test_imitation.write(root / "demos"), NO_OPTIONS),
    ("lerobot", lambda root: test_lerobot.write(root / "arm"), NO_OPTIONS),
    ("lerobot", lambda root: test_lerobot.write(root / "arm", "v2.1"), NO_OPTIONS),
    ("lerobot", lambda root: test_lerobot.write_first(root / "arm"), NO_OPTIONS),
    ("lerobot", lambda root: test_lerobot.write_first(root / "arm", ".parquet"), NO_OPTIONS),
    ("npz", lambda root: np.savez_compressed(root / "a-val.npz", **test_npz.flat(9, [3, 8]), index=[0, 4]), NO_OPTIONS),
    ("maniskill", lambda root: test_layouts.write_maniskill(root), NO_OPTIONS),
    ("minari", lambda root: _minari(root, "hdf5"), NO_OPTIONS),
    ("minari_arrow", lambda root: _minari(root, "arrow"), NO_OPTIONS),
    ("minari_arrow", lambda root: _minari(root, "parquet"), NO_OPTIONS),
    (
        "neorl2",
        lambda root: test_neorl2.write(
            root / "a-train.parquet", test_neorl2.as_published(test_neorl2.episodes([3, 5, 2]))
        ),
        NO_OPTIONS,
    ),
    (
        "neorl2",
        lambda root: test_neorl2.write(root / "a.parquet", test_neorl2.episodes([3, 5]), spread=True),
        NO_OPTIONS,
    ),
    ("ogbench", lambda root: test_ogbench.write(root / "a.npz", [2, 3]), NO_OPTIONS),
    ("ogbench", lambda root: test_ogbench.walk(root / "antmaze-large-navigate-v0.npz"), Options(task="task1")),
    ("ogmarl", lambda root: test_ogmarl.write(root / "Good", test_ogmarl.arrays()), NO_OPTIONS),
    ("open_bandit", test_open_bandit.write_sample, NO_OPTIONS),
    ("rlds", lambda root: test_rlds.write(root / "arm", test_rlds.SAMPLE), NO_OPTIONS),
    ("rllib", lambda root: test_layouts.write_rllib(root / "output.json"), NO_OPTIONS),
    ("rllib", lambda root: test_rllib.write_steps(root / "a" / "0.parquet", ["0b"]), NO_OPTIONS),
    (
        "rllib",
        lambda root: test_rllib.write_episodes(root / "a" / "0.parquet", [("0b", 0, 2), ("0b", 2, 3)]),
        NO_OPTIONS,
    ),
    ("robomimic", lambda root: test_robomimic.write(root / "a.hdf5"), NO_OPTIONS),
    ("table", lambda root: test_table.write(test_table.logs([3, 4]), root / "a.csv"), test_table.OPTIONS),
    ("table", lambda root: test_table.write(test_table.logs([3, 4]), root / "a.jsonl"), test_table.OPTIONS),
    ("table", lambda root: test_table.write(test_table.logs([3, 4]), root / "a.parquet"), test_table.OPTIONS),
    ("zarr", lambda root: test_layouts.write_zarr(root / "a.zarr"), NO_OPTIONS),
    ("zarr", lambda root: test_layouts.write_zarr(root / "a.zarr", version=3), NO_OPTIONS),
    ("zarr", lambda root: test_layouts.write_zipped(root / "a.zarr"), NO_OPTIONS),
)


def write_samples(folder):
    """Write the samples of each format into new folders; return them by its module's name."""
    samples = {name: [] for name in READERS}
    for number, (name, write, options) in enumerate(HAND_MADE):
        root = folder / f"{name}-{number}"
        root.mkdir(parents=True)
        write(root)
        samples[name].append(_sample(name, root, options))
    small = _small_dataset(folder / "small")
    for name, one in formats().items():
        if one.open is not None and one.write is not None:
            root = folder / f"{name}-written"
            root.mkdir()
            one.write(small, root, lambda _done, _total: None)
            name = SAME_READER.get(name, name)
            samples[name].append(_sample(name, root, NO_OPTIONS))
    return samples


def _sample(name, root, options):
    is_folder = "" in formats()[name].extensions
    place, entries = root, sorted(root.iterdir())
    while is_folder and len(entries) == 1 and entries[0].is_dir():  # the folder that holds all
        place = entries[0]
        entries = list(place.iterdir())
    given = (place,) if is_folder else tuple(path for path in entries if path.is_file())
    return Sample(name, root, given, options)


def _small_dataset(folder):
    """Return two episodes, one that ended and one that was cut off, which all formats can hold."""
    folder.mkdir()
    np.savez(folder / "small.npz", **test_npz.flat(5, [2, 4]), qpos=np.zeros((5, 2)))
    return read_files(formats()["npz"], folder / "small.npz", folder / "store")[0]
