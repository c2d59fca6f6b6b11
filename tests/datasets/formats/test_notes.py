"""What reading left out, repaired, or could not know is a note: a code with names and numbers, and a sentence."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import orlog
import orlog.datasets
from orlog.datasets.formats._shared.episodes import Found, Options
from orlog.datasets.formats._shared.notes import NOT_IN_LISTED, OF_FINALS, SENTENCES, Note
from orlog.datasets.formats.formats import formats
from tests.datasets.formats.reading import read_files


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (Note("left_out", ["a", "b/c"]), "Left out: a, b/c."),
        (
            Note("last_rows", rows=1),
            "1 last row of episodes was left out, since what followed was not recorded.",
        ),
        (
            Note("finals_missing", ["episodes/none"], episodes=2000),
            "2,000 episodes that ended have no final observation; zeros stand for it, and episodes/none is true.",
        ),
        (
            Note("ends_by_horizon", horizon=1),
            "The file has no timeouts: episodes were taken to be truncated after 1 step.",
        ),
        (Note("own", sentence="{curly: braces}"), "{curly: braces}"),
    ],
)
def test_a_note_is_a_sentence_where_it_is_shown(note: Note, sentence: str) -> None:
    assert str(note) == sentence
    assert pickle.loads(pickle.dumps(note)) == note
    assert note != Note("left_out", ["z"])


def test_codes_of_notes_are_known_and_used() -> None:
    """A code that no module makes a note of is a sentence that nobody reads."""
    folder = Path(orlog.datasets.__path__[0])
    text = "".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    quoted = {*re.findall(r'"(\w+)"(?!:)', text)}
    assert {*SENTENCES} <= quoted
    assert {*NOT_IN_LISTED, *OF_FINALS} <= {*SENTENCES}
    with pytest.raises(KeyError):
        Note("zork")


@pytest.mark.parametrize("name", ["steps", "file", "episodes", "bonus_rewards", "reward"])
@pytest.mark.parametrize("reward", ["", "constant"])
def test_an_array_that_is_called_as_words_of_sentences_is_noted(
    tmp_path: Path, name: str, reward: str
) -> None:
    arrays = {"observations": np.zeros((9, 4), "f4"), "actions": np.zeros((9, 2), "f4")}
    flags = {"rewards": np.zeros(9, "f4"), "terminals": np.arange(9) == 4}
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, values in {**arrays, **flags, name: np.zeros(9)}.items():
            file[key] = values
    options = Options(horizon=20, reward=reward)
    _, found = read_files(formats()["d4rl"], tmp_path / "a.hdf5", tmp_path / "store", options)
    assert [note.columns for note in found.notes if note.code == "not_read"] == [(name,)]
    assert any(note.code == "rewards_made" for note in found.notes) == bool(reward)


def test_logs_that_were_cut_are_not_ended_by_the_time_limit_of_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pendulum never terminates, and its time limit does not say why a log of 150 steps is shorter."""
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    lines = ["run,c,s,v,torque,reward"]
    lines += [f"{run},1.0,0.0,{step / 100},0.5,-1.0" for run in range(3) for step in range(150)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    found: list[Found] = []
    folder = orlog.import_dataset(
        tmp_path / "a.csv",
        "lab/p-v1",
        columns={"observation": "c,s,v", "action": "torque", "reward": "reward"},
        episode="run",
        environment="Pendulum-v1",
        on_found=found.append,
    )
    assert (found[0].terminated, found[0].truncated) == (0, 3)
    assert not orlog.load_dataset(folder).column("terminations").any()
    assert [note.code for note in found[0].notes if note.code.startswith("ends")] == [
        "ends_unknown"
    ]
