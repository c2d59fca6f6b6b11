import csv

import pytest

from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS, benchmark_dataset, benchmark_datasets, find_benchmark_dataset
from orlog.manifests.tables import table_file

COUNTS = {"d4rl": 183, "atari": 57, "dsrl": 38, "neorl2": 8, "ogbench": 100, "ogmarl": 91, "minari": 34}


def test_every_dataset_of_every_benchmark_has_a_name_of_its_own():
    assert {key: len(benchmark_datasets(key)) for key in BENCHMARKS} == COUNTS
    names = [dataset.name for key in BENCHMARKS for dataset in benchmark_datasets(key)]
    assert len({name.casefold() for name in names}) == sum(COUNTS.values())


@pytest.mark.parametrize("key", BENCHMARKS)
def test_every_number_of_a_dataset_is_found_by_name_and_equals_its_table(key):
    with table_file(key).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            parts = [row[column] for column in BENCHMARKS[key].names]
            found = benchmark_dataset("/".join((key, *filter(None, parts))))
            assert dict(found.facts) == row
            for column, text in row.items():
                try:
                    number = float(text)
                except ValueError:
                    continue
                assert found.number(column) == number
            assert found.source == row["source"]


def test_the_anchors_are_the_benchmarks_own():
    anchors = {
        "d4rl/hopper-medium-v2": (-20.272305, 3234.3),
        "d4rl/antmaze-umaze-v2": (0, 1),
        "d4rl/kitchen-mixed-v0": (0, 4),
        "atari/breakout": (1.7, 30.5),
        "dsrl/OfflineAntRun-v0": (0.001767391717990563, 955.4818725585938),
        "neorl2/Pipeline": (-296, 751),
    }
    for name, expected in anchors.items():
        assert benchmark_dataset(name).anchors == expected
    for name in ("d4rl/carla-town-render-v0", "ogbench/cube-double-play-v0"):
        assert benchmark_dataset(name).anchors is None


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("d4rl/hopper-medium-v2@1.0.0", "d4rl/hopper-medium-v2"),
        ("atari/MsPacman", "atari/ms_pacman"),
        ("dsrl/CarButton1", "dsrl/OfflineCarButton1Gymnasium-v0"),
        ("dsrl/offlinecarbutton1gymnasium-v0", "dsrl/OfflineCarButton1Gymnasium-v0"),
        ("ogmarl/oryx/connector/con-5x5x3a", "ogmarl/oryx/connector/con-5x5x3a"),
    ],
)
def test_other_ways_to_write_a_name(written, name):
    assert benchmark_dataset(written).name == name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("d4rl/hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("hopper-medium-v2", "d4rl/hopper-medium-v2"),
        ("atari/brakout", "atari/breakout"),
        ("ogbench/cube-double-plays-v0", "ogbench/cube-double-play-v0"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(written, meant):
    assert find_benchmark_dataset(written) is None
    with pytest.raises(NotFoundError, match=f"^{written}: no dataset .* Did you mean {meant}"):
        benchmark_dataset(written)
    with pytest.raises(NotFoundError, match="no benchmark is named 'd5rl'; there are d4rl, atari"):
        benchmark_datasets("d5rl")
