from collections import Counter

import msgspec
import pytest

from orlog.datasets.formats.benchmarks import find_task
from orlog.datasets.formats.formats import formats
from orlog.datasets.listing import NOT_READ
from orlog.datasets.reading.finding import how_to_fetch
from orlog.manifests.benchmarks import as_listed, find_benchmark_dataset
from orlog.manifests.shipped import SHIPPED, records_folder, shipped_index, shipped_names
from orlog.manifests.tables import read_table
from tools.write_catalogue import CATALOGUE, catalogue_index, write_catalogue

COUNTS = {
    "d4rl": 183,
    "d4rl-superseded": 24,
    "dsrl": 38,
    "lerobot": 83,
    "libero": 130,
    "mimicgen": 62,
    "minari": 57 + 57 + 167,
    "neorl2": 8,
    "ogbench": 85 + 47 * 6 + 11 + 4,
    "ogmarl": 84,
    "rlds": 7,
    "robomimic": 36,
}


def entries(benchmark):
    for name, versions in shipped_index(benchmark).foreign.items():
        for entry in versions.values():
            yield name, entry


def test_every_benchmark_has_all_its_datasets_under_its_own_name():
    assert {one: len(shipped_index(one).foreign) for one in CATALOGUE} == COUNTS
    files = {path.stem for path in (records_folder() / "foreign").iterdir()}
    assert files == {*SHIPPED, "d4rl-superseded"}
    known = {one.name for one in formats().values()}
    listed = {entry.format for benchmark in SHIPPED for _, entry in entries(benchmark)}
    assert listed - known == NOT_READ
    for benchmark in SHIPPED:
        for name, entry in entries(benchmark):
            assert name.startswith(f"{benchmark.partition('-')[0]}/")
            assert entry.description, name


def test_what_ships_is_made_from_the_tables_of_this_repository(tmp_path, monkeypatch):
    shipped = records_folder() / "foreign"
    (tmp_path / "foreign").mkdir()
    monkeypatch.setattr("tools.write_catalogue.records_folder", lambda: tmp_path)
    write_catalogue()
    made = {path.name: path.read_bytes() for path in (tmp_path / "foreign").iterdir()}
    assert made == {path.name: path.read_bytes() for path in shipped.iterdir()}


def test_a_dataset_that_is_listed_twice_is_refused(monkeypatch):
    entry = next(iter(shipped_index("dsrl").foreign.values()))["1.0.0"]
    other = msgspec.structs.replace(entry, description="Another.")
    monkeypatch.setitem(CATALOGUE, "dsrl", lambda _: iter([("a-v0", entry), ("a", other)]))
    with pytest.raises(ValueError, match="listed twice"):
        catalogue_index("dsrl")


def test_addresses_are_those_of_the_tables_that_ship():
    columns = {"dsrl": ["url"], "neorl2": ["train_url", "val_url"], "ogbench": ["url", "val_url"]}
    for benchmark, names in columns.items():
        in_table = [tuple(filter(None, (row[name] for name in names))) for row in read_table(benchmark)]
        index = shipped_index(benchmark).foreign
        shipped = [
            tuple(file.url for file in versions["1.0.0"].each)
            for name, versions in index.items()
            if "-singletask-" not in name
        ]
        assert sorted(shipped) == sorted(in_table)
    urls = {row["url"] for row in read_table("ogmarl") if row["url"]}
    assert {entry.url for _, entry in entries("ogmarl")} == urls


def test_sizes_and_checksums_are_known_of_these():
    known = {one: sum(all(file.has_checksum for file in entry.each) for _, entry in entries(one)) for one in CATALOGUE}
    assert known == {
        "d4rl": 118 + 24,
        "d4rl-superseded": 24,
        "dsrl": 0,
        "lerobot": 0,
        "libero": 0,
        "mimicgen": 17,
        "minari": 0,
        "neorl2": 8,
        "ogbench": 4 + 4 * 6,
        "ogmarl": 0,
        "rlds": 7,
        "robomimic": 22,
    }
    entry = shipped_index("robomimic").foreign["robomimic/can/ph/low_dim-v0"]["1.0.0"]
    assert (entry.size_bytes, (entry.sha256 or "")[:8]) == (45491992, "2e90c445")


def test_second_places_are_named_of_these():
    named = {
        one: sum(
            all(file.mirrors for file in versions[max(versions)].each)
            for versions in shipped_index(one).foreign.values()
        )
        for one in CATALOGUE
    }
    assert {one: count for one, count in named.items() if count} == {
        "d4rl": 117,
        "dsrl": 38,
        "minari": 31,
        "ogbench": 49 + 47 * 6,
        "robomimic": 14,
    }
    # A page says that this one is another file there.
    assert not shipped_index("d4rl").foreign["d4rl/halfcheetah-medium-v0"]["1.0.1"].mirrors


def test_a_fact_that_came_later_is_another_version_so_that_digests_stay():
    for name in ("mimicgen/core/stack_d0-v0", "robomimic/can/ph/low_dim-v15"):
        versions = shipped_index(name.partition("/")[0]).foreign[name]
        old, new = versions["1.0.0"], versions["1.0.1"]
        changed = {one for one in old.__struct_fields__ if getattr(old, one) != getattr(new, one)}
        assert changed == ({"sha256"} if "mimicgen" in name else {"license"})


def test_rounded_sizes_are_known_of_these():
    known = {
        one: sum(
            any(entry.about_bytes is not None for entry in versions.values())
            for versions in shipped_index(one).foreign.values()
        )
        for one in CATALOGUE
    }
    assert {one: count for one, count in known.items() if count} == {
        "mimicgen": 34,
        "minari": 7,
        "ogmarl": 27,
        "robomimic": 3,
    }


def test_a_listed_dataset_is_one_of_its_benchmark():
    for benchmark in ("d4rl", "dsrl", "neorl2", "ogbench", "ogmarl"):
        for name, _ in entries(benchmark):
            assert find_benchmark_dataset(name) is not None or "-singletask-" in name, name
    pipeline = find_benchmark_dataset("neorl2/pipeline-v0")
    assert pipeline is not None
    assert pipeline is find_benchmark_dataset("neorl2/Pipeline")
    assert pipeline.anchors == (-296.0, 751.0)


def test_larger_sets_of_ogbench_are_folders_with_their_numbers_of_steps():
    facts = {row["dataset_id"]: row for row in read_table("ogbench")}
    larger = {name: one["1.0.0"] for name, one in shipped_index("ogbench").foreign.items() if one["1.0.0"].is_folder}
    assert Counter(name.split("-")[-2] for name in larger) == {"100m": 11, "1b": 4}
    for name, entry in larger.items():
        row = facts[name.removeprefix("ogbench/")]
        steps = int(row["n_train_transitions"])
        assert steps == {"100m": 10**8, "1b": 10**9}[name.split("-")[-2]]
        assert f"{steps:,} steps" in entry.description
        if row["n_train_episodes"]:
            assert int(row["n_train_episodes"]) * int(row["transitions_per_episode"]) == steps
        line = how_to_fetch(name, entry)
        assert f"orlog import {name.removeprefix('ogbench/')} lab/" in line
        assert ("wget" in line) == ("-100m-" in name)


def test_single_tasks_of_ogbench_are_its_files_with_the_rewards_of_a_task():
    index = shipped_index("ogbench").foreign
    plain = index["ogbench/scene-play-v0"]["1.0.0"]
    default = index["ogbench/scene-play-singletask-v0"]["1.0.0"]
    third = index["ogbench/scene-play-singletask-task3-v0"]["1.0.0"]
    assert plain.files == default.files == third.files
    assert (plain.task, default.task, third.task) == (None, "task2", "task3")
    for name, entry in entries("ogbench"):
        if name.endswith("-singletask-v0"):
            task = find_task("singletask", entry.files[0].path, name)
            assert entry.task == f"task{task.number}"


@pytest.mark.parametrize(
    ("typed", "listed"),
    [
        ("minari/D4RL/door/human-v2", "minari/d4rl/door/human-v2"),
        ("minari/D4RL/door/human-v2@1.0.0", "minari/d4rl/door/human-v2@1.0.0"),
        ("neorl2/Pipeline", "neorl2/pipeline-v0"),
        ("mimicgen/core/coffee_d0", "mimicgen/core/coffee_d0-v0"),
        ("robomimic/can/ph/low_dim", "robomimic/can/ph/low_dim-v0"),
        ("ogmarl/og_marl/smac_v1/3m/Good", "ogmarl/og_marl/smac_v1/3m/good-v0"),
        ("dsrl/CarCircle", "dsrl/offlinecarcircle-v0"),
        ("dsrl/OfflineCarCircle-v0", "dsrl/offlinecarcircle-v0"),
        ("ogbench/cube-single-play-v0", "ogbench/cube-single-play-v0"),
        ("minari/D4RL/doors/human-v2", "minari/D4RL/doors/human-v2"),
        ("Lab/Robot-v1", "Lab/Robot-v1"),
    ],
)
def test_names_are_found_as_their_benchmark_writes_them(typed, listed):
    assert as_listed(typed) == listed
    assert listed in shipped_names() or listed == typed or "@" in listed
