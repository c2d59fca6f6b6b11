"""What holds for every format that orlog writes: what is exported comes back, but for what it was said to lose.

A format joins by its line in `WRITTEN`. One flipped bit anywhere in an export is noticed by its list of checksums, also
where a part of it is imported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.formats.formats import formats
from orlog.errors import IntegrityError, SchemaError
from tests.command_line import orlog as orlog_command
from tests.datasets.recorded_samples import record_samples
from tests.episodes import record_episodes, whole_episode
from tests.levels import scaled

VECTOR, ONE = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
FRAME = spaces.Box(0, 255, (8, 6, 3), np.uint8)
KINDS = {
    "vectors": (VECTOR, ONE),
    "doubles": (spaces.Box(-1, 1, (2,), np.float64), spaces.Box(-1, 1, (2,), np.float64)),
    "choices": (VECTOR, spaces.Discrete(4)),
    "frames": (FRAME, spaces.Discrete(4)),
    "parts": (spaces.Dict({"arm": VECTOR, "frame": FRAME}), ONE),
    "pairs": (spaces.Tuple([VECTOR, VECTOR]), spaces.Box(-1, 1, (2,), np.float32)),
    "several": (VECTOR, spaces.MultiDiscrete([2, 3])),
}
"""Spaces of observations and of actions."""
NUMBERS = {"vectors", "doubles"}
FLAT = NUMBERS | {"choices", "frames"}
MAP = {
    **{name: name for name in ("observation", "action", "reward", "terminated", "truncated")},
    "next_observation": "next_observation",
    "infos/place": "infos/place",
}


@dataclasses.dataclass(frozen=True)
class Written:
    """What a format that orlog writes can hold.

    Attributes:
        kinds: Names of the kinds of spaces that it holds; others are refused.
        loses: Parts of episodes that it loses; `stops` is that an episode just stops, `last` the last
            step of each, and `final` the final observation where the task ended.
        keeps_spaces: Whether it says what the spaces were.
    """

    kinds: set[str]
    loses: str = ""
    keeps_spaces: bool = False


WRITTEN = {
    "aloha": Written(FLAT, "place stops last rewards ends"),
    "d3rlpy": Written(FLAT | {"pairs"}, "place stops final"),
    "d4rl": Written(FLAT, "stops"),
    "lerobot": Written({*KINDS}, keeps_spaces=True),
    "minari": Written({*KINDS}, keeps_spaces=True),
    "npz": Written(FLAT, "stops"),
    "ogbench": Written(NUMBERS, "rewards stops ends"),
    "parquet": Written(FLAT | {"parts"}),
    "rlds": Written({*KINDS} - {"pairs"}, "stops", keeps_spaces=True),
    "robomimic": Written(NUMBERS | {"parts"}, "place stops"),
    "torchrl": Written({*KINDS}),
    "zarr": Written(FLAT | {"parts"}, "place stops last ends"),
}
MAPPED = {"parquet": {"columns": MAP, "episode": "episode", "step": "step"}}
"""Options of imports that find the same by names that they are told."""
CASES = [(name, kind) for name, one in WRITTEN.items() for kind in KINDS if kind in one.kinds]


def export(name, kind, folder, **options):
    """Return what was recorded, and the export of it: its only file, or its folder."""
    dataset = record_samples(f"lab/{kind}-v1", *KINDS[kind])
    if name == "lerobot":
        options["rate"] = 10  # without one, it is told that 1 was written
    orlog.export_dataset(dataset, folder, to=name, **options)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    return dataset, files[0] if len(files) == 1 else folder


def imported(files, name, options=None):
    orlog.import_dataset(files, "lab/again-v1", **(options or {"format": name}))
    return orlog.load_dataset("lab/again-v1")


def parts_of(columns):
    if isinstance(columns, dict):
        return [values for key in sorted(columns) for values in parts_of(columns[key])]
    return [*columns] if isinstance(columns, tuple) else [columns]


def check_same(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def check(dataset, again, loses):
    """Compare episodes, but for what is lost."""
    lost = int("last" in loses)
    kept = [one for one in dataset if len(one) > lost]
    assert [len(one) for one in again] == [len(one) - lost for one in kept]
    for one, other in zip(kept, again, strict=True):
        steps = len(other)
        ended = bool(one.terminations[-1]) and "ends" not in loses
        rows = steps + ("final" not in loses or not ended)
        assert bool(other.metadata.get("final_observation_missing")) == (rows == steps)
        pairs = zip(parts_of(other.observations), parts_of(one.observations), strict=True)
        for found, expected in pairs:
            check_same(found[:rows], expected[:rows])
        check_same(other.actions, one.actions[:steps])
        if "rewards" not in loses:
            check_same(other.rewards, one.rewards[:steps])
        if "place" not in loses:
            check_same(other.infos["place"], one.infos["place"])
        assert other.terminations.tolist() == [False] * (steps - 1) + [ended]
        is_cut = bool(one.truncations[-1]) or ("stops" in loses and not ended)
        assert other.truncations.tolist() == [False] * (steps - 1) + [is_cut]


def test_every_format_that_is_written_is_here():
    assert {name for name, one in formats().items() if one.write is not None} == WRITTEN.keys()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_exported_comes_back_but_for_what_is_said_to_be_lost(tmp_path, name, kind):
    one, said = WRITTEN[name], list[str]()
    dataset, files = export(name, kind, tmp_path / "out", lossy=True, on_losses=said.extend)
    assert bool(said) == bool(one.loses)
    again = imported(files, name)
    check(dataset, again, {*one.loses.split()})
    spaces_before = dataset.observation_space, dataset.action_space
    spaces_after = again.observation_space, again.action_space
    assert (spaces_after == spaces_before) or not one.keeps_spaces
    if "last" not in one.loses:  # nothing more is lost
        orlog.export_dataset(again, tmp_path / "again", to=name)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("kind", sorted(FLAT))
def test_columns_that_are_named_come_back_too(tmp_path, name, kind):
    dataset, files = export(name, kind, tmp_path / "out")
    check(dataset, imported(files, name, MAPPED[name]), set())


@pytest.mark.parametrize("name", [name for name, one in WRITTEN.items() if one.loses])
def test_what_a_format_loses_is_refused_unless_it_is_allowed(tmp_path, name):
    with pytest.raises(SchemaError, match=r"lost|truncated|cut off"):
        export(name, "vectors", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in WRITTEN for kind in KINDS if (name, kind) not in CASES]
)
def test_spaces_that_a_format_does_not_hold_are_refused(tmp_path, name, kind):
    with pytest.raises(SchemaError, match=f"lab/{kind}-v1: "):
        export(name, kind, tmp_path / "out", lossy=True)
    assert not (tmp_path / "out").exists()


def record_small():
    """Record four episodes of Pendulum's spaces."""
    rng = np.random.default_rng(0)
    return record_episodes(
        "lab/pen-v1",
        (
            whole_episode(
                rng.uniform(-1, 1, (21, 3)).astype(np.float32),
                rng.uniform(-2, 2, (20, 1)).astype(np.float32),
                rng.normal(size=20),
                end="truncation",
            )
            for _ in range(4)
        ),
        environment=gymnasium.make("Pendulum-v1"),
    )


@pytest.mark.scaled
@pytest.mark.parametrize("name", WRITTEN)
def test_no_flipped_bit_of_an_export_is_imported(name, tmp_path):
    orlog.export_dataset(record_small(), tmp_path / "out", to=name, lossy=True)
    files = sorted(
        path
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.name != "SHA256SUMS" and path.stat().st_size
    )
    assert files
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "out", check=True)
    rng = np.random.default_rng(1)
    for number in range(scaled(40, 12)):
        path = files[number % len(files)]
        good = path.read_bytes()
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        # A folder of several files is imported whole, the only file of one by itself.
        given = path if len(files) == 1 else tmp_path / "out"
        with pytest.raises(IntegrityError, match="SHA256SUMS"):
            orlog.import_dataset(given, "lab/back-v1", format=name, dry_run=True)
        path.write_bytes(good)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_folder_of_an_export_is_imported_as_it_stands(name, tmp_path):
    out = orlog.export_dataset(record_small(), tmp_path / "out", to=name, lossy=True)
    said = orlog_command("import", str(out), "lab/back-v1")
    assert said.returncode == 0, said.stderr
    back = orlog.load_dataset("lab/back-v1")
    assert back.total_episodes == 4
    assert back.total_steps in (80, 76)  # without next observations the last steps are left out
    files = [path for path in out.iterdir() if path.name != "SHA256SUMS"]
    if "" not in formats()[name].extensions:  # it is what an import of the file itself gives
        orlog.import_dataset(files, "lab/file-v1")
        found = orlog.load_dataset("lab/file-v1").manifest
        assert found.lineage == back.manifest.lineage


def imported_with(path, **options):
    """Return whether an import finds a list of checksums that proves the files."""
    seen = []
    orlog.import_dataset(path, "lab/back-v1", dry_run=True, on_found=seen.append, **options)
    return seen[0].has_checksums


@pytest.mark.parametrize("inside", ["", "lab", "lab/pen-v1", "lab/pen-v1/data"])
def test_a_list_above_a_part_of_an_export_is_compared(tmp_path, inside):
    out = orlog.export_dataset(record_small(), tmp_path / "out", to="minari")
    assert imported_with(out / inside, format="minari")
    document = out / "lab/pen-v1/data/metadata.json"
    good = document.read_text("utf-8")
    document.write_text(good.replace('"description": ""', '"description": "?"'), "utf-8")
    with pytest.raises(IntegrityError, match=r"SHA256SUMS: lab/pen-v1/data/metadata.json: not the"):
        imported_with(out / inside, format="minari")
    document.write_text(good, "utf-8")
    sums = out / "SHA256SUMS"
    sums.write_text(sums.read_text("utf-8") + f"{'0' * 64}  lab/pen-v1/data/lost.hdf5\n", "utf-8")
    with pytest.raises(IntegrityError, match=r"lab/pen-v1/data/lost.hdf5: not the .* or missing"):
        imported_with(out / inside, format="minari")


def test_a_list_of_strangers_opens_no_path_and_counts_for_its_own_files_alone(tmp_path):
    out = orlog.export_dataset(record_small(), tmp_path / "all" / "arm", to="npz", lossy=True)
    (file,) = out.glob("*.npz")
    sha256, above = hashlib.sha256(file.read_bytes()).hexdigest(), out.with_name("SHA256SUMS")
    for text, is_proven in (
        (f"\xff\n{'0' * 64}  ../../etc/passwd\nnonsense\n", False),
        (f"{'0' * 64}  other.npz\n{'0' * 64}  armour/{file.name}\n", False),
        (f"{sha256}  ./arm/{file.name}\n", True),
    ):
        (out / "SHA256SUMS").unlink(missing_ok=True)
        above.write_text(text, "latin1")
        assert imported_with(file) == is_proven
    above.rename(tmp_path / "list")
    above.symlink_to(tmp_path / "list")  # a link is not followed, so nothing is compared
    assert not imported_with(file)


def test_numbers_that_are_not_finite_are_counted(tmp_path):
    rewards = np.arange(10.0)
    rewards[[3, 4]] = np.nan, np.inf
    flags = {"terminals": np.zeros(10, bool), "timeouts": np.arange(10) % 5 == 4}
    arrays = {"observations": np.zeros((10, 2)), "actions": np.zeros((10, 1)), "rewards": rewards}
    np.savez(tmp_path / "a.npz", **arrays, **flags)
    seen = []
    orlog.import_dataset(tmp_path / "a.npz", "lab/a-v1", dry_run=True, on_found=seen.append)
    assert seen[0].non_finite["rewards"] == 1  # the other was the last step of an episode
