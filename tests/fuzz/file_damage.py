"""Ways to damage data files: their bytes, or what they say as HDF5, Zip, NumPy, Parquet, CSV, JSON and TFRecord.

All randomness comes from the generator given, so that a number says which damage is done.
"""

import contextlib
import io
import os
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np

from orlog.datasets.formats.rlds.tfrecords import read_records, write_record
from tests.fuzz.damage import damaged as damaged_document

SIZES = (0, 1, 2, 7, 8, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62)
INTEGERS = (*SIZES, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = (np.nan, np.inf, -np.inf, -1, 0, 1, 2, 0.5, 1e308, -1e308, 2.0**53 + 2, 2.0**63, 1e-320)
NAMES = ("", "x", "a/b", "..", "../x", "/", "\u202e", "x" * 300, "observations", "actions", "1", "a b")
DTYPES = (
    *("f2", "f4", "f8", "g", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"),
    *("S3", "V4", ">f4", ">i8", "S0"),
)


class Link(str):
    """What a symbolic link in a folder points to."""

    __slots__ = ()


def damage_folder(files, others, rng, *, links):
    """Return the files to change, by path: their new bytes, a link, or None for one that is removed.

    Args:
        files: The sound files of a sample, by path.
        others: Pieces to splice in.
        rng: Says what is done.
        links: Whether files may be replaced by links, removed or renamed, as in a folder.
    """
    names = list(files)
    name = names[rng.integers(len(names))]
    if links and len(names) > 1 and rng.random() < 0.06:
        other = names[rng.integers(len(names))]
        pieces = [
            {name: None},
            {name: files[other], other: files[name]},
            {name: files[other]},
            {name: Link("../" * len(Path(name).parts) + f"outside/{Path(name).name}")},
            {name: Link(Path(name).name)},
            {name: b""},
            {name: None, f"{name}.bak": files[name]},
            {str(Path(name).with_name(f"zz-{Path(name).name}")): files[name]},
        ]
        return pieces[rng.integers(len(pieces))]
    data = files[name]
    if rng.random() < 0.35:
        data = damage_structure(name, data, rng)
        if rng.random() < 0.8:
            return {name: data}
    return {name: damage_bytes(data, others, rng)}


# --- bytes


def damage_bytes(data, others, rng):
    """Return bytes after one to three changes: flips, cuts, blocks moved, zeros, pieces of others."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = ON_BYTES[rng.integers(len(ON_BYTES))](bytearray(data or b"\0"), others, rng)
    return data


def _block(data, rng):
    start = int(rng.integers(len(data)))
    return slice(start, start + int(2 ** rng.uniform(0, 10)))


def _flip(data, _, rng):
    for place in rng.integers(0, len(data), rng.integers(1, 9)):
        data[place] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _integer(data, _, rng):
    size = int(rng.choice((1, 2, 4, 8)))
    place = int(rng.integers(len(data)))
    value = INTEGERS[rng.integers(len(INTEGERS))] % 2 ** (8 * size)
    data[place : place + size] = value.to_bytes(size, "little" if rng.random() < 0.8 else "big")
    return bytes(data)


def _cut(data, _, rng):
    return bytes(data[: int(rng.integers(len(data)))])


def _zeros(data, _, rng):
    block = _block(data, rng)
    data[block] = bytes(len(data[block]))
    return bytes(data)


def _remove(data, _, rng):
    del data[_block(data, rng)]
    return bytes(data)


def _repeat(data, _, rng):
    block = _block(data, rng)
    data[block] = data[block] * 2
    return bytes(data)


def _swap(data, _, rng):
    one, other = _block(data, rng), _block(data, rng)
    data[one], data[other] = data[other], data[one]
    return bytes(data)


def _splice(data, others, rng):
    piece = others[int(rng.integers(len(others)))]
    start = int(rng.integers(len(piece) + 1))
    data[_block(data, rng)] = piece[start : start + int(2 ** rng.uniform(0, 12))]
    return bytes(data)


ON_BYTES = (_flip, _flip, _integer, _integer, _cut, _zeros, _remove, _repeat, _swap, _splice)


# --- structure


def damage_structure(name, data, rng):
    """Return a file that its library may still read, and that says other things; or other bytes."""
    ending = Path(name).suffix.partition("-")[0]  # a shard's is `.tfrecord-00000-of-00001`
    change = BY_ENDING.get(ending, _no_structure)
    with contextlib.suppress(Exception):  # what cannot be done is not done
        return change(data, rng)
    return damage_bytes(data, [data], rng)


def _no_structure(data, rng):
    return damage_bytes(data, [data], rng)


def _changed(values, rng):
    """Return an array of another dtype, shape, length, or with other values."""
    values = np.array(values)
    which = rng.integers(8)
    if which == 0:
        dtype = DTYPES[rng.integers(len(DTYPES))]
        return values.astype(dtype) if rng.random() < 0.7 else np.zeros(values.shape, dtype)
    if which == 1 and values.ndim:
        return values[: int(rng.integers(len(values) + 1))]
    if which == 2 and values.ndim:
        return np.concatenate((values, values[: int(rng.integers(1, 4))]))
    if which == 3:
        shapes = ((-1,), (1, *values.shape), (*values.shape, 1), (*values.shape[::-1],))
        return values.reshape(shapes[rng.integers(len(shapes))])
    if which == 4:
        return np.zeros([(), (0,), (1,), values.shape[:1], values.T.shape][rng.integers(5)])
    if which == 5:
        rows = [("a", "f4"), ("b", "i8")]
        return np.zeros(values.shape[:1], rows)
    flat = values.reshape(-1)
    for place in rng.integers(0, max(1, flat.size), rng.integers(1, 4)):
        number = np.array(NUMBERS[rng.integers(len(NUMBERS))])
        with np.errstate(all="ignore"):
            flat[place] = flat[0] if values.dtype.kind == "O" else number.astype(values.dtype)
    return values


# --- HDF5


def _damage_hdf5(data, rng):
    with h5py.File.in_memory(data) as file:
        names = []
        file.visititems(lambda name, _node: names.append(name))
        name = names[rng.integers(len(names))]
        operation = ON_HDF5[rng.integers(len(ON_HDF5))]
        if rng.random() < 0.25:
            operation = _hdf5_attribute
        with contextlib.suppress(Exception):
            operation(file, name, rng)
        file.flush()
        return bytes(file.id.get_file_image())


def _hdf5_values(file, name, rng):
    node = file[name]
    stored = {"chunks": node.chunks, "compression": node.compression}
    values = _changed(node[()], rng)
    if values.dtype.kind == "O":  # h5py takes objects for texts, and crashes if they are others
        stored["dtype"] = node.dtype
    del file[name]
    try:
        file.create_dataset(name, data=values, **stored)
    except (TypeError, ValueError):
        file.create_dataset(name, data=values)


def _hdf5_kind(file, name, rng):
    count = len(file[name])
    del file[name]
    texts = ["a", "\u202e", "x" * 99, "1", ""]
    kinds = [
        lambda: file.create_dataset(name, data=texts[:1] * count, dtype=h5py.string_dtype()),
        lambda: file.create_dataset(name, (count,), h5py.vlen_dtype(np.float32)),
        lambda: file.create_dataset(name, (count,), h5py.ref_dtype),
        lambda: file.create_dataset(name, (count,), h5py.enum_dtype({"A": 1, "B": 0}, "i1")),
        lambda: file.create_dataset(name, (count,), np.dtype(("f4", (3,)))),
        lambda: file.create_dataset(name, data=h5py.Empty("f4")),
        lambda: file.__setitem__(name, np.dtype("f4")),
        lambda: file.create_group(name),
        lambda: file.create_group(f"{name}/deeper/and/deeper"),
    ]
    kinds[rng.integers(len(kinds))]()


def _hdf5_move(file, name, rng):
    to = f"{name.rpartition('/')[0]}/{NAMES[rng.integers(len(NAMES))]}"
    file.move(name, to)


def _hdf5_delete(file, name, _):
    del file[name]


def _hdf5_link(file, name, rng):
    del file[name]
    links = [
        h5py.SoftLink("/"),
        h5py.SoftLink(f"/{name}"),
        h5py.SoftLink("/nothing"),
        h5py.ExternalLink("../outside/secret", f"/{name}"),
        h5py.ExternalLink("/dev/zero", "/"),
        file,  # a group that holds itself
        file[name.rpartition("/")[0] or "/"],
    ]
    file[name] = links[rng.integers(len(links))]


def _hdf5_elsewhere(file, name, rng):
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    if rng.random() < 0.5:
        file.create_dataset(name, shape, dtype, external=[("../outside/secret", 0, 2**20)])
        return
    layout = h5py.VirtualLayout(shape, dtype)
    layout[:] = h5py.VirtualSource("../outside/secret", "rewards", shape=shape)
    file.create_virtual_dataset(name, layout)


def _hdf5_claim(file, name, rng):
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    large = (int(2 ** rng.uniform(8, 44)), *shape[1:])
    if rng.random() < 0.4:
        space = h5py.h5s.create_simple(large)
        h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(dtype), space)
        return
    chunks = (int(2 ** rng.uniform(0, 24)), *shape[1:])
    file.create_dataset(name, large, dtype, chunks=chunks, compression="gzip")


def _hdf5_bomb(file, name, rng):
    """Store far more zeros than the file is large."""
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    large = (int(2 ** rng.uniform(10, 19)), *shape[1:])
    file.create_dataset(name, data=np.zeros(large, dtype), chunks=True, compression="gzip")


def _hdf5_filter(file, name, rng):
    values = file[name][()]
    del file[name]
    stored = [
        {"compression": "lzf"},
        {"fletcher32": True},
        {"scaleoffset": 4},
        {"shuffle": True},
        {"compression": 32001},
        {"chunks": (1,) * values.ndim},
        {"maxshape": (None,) * values.ndim},
        {"fillvalue": 7, "chunks": values.shape},
    ]
    file.create_dataset(name, data=values, **stored[rng.integers(len(stored))])


def _hdf5_attribute(file, name, rng):
    places = [one for one in (file, *(file[part] for part in _parents(name))) if len(one.attrs)]
    attributes = places[rng.integers(len(places))].attrs if places else file[name].attrs
    found = list(attributes) or ["num_samples", "total_steps", "seed"]
    key = found[rng.integers(len(found))]
    values = [
        *(0, -1, 3, 2.5, np.nan, 2**62, np.uint64(2**63), "text", b"\xff", "", "x" * 9999, True),
        *(np.arange(3), np.zeros(0), np.zeros((2, 2)), h5py.Empty("f4"), ["a", "b"], None),
        *(np.array([b"a"], "S1"), np.zeros(2, [("a", "i4")]), "[" * 3000, "{", "NaN", np.float64(4)),
    ]
    value = values[rng.integers(len(values))]
    if value is None:
        del attributes[key]
    else:
        attributes[key if rng.random() < 0.8 else "options/a"] = value


def _parents(name):
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


ON_HDF5 = (
    *(_hdf5_values, _hdf5_values, _hdf5_values, _hdf5_kind, _hdf5_move, _hdf5_delete, _hdf5_link),
    *(_hdf5_elsewhere, _hdf5_claim, _hdf5_bomb, _hdf5_filter),
)


# --- npz and npy


def _damage_npz(data, rng):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(item.filename, archive.read(item)) for item in archive.infolist()]
    place = int(rng.integers(len(members)))
    name, body = members[place]
    which = rng.integers(10)
    if which < 4:
        array = np.lib.format.read_array(io.BytesIO(body))
        members[place] = name, _npy(_changed(array, rng), rng)
    elif which < 6:
        members[place] = name, _damage_npy(body, rng)
    elif which == 6:
        del members[place]
    elif which == 7:
        members[place] = f"{NAMES[rng.integers(len(NAMES))]}.npy", body
    elif which == 8:
        members.append((name, members[rng.integers(len(members))][1]))
    else:
        members[place] = name, damage_bytes(body, [body], rng)
    packed = io.BytesIO()
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    kind = kinds[rng.choice((0, 1, 1, 2, 3))]
    with zipfile.ZipFile(packed, "w", kind) as archive:
        for name, body in members:
            archive.writestr(name, body)
    return packed.getvalue()


def _npy(array, rng):
    file = io.BytesIO()
    version = ((1, 0), (1, 0), (2, 0), (3, 0))[rng.integers(4)]
    if rng.random() < 0.2:
        array = np.asfortranarray(array)
    if rng.random() < 0.1:
        array = np.array([_Runs()] * max(1, array.shape[0] if array.ndim else 1), object)
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


class _Runs:
    """What makes a folder outside where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("../new",)


def _damage_npy(data, rng):
    """Change what the header says."""
    (size,) = struct.unpack("<H", data[8:10])
    header, body = data[10 : 10 + size].decode("latin1"), data[10 + size :]
    start, stop = header.index("(") + 1, header.index(")")
    sizes = INTEGERS[rng.integers(len(INTEGERS))]
    shapes = (f"{sizes},", f"{sizes}, {sizes}", "", "-1,", "1.5,", "True,", "0, 3", "[3],")
    headers = (
        header[:start] + shapes[rng.integers(len(shapes))] + header[stop:],
        header[:start] + shapes[rng.integers(len(shapes))] + header[stop:],
        header.replace("False", "True"),
        header.replace("'descr'", "'describe'"),
        header.replace("'<f", "'|O', '<f"),
        header.replace("'<f4'", "'|O'").replace("'<f8'", "[('a', '|O')]"),
        header.replace("'<f4'", "'<f8'").replace("'|b1'", "'<M8[s]'"),
        header.replace("'<f4'", "('<f4', (2,))"),
        "[" * 3000,
        "{" + "'a': " * 900,
        header.replace("}", ", 'more': 1}"),
        header + " " * 60_000,
    )
    text = headers[rng.integers(len(headers))].encode("latin1")
    return data[:8] + struct.pack("<H", min(len(text), 2**16 - 1)) + text + body


# --- tables


def _damage_parquet(data, rng):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    place = int(rng.integers(table.num_columns))
    name, column = table.column_names[place], table.column(place)
    which = rng.integers(12)
    kinds = (
        *(pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.bool_(), pa.decimal128(20, 3), pa.date32()),
        *(pa.timestamp("us"), pa.duration("s"), pa.list_(pa.float32()), pa.null(), pa.time64("ns")),
    )
    if which < 3:
        kind = kinds[rng.integers(len(kinds))]
        try:
            new = column.cast(kind, safe=False)
        except pa.ArrowException:
            new = pa.nulls(table.num_rows, kind)
        table = table.set_column(place, name, new)
    elif which == 3:
        values = column.to_pylist()
        for row in rng.integers(0, len(values), 2):
            values[row] = None
        table = table.set_column(place, name, pa.array(values, column.type))
    elif which == 4:
        rows = [[1.0] * int(rng.integers(0, 4)) for _ in range(table.num_rows)]
        table = table.set_column(place, name, pa.array(rows))
    elif which == 5:
        table = table.drop_columns([name])
    elif which == 6:
        names = [*table.column_names]
        names[place] = NAMES[rng.integers(len(NAMES))]
        table = table.rename_columns(names)
    elif which == 7:
        table = table.append_column(name, column)
    elif which == 8:
        table = table.take(rng.permutation(table.num_rows))
    elif which == 9:
        table = table.slice(int(rng.integers(3)), int(rng.integers(table.num_rows)))
    elif which == 10:
        row = {"a": 1.0, "bytes": b"x", "path": "../../outside/secret"}
        table = table.set_column(place, name, pa.array([row] * table.num_rows))
    else:  # many equal rows take no room
        table = table.take(np.zeros(int(2 ** rng.uniform(4, 17)), int))
    file = io.BytesIO()
    codecs = ("snappy", "zstd", "gzip", "none", "brotli", "lz4")
    pq.write_table(
        table, file, row_group_size=int(rng.integers(1, 99)) if table.num_rows < 99 else None,
        compression=codecs[rng.integers(len(codecs))],
        use_dictionary=bool(rng.random() < 0.5),
        data_page_version=("1.0", "2.0")[rng.integers(2)],
    )  # fmt: skip
    return file.getvalue()


def _damage_csv(data, rng):
    rows = [line.split(b",") for line in data.split(b"\n")]
    cells = (
        *(b"", b"nan", b"inf", b"-1", b"1e400", b"9" * 400, b"\xff\xfe", b"\0", b'"', b'"a,b"', b"a"),
        *(b"true", b"2020-01-01", b"0x10", b"1,2", b"\r", b" 1", b"None", b"x" * 70_000, b"1.5", b"2"),
    )
    cell = cells[rng.integers(len(cells))]
    row = rows[int(rng.integers(len(rows) if rng.random() < 0.8 else 1))]
    place, which = int(rng.integers(len(row))), rng.integers(8)
    if which < 3:
        row[place] = cell
    elif which == 3:
        for one in rows[1:-1]:
            one[place % len(one)] = cell
    elif which == 4:
        del row[place]
    elif which == 5:
        row.insert(place, cell)
    elif which == 6:
        rows[1:-1] = [rows[1:-1][one] for one in rng.permutation(len(rows) - 2)]
    else:
        rows.insert(1, row)
    return b"\n".join(b",".join(row) for row in rows)


# --- documents


def _damage_json(data, rng):
    lines = data.split(b"\n")
    place = int(rng.integers(len(lines)))
    steps = [tuple(map(int, rng.integers(0, 2**20, 3))) for _ in range(rng.integers(1, 3))]
    lines[place] = damaged_document(lines[place], steps)
    return b"\n".join(lines)


# --- records of TensorFlow


def _damage_tfrecord(data, rng):
    """Change a record, or which there are, and give it the right checksums."""
    file = io.BytesIO(data)
    records = [record for _, record in read_records(file, "")]
    place = int(rng.integers(len(records)))
    kind = rng.random()
    if kind < 0.9:
        records[place] = damage_bytes(records[place], records, rng)
    elif kind < 0.95:
        records.insert(place, records[int(rng.integers(len(records)))])
    else:
        del records[place]
    out = io.BytesIO()
    for record in records:
        write_record(out, record)
    return out.getvalue()


BY_ENDING = {
    ".h5": _damage_hdf5,
    ".hdf5": _damage_hdf5,
    ".npz": _damage_npz,
    ".npy": _damage_npy,
    ".parquet": _damage_parquet,
    ".csv": _damage_csv,
    ".json": _damage_json,
    ".jsonl": _damage_json,
    ".tfrecord": _damage_tfrecord,
}
