import datetime as dt
import hashlib
import json

import msgspec
import numpy as np
import pytest

from orlog import OrlogError
from orlog.errors import FormatVersionError, ManifestError
from orlog.manifests.manifest import read_manifest


def digest_of(body):
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def edited(folder, change, *, seal=True):
    """Change the manifest in a folder; with `seal` its digest is made to fit again."""
    path = folder / "manifest.json"
    body = json.loads(path.read_text("utf-8"))
    stated = body.pop("digest")
    change(body)
    path.write_text(json.dumps({"digest": digest_of(body) if seal else stated, **body}), "utf-8")
    return path


def reversed_keys(value):
    if isinstance(value, dict):
        return {key: reversed_keys(inner) for key, inner in reversed(value.items())}
    if isinstance(value, list):
        return [reversed_keys(item) for item in value]
    return value


def test_reading_gives_what_was_written(mini_folder, tmp_path):
    manifest = read_manifest(mini_folder / "manifest.json")
    copy = tmp_path / "copy.json"
    copy.write_text(manifest.to_json(), "utf-8")
    assert read_manifest(copy) == manifest
    assert read_manifest(copy).to_json() == manifest.to_json()
    assert copy.read_bytes() == (mini_folder / "manifest.json").read_bytes()


def test_text_outside_ascii_survives_with_its_digest(mini_folder):
    path = edited(mini_folder, lambda body: body.update(description="Schräg, 斜め, \U0001f9ed"))
    manifest = read_manifest(path)
    path.write_text(manifest.to_json(), "utf-8")
    assert read_manifest(path) == manifest


def test_the_digest_is_the_sha256_of_the_canonical_form(mini_folder):
    path = mini_folder / "manifest.json"
    body = json.loads(path.read_text("utf-8"))
    assert body.pop("digest") == digest_of(body) == read_manifest(path).digest


def test_the_digest_does_not_depend_on_order_of_keys_or_layout(mini_folder):
    path = mini_folder / "manifest.json"
    before = read_manifest(path)
    body = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(reversed_keys(body), indent=7), "utf-8")
    assert read_manifest(path).digest == before.digest


@pytest.mark.parametrize(
    "change",
    [
        {"name": "pointmaze/other-v1"},
        {"version": "1.0.1"},
        {"total_steps": 1},
        {"license": "MIT"},
        {"recipe": None},
        {"objects": []},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_decides_the_digest(mini_folder, change):
    manifest = read_manifest(mini_folder / "manifest.json")
    assert msgspec.structs.replace(manifest, **change).digest != manifest.digest


def test_an_edited_field_is_an_error_that_names_both_digests(mini_folder):
    stated = read_manifest(mini_folder / "manifest.json").digest
    path = edited(mini_folder, lambda body: body.update(license="MIT"), seal=False)
    body = json.loads(path.read_text("utf-8"))
    del body["digest"]
    with pytest.raises(ManifestError, match=r"edited or damaged") as caught:
        read_manifest(path)
    assert stated in str(caught.value)
    assert digest_of(body) in str(caught.value)
    assert (caught.value.expected, caught.value.found) == (stated, digest_of(body))
    assert caught.value.file == "manifest.json"


def test_what_is_not_said_is_left_out(mini_folder):
    path = mini_folder / "manifest.json"
    body = json.loads(path.read_text("utf-8"))
    assert body.keys().isdisjoint({"parts", "variable_columns", "non_finite", "changes"})
    manifest = read_manifest(path)
    assert (manifest.parts, manifest.variable_columns) == ([], {})
    assert (manifest.non_finite, manifest.changes) == ({}, "")


@pytest.mark.parametrize("digest", [None, 5, "", "sha256:", "0" * 64, ["sha256:"]], ids=repr)
def test_a_manifest_without_its_digest_is_refused(mini_folder, digest):
    path = mini_folder / "manifest.json"
    body = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**body, "digest": digest}), "utf-8")
    with pytest.raises(ManifestError, match="digest"):
        read_manifest(path)


def set_path(path):
    def change(body):
        body["objects"][0]["path"] = path
        body["objects"].sort(key=lambda item: item["path"])

    return change


UNSAFE = ["../x", "..", ".", "/abs", "a//b", "a/../b", "./a", "a/", "a/.", "a\\b", "C:x", "a\0", "a\nb", "", "a" * 501]


@pytest.mark.parametrize("path", UNSAFE, ids=lambda path: repr(path[:20]))
def test_a_path_that_could_leave_the_folder_is_refused(mini_folder, path):
    with pytest.raises(ManifestError):
        read_manifest(edited(mini_folder, set_path(path)))


@pytest.mark.parametrize("name", UNSAFE, ids=lambda name: repr(name[:20]))
def test_a_column_name_that_could_leave_the_folder_is_refused(mini_folder, name):
    def change(body):
        body["columns"][0]["name"] = name
        body["columns"].sort(key=lambda column: column["name"])

    with pytest.raises(ManifestError):
        read_manifest(edited(mini_folder, change))


CHANGES = {
    "unknown key": lambda body: body.update(author="me"),
    "unknown key in a column": lambda body: body["columns"][0].update(codec="zip"),
    "unknown key in an object": lambda body: body["objects"][0].update(url="http://x"),
    "unknown key in the environment": lambda body: body["environment"].update(entry_point="x"),
    "missing key": lambda body: body.pop("license"),
    "missing key in a column": lambda body: body["columns"][0].pop("rows"),
    "text for a number": lambda body: body.update(total_steps="20000"),
    "float for a number": lambda body: body.update(total_steps=20000.0),
    "bool for a number": lambda body: body.update(manifest_version=True),
    "number for text": lambda body: body.update(description=5),
    "null for text": lambda body: body.update(name=None),
    "negative number": lambda body: body.update(total_steps=-1),
    "absurd number": lambda body: body["columns"][0].update(rows=2**60),
    "absurd text": lambda body: body.update(description="x" * 100_001),
    "object for a list": lambda body: body.update(columns={}),
    "unsorted columns": lambda body: body["columns"].reverse(),
    "repeated column": lambda body: body["columns"].insert(0, body["columns"][0]),
    "unsorted objects": lambda body: body["objects"].reverse(),
    "repeated object": lambda body: body["objects"].insert(0, body["objects"][0]),
    "itself among its objects": set_path("manifest.json"),
    "sha256 in capitals": lambda body: body["objects"][0].update(sha256="A" * 64),
    "sha256 too short": lambda body: body["objects"][0].update(sha256="a" * 63),
    "name out of grammar": lambda body: body.update(name="../umaze-v1"),
    "name with a version": lambda body: body.update(name="pointmaze/umaze-v1@1.0.0"),
    "digest for a version": lambda body: body.update(version="sha256:abcdef"),
    "no version": lambda body: body.update(version=""),
    "unknown space": lambda body: body.update(action_space={"type": "Text"}),
    "absurd space": lambda body: body["action_space"].update(shape=[2**40]),
    "version 0": lambda body: body.update(manifest_version=0),
    "format 0": lambda body: body.update(format_version=0),
    "no parts": lambda body: body.update(parts={}),
    "a single part": lambda body: body.update(parts=[{"episodes": 67, "steps": 20000, "columns": {}}]),
    "parts of other totals": lambda body: body.update(parts=[{"episodes": 1, "steps": 1, "columns": {}}] * 2),
    "negative count of what is not finite": lambda body: body.update(non_finite={"rewards": -1}),
    "unknown kind of variable column": lambda body: body.update(variable_columns={"infos/behavior_goal": "pickle"}),
    "number for changes": lambda body: body.update(changes=1),
    "benchmark with a version": lambda body: body.update(benchmark="d4rl/arm-v2@1.0.0"),
    "benchmark out of grammar": lambda body: body.update(benchmark="../arm-v2"),
    "another container": lambda body: body.update(container="zip"),
    "parent without digest": lambda body: body["lineage"].append({"operation": "filter"}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_does_not_fit_the_schema_is_refused_even_with_a_right_digest(mini_folder, change):
    with pytest.raises(ManifestError):
        read_manifest(edited(mini_folder, change))


@pytest.mark.parametrize("key", ["manifest_version", "format_version"])
def test_a_newer_version_asks_for_an_upgrade_whatever_else_it_holds(mini_folder, key):
    path = edited(mini_folder, lambda body: body.update({key: 2, "new_field": 1}))
    with pytest.raises(FormatVersionError, match=rf"{key} 2 is newer .*upgrade"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"license":', '"license": "MIT", "license":'),
        ('"rows":', '"rows": 1, "rows":'),
        ('"total_steps": 20000', '"total_steps": NaN'),
        ('"noise": 0.5', '"noise": NaN'),
        ('"noise": 0.5', '"noise": Infinity'),
        ('"noise": 0.5', '"noise": ' + "[" * 100_000 + "]" * 100_000),
        ('"noise": 0.5', '"noise": ' + "9" * 5000),
        ("{", ""),
        ('"digest"', "digest"),
    ],
    ids=[
        "repeated key",
        "repeated key in a column",
        "NaN for a number",
        "NaN among parameters",
        "Infinity among parameters",
        "too deep",
        "too many digits",
        "cut at the front",
        "bare word",
    ],
)
def test_text_that_is_not_strict_json_is_refused(mini_folder, old, new):
    path = mini_folder / "manifest.json"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(ManifestError, match="not the JSON of a manifest"):
        read_manifest(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"5", b"null", b"\xff\xfe", b"\0" * 100, b"PK"])
def test_a_file_that_is_no_manifest_is_refused(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        read_manifest(path)


def test_a_missing_manifest_is_named(tmp_path):
    with pytest.raises(ManifestError, match=r"nowhere/manifest\.json: no readable manifest"):
        read_manifest(tmp_path / "nowhere" / "manifest.json")


def test_a_file_too_large_for_a_manifest_is_not_read(tmp_path):
    path = tmp_path / "manifest.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ManifestError, match="too large"):
        read_manifest(path)


def test_a_manifest_cut_anywhere_is_refused(mini_folder):
    path = mini_folder / "manifest.json"
    whole = path.read_bytes()
    for size in np.random.default_rng(0).integers(0, len(whole) - 2, 50):
        path.write_bytes(whole[:size])
        with pytest.raises(ManifestError):
            read_manifest(path)


def test_one_flipped_bit_anywhere_in_a_manifest_is_noticed(mini_folder):
    path = mini_folder / "manifest.json"
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for place in rng.integers(0, len(whole), 300):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(OrlogError) as caught:
            read_manifest(path)
        assert isinstance(caught.value, ManifestError | FormatVersionError)


def test_a_column_is_found_by_name(mini_folder):
    manifest = read_manifest(mini_folder / "manifest.json")
    assert manifest.column("rewards").rows == manifest.total_steps
    with pytest.raises(KeyError):
        manifest.column("reward")


def test_the_size_is_that_of_the_files(mini_folder):
    files = [path for path in mini_folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if path.name != "manifest.json")
    assert read_manifest(mini_folder / "manifest.json").size_bytes == size


def test_a_manifest_names_no_time_and_no_folder(built_mini):
    text = (built_mini / "manifest.json").read_text("utf-8")
    assert str(built_mini.parents[3]) not in text
    assert f"{dt.datetime.now(dt.UTC):%Y-}" not in text
