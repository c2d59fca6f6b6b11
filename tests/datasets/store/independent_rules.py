"""Rules of docs/store-format-1.md beside the bytes of a store, written from that page alone, without orlog."""

import hashlib
import math
import re

import numpy as np

from tests.datasets.store.independent_reader import canonical, need

INT = ("int64", [])


def escaped(key, keys):
    twice = sum(one.lower() == key.lower() for one in keys) > 1
    if not twice and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", key) and key != "zarr.json":
        return key
    kept = re.compile("[a-z0-9_]" if twice else "[A-Za-z0-9_]")
    text = "".join(
        chr(byte) if kept.match(chr(byte)) or (place and byte in b".-") else f"~{byte:02X}"
        for place, byte in enumerate(key.encode())
    )
    return {"": "~", "zarr.json": "zarr~2Ejson"}.get(text, text)


def columns_of(space, path):
    def sequences(parts):
        named = {f"{path}{key}": part for key, part in parts.items() if part}
        return [{f"{at}@offsets": INT, **columns_of(p, f"{at}@values")} for at, p in named.items()]

    kind, inside = space["type"], space.get("spaces", [])
    if kind in ("Dict", "Tuple"):
        parts = inside if kind == "Dict" else {str(i): part for i, part in enumerate(inside)}
        found = [columns_of(p, f"{path}/{escaped(key, [*parts])}") for key, p in parts.items()]
    elif kind == "Sequence":
        found = sequences({"": space["space"]})
    elif kind == "Graph":
        links = {"type": "Box", "dtype": "int64", "shape": [2]}
        nodes, edges = space["node_space"], space["edge_space"]
        found = sequences({"@nodes": nodes, "@links": links, "@edges": edges})
    elif kind == "OneOf":
        options = {f"@option{number}": part for number, part in enumerate(inside)}
        found = [{f"{path}@choice": INT}, *sequences(options)]
    elif kind == "Text":
        found = [{f"{path}@offsets": INT, f"{path}@values": ("uint8", [])}]
    elif kind == "MultiDiscrete":
        found = [{path: (space["dtype"], [*np.shape(space["nvec"])])}]
    else:
        dtype = space.get("dtype", "int8" if kind == "MultiBinary" else "int64")
        found = [{path: (dtype, space.get("shape", []))}]
    return {name: spec for one in found for name, spec in one.items()}


def check_columns(body):
    """Refuse a manifest with other columns than its spaces ask for."""
    stored = {one["name"]: (one["dtype"], one["shape"]) for one in body["columns"]}
    needed, rewards = {"episodes/lengths": INT}, {"rewards"}
    if "base" in body:
        rewards &= {*stored}
        needed |= {"episodes/returns": ("float64", [])} if rewards else {}
    else:
        needed |= columns_of(body["observation_space"], "observations")
        needed |= columns_of(body["action_space"], "actions")
        needed |= {"terminations": ("bool", []), "truncations": ("bool", [])}
        needed |= {"episodes/seeds": INT, "episodes/returns": ("float64", [])}
    for name, kind in body.get("variable_columns", {}).items():
        values = ("uint8", []) if kind == "text" else stored.get(f"{name}@values", INT)
        needed |= {f"{name}@offsets": INT, f"{name}@values": values}
    extras = {one for one in stored if re.fullmatch("(infos|episodes)/[^@]*", one)}
    need({*stored} - extras - {*needed} == rewards, "columns are not those of the spaces")
    need(not rewards or stored["rewards"] in (("float32", []), ("float64", [])), "the dtype of rewards")
    need(all(stored.get(name) == spec for name, spec in needed.items()), "types of columns")


def signed_message(manifest):
    """Return what is signed of a manifest."""
    return b"orlog manifest signature 1\n" + hashlib.sha256(manifest).digest()


def view_digest(view):
    """Return the digest of a view, or of the version that is named."""
    if "dataset" in view:
        return str(view["dataset"].partition("@")[2])
    parents = [view_digest(parent) for parent in view["parents"]]
    body = {"operation": view["operation"], "parents": parents}
    return f"sha256:{hashlib.sha256(canonical(body)).hexdigest()}"


def positions(operation, columns):
    """Return which episodes of a stored version an operation keeps: `episodes`, `top` or `split`."""
    ((kind, value),) = operation.items()
    total = len(columns["episodes/lengths"])
    if kind == "episodes":
        return [one for first, end in value for one in range(first, end)]
    if kind == "top":
        by = columns[f"episodes/{value['by']}"].astype(np.float64).tolist()
        order = sorted(range(total), key=lambda one: (math.isnan(by[one]), -by[one]))
        return sorted(order[: max(1, math.ceil(total * value["percent"] / 100 - 1e-9))])
    sizes, part = value["sizes"], value["part"]
    ends = [round(total * math.fsum(sizes[:end])) for end in range(len(sizes) + 1)]
    if all(type(one) is int for one in sizes):
        ends = [sum(sizes[:end]) for end in range(len(sizes) + 1)]
    order = [*range(total)]
    if value["seed"] is not None:
        key = hashlib.sha256(f"orlog order 1\n{value['seed']}".encode()).digest()[:16]
        words = philox(int.from_bytes(key, "little"), total)
        order.sort(key=words.__getitem__)
    return sorted(order[ends[part] : ends[part + 1]])


def philox(key, count):
    """Return words of Philox 4x64 with 10 rounds (Salmon et al., 2011), whose counter starts at 1."""
    words = []
    mask = 2**64 - 1
    for counter in range(1, -(-count // 4) + 1):
        a, b, c, d = counter, 0, 0, 0
        k0, k1 = key & mask, key >> 64
        for _ in range(10):
            first, second = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
            a, b, c, d = second >> 64 ^ b ^ k0, second & mask, first >> 64 ^ d ^ k1, first & mask
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
        words += [a, b, c, d]
    return words[:count]
