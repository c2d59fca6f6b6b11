"""Files that several processes read become the version that one process makes of them, in every format."""

import functools
import pickle
import shutil

import h5py
import numpy as np
import pytest

import orlog
from orlog import OrlogError
from orlog.base.jobs import execute_here
from orlog.datasets.formats.episode_cutter import EpisodeCutter, ends_of_lengths
from orlog.datasets.formats.episodes import Asked, Options, Sharing
from orlog.datasets.formats.formats import Wanted, formats, read_version
from orlog.datasets.formats.notes import noted_blanks, sentences
from orlog.errors import IntegrityError, SchemaError
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
from tests.fuzz.samples import READERS, Sample
from tests.pools import killing_once

JOBS = []
LENGTHS = (7, 1, 30, 12, 3)


def backwards(function, jobs, **_):
    """An executor that takes all jobs, and ends the last one first."""
    yield from reversed([(index, function(job)) for index, job in enumerate(list(jobs))])


def write_aloha(folder):
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


@pytest.mark.usefixtures("home")
def test_the_version_is_the_same_whoever_reads(tmp_path, monkeypatch):
    folder = write_aloha(tmp_path / "files")
    found = []
    manifests = []
    several = [
        {},
        {"execute": backwards},
        {"execute": execute_here, "workers": 3},
        {"execute": functools.partial(killing_once, tmp_path), "workers": 2},
    ]
    for number, how in enumerate(several):
        monkeypatch.setenv("ORLOG_HOME", str(tmp_path / f"home-{number}"))
        made = orlog.import_dataset(folder, "lab/arm-v1", **how, on_found=found.append)
        manifests.append(orlog.load_dataset(made).manifest)
    assert (tmp_path / "killed").exists()
    assert {one.digest for one in manifests} == {manifests[0].digest}
    assert [sentences(one.notes) for one in found] == [sentences(found[0].notes)] * len(several)
    assert found[0].total_return == pytest.approx(found[1].total_return, abs=0)
    assert "Never written" in manifests[0].description


def elsewhere(function, jobs, **_):
    """An executor whose jobs remember nothing of each other, and ends the last one first."""
    packed = [pickle.dumps((function, job)) for job in jobs]
    answers = []
    for index, one in enumerate(packed):
        there, job = pickle.loads(one)
        answers.append((index, pickle.dumps(there(job))))
    JOBS.append(len(answers))
    yield from ((index, pickle.loads(one)) for index, one in reversed(answers))


def made_of(sample, how, folder):
    """Return the manifest of the version that a sample becomes, and what was found."""
    asked = Asked(files=sample.given, sources=[path.name for path in sample.given], options=sample.options, sharing=how)
    wanted = Wanted(name="lab/test-v0", version="1.0.0", tells_names=True)
    with noted_blanks():
        manifest, found = read_version(formats()[sample.format], asked, folder, wanted)
    return manifest, found


def write_two_npz(folder):
    np.savez_compressed(folder / "a-train.npz", **test_npz.flat(9, [3, 8]))
    np.savez(folder / "a-val.npz", **test_npz.flat(5, [4]))


def write_frames(folder):
    test_lerobot.write(folder / "arm", "v2.1")


def write_bags(folder):
    test_bags.write_ros1(folder / "drive-2")
    written, _ = test_bags.write_mcap(folder / "drive")
    written.rename(folder / "drive-10.mcap")
    shutil.rmtree(folder / "drive")


def write_tables(folder, ending):
    test_table.write(test_table.logs([3, 20]), folder / f"a{ending}")
    other = test_table.logs([8, 1], seed=1)
    other["run"] = "other-" + other["run"]
    test_table.write(other, folder / f"b{ending}")


MANY = {
    "aloha": [(lambda folder: write_aloha(folder / "arm"), Options())],
    "lerobot": [(write_frames, Options())],
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
        (lambda folder: [test_layouts.write_rllib(folder / f"output-{number}.json") for number in (2, 10)], Options())
    ],
    "table": [
        (functools.partial(write_tables, ending=ending), test_table.OPTIONS)
        for ending in (".parquet", ".csv", ".jsonl")
    ],
}
"""Several files of formats whose samples are one."""


def many_files(name, folder):
    for number, (write, options) in enumerate(MANY.get(name, ())):
        root = folder / f"many-{number}"
        root.mkdir()
        write(root)
        yield Sample(name, root, tuple(sorted(root.iterdir())), options)


@pytest.mark.filterwarnings("ignore:.*one process reads these data")
@pytest.mark.parametrize("name", [name for name in READERS if formats()[name].shares])
def test_jobs_give_the_version_that_one_process_gives(name, samples, tmp_path):
    for number, sample in enumerate([*samples[name], *many_files(name, tmp_path)]):
        expected, seen = made_of(sample, None, tmp_path / f"{number}-one")
        manifest, found = made_of(sample, Sharing(elsewhere, None), tmp_path / f"{number}-several")
        assert manifest.to_json() == expected.to_json()
        assert sentences(found.notes) == sentences(seen.notes)
        assert (found.episodes, found.total_return) == (seen.episodes, seen.total_return)
    assert not MANY.get(name) or max(JOBS) > 1, "all in one job"
    JOBS.clear()


@pytest.mark.usefixtures("home")
def test_what_is_wrong_with_a_file_is_told_and_nothing_is_kept(tmp_path):
    folder = write_aloha(tmp_path / "files")
    changing = folder / "episode_3.hdf5"

    def damaging(function, jobs, **_):
        changing.write_bytes(changing.read_bytes()[:2000])
        yield from ((index, function(job)) for index, job in enumerate(list(jobs)))

    with pytest.raises(IntegrityError, match="episode_3"):
        orlog.import_dataset(folder, "lab/arm-v1", execute=damaging)
    with pytest.raises(OrlogError, match="lab/arm-v1 is not known"):
        orlog.load_dataset("lab/arm-v1")


@pytest.mark.usefixtures("home")
def test_data_in_one_file_are_read_by_one_process_and_a_warning_says_so(tmp_path):
    write_aloha(tmp_path / "files")
    test_npz.write_dsrl(tmp_path / "a.hdf5")
    with pytest.warns(UserWarning, match=r"a\.hdf5: one process reads .* of dsrl"):
        orlog.import_dataset(tmp_path / "a.hdf5", "lab/a-v1", workers=2)
    with pytest.warns(UserWarning, match="a job reads a whole file, and the data are in one"):
        orlog.import_dataset(tmp_path / "files/episode_3.hdf5", "lab/b-v1", workers=2)
    answered = run("import", "files/episode_0.hdf5", "lab/c-v1", "--workers", "2", cwd=tmp_path)
    assert answered.returncode == 0
    assert "one process reads these data" in " ".join(answered.stderr.split())


def test_rows_that_change_their_shape_are_refused_with_their_place():
    cutter = EpisodeCutter(ends_of_lengths([9]), "some.hdf5")
    rows = {"reward": np.zeros(4), "observation": np.zeros((4, 2))}
    assert len([*cutter.add(rows)]) <= 1
    with pytest.raises(
        SchemaError, match=r"some\.hdf5, row 4, observation: rows of shape \(3,\) follow rows of \(2,\)"
    ):
        list(cutter.add({"reward": np.zeros(4), "observation": np.zeros((4, 3))}))
