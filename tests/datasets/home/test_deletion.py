"""Versions that another process deletes while they are read: not there, and never damaged."""

import contextlib
import multiprocessing
import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import orlog
from orlog.cli import app
from orlog.datasets.home.garbage import delete_version
from orlog.errors import IntegrityError, NotFoundError

MINI = "pointmaze/umaze-mini-v1"
ROUNDS = 60


def delete_and_put_back(folder, copy):
    for number in range(ROUNDS):
        spare = copy.with_name(f"copy-{number}")
        shutil.copytree(copy, spare, copy_function=os.link)
        delete_version(MINI, "1.0.0")
        spare.rename(folder)


def test_what_is_deleted_while_it_is_read_is_not_found(mini_folder, tmp_path):
    copy = tmp_path / "copies/copy"
    shutil.copytree(mini_folder, copy)
    context = multiprocessing.get_context("fork")
    other = context.Process(target=delete_and_put_back, args=(mini_folder, copy))
    other.start()
    ways = [
        lambda: orlog.load_dataset(MINI).column("rewards"),
        lambda: orlog.load_dataset(mini_folder)[3:5].column("observations/observation"),
        lambda: orlog.load_dataset(f"{MINI}@1.0.0")[0],
        lambda: check(orlog.verify_store(mini_folder)[1]),
        lambda: check(orlog.verify_store(mini_folder, quick=True)[1]),
    ]
    while other.is_alive():
        for read in ways:
            with contextlib.suppress(NotFoundError):
                read()
    assert other.exitcode == 0
    for read in ways:
        read()
    assert orlog.verify_store(mini_folder)[1] == []


def check(problems):
    assert problems == []


def test_a_version_that_was_deleted_since_it_was_opened_says_so(mini):
    view = mini[2:4]
    delete_version(MINI, "1.0.0")
    for read in (
        lambda: mini.column("rewards"),
        lambda: mini.rows("rewards", np.array([3, 1])),
        lambda: view[0],
        lambda: next(mini.blocks()),
        lambda: orlog.verify_store(mini.folder),
        lambda: orlog.publish_dataset(mini.folder, "registry"),
    ):
        with pytest.raises(NotFoundError, match="was deleted while it was read"):
            read()


def test_what_is_damaged_is_still_damaged(mini):
    (mini.folder / "rewards/c.0").unlink()
    with pytest.raises(IntegrityError):
        mini.column("rewards")
    assert [one.kind for one in orlog.verify_store(mini.folder)[1]] == ["missing"]
    (mini.folder / "manifest.json").unlink()
    with pytest.raises(IntegrityError):
        orlog.verify_store(mini.folder)
    assert isinstance(CliRunner().invoke(app, ["verify", MINI]).exception, NotFoundError)
