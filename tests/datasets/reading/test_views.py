"""Views: the same episodes as operations on a plain list would give, named by digests."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import orlog
from orlog import Dataset, DatasetWriter, Episode, OrlogError
from orlog.datasets.columns.values import concatenate_blocks
from orlog.datasets.reading import combination, views
from orlog.datasets.store import encoding
from orlog.errors import (
    FormatVersionError,
    InvalidNameError,
    ManifestError,
    NotFoundError,
    SchemaError,
    VersionExistsError,
)
from orlog.manifests.documents import canonical_json
from tests.episodes import record_episodes, whole_episode
from tests.levels import scaled

RICH = spaces.Dict(
    {
        "position": spaces.Box(-99, 99, (2,), np.float32),
        "word": spaces.Text(6, min_length=0, charset="aé水"),
        "tags": spaces.Sequence(spaces.Discrete(5)),
    }
)
BOX = spaces.Box(-99, 99, (3,), np.float32)


def make_rich(number):
    """Return an episode that is known by its seed."""
    rng = np.random.default_rng([number, 3])
    steps = int(rng.integers(1, 15))
    RICH.seed(number)
    samples = [RICH.sample() for _ in range(steps + 1)]
    last = np.arange(steps) == steps - 1
    return Episode(
        observations={
            "position": rng.standard_normal((steps + 1, 2)).astype(np.float32),
            "word": [sample["word"] for sample in samples],
            "tags": [sample["tags"] for sample in samples],
        },
        actions=rng.integers(0, 4, steps),
        # Whole numbers from a small range: many returns are tied.
        rewards=rng.integers(0, 2, steps).astype(np.float64),
        terminations=last & (number % 2 == 0),
        truncations=last & (number % 3 == 0),
        infos={
            "note": [f"{step} ✓"[: int(rng.integers(0, 5))] for step in range(steps)],
            "hits": [rng.random((int(rng.integers(0, 3)), 2)) for _ in range(steps)],
            "force": rng.random((steps, 2)),
        },
        seed=number,
        metadata={
            "task": ["push", "pull", "é", ""][number % 4],
            "weight": [1.5, math.nan, -2.0, math.inf, 1.5][number % 5],
            "grid": rng.random((2, 2)),
        },
    )


def make_plain(number, component=0):
    """Return an episode whose observations say component, episode and step."""
    steps = 3 + number % 5
    observations = np.array([[component, number, step] for step in range(steps + 1)], np.float32)
    return whole_episode(
        observations, observations[:-1] / 8, np.full(steps, float(number)), end="truncation", seed=number
    )


def record(name, episodes, **arguments):
    return record_episodes(name, episodes, **arguments)


EPISODES = {number: make_rich(number) for number in range(26)}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a home with all datasets of this file; do not write to it."""
    home = tmp_path_factory.mktemp("views")
    rich = {"observation_space": RICH, "action_space": spaces.Discrete(4)}
    plain = {"observation_space": BOX, "action_space": BOX}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(home))
        patch.setattr(encoding, "CHUNK_BYTES", 64)
        patch.setattr(encoding, "SHARD_BYTES", 256)
        patch.setattr(os, "fsync", lambda _: None)
        dataset = record("lab/rich-v1", [EPISODES[number] for number in range(12)], **rich)
        with DatasetWriter.append(dataset) as writer:  # version 1.1.0 has two parts
            for number in range(12, 20):
                writer.add_episode(EPISODES[number])
        record("lab/more-v1", [EPISODES[number] for number in range(20, 26)], **rich)
        for component in range(3):
            episodes = [make_plain(number, component) for number in range(10 + component)]
            record(f"lab/plain-v{component}", episodes, **plain)
    return home


@pytest.fixture(autouse=True)
def home_of_all(home, built, monkeypatch):
    """Let names mean the datasets of this file; returns an empty folder."""
    home.mkdir()
    monkeypatch.setenv("ORLOG_HOME", str(built))
    return home


@pytest.fixture
def rich():
    return orlog.load_dataset("lab/rich-v1")


@pytest.fixture
def more():
    return orlog.load_dataset("lab/more-v1")


@pytest.fixture
def plain():
    return [orlog.load_dataset(f"lab/plain-v{component}") for component in range(3)]


def ids(dataset):
    return [int(seed) for seed in dataset.column("episodes/seeds")]


def assert_same(found, expected):
    if dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        for field in dataclasses.fields(expected):
            if field.name != "index":
                assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected or (found != found and expected != expected)


def check_view(view, expected):
    """Compare everything that can be read of a view with a plain list of episodes."""
    episodes = [EPISODES[number] for number in expected]
    assert ids(view) == list(expected)
    assert (len(view), view.total_episodes) == (len(expected), len(expected))
    assert view.total_steps == sum(map(len, episodes))
    assert view.episode_lengths.tolist() == list(map(len, episodes))
    starts = itertools.accumulate(map(len, episodes), initial=0)
    assert view.episode_starts.tolist() == list(starts)[:-1]
    for index, (found, episode) in enumerate(zip(view, episodes, strict=True)):
        assert found.index == index
        assert_same(found, episode)
    if not episodes:
        assert all(len(view.column(name)) == 0 for name in view.columns)
        return
    blocks = [view.schema.block_of(episode, "here") for episode in episodes]
    whole = concatenate_blocks(blocks)
    assert sorted(whole) == view.columns
    rng = np.random.default_rng(len(expected))
    for name, values in whole.items():
        assert_same(view.column(name), values)
        start, stop = sorted(rng.integers(0, len(values) + 1, 2).tolist())
        assert_same(view.column(name, start, stop), values[start:stop])
        rows = rng.integers(0, len(values), 5) if len(values) else np.empty(0, np.int64)
        assert_same(view.rows(name, rows), values[rows])
    for position in (0, len(episodes) - 1, -1):
        assert_same(view[position], episodes[position])
    for wrong in (len(episodes), -len(episodes) - 1):
        with pytest.raises(IndexError):
            view[wrong]


# --- single operations


def test_episodes_are_selected_as_numpy_selects(rich):
    """Slices, positions and masks are compared with a plain list below; these are forms they may come in."""
    numbers = np.arange(20)
    for index in ((4, 2), np.array([2, 19], np.uint8), [True, False] * 10, slice(50, 90)):
        at = index if isinstance(index, slice) else np.asarray(index)
        assert ids(rich[index]) == numbers[at].tolist()
    for nothing in ([], np.array([]), np.zeros(20, np.bool_), (), slice(3, 3)):
        check_view(rich[nothing], [])
    for wrong in ([20], [-21], [0.5, 1], ["a"], [[0, 1]], np.ones(19, np.bool_), [None], [2**63], True):
        with pytest.raises(IndexError, match="lab/rich-v1"):
            rich[wrong]


CONDITIONS = {
    "returns > 4 and lengths >= 5": lambda one: one.rewards.sum() > 4 and len(one) >= 5,
    "not (returns <= 4) or seeds == 3": lambda one: one.rewards.sum() > 4 or one.seed == 3,
    "task == 'push'": lambda one: one.metadata["task"] == "push",
    "task in ['é', '']": lambda one: one.metadata["task"] in ("é", ""),
    "weight > 0": lambda one: one.metadata["weight"] > 0,
    "not isfinite(weight)": lambda one: not math.isfinite(one.metadata["weight"]),
    'column("task") != "pull"': lambda one: one.metadata["task"] != "pull",
    "returns / lengths >= 0.5": lambda one: one.rewards.mean() >= 0.5,
    "True": lambda one: True,  # noqa: ARG005
    "False": lambda one: False,  # noqa: ARG005
}


def best(numbers, values, percent):
    """Return the best numbers in the order given: ties to the earlier one, NaN behind all."""
    count = math.ceil(len(numbers) * percent / 100)
    worst = [(math.isnan(value), -value if value == value else 0.0) for value in values]
    order = sorted(range(len(numbers)), key=lambda place: worst[place])
    return [numbers[place] for place in sorted(order[:count])]


REFUSED = [
    (lambda ds: ds.top_episodes(0), ValueError, "percentage"),
    (lambda ds: ds.top_episodes(math.nan), ValueError, "percentage"),
    (lambda ds: ds.top_episodes(0.1), ValueError, r"For 10 % give 10\."),
    (lambda ds: ds.top_episodes(10, by="task"), NotFoundError, "read by episode"),
    (lambda ds: ds.top_episodes(10, by="grid"), SchemaError, "cannot be ordered"),
    (lambda ds: ds.filter_episodes("reward > 1"), SchemaError, "no column"),
    (lambda ds: ds.filter_episodes("__import__('os')"), SchemaError, "not allowed"),
    (lambda ds: ds.filter_episodes(lambda one: one.rewards > 0), TypeError, r"use \.all"),
    (lambda ds: orlog.split_dataset(ds, []), ValueError, "lab/rich-v1"),
    (lambda ds: orlog.split_dataset(ds, [10, 11]), ValueError, "lab/rich-v1"),
    (lambda ds: orlog.split_dataset(ds, [0.6, 0.6]), ValueError, "lab/rich-v1"),
    (lambda ds: orlog.combine_datasets([ds, ds], weights=[1]), ValueError, "weights"),
    (lambda ds: orlog.combine_datasets([ds, ds], weights=[-1, 2]), ValueError, "weights"),
    (lambda ds: orlog.combine_datasets([ds], weights=[math.inf]), ValueError, "weights"),
    (lambda ds: orlog.transitions(ds[:0], seed=0).batch(0), SchemaError, "lab/rich-v1"),
]


def test_what_makes_no_view_is_refused(rich):
    for make, error, message in REFUSED:
        with pytest.raises(error, match=message):
            make(rich)


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([0, 20], [0, 20]),
        ([0.8, 0.1, 0.1], [16, 2, 2]),
        ([0.1] * 10, [2] * 10),
        ([1 / 3, 1 / 3, 1 / 3], [7, 6, 7]),
        (np.array([0.25, 0.75]), [5, 15]),
        ((np.int64(2), 3), [2, 3]),
    ],
    ids=str,
)
def test_splits_are_disjoint_complete_and_in_order(rich, sizes, counts):
    for seed in (None, 2**62, np.int64(3)):
        parts = orlog.split_dataset(rich, sizes, seed=seed)  # as users do
        found = [ids(part) for part in parts]
        together = [number for part in found for number in part]
        assert [len(part) for part in found] == counts
        assert len(set(together)) == len(together)
        assert all(sorted(part) == part for part in found)
        assert seed is not None or together == list(range(sum(counts)))
        again = orlog.split_dataset(rich, sizes, seed=None if seed is None else int(seed))
        assert [part.digest for part in again] == [part.digest for part in parts]


def test_what_is_not_alike_is_not_combined(rich, more, plain):
    with pytest.raises(SchemaError, match=r"rich-v1 and lab/plain-v0 cannot.*observation_space"):
        orlog.combine_datasets([rich, plain[0]])
    fewer = more.select_columns(["infos/note", "episodes/task", "episodes/weight", "observations"])
    with pytest.raises(SchemaError, match=r"column episodes/grid is .* and missing.*select_columns"):
        orlog.combine_datasets([rich, fewer])
    kept = ["infos/note", "episodes/task"]
    alike = orlog.combine_datasets([rich.select_columns(kept), more.select_columns(kept)])
    assert ids(alike) == list(range(26))
    with pytest.raises(ValueError, match="at least one"):
        orlog.combine_datasets([])


def test_blocks_are_as_large_as_the_columns_of_the_view():
    columns = {"image": np.zeros((5, 1000, 1000), np.uint8), "state": np.zeros((5, 1), np.float32)}
    whole = record_episodes(
        "lab/large-frames-v1",
        [whole_episode(columns, np.zeros((4, 3), np.float32))] * 8,
        spaces.Dict(
            {"image": spaces.Box(0, 255, (1000, 1000), np.uint8), "state": spaces.Box(-1, 1, (1,), np.float32)}
        ),
        BOX,
    )
    assert len([*whole.blocks()]) == 3
    assert len([*whole.select_columns(["observations/state"]).blocks()]) == 1


def test_columns_are_left_out(rich):
    view = rich.select_columns(["observations/position", "infos/note", "episodes/task"])
    assert view.columns == sorted(
        {
            *("actions", "rewards", "terminations", "truncations"),
            *("episodes/lengths", "episodes/returns", "episodes/seeds"),
            "observations/position",
            *("infos/note@offsets", "infos/note@values"),
            *("episodes/task@offsets", "episodes/task@values"),
        }
    )
    assert view.observation_space == spaces.Dict({"position": RICH["position"]})
    for found, number in zip(view, range(20), strict=True):
        whole = EPISODES[number]
        assert isinstance(whole.observations, dict)
        expected = dataclasses.replace(
            whole,
            observations={"position": whole.observations["position"]},
            infos={"note": whole.infos["note"]},
            metadata={"task": whole.metadata["task"]},
        )
        assert_same(found, expected)
    assert rich.select_columns([]).observation_space == RICH
    assert rich.select_columns(["observations", "observations/position"]).observation_space == RICH
    with pytest.raises(NotFoundError, match=r"no column 'infos/note'|infos/note"):
        view.select_columns(["infos/force"])
    with pytest.raises(NotFoundError, match="force"):
        view.column("infos/force")
    with pytest.raises(NotFoundError, match=r"did you mean infos/note"):
        rich.select_columns(["infos/notes"])
    with pytest.raises(SchemaError, match="weight"):
        view.filter_episodes("weight > 1")
    assert ids(view.filter_episodes("task == 'push'")) == [0, 4, 8, 12, 16]


# --- chains of operations


def draw_operation(data, view, numbers, more):
    """Apply one random operation to a view and to a plain list."""
    count = len(numbers)
    kind = data.draw(st.sampled_from(["slice", "positions", "mask", "text", "function", "top", "split", "combine"]))
    if kind == "slice":
        bound = st.one_of(st.none(), st.integers(-count - 2, count + 2))
        step = data.draw(st.sampled_from([None, 1, 2, -1, -3]))
        index = slice(data.draw(bound), data.draw(bound), step)
        return view[index], numbers[index]
    if kind == "positions":
        chosen = data.draw(st.lists(st.integers(-count, count - 1), max_size=15)) if count else []
        return view[chosen], [numbers[place] for place in chosen]
    if kind == "mask":
        mask = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return view[np.array(mask, np.bool_)], list(itertools.compress(numbers, mask))
    if kind in ("text", "function"):
        text, condition = data.draw(st.sampled_from(list(CONDITIONS.items())))
        kept = [number for number in numbers if condition(EPISODES[number])]
        return view.filter_episodes(text if kind == "text" else condition), kept
    if kind == "top":
        percent = data.draw(st.sampled_from([1, 20, 50, 75.5, 100]))
        by, value = data.draw(
            st.sampled_from(
                [("returns", lambda one: one.rewards.sum()), ("weight", lambda one: one.metadata["weight"])]
            )
        )
        values = [float(value(EPISODES[number])) for number in numbers]
        return view.top_episodes(percent, by=by), best(numbers, values, percent)
    if kind == "split":
        first = data.draw(st.integers(0, count))
        parts = orlog.split_dataset(view, [first, count - first], seed=data.draw(st.integers(0, 9)))
        found = [ids(part) for part in parts]
        assert sorted(itertools.chain(*found)) == sorted(numbers)
        part = data.draw(st.integers(0, 1))
        return parts[part], found[part]
    before = data.draw(st.booleans())
    chosen = data.draw(st.lists(st.integers(0, 5), max_size=4))
    added = [20 + place for place in chosen]
    if before:
        return orlog.combine_datasets([more[chosen], view]), added + numbers
    return orlog.combine_datasets([view, more[chosen]]), numbers + added


quick = settings(
    max_examples=scaled(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@quick
@given(data=st.data())
def test_any_chain_of_operations_is_that_of_a_plain_list(rich, more, home, data):
    view, numbers = rich, list(range(20))
    for _ in range(data.draw(st.integers(1, 5))):
        view, numbers = draw_operation(data, view, numbers, more)
    check_view(view, numbers)
    loaded = orlog.load_dataset(view.save(home / "view.json", replace=True))
    assert loaded.digest == view.digest
    assert loaded.operation == view.operation
    check_view(loaded, numbers)


# --- digests and files


def many_views(rich, more):
    half = orlog.split_dataset(rich, [0.5, 0.5], seed=0)
    combine = orlog.combine_datasets
    return [
        rich[:3],
        rich[3:],
        rich[[2, 1, 0]],
        rich[:3][:2],
        more[:3],
        orlog.load_dataset("lab/rich-v1@1.0.0")[:3],
        rich.filter_episodes("returns > 1"),
        rich.filter_episodes("returns > 2"),
        rich.filter_episodes("returns >  1"),
        rich.top_episodes(10),
        rich.top_episodes(11),
        rich.top_episodes(10, by="lengths"),
        *half,
        *orlog.split_dataset(rich, [0.5, 0.5], seed=1),
        *orlog.split_dataset(rich, [10, 5]),
        *orlog.split_dataset(rich, [0.5, 0.4], seed=0),
        rich.select_columns(["infos/note"]),
        rich.select_columns(["infos/force"]),
        combine([rich, more]),
        combine([more, rich]),
        combine([rich, more], weights=[1, 2]),
        combine([rich, more], weights=[2, 1]),
        combine([rich, combine([more, rich])]),
        combine([combine([rich, more]), rich]),
    ]


def test_equal_operations_have_equal_digests_and_others_differ(rich, more):
    digests = [view.digest for view in many_views(rich, more)]
    assert digests == [view.digest for view in many_views(rich, more)]
    assert len({rich.digest, more.digest, *digests}) == len(digests) + 2
    assert rich[0:3].digest == rich[[0, 1, 2]].digest == rich[np.arange(20) < 3].digest
    # What it is called, and where it lies, does not count.
    elsewhere = Dataset(rich.folder)
    assert elsewhere[:3].digest == rich[:3].digest


def test_views_are_saved_and_loaded(rich, more, home):
    made = many_views(rich, more)
    path = home
    for number, view in enumerate(made):
        with pytest.raises(NotFoundError, match="saved nowhere"):
            _ = view.folder
        path = view.save(home / f"new/folder/{number}.json")
        assert view.folder == path
        assert path.stat().st_size < 2000
        loaded = orlog.load_dataset(path)
        assert (loaded.digest, loaded.folder) == (view.digest, path)
        assert ids(loaded) == ids(view)
        assert loaded.columns == view.columns
        assert (loaded.mixture is None) == (view.mixture is None)
        if view.mixture is not None and loaded.mixture is not None:
            np.testing.assert_array_equal(loaded.mixture[0], view.mixture[0])
            assert loaded.mixture[1] == view.mixture[1]
    assert orlog.load_dataset(str(path)).digest == made[-1].digest
    again = rich[:1].save(path, replace=True)
    assert orlog.load_dataset(again).digest == rich[:1].digest
    assert {one.name for one in path.parent.iterdir()} == {f"{at}.json" for at in range(len(made))}


def test_a_view_never_writes_over_anything_else(rich, home):
    path = rich[:2].save(home / "x.json")
    written = path.read_bytes()
    assert rich[:2].save(path) == path  # the same view again
    with pytest.raises(VersionExistsError, match=r"holds another view .* replace=True"):
        rich[:3].save(path)
    assert path.read_bytes() == written
    rich[:3].save(path, replace=True)
    assert orlog.load_dataset(path).digest == rich[:3].digest

    newer = home / "newer.json"
    newer.write_text(json.dumps({"view_version": 99, "parents": "somehow"}))
    with pytest.raises(VersionExistsError, match="another view"):
        rich[:2].save(newer)
    rich[:2].save(newer, replace=True)
    code = home / "train.py"
    code.write_text("import orlog\n")
    lock = home / "orlog.lock"
    lock.write_text('{"lock_version": 1, "datasets": {}}')
    link = home / "link.json"
    link.symlink_to(home / "nowhere.json")
    (home / "folder.json").mkdir()
    for other in (code, lock, link, home / "folder.json"):
        for replace in (False, True):
            with pytest.raises(VersionExistsError, match="not a view that orlog saved"):
                rich[:2].save(other, replace=replace)
    assert code.read_text() == "import orlog\n"
    assert link.is_symlink()


def seal(body):
    """Return the digest that a view of this JSON has, as anyone can work it out."""
    if "dataset" in body:
        return str(body["dataset"]).partition("@")[2]
    parents = [seal(parent) for parent in body["parents"]]
    content = canonical_json({"operation": body["operation"], "parents": parents})
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def write_view(path, operation, *parents, **more):
    body = {"operation": operation, "parents": list(parents)}
    text = json.dumps({"view_version": 1, "digest": seal(body), **body, **more})
    path.write_text(text, "utf-8")
    return path


def named(dataset):
    return {"dataset": f"{dataset.name}@{dataset.digest}"}


def test_a_file_that_was_edited_is_refused(rich, more, home):
    part = orlog.split_dataset(rich[:7].filter_episodes("returns > 1"), [1, 1], seed=4)[1]
    path = orlog.combine_datasets([part, more], weights=[1, 1]).save(home / "x.json")
    text = path.read_text("utf-8")
    edits = [
        ('"seed": 4', '"seed": 5'),
        ("[[0, 7]]", "[[0, 6]]"),
        ("[0.5, 0.5]", "[0.4, 0.6]"),
        ('"digest": "sha256:', '"digest": "sha256:0'),
        ('"view_version": 1, ', '"view_version": 1, "more": 1, '),
        ('"view_version": 1, ', '"view_version": 1, "view_version": 1, '),
        ('"view_version": 1', '"view_version": 0'),
        ('"view_version": 1', '"view_version": true'),
        ('"view_version": 1, ', ""),
        ('"parents": [', '"parents": ["x", '),
    ]
    for old, new in edits:
        assert old in text
        path.write_text(text.replace(old, new, 1), "utf-8")
        with pytest.raises(ManifestError, match=r"x\.json: "):
            orlog.load_dataset(path)


def test_a_file_that_is_no_view_is_refused(home, monkeypatch):
    path = home / "x.json"
    top = b'{"view_version": 1, "operation": {"top": NaN}}'
    huge = b'{"view_version": 1' + b"0" * 10_000 + b"}"
    for data in (b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"{}", b"[" * 200_000, top, huge):
        path.write_bytes(data)
        with pytest.raises((InvalidNameError, ManifestError, FormatVersionError), match=r"x\.json"):
            orlog.load_dataset(path)
    monkeypatch.setattr(views, "LARGEST_VIEW", 100)
    path.write_text(" " * 101)
    with pytest.raises(ManifestError, match="more than 100 bytes"):
        orlog.load_dataset(path)


SPLIT = {"sizes": [5, 5], "seed": 0, "part": 0}
OPERATIONS = [
    None,
    {},
    {"episodes": [[0, 1]], "top": {}},
    {"explode": 1},
    {"episodes": [[False, True]]},
    {"episodes": [[3, 3]]},
    {"episodes": [[0, 21]]},
    {"episodes": [[0, 2**62]] * 3},
    {"filter": "().__class__"},
    {"top": 10},
    {"top": {"percent": "10", "by": "returns"}},
    {"top": {"percent": 10.0, "by": "grid"}},
    {"split": [5, 5]},
    {"split": {**SPLIT, "sizes": [0.5, "a"]}},
    {"split": {**SPLIT, "seed": -1}},
    {"split": {**SPLIT, "seed": True}},
    {"split": {**SPLIT, "part": 2}},
    {"split": {**SPLIT, "more": 1}},
    {"columns": ["nothing"]},
    {"combine": {}},
    {"combine": {"weights": None, "more": 1}},
    {"combine": {"weights": [1]}},
]


def test_an_operation_from_outside_that_makes_no_sense_is_refused(rich, home):
    path = home / "x.json"
    for operation in OPERATIONS:
        body = {"operation": operation, "parents": [named(rich)]}
        path.write_text(json.dumps({"view_version": 1, "digest": "sha256:0", **body}), "utf-8")
        with pytest.raises(OrlogError) as caught:
            orlog.load_dataset(path)
        assert len(str(caught.value)) < 3000
        assert "edited or damaged" not in str(caught.value), operation


def test_parents_from_outside_that_make_no_sense_are_refused(rich, plain, home):
    path = home / "x.json"
    good = {"episodes": [[0, 1]]}
    zeros = "sha256:" + "0" * 64
    parents = [
        [],
        [5],
        [{"dataset": "lab/rich-v1"}],
        [{"dataset": f"lab/rich-v1@{rich.digest[:20]}"}],
        [{"dataset": f"lab/rich-v1@{zeros}"}],
        [named(rich), named(rich)],
        [{"operation": good}],
    ]
    for given_ in parents:
        body = {"operation": good, "parents": given_}
        path.write_text(json.dumps({"view_version": 1, "digest": zeros, **body}), "utf-8")
        with pytest.raises(OrlogError):
            orlog.load_dataset(path)
    write_view(path, {"combine": {"weights": None}}, named(rich), named(plain[0]))
    with pytest.raises(ManifestError, match="cannot be combined"):
        orlog.load_dataset(path)
    assert ids(orlog.load_dataset(write_view(path, good, named(rich)))) == [0]


def test_views_from_outside_that_grow_without_bound_are_refused(rich, home, monkeypatch):
    path = home / "x.json"
    nested = named(rich)
    for _ in range(150):
        nested = {"operation": {"episodes": [[0, 5]]}, "parents": [nested]}
    with pytest.raises(ManifestError, match="nested"):
        orlog.load_dataset(write_view(path, nested["operation"], *nested["parents"]))
    view = rich
    for _ in range(70):
        view = view[:]
    with pytest.raises(SchemaError, match="nested more than 64 deep"):
        view.save(path, replace=True)

    for module in (views, combination):
        monkeypatch.setattr(module, "MOST_EPISODES", 1000)
    many = {"operation": {"episodes": [[0, 20]] * 50}, "parents": [named(rich)]}
    assert len(orlog.load_dataset(write_view(path, many["operation"], *many["parents"]))) == 1000
    with pytest.raises(ManifestError, match="more than 1000"):
        orlog.load_dataset(write_view(path, {"episodes": [[0, 1000]] * 2}, many))
    with pytest.raises(ManifestError, match="more than 1000"):
        orlog.load_dataset(write_view(path, {"combine": {"weights": None}}, many, many))


# --- what takes a dataset takes a view


def counted(dataset, batches=200):
    """Return how often each (component, episode, step) is drawn."""
    stream = orlog.transitions(dataset, 1024, seed=1)
    drawn = torch.cat([stream.batch(number).observations for number in range(batches)])
    found, counts = np.unique(drawn.numpy().astype(np.int64), axis=0, return_counts=True)
    return dict(zip(map(tuple, found.tolist()), counts.tolist(), strict=True))


def test_combining_without_weights_keeps_those_inside(plain, home):
    mixture = orlog.combine_datasets(plain[:2], weights=[9, 1])
    dataset = orlog.combine_datasets([mixture, plain[2]])
    share = mixture.total_steps / dataset.total_steps
    assert dataset.mixture is not None
    np.testing.assert_allclose(dataset.mixture[1], [0.9 * share, 0.1 * share, 1 - share])
    counts = counted(dataset)
    found = [sum(n for key, n in counts.items() if key[0] == at) for at in range(3)]
    wanted = np.array(dataset.mixture[1]) * sum(found)
    assert scipy.stats.chisquare(found, wanted).pvalue > 1e-6
    alone = orlog.combine_datasets([mixture]).mixture
    assert alone is not None
    assert alone[1] == mixture.mixture[1]  # it is weighted

    # The digests of views pin what they mean: one saved before leaves the inner weights out.
    inside = json.loads(mixture.save(home / "inside.json").read_text())
    parent = {key: inside[key] for key in ("operation", "parents")}
    old = write_view(home / "old.json", {"combine": {"weights": None}}, parent)
    assert orlog.load_dataset(old).mixture is None
    assert orlog.combine_datasets(plain).mixture is None
    assert orlog.combine_datasets([mixture[:0], plain[2]]).mixture is None


LOAD = """
import pickle, sys
dataset = pickle.load(open(sys.argv[1], "rb"))
print(dataset.digest, dataset.column("rewards").sum(), len(list(dataset)), dataset[0].seed)
"""


def test_datasets_and_views_are_pickled(rich, more, home):
    mixture = orlog.combine_datasets([rich[4:9], more], weights=[1, 2])
    for dataset in (rich, more[::-1], mixture, rich.select_columns(["infos/note"])):
        dataset.column("rewards")  # with files open
        again = pickle.loads(pickle.dumps(dataset))
        assert (again.digest, again.columns) == (dataset.digest, dataset.columns)
        assert again.lineage == dataset.lineage
        assert_same(list(again), list(dataset))
        assert again[:2].digest == dataset[:2].digest
    assert len(pickle.dumps(mixture)) < 100_000
    (home / "mixture").write_bytes(pickle.dumps(mixture))
    done = subprocess.run([sys.executable, "-c", LOAD, home / "mixture"], check=True, capture_output=True, text=True)
    rewards = mixture.column("rewards").sum()
    assert done.stdout.split() == [mixture.digest, str(rewards), "11", "4"]


def test_episodes_are_iterated_and_sampled(rich):
    view = rich[5:15]
    wanted = [3, -1, 3, 0]
    assert [episode.seed for episode in view.iterate_episodes(wanted)] == [8, 14, 8, 5]
    assert [episode.seed for episode in view.iterate_episodes(iter(wanted))] == [8, 14, 8, 5]
    assert list(view.iterate_episodes([])) == []
    with pytest.raises(IndexError, match="there is no episode 10; it has 10"):
        list(view.iterate_episodes([0, 10]))
    sampled = [episode.seed for episode in view.sample_episodes(6, seed=3)]
    assert len(set(sampled)) == 6
    assert set(sampled) <= set(range(5, 15))
    assert [episode.seed for episode in view.sample_episodes(6, seed=3)] == sampled
    assert [episode.seed for episode in view.sample_episodes(6, seed=4)] != sampled
    assert view.sample_episodes(0, seed=0) == []
    for count in (11, -1):
        with pytest.raises(ValueError, match=f"its 10 episodes, found {count}"):
            view.sample_episodes(count, seed=0)


def test_memory_for_any_column_has_its_rows_and_may_change(rich, more):
    for view in (rich, rich[::-2], rich[:0], orlog.combine_datasets([rich[3:9], more])):
        for name in view.columns:
            whole = view.column(name)
            out = np.full_like(whole, 7)
            assert view.column(name, out=out) is out
            assert_same(out, whole)
            out = np.full((len(whole) + 1, *whole.shape[1:]), 7, whole.dtype)
            before = out.tobytes()
            with pytest.raises(ValueError, match=f"column {name}: rows 0 to {len(whole)} go"):
                view.column(name, out=out)
            assert out.tobytes() == before
            out = np.frombuffer(bytes(whole.nbytes), whole.dtype).reshape(whole.shape)
            with pytest.raises(ValueError, match=rf"column {name}: .*, read-only\.$"):
                view.column(name, out=out)
            assert not any(out.tobytes())
            with pytest.raises(TypeError, match=f"column {name}: .* NumPy array, found list"):
                view.column(name, out=[0] * len(whole))


def test_a_seed_means_the_same_episodes_for_ever(rich):
    """Recorded once: a saved split names a seed, so its meaning must never change."""
    train, test = orlog.split_dataset(rich, [16, 4], seed=0)
    assert test.column("episodes/seeds").tolist() == [0, 2, 4, 12]
    assert len(train) == 16
    drawn = [episode.seed for episode in rich.sample_episodes(3, seed=0)]
    assert drawn == [17, 3, 1]
