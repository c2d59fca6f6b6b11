"""What docs/store-format-1.md says, by a reader that was written from it alone."""

import ast
import contextlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from gymnasium import spaces

import orlog
from orlog import OrlogError
from orlog.datasets.store.verify import check_values
from orlog.datasets.store.version import StoredVersion
from orlog.manifests.signatures import new_key, sign
from tests.datasets.store.independent_reader import Store
from tests.datasets.store.independent_rules import check_columns, positions, signed_message, view_digest
from tests.datasets.store.independent_videos import frames_of

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/store-format-1.md"
FROZEN = sorted(path.parent for path in (HERE / "frozen").glob("*/manifest.json"))


@pytest.fixture
def tiny():
    """Write the version whose manifest is the example of the page; return its folder."""
    observations = {"pos": spaces.Box(-1, 1, (2,), np.float32), "word": spaces.Text(9, min_length=0, charset="abé")}
    with orlog.DatasetWriter(
        "lab/tiny-v1",
        observation_space=spaces.Dict(observations),
        action_space=spaces.Discrete(3),
        description='Two "episodes"\nby hand: é',
        license="CC0-1.0",
        behavior_policy="a person",
        roles={"infos/cost": "cost"},
    ) as writer:
        for steps in (2, 1):
            pos = np.arange(2 * steps + 2, dtype=np.float32).reshape(-1, 2) / 4
            writer.add_episode(
                orlog.Episode(
                    observations={"pos": pos, "word": ["ab", "", "é"][: steps + 1]},
                    actions=np.arange(steps),
                    rewards=np.full(steps, 0.5),
                    terminations=np.arange(steps) == steps - 1,
                    truncations=np.zeros(steps, np.bool_),
                    infos={"cost": np.array([np.nan, 0.5][:steps])},
                    seed=steps,
                )
            )
    return writer.folder


def test_the_reader_is_short_and_uses_nothing_of_ours():
    path = HERE / "independent_reader.py"
    text = path.read_text("utf-8")
    assert len(text.splitlines()) < 320
    names = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name]
    }
    assert not [name for name in names if name.startswith(("orlog", "tests", "zarr"))]


def test_the_manifest_of_the_page_is_that_of_its_version(tiny):
    (text,) = re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    store = Store(tiny)
    assert json.loads(text) == store.manifest
    assert store.columns["observations/word@values"].tobytes().decode() == "abéab"


@pytest.mark.parametrize("folder", FROZEN, ids=lambda folder: folder.name)
def test_every_frozen_store_is_read_as_orlog_reads_it(folder):
    store, dataset = Store(folder), orlog.load_dataset(folder)
    assert store.manifest["digest"] == dataset.digest
    check_columns(store.manifest)
    assert [*store.columns] == [column.name for column in dataset.manifest.columns]
    stored = StoredVersion(folder)
    for name, values in store.columns.items():
        expected = stored.read(name)
        if name in dataset.videos:
            values = frames_of(store, name)
        assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
        assert values.tobytes() == expected.tobytes()
    assert check_values(stored) == []


def test_a_layer_is_what_the_page_says(tiny):
    base = orlog.load_dataset(tiny)
    columns = {
        "infos/value": np.arange(3, dtype="f4"),
        "episodes/who": ["ann", "é"],
        "rewards": np.array([1.0, 2.0, 4.0]),
    }
    folder = base.with_columns(columns, roles={"infos/value": "value"}, replaces=True).save_layer("lab/layer-v1")
    store, under = Store(folder), Store(tiny)
    check_columns(store.manifest)
    assert check_values(StoredVersion(folder)) == []
    assert store.manifest["base"]["digest"] == under.manifest["digest"]
    assert {*store.columns} == {
        *(
            "episodes/lengths",
            "episodes/returns",
            "episodes/who@offsets",
            "episodes/who@values",
            "infos/value",
            "rewards",
        )
    }
    assert store.columns["episodes/lengths"].tolist() == under.columns["episodes/lengths"].tolist()
    together = {**under.columns, **store.columns}
    layered = orlog.load_dataset(folder)
    assert together.keys() == {*layered.columns}
    for name, values in together.items():
        assert values.tobytes() == layered.column(name).tobytes()
    parents = [{"dataset": f"{one['name']}@{one['digest']}"} for one in (under.manifest, store.manifest)]
    assert layered.digest == view_digest({"operation": {"layers": {"replaces": True}}, "parents": parents})


def test_damage_to_any_file_is_refused(tiny):
    for path in [path for path in tiny.rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(ValueError, match=r"."):
            Store(tiny)
        path.write_bytes(whole)
    Store(tiny)


def column(body, name):
    (found,) = (one for one in body["columns"] if one["name"] == name)
    return found


WRONG = {
    "an unknown key": lambda body: body.update(title="x"),
    "a missing key": lambda body: body.pop("license"),
    "a newer version": lambda body: body.update(format_version=2),
    "no order": lambda body: body["columns"].reverse(),
    "a column twice": lambda body: body["columns"].insert(0, body["columns"][0]),
    "a path outside": lambda body: body["objects"].insert(0, {**body["objects"][0], "path": "../x"}),
    "a missing file": lambda body: body["objects"].pop(0),
    "another type": lambda body: column(body, "actions").update(dtype="uint64"),
    "more rows": lambda body: column(body, "actions").update(rows=4),
    "another space": lambda body: body["observation_space"]["spaces"].pop("pos"),
    "more steps": lambda body: body.update(total_steps=4),
    "a single part": lambda body: body.update(parts=[{"episodes": 2, "steps": 3, "columns": {}}]),
    "names of nothing": lambda body: body.update(dimension_names={"actions": ["a", "b"]}),
    "a text of numbers": lambda body: body.update(variable_columns={"infos/cost": "text"}),
    "true as a count": lambda body: body.update(total_episodes=True),
    "wrong counts": lambda body: body["non_finite"].update({"infos/cost": 1}),
    "wrong values": lambda body: column(body, "rewards").update(blake3="0" * 64),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_both_refuse_what_the_page_tells_readers_to_refuse(tiny, reseal, change):
    reseal(tiny, change)
    with pytest.raises((ValueError, KeyError)):
        check_columns(Store(tiny).manifest)
    with contextlib.suppress(OrlogError):
        assert check_values(StoredVersion(tiny)) != []


@pytest.mark.parametrize("seed", [None, 0, 7, 10**9])
@pytest.mark.parametrize("sizes", [[0.8, 0.1, 0.1], [3, 40, 1], [0.5, 0.25]], ids=str)
def test_parts_of_a_split_are_what_the_page_says(mini, sizes, seed):
    for view in orlog.split_dataset(mini, sizes, seed=seed):
        check_view(mini, view)


def check_view(parent, view):
    columns = {f"episodes/{name}": parent.column(f"episodes/{name}") for name in ("lengths", "returns")}
    assert view.operation is not None
    assert view.selection().index.tolist() == positions(view.operation, columns)
    named = {"dataset": f"{parent.name}@{parent.digest}"}
    assert view_digest({"operation": view.operation, "parents": [named]}) == view.digest


def test_a_signature_is_of_the_message_that_the_page_gives(tiny, tmp_path):
    key = new_key(tmp_path / "key")
    manifest = (tiny / "manifest.json").read_bytes()
    (one,) = json.loads(sign(manifest, "manifest", tmp_path / "key"))["signatures"]
    assert one["key"] == key
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.removeprefix("ed25519:")))
    public.verify(bytes.fromhex(one["signature"]), signed_message(manifest))
    shutil.copy(tiny / "manifest.json", tiny / "manifest.json.sig")
    Store(tiny)
