"""Every line that an import prints to run reads what it says: all samples, and files of no known layout."""

import ast
import re

import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from gymnasium import spaces

import orlog
from orlog import OrlogError
from tests.fuzz.samples import write_samples

CALL = re.compile(r"^(?:.*: )?orlog\.import_dataset(\(.*\))$", re.MULTILINE)
GIVES = re.compile(
    r"gives ([\d,]+) episodes? of ([\d,]+)(?: to ([\d,]+))? rows(?: \(one of a single row may have no step\))?; (.*)\.$",
    re.MULTILINE,
)
OF_TIME = re.compile(r"time|trunc|done")


def steps(rows, **more):
    """Return an episode whose numbers are all different."""
    numbers = np.random.default_rng(rows).normal(size=(rows, 6))
    return {"obs": numbers[:, :4].astype("f4"), "act": numbers[:, 4:], **more}


def flags(rows, *ends):
    return np.isin(np.arange(rows), ends)


def hdf5(path, arrays):
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path.with_suffix(".h5")


def npz(path, arrays):
    np.savez(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def npy(path, arrays):
    path.mkdir()
    for name, values in arrays.items():
        np.save(path / f"{name}.npy", values)
    return path


def zarr_of(path, arrays):
    root = zarr.open_group(path.with_suffix(".zarr"), mode="w")
    for name, values in arrays.items():
        root.create_array(name, data=np.asarray(values))
    return path.with_suffix(".zarr")


def folder(path, arrays):
    path.mkdir()
    for number in range(3):
        npz(path / f"take{number}", arrays)
    return path


def csv(path, arrays):
    columns = {
        f"{name}_{at}" if values.ndim > 1 else name: column
        for name, values in arrays.items()
        for at, column in enumerate(np.asarray(values).reshape(len(values), -1).T)
    }
    pd.DataFrame(columns).to_csv(path.with_suffix(".csv"), index=False)
    return path.with_suffix(".csv")


def parquet(path, arrays):
    frame = pd.DataFrame({name: [*values] for name, values in arrays.items()})
    frame.to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def inside(group, lengths, **more):
    """Return groups of a file: arrays of rows, of which `more` are made by their number."""
    return {
        f"{group}{number}/{name}": values
        for number, rows in enumerate(lengths)
        for name, values in steps(rows, **{key: make(rows) for key, make in more.items()}).items()
    }


PADDED = {"obs": np.ones((6, 20, 4), "f4"), "actions": np.ones((6, 20, 1), "i4")}
NUMBERED = {
    f"{name}_{number}": np.full(shape, number, "f4")
    for name, shape in (("states", (9, 7)), ("actions", (9, 7)), ("rewards", (9,)))
    for number in range(12)
}
EP = np.repeat([3, 5], [4, 6])
OBJECTS = {
    "obs": np.array([np.ones((4, 3)), np.ones((6, 3))], object),
    "act": np.array([np.ones((4, 2)), np.ones((6, 2))], object),
}
DROID = {
    "observation/success": flags,
    "observation/controller_info/success": flags,
    "observation/joint": lambda rows: np.ones((rows, 7)),
    "timestamp/skip": flags,
}
LAYOUTS = {
    "groups": (hdf5, inside("demo_", [4, 6, 12]), "3 episodes of 4 to 12 rows"),
    "groups of DROID": (hdf5, inside("demo_", [4, 6], **DROID), "2 episodes of 4 to 6 rows"),
    "groups that end": (
        hdf5,
        inside("e", [4, 6], dones=flags, timeouts=flags, terminal_timeouts=flags),
        "2 episodes of 4 to 6 rows",
    ),
    "groups that differ": (hdf5, inside("e", [4, 6]) | {"e1/obs": np.ones((6, 5))}, ""),
    "numbers": (hdf5, NUMBERED, "12 episodes of 9 rows"),
    "rows": (npz, PADDED, "6 episodes of 20 rows"),
    "rows, zarr": (zarr_of, PADDED, "6 episodes of 20 rows"),
    "rows, one more": (npz, PADDED | {"obs": np.ones((6, 21, 4))}, "6 episodes of 20 rows"),
    "rows, masked": (
        hdf5,
        PADDED | {"mask": np.arange(20) < np.array([[3], [4], [20], [20], [20], [9]])},
        "6 episodes of 3 to 20 rows",
    ),
    "rows of files": (folder, PADDED, "18 episodes of 20 rows"),
    "ends": (npz, steps(10, episode_ends=[4, 10]), "2 episodes of 4 to 6 rows"),
    "ends that do not fit": (npz, steps(10, bends=[4, 7]), "1 episode of 10 rows"),
    "numbers of episodes": (npy, steps(10, episode=EP), "2 episodes of 4 to 6 rows"),
    "files": (folder, steps(10), "3 episodes of 10 rows"),
    "flags": (npz, steps(10, terminal=flags(10, 4, 9)), "2 episodes of 5 rows"),
    "flags of unknown meaning": (npz, steps(10, done=flags(10, 4, 9)), ""),
    "one episode": (npz, steps(10), "1 episode of 10 rows"),
    "no action": (npz, {"x": np.ones((9, 2)), "y": np.ones((9, 2))}, ""),
    "objects": (npz, OBJECTS, ""),
    "csv": (csv, steps(10, ep=EP, done=flags(10, 3, 9)), "2 episodes of 4 to 6 rows"),
    "csv, mixed": (csv, steps(10, ep=EP[::-1][[*range(0, 10, 2), *range(1, 10, 2)]]), "2 episodes of 4 to 6 rows"),
    "lists": (parquet, steps(10, run=EP, gripper_pos=np.ones(10)), "2 episodes of 4 to 6 rows"),
}


def hinted(path):
    """Return what an import without options says, or nothing where it works."""
    try:
        orlog.import_dataset(path, "lab/plain-v0", dry_run=True)
    except (OrlogError, ValueError) as error:
        return str(error)
    return ""


def shapes(space):
    return f"1 of {space.n} choices" if isinstance(space, spaces.Discrete) else str(space.shape)


def check_runs(text, version):
    """Run the calls in a text, and compare what they read with what it says."""
    for found in CALL.finditer(text):
        call = ast.parse(f"f{found[1]}").body[0]
        assert isinstance(call, ast.Expr)
        assert isinstance(call.value, ast.Call)
        files, _ = map(ast.literal_eval, call.value.args)
        options = {str(one.arg): ast.literal_eval(one.value) for one in call.value.keywords}
        for role, named in options["columns"].items():
            assert role != "terminated" or not OF_TIME.search(named.rpartition("/")[2]), text
            assert not (role.startswith("observation") and "success" in named), text
        name = f"lab/hinted-v{version}"
        orlog.import_dataset(files, name, **options)
        dataset = orlog.load_dataset(name)
        said = GIVES.search(text)
        if said is None and "The topics of" in text:
            continue
        assert said is not None, text
        low, high = int(said[2].replace(",", "")), int((said[3] or said[2]).replace(",", ""))
        lengths = dataset.episode_lengths
        assert len(lengths) == int(said[1].replace(",", "")) or low == 1, text
        # The last row of an episode may be its final observation alone.
        assert lengths.min() in (low - 1, low) or low == 1, text
        assert lengths.max() in (high - 1, high), text
        kinds = {"observation": dataset.observation_space, "action": dataset.action_space}
        if isinstance(kinds["observation"], spaces.Dict):
            parts = kinds.pop("observation").spaces
            kinds |= {f"observation/{part}": space for part, space in parts.items()}
        assert sorted(re.split(r", (?=[oa])", said[4])) == sorted(
            f"{role} {shapes(space)}" for role, space in kinds.items()
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_line_of_an_unknown_layout_reads_what_it_says(tmp_path, layout):
    write, arrays, gives = LAYOUTS[layout]
    place = tmp_path / "runs" / "one" / "of"  # deeper than what is looked at around a file
    place.mkdir(parents=True)
    path = write(place / "sample", arrays)
    text = hinted(path)
    assert len(CALL.findall(text)) == bool(gives), text
    assert f"gives {gives};" in text or not gives, text
    assert "ARRAY|" not in text
    if "unknown meaning" in layout or layout in ("groups that end", "csv"):
        name = "dones" if "groups" in layout else "done"
        assert f"{name} may mean the end of the task or that of the time: add columns={{'terminated': '{name}" in text
    check_runs(text, 0)


def test_lines_that_samples_print_read_what_they_say(tmp_path):
    """Of sound files of every format, most of which import as they are."""
    every = [one for several in write_samples(tmp_path).values() for one in several]
    texts = [hinted([*one.given] if len(one.given) > 1 else one.given[0]) for one in every]
    calls = [text for text in texts if CALL.search(text)]
    assert calls
    for version, text in enumerate(calls):
        check_runs(text, version)


def test_objects_in_arrays_are_converted_by_the_lines_that_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = hinted(npz(tmp_path / "sample", OBJECTS))
    program = "\n".join(one[4:] for one in text.splitlines() if re.match(" {4}(import|data|Path|for|  )", one))
    exec(program, {})
    check_runs(hinted(tmp_path / "episodes"), 0)
    assert orlog.load_dataset("lab/hinted-v0").episode_lengths.tolist() == [3, 5]
