"""A format is one file: it is listed, imported and linked without a change anywhere else."""

import pickle
import sys
from pathlib import Path

import pytest

import orlog
import orlog.datasets.formats
from orlog.datasets.formats.formats import choose_format, find_format, formats
from orlog.errors import FormatVersionError, IntegrityError, NotFoundError, SchemaError, VersionExistsError
from tests.command_line import orlog as run

FORMAT = """
import contextlib

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.formats import Format, Note, Opened, Steps
from orlog.errors import SchemaError


@contextlib.contextmanager
def _open(asked):
    space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    opened = Opened(schema=Schema(observation_space=space, action_space=space), steps=iter(()))
    opened.steps = _steps(asked, opened.notes)
    yield opened


def _steps(asked, notes):
    for file, source in zip(asked.files, asked.sources, strict=True):
        try:
            rows = np.loadtxt(file, ndmin=1)
        except ValueError as error:
            raise SchemaError(f"{source}: expected a number a line.") from error
        after = np.concatenate((rows, rows[-1:]))[:, None]
        half = len(rows) // 2  # in two pieces, as long episodes come
        if half:
            yield Steps(
                observations=after[: half + 1], actions=rows[:half, None], rewards=rows[:half], ends=False
            )
        yield Steps(
            observations=after[half + bool(half) :],
            actions=rows[half:, None],
            rewards=rows[half:],
            truncated=True,
        )
    notes.append(Note("own", sentence="Numbers."))


def _write(dataset, folder, progress):
    for number, episode in enumerate(dataset):
        np.savetxt(folder / f"{number}.numbers", episode.actions)


def _losses(dataset):
    return ["It has no rewards."] if any((episode.rewards != 0).any() for episode in dataset) else []


FORMAT = Format(
    name="numbers-text", open=_open, extensions=(".numbers",), write=_write, losses=_losses
)
"""


@pytest.fixture(autouse=True)
def format_file(tmp_path, monkeypatch):
    """Put the format into a folder on the package's path, and two files to read here."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "numbers.py").write_text(FORMAT, "utf-8")
    path = [*orlog.datasets.formats.__path__, str(folder)]
    monkeypatch.setattr(orlog.datasets.formats, "__path__", path)
    monkeypatch.chdir(tmp_path)
    Path("a.numbers").write_text("1\n2\n3\n", "utf-8")
    Path("b.numbers").write_text("4\n5\n", "utf-8")
    yield
    sys.modules.pop("orlog.datasets.formats.numbers", None)


def test_it_is_listed():
    assert {"d4rl", "numbers"} <= formats().keys()
    found = find_format("numbers-text", "lab/x")
    assert choose_format([Path("a.txt")], "numbers", "lab/x") is found
    assert choose_format([Path("a.numbers")], None, "lab/x") is found
    with pytest.raises(ValueError, match=r"the files look like no known format\. orlog import --list"):
        choose_format([Path("a.numbers"), Path("b.hdf5")], None, "lab/x")
    with pytest.raises(FormatVersionError, match=r"d4rl-hdf5.*numbers-text"):
        find_format("other", "lab/x")
    with pytest.raises(FormatVersionError, match=r"it reads .*, d4rl, .*, numbers, "):
        choose_format([Path("a.txt")], "other", "lab/x")
    with pytest.raises(FormatVersionError, match=r"'minary' is known; did you mean minari\?"):
        choose_format([Path("a.txt")], "minary", "lab/x")


def test_the_command_line_imports_it_and_shows_what_it_found():
    looked = run("import", "a.numbers", "b.numbers", "lab/numbers-v1", "--dry-run")
    with pytest.raises(NotFoundError):
        orlog.load_dataset("lab/numbers-v1")
    done = run("import", "a.numbers", "b.numbers", "lab/numbers-v1", "--format", "numbers")
    for found in (looked.stdout, done.stdout):
        for text in ("2, of 2 to 3 steps", "2 truncated", "6 to 9", "Numbers."):
            assert text in found
    assert "lab/numbers-v1@1.0.0" in done.stdout
    assert orlog.load_dataset("lab/numbers-v1").total_steps == 5
    assert "numbers" in run("import", "--list").stdout


def test_what_would_be_lost_is_said_before_it_is_exported():
    orlog.import_dataset(["a.numbers", "b.numbers"], "lab/numbers-v1")
    with pytest.raises(SchemaError, match=r"numbers cannot hold all of it: It has no rewards\. Give"):
        orlog.export_dataset("lab/numbers-v1", "out", to="numbers")
    assert not Path("out").exists()
    done = run("export", "lab/numbers-v1", "numbers", "out", "--lossy")
    assert "It has no rewards." in done.stderr
    assert sorted(path.name for path in Path("out").glob("*.numbers")) == ["0.numbers", "1.numbers"]
    with pytest.raises(VersionExistsError, match="exists already"):
        orlog.export_dataset("lab/numbers-v1", "out", to="numbers", lossy=True)
    with pytest.raises(FormatVersionError, match=r"'number'; did you mean numbers\?"):
        orlog.export_dataset("lab/numbers-v1", "more", to="number")


def test_pickles_and_options_without_use_are_refused():
    Path("data.pkl").write_bytes(pickle.dumps(None))
    with pytest.raises(ValueError, match="is a pickle, which is never read"):
        orlog.import_dataset("data.pkl", "lab/x-v1")
    with pytest.raises(ValueError, match="does not use columns="):
        orlog.import_dataset("a.numbers", "lab/x-v1", columns={"action": "u"})
    with pytest.raises(ValueError, match="do not fit d4rl/hopper-medium-v2"):
        orlog.import_dataset("a.numbers", "lab/x-v1", like="d4rl/hopper-medium-v2")


def test_a_version_is_imported_once_and_only_from_files_that_hold(monkeypatch):
    digest = orlog.load_dataset(orlog.import_dataset("a.numbers", "lab/numbers-v1")).digest
    with pytest.raises(VersionExistsError):
        orlog.import_dataset("b.numbers", "lab/numbers-v1")
    Path("link.numbers").symlink_to("a.numbers")
    monkeypatch.setenv("ORLOG_HOME", str(Path("other").absolute()))
    folder = orlog.import_dataset(Path("link.numbers"), "lab/numbers-v1@1.0.0")
    assert orlog.load_dataset(folder).digest == digest  # of the content, wherever it was
    for files, error, message in (
        ([], ValueError, "no file"),
        (["gone.numbers"], NotFoundError, "no such file"),
        (["bad.numbers"], SchemaError, "a number a line"),
    ):
        Path("bad.numbers").write_text("none\n", "utf-8")
        with pytest.raises(error, match=message):
            orlog.import_dataset(files, "lab/other-v1")

    def change(_done, _total):
        Path("a.numbers").write_text("1\n2\n3\n4\n", "utf-8")

    with pytest.raises(IntegrityError, match="changed while it was read"):
        orlog.import_dataset("a.numbers", "lab/other-v1", progress=change)
    assert not Path("other/datasets/lab/other-v1/1.0.0").exists()
