"""Writes the catalogue of third-party datasets that ships, from tables that lie in this repository.

python tools/write_catalogue.py

Each benchmark is one index in `manifests/recorded/foreign/`. Addresses, sizes and checksums are those of the
tables in `manifests/recorded/tables/` and, of files alone, in `tools/reference/`; what these do not have is
written here, with its source. What is not known is left out.
Names are the benchmark's own after its key, in lower case, and end in `-v0` where the benchmark's
names have no version. Other files with the same data are an older version, so that they are only
taken when it is named.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from orlog.manifests.index import ForeignEntry, ForeignFile, Index
from orlog.manifests.names import versioned
from orlog.manifests.shipped import records_folder
from orlog.manifests.tables import TABLES, read_table

Row = Mapping[str, str]
Entries = Iterator[tuple[str, ForeignEntry]]
Tables = Callable[[str], Iterable[Row]]

REFERENCE = Path(__file__).parent / "reference"
VERSION = "1.0.0"
KNOWN_SINCE = "1.0.1"  # of a checksum or license that came later: versions read from 1.0.0 keep their digests
D4RL_VERSION = "1.0.1"
D4RL_LICENSE = "CC-BY-4.0"  # Farama-Foundation/D4RL@89141a689b:README.md
OTHER_FILES = "0.9.0"
SERIALS = {"d4rl": 110}  # readers refuse an index with a smaller one than they have seen
HUB = "https://huggingface.co/datasets"
# Its README: "the pre-downloaded D4RL dataset", in the layout of D4RL's own cache; the SHA-256 of its pages
# in hub_files.csv are those of D4RL's files but for one, so that files without a checksum are not taken there.
D4RL_HUB = "imone/D4RL"

# Farama-Foundation/Minari@1880118a0d:minari/storage/remotes (address, layout); the bucket is where
# Minari kept D4RL's before (Farama-Foundation/Minari@3864a98f:minari/storage/remotes/__init__.py).
MINARI_HUB = f"{HUB}/farama-minari"
MINARI_BUCKET = "https://storage.googleapis.com/minari-remote"
# Names: minari.csv, and versions that it lacks from Farama-Foundation/minari-dataset-generation-scripts
# (@765bb14280 hammer, relocate; @f4579c7760 kitchen; @3a6e35f68c minigrid; @75fd1285aa pointmaze),
# Farama-Foundation/Minari@1880118a0d:docs/content/basic_usage.md (antmaze) and the folders of
# huggingface.co/datasets/farama-minari/mujoco (mujoco).
MINARI_DATASETS = {
    "D4RL/antmaze": (
        *("umaze-v1", "umaze-diverse-v1", "medium-play-v1", "medium-diverse-v1"),
        *("large-play-v1", "large-diverse-v1"),
    ),
    **{f"D4RL/{task}": ("human-v2", "cloned-v2", "expert-v2") for task in ("door", "hammer", "pen", "relocate")},
    "D4RL/kitchen": ("complete-v2", "mixed-v2", "partial-v2"),
    "D4RL/minigrid": ("fourrooms-v0", "fourrooms-random-v0"),
    "D4RL/pointmaze": tuple(
        f"{maze}{reward}-v2" for maze in ("open", "umaze", "medium", "large") for reward in ("", "-dense")
    ),
    **{
        f"mujoco/{robot}": ("simple-v0", "medium-v0", "expert-v0")
        for robot in ("ant", "halfcheetah", "hopper", "humanoid", "walker2d")
    },
    **{
        f"mujoco/{robot}": ("medium-v0", "expert-v0")
        for robot in ("inverteddoublependulum", "invertedpendulum", "pusher", "reacher", "swimmer")
    },
}

# seohongpark/ogbench#49, a comment of OGBench's author: "uploaded the datasets to Hugging Face". Read_file id
# 61184244544 (a repository that loads from there) says which: all of states, and visual-scene.
OGBENCH_HUB = f"{HUB}/zhouzypaul/ogbench_datasets/resolve/main"
DEFAULT_TASK = "single-task default task: "
TASKS = "12345"

# huggingface.co/datasets/polixirai/NeoRL2, which NeoRL-2's README names
NEORL2_HUB = f"{HUB}/polixirai/NeoRL2/resolve/main"

# ARISE-Initiative/robomimic@d309eaecc1:robomimic/__init__.py, and docs/datasets/robomimic_v0.1.md for the
# second place, where @7c66e7a had it; huggingface.co/datasets/amandlek/robomimic says the license
ROBOMIMIC_HUB = f"{HUB}/robomimic/robomimic_datasets/resolve/main"
ROBOMIMIC_HUB_BEFORE = f"{HUB}/amandlek/robomimic/resolve/main"
ROBOMIMIC_LICENSE = "MIT"
ROBOMIMIC_15 = (
    *(f"{task}/ph/low_dim" for task in ("lift", "can", "square", "transport", "tool_hang")),
    *(f"{task}/mh/low_dim" for task in ("lift", "can", "square", "transport")),
    *(f"{task}/mg/low_dim_{reward}" for task in ("lift", "can") for reward in ("sparse", "dense")),
    "can/paired/low_dim",
)

# NVlabs/mimicgen, whose registry of datasets says the repository on the Hub
MIMICGEN_HUB = f"{HUB}/amandlek/mimicgen_datasets/resolve/main"

# Lifelong-Robot-Learning/LIBERO@8f1084e313: libero/libero/utils/download_utils.py (the repository on the Hub),
# libero/libero/benchmark/__init__.py (names of files), README.md (license)
LIBERO_HUB = f"{HUB}/yifengzhu-hf/LIBERO-datasets/resolve/main"
LIBERO_LICENSE = "CC-BY-4.0"

# liuzuxin/DSRL@40dd4db:dsrl/infos.py, before DSRL moved its files to the Hub
DSRL_BEFORE = "http://data.offline-saferl.org/download"


def _dsrl(tables: Tables) -> Entries:
    """DSRL's files; their names hold the largest cost and the number of episodes."""
    for row in tables("dsrl"):
        yield (
            row["dataset_id"],
            ForeignEntry(
                url=row["url"],
                mirrors=(f"{DSRL_BEFORE}/{row['url'].rpartition('/')[2]}",),
                format="dsrl-hdf5",
                description=f"DSRL's {row['dataset_id']}.",
                license="CC-BY-4.0",  # liuzuxin/DSRL@71064f2197:README.md
            ),
        )


def _minari(tables: Tables) -> Entries:
    sizes = {row["dataset_id"]: row["size_mb"] for row in tables("minari")}
    names = [f"{folder}/{name}" for folder, names in MINARI_DATASETS.items() for name in names]
    for dataset in (*names, *_names(tables, "minari")):
        repository, _, rest = dataset.partition("/")
        files = tuple(
            ForeignFile(
                path=path,
                url=f"{MINARI_HUB}/{repository}/resolve/main/{rest}/{path}",
                mirrors=(f"{MINARI_BUCKET}/{dataset}/{path}",) if repository == "D4RL" else (),
            )
            for path in ("data/main_data.hdf5", "data/metadata.json")
        )
        size = float(sizes.get(dataset) or 0) * 1e6
        yield (
            dataset,
            ForeignEntry(
                files=files,
                format="minari-hdf5",
                description=f"Minari's {dataset}.",
                about_bytes=round(size) or _about(tables, f"farama-minari/{repository}", files),
            ),
        )


def _neorl2(tables: Tables) -> Entries:
    for row in tables("neorl2"):
        files = tuple(
            ForeignFile(path=row[f"{split}_url"].rpartition("/")[2], url=row[f"{split}_url"], md5=row[f"{split}_md5"])
            for split in ("train", "val")
        )
        yield (
            row["task"],
            ForeignEntry(
                files=files,
                format="npz",
                description=f"NeoRL-2's {row['task']}.",
                license="CC-BY-4.0",  # polixir/NeoRL2@b50d91d0a6:README.md
            ),
        )
        if row["in_published_benchmark"] != "yes":
            continue
        files = tuple(
            ForeignFile(path=path.rpartition("/")[2], url=f"{NEORL2_HUB}/{path}")
            for split in ("train", "val")
            for path in (f"{row['task']}/{split}/{row['task']}-{split}.parquet",)
        )
        yield (
            f"{row['task']}@{OTHER_FILES}",
            ForeignEntry(
                files=files,
                format="neorl2-parquet",
                description=f"NeoRL-2's {row['task']}, as the Parquet files of its copy on the Hub.",
                license="CC-BY-4.0",
            ),
        )


def _ogbench(tables: Tables) -> Entries:
    """OGBench's datasets, and their single tasks, which are the same files with rewards."""
    checked = {row["url"].rpartition("/")[2]: row for row in tables("other_files") if row["benchmark"] == "OGBench"}
    for row in tables("ogbench"):
        if row["url"].endswith("/"):  # larger sets, whose files nobody lists
            text = f"OGBench's {row['dataset_id']}: {int(row['n_train_transitions']):,} steps"
            parts = row["notes"].partition(";")[0]
            yield (
                row["dataset_id"],
                ForeignEntry(
                    url=row["url"], format="ogbench-npz", description=f"{text}{f', {parts}' if parts else ''}."
                ),
            )
            continue
        files = []
        has_copy = row["obs"] == "state" or row["dataset_id"].startswith("visual-scene-")
        for url in (row["url"], row["val_url"]):
            path = url.rpartition("/")[2]
            mirrors = (f"{OGBENCH_HUB}/{path}",) if has_copy else ()
            files.append(ForeignFile(path=path, url=url, mirrors=mirrors, **_checksum(checked.get(path))))
        dataset, says = row["dataset_id"], f"OGBench's {row['dataset_id']}"
        entry = ForeignEntry(files=tuple(files), format="ogbench-npz", description=f"{says}.")
        yield dataset, entry
        default = row["notes"].removeprefix(DEFAULT_TASK)
        if default == row["notes"]:
            continue
        stem, _, version = dataset.rpartition("-")
        for name, task in (("", default), *((f"-task{one}", one) for one in TASKS)):
            yield (
                f"{stem}-singletask{name}-{version}",
                msgspec.structs.replace(
                    entry,
                    task=f"task{task}",
                    description=f"{says} with the rewards of task {task}" + (", the default one." if not name else "."),
                ),
            )


def _ogmarl(tables: Tables) -> Entries:
    """OG-MARL's vaults: one archive holds all datasets of a scenario."""
    for row in tables("ogmarl"):
        if not row["url"]:
            continue
        dataset = "/".join(row[column] for column in ("collection", "env", "scenario", "dataset"))
        yield (
            dataset,
            ForeignEntry(
                url=row["url"],
                format="og-marl-vault",
                task=row["dataset"],
                description=f"OG-MARL's {dataset}.",
                license="Apache-2.0",  # huggingface.co/datasets/InstaDeepAI/og-marl
                about_bytes=_about(tables, "InstaDeepAI/og-marl", row["url"]),
            ),
        )


def _rlds(tables: Tables) -> Entries:
    for row in tables("other_files"):
        kind, _, builder = row["benchmark"].partition(" ")
        if kind != "RLDS":
            continue
        file = row["url"].rpartition("/")[2].removesuffix(".tar.gz")
        config = file.removeprefix(f"rlds_{builder}_")
        yield (
            f"{builder}/{config}",
            ForeignEntry(
                url=row["url"],
                format="envlogger",
                description=f"TensorFlow Datasets' {builder}/{config}.",
                **_checksum(row),
            ),
        )


def _robomimic(tables: Tables) -> Entries:
    """The files of 2021 (-v0), and those of robosuite 1.5 (-v15), which say so in their names."""
    for row in tables("other_files"):
        if row["benchmark"] == "robomimic":
            yield (
                row["dataset_id"],
                ForeignEntry(
                    url=row["url"],
                    format="robomimic-hdf5",
                    description=f"robomimic's {row['dataset_id']} of 2021.",
                    **_checksum(row),
                ),
            )
    for dataset in ROBOMIMIC_15:
        path = f"v1.5/{dataset}_v15.hdf5"
        entry = ForeignEntry(
            url=f"{ROBOMIMIC_HUB}/{path}",
            mirrors=(f"{ROBOMIMIC_HUB_BEFORE}/{path}",),
            format="robomimic-hdf5",
            description=f"robomimic's {dataset} for robosuite 1.5.",
            about_bytes=_about(tables, "robomimic/robomimic_datasets", path),
        )
        yield from _also(f"{dataset}-v15", entry, license=ROBOMIMIC_LICENSE)


def _mimicgen(tables: Tables) -> Entries:
    """MimicGen's generated demonstrations and the sources of them, by the paths that its registry has."""
    pages = _pages(tables, "amandlek/mimicgen_datasets")
    for row in tables("mimicgen"):
        path = f"{row['dataset_id']}.hdf5"
        entry = ForeignEntry(
            url=f"{MIMICGEN_HUB}/{path}",
            format="robomimic-hdf5",
            description=f"MimicGen's {row['dataset_id']}; episodes are evaluated for {row['horizon']} steps.",
            license="CC-BY-4.0",  # NVlabs/mimicgen@72bd767c25:README.md
            about_bytes=_about(tables, "amandlek/mimicgen_datasets", path),
        )
        page = pages.get(path, {})
        facts: dict[str, Any] = {"sha256": page["sha256"]} if page.get("sha256") else {}
        if page.get("size_bytes"):
            facts |= {"size_bytes": int(page["size_bytes"]), "about_bytes": None}
        yield from _also(row["dataset_id"], entry, **facts)


def _libero(tables: Tables) -> Entries:
    """LIBERO's demonstrations, a file for each task of its five suites."""
    for dataset in _names(tables, "libero"):
        yield (
            dataset,
            ForeignEntry(
                url=f"{LIBERO_HUB}/{dataset}_demo.hdf5",
                format="robomimic-hdf5",
                description=f"LIBERO's {dataset}.",
                license=LIBERO_LICENSE,
            ),
        )


def _lerobot(tables: Tables) -> Entries:
    """LeRobot's own datasets: names of folders of the Hub, whose files are not known."""
    for dataset in _names(tables, "lerobot"):
        yield (
            dataset,
            ForeignEntry(url=f"hf://datasets/lerobot/{dataset}", format="lerobot", description=f"LeRobot's {dataset}."),
        )


def _names(tables: Tables, benchmark: str) -> list[str]:
    return [row["dataset_id"] for row in tables("names") if row["benchmark"] == benchmark]


def _pages(tables: Tables, repository: str) -> dict[str, Row]:
    """Return what pages of a repository on the Hub say of its files, by path."""
    return {row["path"]: row for row in tables("hub_files") if row["repository"] == repository}


def _about(tables: Tables, repository: str, file: str | tuple[ForeignFile, ...]) -> int | None:
    """Return the size of a file as its page on the Hub rounds it; that of the first one of several."""
    url = file if isinstance(file, str) else file[0].url
    for path, row in _pages(tables, repository).items():
        if url.endswith(f"/{path}") or url == path:
            number, unit = row["size"].split()
            return round(float(number) * {"MB": 1e6, "GB": 1e9}[unit])
    return None


def _also(dataset: str, entry: ForeignEntry, **facts: Any) -> Entries:
    """Yield an entry, and another version of it where more is known that its versions would say."""
    yield dataset, entry
    if facts:
        yield f"{dataset}@{KNOWN_SINCE}", msgspec.structs.replace(entry, **facts)


def _checksum(row: Row | None) -> dict[str, Any]:
    return {} if row is None else {"size_bytes": int(row["size_bytes"]), "sha256": row["sha256"]}


def _d4rl(tables: Tables) -> Entries:
    checked = {row["url"]: row for row in tables("d4rl_files")}
    pages = _pages(tables, D4RL_HUB)
    for row in tables("d4rl"):
        file = checked.get(row["url"])
        path = row["url"].rpartition("/")[2]
        page = pages.get(path)
        has_copy = file is not None and (page is None or page["sha256"] == file["sha256"])
        yield (
            f"{row['dataset_id']}@{D4RL_VERSION}",
            ForeignEntry(
                url=row["url"],
                mirrors=(f"{HUB}/{D4RL_HUB}/resolve/main/{path}",) if has_copy else (),
                format="d4rl-hdf5",
                description=f"D4RL's {row['dataset_id']}.",
                license=D4RL_LICENSE,
                **_checksum(file),
            ),
        )


def _d4rl_superseded(tables: Tables) -> Entries:
    """The files that D4RL replaced by others under the same names."""
    for row in tables("d4rl_files_superseded"):
        yield (
            f"{row['dataset_id']}@{OTHER_FILES}",
            ForeignEntry(
                url=row["url"],
                format="d4rl-hdf5",
                description=f"D4RL's {row['dataset_id']} as it was before D4RL replaced the file under the same name.",
                license=D4RL_LICENSE,
                **_checksum(row),
            ),
        )


CATALOGUE: dict[str, Callable[[Tables], Entries]] = {
    "d4rl": _d4rl,
    "d4rl-superseded": _d4rl_superseded,
    "dsrl": _dsrl,
    "lerobot": _lerobot,
    "libero": _libero,
    "mimicgen": _mimicgen,
    "minari": _minari,
    "neorl2": _neorl2,
    "ogbench": _ogbench,
    "ogmarl": _ogmarl,
    "rlds": _rlds,
    "robomimic": _robomimic,
}


def _table(name: str) -> Iterable[Row]:
    if name in TABLES:
        return read_table(name)
    with (REFERENCE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def catalogue_index(benchmark: str) -> Index:
    """Return the index of a benchmark."""
    foreign: dict[str, dict[str, ForeignEntry]] = {}
    key = benchmark.partition("-")[0]
    for dataset, entry in CATALOGUE[benchmark](_table):
        name, _, version = f"{key}/{dataset}".lower().partition("@")
        versions = foreign.setdefault(versioned(name), {})
        if versions.setdefault(version or VERSION, entry) is not entry:
            raise ValueError(f"{name}: listed twice.")
    return Index(foreign=foreign, serial=SERIALS.get(benchmark, 0))


def write_catalogue() -> None:
    """Write the index of every benchmark."""
    for benchmark in CATALOGUE:
        path = records_folder() / "foreign" / f"{benchmark}.json"
        path.write_bytes(catalogue_index(benchmark).to_json())


if __name__ == "__main__":
    write_catalogue()
