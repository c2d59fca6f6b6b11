"""A reader of store format 1 that was written from docs/store-format-1.md alone, and uses nothing of orlog.

It checks every byte and refuses what the page tells readers to refuse, as a ValueError. Which columns the
spaces ask for is in `independent_rules.py`, beside the rules of views and signatures.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import blake3
import google_crc32c
import h5py
import numpy as np
from numcodecs import blosc

NUMBERS = {"bool", "float16", "float32", "float64"}
NUMBERS |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
OPTIONAL = """base parts variable_columns non_finite outside_bounds changes benchmark dimension_names
roles videos"""
KEYS = {
    "": """digest manifest_version format_version name version description license behavior_policy
    container total_episodes total_steps observation_space action_space environment recipe lineage
    columns objects""",
    "columns": "name dtype shape rows blake3",
    "objects": "path size_bytes sha256",
    "parts": "episodes steps columns",
    "lineage": "digest operation",
}
BLOSC = [("zstd", 1, "bitshuffle", 2**19), ("zstd", 3, "noshuffle", 0)] + [
    (name, 3, shuffle, 0) for name in ("lz4", "lz4hc") for shuffle in ("bitshuffle", "noshuffle")
]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ARRAY = """{"shape": ROWS, "data_type": "DTYPE", "zarr_format": 3, "node_type": "array",
"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHARD}},
"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": CHUNK, "codecs": [CODECS,
{"name": "crc32c"}], "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
{"name": "crc32c"}], "index_location": "end"}}], "storage_transformers": []}"""


def need(condition, what):
    if not condition:
        raise ValueError(what)


def parse(text):
    def unique(pairs):
        need(len(dict(pairs)) == len(pairs), "a key is repeated")
        return dict(pairs)

    return json.loads(text.decode(), object_pairs_hook=unique, parse_constant=int)  # no NaN


def canonical(value):
    if value is None or isinstance(value, bool):
        return {None: b"null", True: b"true", False: b"false"}[value]
    if isinstance(value, int | float):
        return repr(value).encode()
    if isinstance(value, list):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    if isinstance(value, dict):
        pairs = sorted((key.encode(), key) for key in value)
        return b"{" + b",".join(canonical(k) + b":" + canonical(value[k]) for _, k in pairs) + b"}"
    short = dict(zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True))
    text = [f"\\{short[c]}" if c in short else c if c >= " " else f"\\u{ord(c):04x}" for c in value]
    return f'"{"".join(text)}"'.encode()


def read_manifest(folder):
    body = parse((folder / "manifest.json").read_bytes())
    keys = {key: {*text.split()} for key, text in KEYS.items()}
    need(keys[""] <= {*body} <= keys[""] | {*OPTIONAL.split()}, "keys are missing or unknown")
    need((body["manifest_version"], body["format_version"]) == (1, 1), "another version")
    hashed = hashlib.sha256(canonical({k: v for k, v in body.items() if k != "digest"}))
    need(body["digest"] == f"sha256:{hashed.hexdigest()}", "digest")
    need(all({*one} == keys[key] for key in keys if key for one in body.get(key, [])), "keys")
    counts = [body["total_episodes"], body["total_steps"], *body.get("non_finite", {}).values()]
    counts += [number for one in body["columns"] for number in (one["rows"], *one["shape"])]
    need(all(type(one) is int and 0 <= one <= 2**53 for one in counts), "a count")
    need(all(one["dtype"] in NUMBERS for one in body["columns"]), "a dtype")
    for key, name in (("columns", "name"), ("objects", "path")):
        names = [one[name] for one in body[key]]
        need(names == sorted({*names}), f"{key} are not sorted")
        for path in names:
            parts = path.split("/")
            need(not {"", ".", ".."} & {*parts} and path.isprintable(), f"unsafe path {path}")
            need(max(len(one.encode()) for one in parts) < 256, f"unsafe path {path}")
            need(not re.search(r"[\\:]", path), f"unsafe path {path}")
    folded = [unicodedata.normalize("NFD", one["path"]).casefold() for one in body["objects"]]
    above = {path[: one.start()] for path in folded for one in re.finditer("/", path)}
    need(len({*folded}) == len(folded) and not above & {*folded}, "paths are equal but for case")
    sizes = {one["name"]: math.prod(one["shape"]) for one in body["columns"]}
    named = body.get("dimension_names", {}).items()
    need(all(sizes.get(name) == len(some) for name, some in named), "dimension_names")
    return body


def offsets_of(name):
    path, at, _ = name.rpartition("@values")
    return at and f"{path}@offsets"


def check_parts(body, parts):
    totals = body["total_episodes"], body["total_steps"]
    need(tuple(sum(p[k] for p in parts) for k in ("episodes", "steps")) == totals, "parts")
    for column in body["columns"]:
        name = column["name"]
        held = [one["columns"][name] for one in parts]
        sums = b"".join(bytes.fromhex(one["blake3"]) for one in held)
        whole = blake3.blake3(sums).hexdigest() if len(parts) > 1 else held[0]["blake3"]
        need(whole == column["blake3"], f"{name}: parts do not make it up")
        need(sum(one["rows"] for one in held) == column["rows"], f"{name}: rows of parts")
        for part, one in zip(parts, held, strict=True):
            rows = {"observations": part["steps"] + part["episodes"], "episodes": part["episodes"]}
            counted = rows.get(re.split("[/@]", name)[0], part["steps"])
            need(offsets_of(name) or one["rows"] == counted, f"{name}: rows")


class Layout(NamedTuple):
    dtype: np.dtype[Any]
    shape: list[int]  # of a chunk
    room: int
    axis: int | None
    is_blosc: bool


def read_layout(data, dtype, row, rows):
    body = {"storage_transformers": [], **parse(data)}
    sharding = body["codecs"][0]["configuration"]
    chunk, *sides = sharding["chunk_shape"]
    shard = body["chunk_grid"]["configuration"]["chunk_shape"][0]
    need(type(chunk) is type(shard) is int and chunk > 0 and shard % chunk == 0, "rows of chunks")
    row_bytes, room = dtype.itemsize * math.prod(row), shard // chunk
    need(chunk == 1 or chunk * row_bytes <= 2**28, "too large a chunk")
    need(1 <= room <= 2**20 and (room == 1 or shard * row_bytes <= 2**30), "too large a shard")
    need(sides in (row, [size or 1 for size in row]), "sides of chunks")
    codecs = [*sharding["codecs"]]
    axis = codecs.pop(0)["configuration"]["axis"] if "diff" in codecs[0]["name"] else None
    need(axis is None or (dtype == np.uint8 and axis in range(1, len(row) + 1)), "no axis of a row")
    settings = codecs[1].get("configuration", {}) if len(codecs) > 2 else None
    known = settings and tuple(map(settings.get, ("cname", "clevel", "shuffle", "blocksize")))
    need(settings is None or (known in BLOSC and settings["typesize"] == dtype.itemsize), "blosc")
    number = LITTLE if dtype.itemsize > 1 else {"name": "bytes"}
    difference = {"name": "orlog.difference", "configuration": {"axis": axis}}
    compress = {"name": "blosc", "configuration": settings}
    expected = [difference] * (axis is not None) + [number] + [compress] * (settings is not None)
    text = ARRAY.replace("DTYPE", dtype.name)
    shapes = {"ROWS": [rows, *row], "SHARD": [shard, *sides], "CHUNK": [chunk, *sides]}
    for name, shape in shapes.items():
        text = text.replace(name, str(shape))
    text = text.replace("CODECS", json.dumps(expected)[1:-1])
    free = ["attributes", "dimension_names", "fill_value"]
    free += [k for k, v in body.items() if type(v) is dict and v.get("must_understand") is False]
    need({k: v for k, v in body.items() if k not in free} == json.loads(text), "zarr.json")
    return Layout(dtype, [chunk, *row], room, axis, settings is not None)


def checked(data):
    crc = google_crc32c.value(data[:-4])
    need(len(data) >= 4 and int.from_bytes(data[-4:], "little") == crc, "CRC")
    return data[:-4]


def read_shard(data, layout, held):
    """Return the index of a shard and its chunks, all with their CRC."""
    start = len(data) - 16 * layout.room - 4
    need(start >= 0, "a shard without an index")
    index = np.frombuffer(checked(data[start:]), "<u8").reshape(-1, 2)[:held].tolist()
    need(all(offset + size <= start for offset, size in index), "a chunk is missing")
    return [data[start:], *(data[offset : offset + size] for offset, size in index)]


def decode(chunk, layout):
    data = checked(chunk)
    size = layout.dtype.itemsize * math.prod(layout.shape)
    if layout.is_blosc:
        sizes = [int.from_bytes(data[place : place + 4], "little") for place in (4, 12)]
        need(sizes == [size, len(data)], "sizes in the header of Blosc")
        data = blosc.decompress(data)
    need(len(data) == size, "size of a chunk")
    values = np.frombuffer(data, layout.dtype.newbyteorder("<")).reshape(layout.shape)
    return values if layout.axis is None else np.add.accumulate(values, layout.axis, dtype=np.uint8)


class Store:
    """A version, all of which was checked: its `manifest`, and its `columns` by name."""

    def __init__(self, folder):
        self.folder, body = folder, read_manifest(folder)
        self.manifest, self.shards = body, dict[str, list[bytes]]()
        whole = {"episodes": body["total_episodes"], "steps": body["total_steps"]}
        whole["columns"] = {one["name"]: one for one in body["columns"]}
        parts = body.get("parts", [whole])
        need(len(parts) > 1 or "parts" not in body, "a single part is listed")
        check_parts(body, parts)
        self.sums = {one["path"]: [one["size_bytes"], one["sha256"]] for one in body["objects"]}
        here = [*folder.rglob("*")]
        need(not any(one.is_symlink() for one in here), "a link")
        files = {one.relative_to(folder).as_posix() for one in here if not one.is_dir()}
        need(files - {"manifest.json.sig"} == {*self.sums, "manifest.json"}, "other files")
        for path in self.sums:
            self.bytes_of(path)
        self.needed = {one for one in files if one.startswith("chunk_hashes/")}
        prefixes = ["", *(f"parts/{number}/" for number in range(1, len(parts)))]
        self.parts = [self.read_part(*one) for one in zip(prefixes, parts, strict=True)]
        need(self.needed == {*self.sums}, "files of no column")
        self.check_hashes()
        self.columns = {name: self.join(name, self.parts) for name in whole["columns"]}
        self.check_episodes()

    def bytes_of(self, path):
        need(path in self.sums, f"{path} is missing")
        data = (self.folder / path).read_bytes()
        need([len(data), hashlib.sha256(data).hexdigest()] == self.sums[path], f"{path}: damaged")
        return data

    def read_part(self, prefix, part):
        columns = {}
        for column in self.manifest["columns"]:
            name, held = column["name"], part["columns"][column["name"]]
            dtype, shape = np.dtype(column["dtype"]), column["shape"]
            files = self.videos_of(name)
            if files:
                need(dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3), f"{name}: no frames")
                dtype, shape = np.dtype(np.int64), [3]  # the index
            if self.manifest["container"] == "hdf5":
                self.needed.add(f"{prefix}data.h5")
                with h5py.File(self.folder / prefix / "data.h5") as file:
                    values = np.asarray(file[name])
            else:
                values = self.read_array(f"{prefix}{name}", dtype, shape, held["rows"])
                parents = Path(name).parents
                self.needed |= {f"{prefix}{(one / 'zarr.json').as_posix()}" for one in parents}
            expected = (dtype, (held["rows"], *shape))
            need((values.dtype, values.shape) == expected, f"{name}: dtype or shape")
            need(dtype != np.bool_ or (values.view(np.uint8) < 2).all(), f"{name}: no bool")
            little = np.ascontiguousarray(values, dtype.newbyteorder("<")).tobytes()
            sums = [blake3.blake3(little).digest(), *(bytes.fromhex(self.sums[one][1]) for one in files)]
            whole = blake3.blake3(b"".join(sums)).hexdigest() if files else sums[0].hex()
            need(whole == held["blake3"], f"{name}: other values")
            columns[name] = values
        return columns

    def videos_of(self, name):
        count = self.manifest.get("videos", {}).get(name, {"files": 0})["files"]
        files = [f"videos/{name}/{number}.mp4" for number in range(1, count + 1)]
        self.needed |= {*files, "videos/ranges"} if files else set()
        return files

    def read_array(self, path, dtype, row, rows):
        layout = read_layout(self.bytes_of(f"{path}/zarr.json"), dtype, row, rows)
        self.needed.add(f"{path}/zarr.json")
        count = -(-rows // layout.shape[0]) if math.prod(row) else 0
        values = [np.empty((0 if count else rows, *row), dtype)]
        for first in range(0, count, layout.room):
            shard = f"{path}/c.{first // layout.room}{'.0' * len(row)}"
            self.needed.add(shard)
            self.shards[shard] = read_shard(self.bytes_of(shard), layout, min(layout.room, count - first))
            values += [decode(one, layout) for one in self.shards[shard][1:]]
        return np.concatenate(values)[:rows]

    def check_hashes(self):
        if "chunk_hashes/chunks" in self.sums:
            of_chunks = of_shards = b""
            for _, (index, *chunks) in sorted(self.shards.items()):
                some = b"".join(blake3.blake3(one).digest(16) for one in chunks)
                of_chunks += some
                of_shards += blake3.blake3(index + some).digest(16)
            need(self.bytes_of("chunk_hashes/chunks") == of_chunks, "chunk_hashes/chunks")
            need(self.bytes_of("chunk_hashes/shards") == of_shards, "chunk_hashes/shards")

        videos = [self.bytes_of(one) for one in sorted(self.sums) if one.endswith(".mp4")]
        ranges = [data[at : at + 2**16] for data in videos for at in range(0, len(data), 2**16)]
        some = b"".join(blake3.blake3(one).digest(16) for one in ranges)
        need(not videos or self.bytes_of("videos/ranges") == some, "videos/ranges")

    def join(self, name, parts):
        pieces, before = [part[name] for part in parts], 0
        for number, part in enumerate(parts if name.endswith("@offsets") else []):
            counted = len(next(part[one] for one in part if offsets_of(one) == name))
            ends = np.append(0, pieces[number])
            need((np.diff(ends) >= 0).all() and ends[-1] == counted, f"{name} do not count")
            pieces[number] = pieces[number] + before
            before += counted
        values = np.concatenate(pieces)
        wrong = int((~np.isfinite(values)).sum())
        need(wrong == self.manifest.get("non_finite", {}).get(name, 0), f"{name}: non_finite")
        return values

    def check_episodes(self):
        lengths, rewards = self.columns["episodes/lengths"].tolist(), self.columns.get("rewards")
        total = self.manifest["total_steps"]
        need(min(lengths, default=1) > 0 and sum(lengths) == total, "lengths")
        ends = np.cumsum(lengths)
        for name in {"terminations", "truncations"} & {*self.columns}:  # a layer has none
            early = {*np.flatnonzero(self.columns[name])} - {*(ends - 1)}
            need(not early, f"{name} before the last step")
        returns = [] if rewards is None else self.columns["episodes/returns"]
        for end, length, stated in zip(ends, lengths, returns, strict=rewards is not None):
            some = rewards[end - length : end].astype(np.float64)
            error = abs(some.sum() - stated)
            need(error <= 1e-6 * abs(some).sum() or not np.isfinite(stated), "episodes/returns")
