import operator
import shutil
from pathlib import Path

import numpy as np
import pytest

import orlog
from orlog.base.files import hash_file
from orlog.datasets.store.verify import verify_folder
from orlog.datasets.store.zarr_writer import ZarrWriter
from orlog.datasets.worlds.recipe import catalogue
from orlog.errors import IntegrityError, ManifestError, NotFoundError
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import read_manifest

MINI = "pointmaze/umaze-mini-v1"
SHARD = "observations/observation/c.0.0"


def bits(columns):
    if isinstance(columns, dict):
        return {key: bits(value) for key, value in columns.items()}
    if isinstance(columns, tuple):
        return tuple(map(bits, columns))
    return columns.dtype, columns.shape, columns.tobytes()


def assert_same(one, two):
    for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
        assert bits(getattr(one, name)) == bits(getattr(two, name)), name
    assert one.seed == two.seed


def flip_bit(path, rng):
    """Flip a random bit of a file and return what it held before."""
    whole = path.read_bytes()
    data = bytearray(whole)
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    return whole


def test_totals_and_columns_are_those_of_the_recipe(mini):
    assert (len(mini), mini.total_episodes, mini.total_steps) == (67, 67, 20_000)
    assert (mini.name, mini.version) == (MINI, "1.0.0")
    assert mini.columns == [
        "actions",
        "episodes/lengths",
        "episodes/returns",
        "episodes/seeds",
        "infos/behavior_goal",
        "observations/achieved_goal",
        "observations/desired_goal",
        "observations/observation",
        "rewards",
        "terminations",
        "truncations",
    ]
    assert mini.column("actions").shape == (20_000, 2)
    assert mini.column("observations/observation").shape == (20_067, 4)
    assert mini.column("episodes/returns").shape == (67,)
    assert repr(mini).startswith(f"Dataset({MINI}@1.0.0, 67 episodes, 20,000 steps, sha256:")


def test_an_episode_is_what_the_recipe_makes_to_the_bit(mini):
    for index in (0, 33, 66):
        (made,) = catalogue()[MINI].recipe.episodes(index, index + 1)
        assert_same(mini[index], made)


@pytest.mark.parametrize("index", [True, np.True_])
def test_true_is_not_an_episode(mini, index):
    with pytest.raises(IndexError, match="a mask of 67 episodes has shape"):
        mini[index]


def test_a_dataset_that_is_dropped_closes_its_files(mini):
    def opened():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    for _ in range(5):
        orlog.load_dataset(mini.folder)[0]
    assert opened() <= before


def test_an_unknown_column_names_the_nearest_and_all(mini):
    with pytest.raises(NotFoundError, match=r"no column 'reward'; did you mean rewards\? It has: actions, "):
        mini.column("reward")


def test_the_newest_version_is_meant_where_none_is_named(mini_folder, reseal):
    newer = mini_folder.with_name("1.0.10")
    for version in ("1.0.9", "1.0.10"):
        shutil.copytree(mini_folder, mini_folder.with_name(version))
        reseal(mini_folder.with_name(version), operator.methodcaller("update", version=version))
    assert orlog.load_dataset(MINI).folder == newer
    assert orlog.load_dataset(f"{MINI}@1.0.0").folder == mini_folder
    digest = read_manifest(mini_folder / "manifest.json").digest
    assert orlog.load_dataset(f"{MINI}@{digest[:20]}").folder == mini_folder


def test_a_dataset_that_is_not_here_says_how_to_build_it(home):
    with pytest.raises(NotFoundError, match=rf"not on this machine yet; run: orlog build {MINI} "):
        orlog.load_dataset(MINI)
    assert not home.exists()


def test_an_unknown_name_names_the_nearest(home):
    with pytest.raises(NotFoundError, match=r"did you mean pointmaze/umaze-v1.* To see all, run: orlog list"):
        orlog.load_dataset("pointmaze/umase-v1", build=True)
    with pytest.raises(NotFoundError, match=r"^qqq/zzz-v1 is not known\. To see all, run: orlog list"):
        orlog.load_dataset("qqq/zzz-v1")
    assert not home.exists()


def test_a_version_or_digest_that_is_not_here_says_what_is(mini_folder):
    for pin in ("2.0.0", "sha256:000000"):
        with pytest.raises(NotFoundError, match=rf"@{pin} is not on this machine; .*1\.0\.0"):
            orlog.load_dataset(f"{MINI}@{pin}")
    shutil.rmtree(mini_folder)
    for build in (False, True):
        with pytest.raises(NotFoundError, match=r"@2\.0\.0.* builds version 1\.0\.0"):
            orlog.load_dataset(f"{MINI}@2.0.0", build=build)


def lose(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def extend(path):
    path.write_bytes(path.read_bytes() + b"\0")


def link(path):
    copy = path.with_name("copy-of-it")
    shutil.move(path, copy)
    path.symlink_to(copy)


def turn_into_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [lose, cut, extend, link, turn_into_folder])
@pytest.mark.parametrize("file", [SHARD, "actions/zarr.json", "zarr.json", "episodes/seeds/c.0"])
def test_opening_refuses_an_object_that_is_not_a_file_of_its_size(mini_folder, damage, file):
    damage(mini_folder / file)
    with pytest.raises(IntegrityError, match=rf"{file}: expected \d+ bytes, found") as caught:
        orlog.load_dataset(mini_folder)
    assert caught.value.file == file
    assert f"run: orlog verify {mini_folder}" in str(caught.value)


def test_one_flipped_bit_in_any_shard_stops_the_reading_of_its_column(mini_folder):
    rng = np.random.default_rng(4)
    columns = orlog.load_dataset(mini_folder).columns
    for name in columns:
        (path,) = (mini_folder / name).glob("c.*")
        for _ in range(4):
            whole = flip_bit(path, rng)
            with pytest.raises(IntegrityError) as caught:
                orlog.load_dataset(mini_folder).column(name)
            assert caught.value.file == path.relative_to(mini_folder).as_posix()
            assert str(caught.value).startswith(f"{mini_folder}: {caught.value.file}, ")
            assert str(caught.value).endswith(f"; run: orlog verify {mini_folder} --values")
            path.write_bytes(whole)
    assert orlog.verify_store(mini_folder)[1] == []


def drop_column(name):
    def change(body):
        body["columns"] = [column for column in body["columns"] if column["name"] != name]

    return change


def change_column(column_name, **fields):
    def change(body):
        (column,) = (column for column in body["columns"] if column["name"] == column_name)
        column.update(fields)
        body["columns"].sort(key=lambda column: column["name"])

    return change


DISAGREEMENTS = {
    "no rewards": drop_column("rewards"),
    "other dtype": change_column("actions", dtype="float64"),
    "too few rows": change_column("actions", rows=19_999),
    "as many observations as steps": change_column("observations/observation", rows=20_000),
    "total of steps": lambda body: body.update(total_steps=19_999),
    "total of episodes": lambda body: body.update(total_episodes=66),
    "other space": lambda body: body["action_space"].update(shape=[3]),
    "no such key": lambda body: body["observation_space"]["spaces"].pop("achieved_goal"),
}


@pytest.mark.parametrize("change", DISAGREEMENTS.values(), ids=DISAGREEMENTS.keys())
def test_opening_refuses_columns_that_do_not_agree_with_spaces_and_totals(mini_folder, reseal, change):
    reseal(mini_folder, change)
    with pytest.raises(ManifestError, match=r"column \S+: .*(need|require|expected float32)") as caught:
        orlog.load_dataset(mini_folder)
    assert_not_of_the_format(mini_folder, caught.value)


def assert_not_of_the_format(folder, error):
    """Check that `orlog verify` says the same as the reader about files that are as in the manifest."""
    assert verify_folder(folder)[1] == []
    (problem,) = orlog.verify_store(folder)[1]
    assert (problem.file, problem.kind) == (error.file, "not of the format")
    assert f"{folder}: {problem.found}" == str(error).removesuffix(".")


def rewrite_lengths(folder, lengths, reseal):
    """Put other lengths of episodes into a store, sealed as if they belonged there."""
    writer = ZarrWriter(folder.parent / "donor")
    writer.add_column(ColumnSpec("episodes/lengths", np.dtype(np.int64), ()))
    writer.append({"episodes/lengths": lengths})
    (column,), _ = writer.finish()
    path = "episodes/lengths/c.0"
    shutil.copy(folder.parent / "donor" / path, folder / path)

    def change(body):
        (item,) = (item for item in body["objects"] if item["path"] == path)
        item.update(sha256=hash_file(folder / path), size_bytes=(folder / path).stat().st_size)
        change_column("episodes/lengths", blake3=column.blake3)(body)

    reseal(folder, change)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([300] * 67, "found 20100"),
        ([300] * 65 + [500, 0], "found 20000"),
        ([300] * 65 + [501, -1], "found 20000"),
        ([2**63 - 1] * 2 + [20_002 - 64] + [1] * 64, "found 20000"),
    ],
    ids=["other sum", "no step", "negative", "around to the total"],
)
def test_opening_refuses_lengths_that_do_not_fit_the_steps(mini_folder, reseal, lengths, found):
    rewrite_lengths(mini_folder, np.array(lengths), reseal)
    with pytest.raises(IntegrityError, match=found) as caught:
        orlog.load_dataset(mini_folder)
    assert caught.value.file == "episodes/lengths"
    assert_not_of_the_format(mini_folder, caught.value)
