"""Files that several processes read become the version that one process makes of them, in every format."""

from __future__ import annotations

import functools
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import orlog
from orlog.base.jobs import execute_here
from orlog.datasets.formats._shared import mapped_arrays, pieces
from orlog.datasets.formats._shared.carried_sums import noted_sums
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Found, Options, Sharing
from orlog.datasets.formats._shared.notes import sentences
from orlog.datasets.formats.formats import Wanted, formats, read_version
from orlog.errors import IntegrityError, OrlogError, SchemaError
from orlog.manifests.manifest import Manifest
from tests.command_line import orlog as run
from tests.datasets.formats import (
    test_bags,
    test_layouts,
    test_lerobot,
    test_neorl2,
    test_npz,
    test_ogbench,
    test_table,
)
from tests.datasets.formats.test_lerobot import png
from tests.fuzz.samples import READERS, Sample, write_samples
from tests.pools import killing_once

MOST_OF_A_JOB = 2**18
JOBS: list[int] = []
LENGTHS = (7, 1, 30, 12, 3)


def backwards(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
    """An executor that takes all jobs, and ends the last one first."""
    yield from reversed([(index, function(job)) for index, job in enumerate(list(jobs))])


def write_aloha(folder: Path) -> Path:
    """Write episodes as ALOHA does, a file each; some arrays were never written."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, length in enumerate(LENGTHS):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["action"] = rng.normal(size=(length, 3)).astype(np.float32)
            file["observations/qpos"] = rng.normal(size=(length, 3))
            frames = rng.integers(0, 256, (length, 6, 8, 3), np.uint8)
            file.create_dataset("observations/images/top", data=frames, fletcher32=number < 2)
            file.create_dataset("base_action", (length, 2), np.float32)
    return folder


def write_groups(folder: Path) -> Path:
    """Write files of several demonstrations each, with final observations and rewards."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(3):
        with h5py.File(folder / f"part_{number}.h5", "w") as file:
            for demo, length in enumerate(LENGTHS):
                group = file.create_group(f"demo_{demo}")
                group["obs"] = rng.normal(size=(length + 1, 4))
                group["act"] = rng.integers(0, 5 + number, length)
                group["rew"] = rng.normal(size=length)
    return folder


GROUPS: dict[str, Any] = {
    "columns": {"observation": "obs", "action": "act", "reward": "rew"},
    "episode": "demo_*",
    "ends": "truncated",
}
CASES: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "aloha": (write_aloha, {}),
    "groups": (write_groups, GROUPS),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("home")
def test_the_version_is_the_same_whoever_reads(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, options = CASES[case]
    folder = write(tmp_path / "files")
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", 2**9)  # so that an episode is several jobs
    monkeypatch.setattr(pieces, "JOB_BYTES", 2**10)
    taken: list[int] = []

    def counting(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
        for index, job in enumerate(jobs):
            taken.append(index)
            yield index, function(job)

    found: list[Found] = []
    manifests: list[Manifest] = []
    several: list[dict[str, Any]] = [
        {},
        {"execute": counting},
        {"execute": backwards},
        {"execute": execute_here, "workers": 3} if case == "aloha" else {"execute": counting},
    ]
    for number, how in enumerate(several):
        monkeypatch.setenv("ORLOG_HOME", str(tmp_path / f"home-{number}"))
        made = orlog.import_dataset(folder, "lab/arm-v1", **options, **how, on_found=found.append)
        manifests.append(orlog.load_dataset(made).manifest)
    assert len(taken) > len(LENGTHS)
    assert {one.digest for one in manifests} == {manifests[0].digest}
    assert [sentences(one.notes) for one in found] == [sentences(found[0].notes)] * len(several)
    assert {str(one.carried_sums) for one in found} == {str(found[0].carried_sums)}
    assert found[0].total_return == pytest.approx(found[1].total_return, abs=0)
    if case == "aloha":
        assert "Never written" in manifests[0].description


def elsewhere(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
    """An executor whose jobs remember nothing of each other, and ends the last one first."""
    packed = [pickle.dumps((function, job)) for job in jobs]
    assert max(map(len, packed)) < MOST_OF_A_JOB
    answers = []
    for index, one in enumerate(packed):
        there, job = pickle.loads(one)
        answers.append((index, pickle.dumps(there(job))))
    JOBS.append(len(answers))
    yield from ((index, pickle.loads(one)) for index, one in reversed(answers))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Sample]]:
    return write_samples(tmp_path_factory.mktemp("samples"))


def made_of(sample: Sample, how: Sharing | None, folder: Path) -> tuple[Any, Found]:
    """Return the manifest of the version that a sample becomes, and what was found."""
    asked = Asked(
        files=sample.given,
        sources=[path.name for path in sample.given],
        options=sample.options,
        sharing=how,
    )
    wanted = Wanted(name="lab/test-v0", version="1.0.0", tells_names=True)
    with noted_sums() as sums:
        manifest, found = read_version(formats()[sample.format], asked, folder, wanted)
    found.carried_sums = sums
    return manifest, found


def write_two_npz(folder: Path) -> None:
    np.savez_compressed(folder / "a-train.npz", **test_npz.flat(9, [3, 8]))
    np.savez(folder / "a-val.npz", **test_npz.flat(5, [4]))


def write_bags(folder: Path) -> None:
    test_bags.write_ros1(folder / "drive-2")
    written, _ = test_bags.write_mcap(folder / "drive")
    written.rename(folder / "drive-10.mcap")
    shutil.rmtree(folder / "drive")


def write_tables(folder: Path, ending: str) -> None:
    test_table.write(test_table.logs([3, 20]), folder / f"a{ending}")
    other = test_table.logs([8, 1], seed=1)
    other["run"] = "other-" + other["run"]
    test_table.write(other, folder / f"b{ending}")


MANY: dict[str, list[tuple[Callable[[Path], object], Options]]] = {
    "npz": [(write_two_npz, Options())],
    "bags": [(write_bags, Options(columns=test_bags.MAPPED, rate=20))],
    "neorl2": [
        (
            lambda folder: [
                test_neorl2.write(folder / f"a-{split}.parquet", test_neorl2.episodes(lengths))
                for split, lengths in (("train", [3, 5]), ("val", [2, 5]))
            ],
            Options(),
        )
    ],
    "ogbench": [
        (
            lambda folder: [
                test_ogbench.write(folder / f"{name}.npz", [4, 3], seed=len(name))
                for name in ("a-000", "a-000-val", "a-001")
            ],
            Options(),
        )
    ],
    "rllib": [
        (
            lambda folder: [
                test_layouts.write_rllib(folder / f"output-{number}.json") for number in (2, 10)
            ],
            Options(),
        )
    ],
    "table": [
        (functools.partial(write_tables, ending=ending), test_table.OPTIONS)
        for ending in (".parquet", ".csv", ".jsonl")
    ],
}
"""Several files of formats whose samples are one."""


def many_files(name: str, folder: Path) -> Iterator[Sample]:
    for number, (write, options) in enumerate(MANY.get(name, ())):
        root = folder / f"many-{number}"
        root.mkdir()
        write(root)
        yield Sample(name, root, tuple(sorted(root.iterdir())), options)


@pytest.mark.parametrize("name", READERS)
def test_every_format_gives_the_same_version_or_says_why_one_process_reads_it(
    name: str, samples: dict[str, list[Sample]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "JOB_BYTES", 1)
    for number, sample in enumerate([*samples[name], *many_files(name, tmp_path)]):
        expected, seen = made_of(sample, None, tmp_path / f"{number}-one")
        how = Sharing(elsewhere, None)
        if not formats()[name].shares:
            assert not formats()[name].alone.startswith("its reader takes"), "say why"
            with pytest.raises(ValueError, match="are read by one process, since"):
                made_of(sample, how, tmp_path / f"{number}-several")
            continue
        manifest, found = made_of(sample, how, tmp_path / f"{number}-several")
        assert manifest.to_json() == expected.to_json()
        assert str(found.carried_sums) == str(seen.carried_sums)
        assert sentences(found.notes) == sentences(seen.notes)
        assert (found.episodes, found.total_return) == (seen.episodes, seen.total_return)
    assert not formats()[name].shares or max(JOBS) > 1, "all in one job"
    JOBS.clear()


@pytest.mark.usefixtures("home")
def test_a_process_that_is_killed_costs_its_own_work_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "frames"
    test_lerobot.write(folder)
    monkeypatch.setattr(pieces, "JOB_BYTES", 2**13)
    killing: dict[str, Any] = {"execute": functools.partial(killing_once, tmp_path), "workers": 2}
    made = [
        orlog.import_dataset(folder, "lab/one-v1"),
        orlog.import_dataset(folder, "lab/several-v1", **killing),
    ]
    assert (tmp_path / "killed").exists()
    one, several = (orlog.load_dataset(folder).manifest.objects for folder in made)
    assert one == several


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in READERS if formats()[name].shares])
def test_three_processes_give_the_version_that_one_gives(
    name: str, samples: dict[str, list[Sample]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "JOB_BYTES", 2**10)
    sample = [*samples[name], *many_files(name, tmp_path)][-1]
    expected, _ = made_of(sample, None, tmp_path / "one")
    assert made_of(sample, Sharing(None, 3), tmp_path / "several")[0] == expected


@pytest.mark.usefixtures("home")
def test_pictures_are_decoded_by_jobs(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), np.uint8)
    packed = [np.frombuffer(png(one)["bytes"], np.uint8) for one in frames]
    longest = max(map(len, packed))
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((9, 1), np.float32)
        file["observations/qpos"] = np.zeros((9, 1))
        rows = np.stack([np.pad(one, (0, longest - len(one))) for one in packed])
        file["observations/images/top"] = rows
    made = orlog.import_dataset(tmp_path / "episode_0.hdf5", "lab/seen-v1", execute=backwards)
    episode = orlog.load_dataset(made)[0]
    assert np.array_equal(episode.observations["images.top"], frames)


@pytest.mark.usefixtures("home")
def test_what_is_wrong_with_a_file_is_told_and_nothing_is_kept(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "files")
    changing = folder / "episode_3.hdf5"

    def damaging(function: Any, jobs: Iterable[Any], **_: object) -> Iterator[tuple[int, Any]]:
        changing.write_bytes(changing.read_bytes()[:2000])
        yield from ((index, function(job)) for index, job in enumerate(list(jobs)))

    with pytest.raises(IntegrityError, match="episode_3"):
        orlog.import_dataset(folder, "lab/arm-v1", execute=damaging)
    with pytest.raises(OrlogError, match="lab/arm-v1 is not known"):
        orlog.load_dataset("lab/arm-v1")


@pytest.mark.usefixtures("home")
def test_formats_that_one_process_reads_say_so(tmp_path: Path) -> None:
    test_npz.write_dsrl(tmp_path / "a.hdf5")
    why = r"are read by one process, since a dataset of DSRL is one file; .* read aloha, arrays"
    with pytest.raises(ValueError, match=why):
        orlog.import_dataset(tmp_path / "a.hdf5", "lab/a-v1", workers=2)
    answered = run("import", "a.hdf5", "lab/a-v1", "--workers", "2", cwd=tmp_path)
    assert answered.returncode == 1
    assert "are read by one process" in " ".join(answered.stderr.split())
    with pytest.raises(OrlogError, match="lab/a-v1 is not known"):
        orlog.load_dataset("lab/a-v1")


def test_what_is_too_large_for_a_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LARGEST_STREAM", 100)
    write_two_npz(tmp_path)
    files = sorted(tmp_path.iterdir())
    with pytest.raises(
        ValueError, match=r"a-train.npz: .* only be read from the first to the last"
    ):
        orlog.import_dataset(files, "lab/a-v1", workers=2)
    write_tables(tmp_path, ".csv")
    said: dict[str, Any] = {"columns": test_table.MAP, "episode": "run", "step": "t", "sort": True}
    with pytest.raises(ValueError, match="in the memory of one process"):
        orlog.import_dataset(tmp_path / "a.csv", "lab/a-v1", workers=2, **said)


def test_a_format_in_a_file_of_the_users_is_read_by_one_process(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from orlog.datasets.formats.formats import Format\n"
        "FORMAT = Format(name='own', open=lambda asked: None, shares=True)\n"
    )
    (tmp_path / "a.log").touch()
    with pytest.raises(ValueError, match="since a file of your own reads them"):
        orlog.import_dataset(tmp_path / "a.log", "lab/a-v1", format=str(own), workers=2)


def test_rows_that_change_their_shape_are_refused_with_their_place() -> None:
    cutter = EpisodeCutter(ends_of_lengths([9]), "some.hdf5")
    rows = {"reward": np.zeros(4), "observation": np.zeros((4, 2))}
    assert len([*cutter.add(rows)]) <= 1
    with pytest.raises(
        SchemaError,
        match=r"some\.hdf5, row 4, observation: rows of shape \(3,\) follow rows of \(2,\)",
    ):
        list(cutter.add({"reward": np.zeros(4), "observation": np.zeros((4, 3))}))
