"""What the audit finds in texts."""

import string

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.audit import numbers

TOLD = ["go in", "Größe", "go", ""]


@pytest.fixture
def talk():
    space = spaces.Text(20, min_length=0, charset=string.printable + "öß")
    with orlog.DatasetWriter("lab/talk-v1", observation_space=space, action_space=space) as writer:
        for said in (["a", "b", "c"], ["d", "e", "f"]):
            writer.add_steps(
                observations=TOLD,
                actions=said,
                rewards=np.zeros(3),
                terminations=np.array([False, False, True]),
                truncations=np.zeros(3, bool),
            )
            writer.end_episode()
    return orlog.load_dataset("lab/talk-v1")


def findings(dataset):
    found = orlog.audit(dataset).findings
    return [(one.column, one.episode, one.step, one.count) for one in found if one.check == "texts"]


def test_good_texts_have_no_finding(talk):
    assert findings(talk) == []


@pytest.mark.parametrize(
    ("space", "first", "count"),
    [
        (spaces.Text(20, min_length=0, charset=string.printable), ("observations", 0, 1), 2),
        (spaces.Text(4, min_length=0, charset=string.printable + "öß"), ("observations", 0, 0), 4),
        (spaces.Text(20, min_length=1, charset=string.printable + "öß"), ("observations", 0, 3), 2),
        (spaces.Text(5, min_length=0, charset=string.printable + "öß"), None, 0),
        (spaces.Text(20, min_length=0, charset="Größe goinabcef"), ("actions", 1, 0), 1),
    ],
)
def test_texts_outside_their_space_are_found(talk, space, first, count, monkeypatch):
    """The writer refuses such texts, so the space is another one here."""
    monkeypatch.setattr(numbers, "leaf_spaces", lambda _space, root: [(root, space)])
    assert findings(talk) == ([] if first is None else [(*first, count)])
