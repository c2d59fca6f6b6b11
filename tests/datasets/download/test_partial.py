"""Versions downloaded in part: what is wanted is right or not there, and the rest comes later."""

import contextlib
import functools
import shutil
import urllib.parse

import numpy as np
import pytest

import orlog
from orlog import download_dataset, publish_dataset, repair_dataset
from orlog.datasets.home.folders import datasets_folder, installed_versions, is_partial, partial_versions
from orlog.datasets.home.registries import add_registry
from orlog.datasets.reading.finding import folders_to_repair, folders_to_verify
from orlog.errors import IntegrityError, NotFoundError
from tests.datasets.store.test_version import random_parts, record
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import FileServer

NAME = "lab/parts-v1"
VERSION = "1.2.0"
KILLS = scaled(60, 10)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return a registry and the version in it: three parts, small shards, texts and frames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("author")))
        dataset = record(NAME, random_parts())
        registry = tmp_path_factory.mktemp("registry")
        publish_dataset(dataset.folder, str(registry))
        return registry, dataset


@pytest.fixture
def whole(published):
    """Return the version as its author has it."""
    return published[1]


@pytest.fixture
def server(published, home):
    """Serve the registry, known on this machine as `lab`."""
    home.mkdir()
    with FileServer(published[0]) as server:
        add_registry("lab", server.url)
        yield server


def assert_same(view, expected):
    assert view.digest == expected.digest
    assert view.columns == expected.columns
    for one, other in zip(view.blocks(), expected.blocks(), strict=True):
        assert one[0].keys() == other[0].keys()
        for name, values in one[0].items():
            np.testing.assert_array_equal(values, other[0][name], name)


def choices(whole, count):
    rng = np.random.default_rng(3)
    optional = ["infos/said", "infos/level", "episodes/task", "episodes/score"]
    keys = ["observations/camera", "observations/say", "observations/speed"]
    for _ in range(count):
        size = int(rng.integers(1, whole.total_episodes + 1))
        episodes = rng.permutation(whole.total_episodes)[:size].tolist()
        columns = [name for name in optional + keys if rng.random() < 0.4]
        kind = rng.integers(3)
        yield {"episodes": episodes if kind else None, "columns": columns if kind < 2 else None}


def objects_asked(server):
    start = f"/{NAME}/{VERSION}/"
    paths = [urllib.parse.unquote(request.path) for request in server.requests]
    inside = [path.removeprefix(start) for path in paths if path.startswith(start)]
    return [path for path in inside if path != "manifest.json"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.mark.scaled
@pytest.mark.usefixtures("server")
def test_any_choice_is_equal_to_the_same_choice_of_the_whole(whole):
    for number, choice in enumerate(choices(whole, scaled(12, 6))):
        if number % 3 == 0:  # else what came before is there already
            shutil.rmtree(datasets_folder(), ignore_errors=True)
        expected = whole if choice["columns"] is None else whole.select_columns(choice["columns"])
        expected = expected if choice["episodes"] is None else expected[choice["episodes"]]
        assert_same(orlog.load_dataset(NAME, download=True, **choice), expected)
        assert_same(orlog.load_dataset(f"{NAME}@{VERSION}", **choice), expected)
        # A part, or the version once every object is here, never both.
        assert [*partial_versions(NAME), *installed_versions(NAME)] == [VERSION]


def test_only_what_is_wanted_is_brought_then_the_rest_and_nothing_twice(server, whole):
    first = download_dataset(NAME, episodes=[0], columns=["infos/level"])
    assert is_partial(first)
    wanted = objects_asked(server)
    assert len(wanted) < len(whole.manifest.objects) / 2
    assert not any("infos/said/c" in path or "parts/2/rewards/c" in path for path in wanted)
    second = download_dataset(NAME, episodes=range(3, whole.total_episodes))
    assert second == first
    folder = download_dataset(NAME)
    assert folder == datasets_folder() / NAME / VERSION
    assert orlog.verify_store(folder)[1] == []
    paths = objects_asked(server)
    sums = {item.path: item.sha256 for item in whole.manifest.objects}
    brought = [sums[path] for path in paths]
    assert sorted(brought) == sorted(set(brought)) == sorted(set(sums.values()))
    beside = {path.name for path in folder.parent.iterdir() if path.suffix != ".lock"}
    assert beside == {VERSION, f".{VERSION}.origin.json"}


@pytest.mark.usefixtures("server")
def test_a_part_is_not_taken_for_the_whole(whole):
    download_dataset(NAME, episodes=range(2))
    assert installed_versions(NAME) == []
    with pytest.raises(NotFoundError, match=r"only a part.*orlog download lab/parts-v1"):
        orlog.load_dataset(NAME)
    with pytest.raises(NotFoundError, match=r"more are wanted.*orlog download"):
        orlog.load_dataset(NAME, episodes=range(whole.total_episodes))
    with pytest.raises(NotFoundError):
        orlog.load_dataset(f"{NAME}@1.0.0", episodes=range(2))
    assert orlog.load_dataset(NAME, episodes=[1]).total_episodes == 1
    assert orlog.load_dataset(NAME, download=True).digest == whole.digest


def test_a_part_is_verified_and_only_what_is_damaged_is_brought_again(server):
    folder = download_dataset(NAME, episodes=range(2))
    assert orlog.verify_store(folder)[1] == []
    assert folders_to_verify(NAME) == folders_to_repair(NAME) == [folder]
    objects = sorted(path for path in folder.rglob("c.*") if path.is_file())
    flip(objects[0])
    objects[-1].unlink()
    (folder / "partial.json.bak").write_text("{}")
    problems = {problem.file: problem.kind for problem in orlog.verify_store(folder)[1]}
    damaged = [path.relative_to(folder).as_posix() for path in (objects[0], objects[-1])]
    assert problems == {damaged[0]: "damaged", damaged[1]: "missing", "partial.json.bak": "not in the manifest"}
    server.requests.clear()
    assert len(repair_dataset(folder)) == 3
    assert set(objects_asked(server)) == set(damaged)
    assert orlog.verify_store(folder)[1] == []
    assert orlog.load_dataset(NAME, episodes=range(2)).total_episodes == 2


@pytest.mark.scaled
@pytest.mark.usefixtures("server")
def test_damage_in_a_part_is_never_read_as_right(whole):
    folder = download_dataset(NAME, episodes=range(2))
    documents = ("partial.json", "manifest.json")
    objects = sorted(path for path in folder.rglob("*") if path.is_file())
    objects = [path for path in objects if path.name not in documents]
    for path in objects[:: len(objects) // scaled(len(objects), 15)]:
        good = path.read_bytes()
        flip(path)
        assert orlog.verify_store(folder)[1] != []
        with contextlib.suppress(IntegrityError):  # damage may lie in another episode's chunk
            assert_same(orlog.load_dataset(NAME, episodes=range(2)), whole[:2])
        path.write_bytes(good)
    (folder / "partial.json").write_text('{"partial_version": 1, "digest": "x", "objects": ["../a"]}')
    with pytest.raises(IntegrityError, match=r"partial\.json"):
        orlog.load_dataset(NAME, episodes=range(2))


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_kill_at_any_instant_leaves_a_part_that_is_right_and_goes_on(whole):
    places = datasets_folder()

    def work(step, choice={}):  # noqa: B006
        orlog.load_dataset(NAME, download=True, progress=lambda *_: step(), **choice)

    _, most = killed_at(work, 0, places)
    rng = np.random.default_rng(5)
    kills = interrupted = 0
    while kills < KILLS:
        shutil.rmtree(places)
        for choice in [*choices(whole, 6), {}]:
            some = functools.partial(work, choice=choice)
            while kills < KILLS and killed_at(some, int(rng.integers(1, most)), places)[0]:
                kills += 1
                interrupted += bool(partial_versions(NAME))
                for folder in partial_versions(NAME).values():
                    assert orlog.verify_store(folder)[1] == []
                for version in installed_versions(NAME):
                    assert orlog.verify_store(places / NAME / version)[1] == []
    assert interrupted > 0
    assert_same(orlog.load_dataset(NAME, download=True), whole)
    assert partial_versions(NAME) == {}
