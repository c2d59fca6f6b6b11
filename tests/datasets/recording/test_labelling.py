"""Labels by hand: durable one by one, undone, saved as versions of a layer, and killed at any moment."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest

import orlog
from orlog.datasets.recording.labelling import Label, Labels
from orlog.errors import ManifestError, SchemaError, StorageError
from tests.datasets.reading.test_layers import record
from tests.levels import scaled

NAME = "lab/labels-v1"


@pytest.fixture
def arm():
    return record()


@pytest.fixture
def labels(arm):
    made = Labels(arm, NAME, by="ann", tags=["slips"])
    yield made
    made.close()


def journal(home):
    return home / "labels" / f"{NAME}.jsonl"


def test_labels_become_the_columns_of_a_layer_and_are_gone_on_with(arm, labels):
    for label in (
        Label(kind="success", episode=0),
        Label(kind="failure", episode=2),
        Label(kind="tag", episode=2, tag="slips"),
        Label(kind="tag", episode=2, tag="slips", first=1, last=3),
        Label(kind="failure", episode=3),
        Label(kind="undo"),
    ):
        shown = labels.of(labels.add(label))
    assert shown == {**shown, "episode": 3, "success": None, "labelled": 2, "unsaved": 4}
    folder = labels.save()
    assert labels.save() is None
    layer = orlog.load_dataset(NAME)
    assert folder.name == layer.parents[1].version == "1.0.0"
    np.testing.assert_array_equal(layer.column("episodes/success"), np.array([1, np.nan, 0, np.nan], "f4"))
    assert "success" not in layer.roles.values()  # not every episode has it, so no score may count it
    assert layer[2].infos["slips"].tolist() == [False, True, True, True, False]
    assert layer.column("episodes/slips").tolist() == [False, False, True, False]
    assert [episode.metadata["labelled_by"] for episode in layer] == ["ann", "", "ann", ""]
    labels.add(Label(kind="tag", episode=2, tag="slips"))
    labels.add(Label(kind="success", episode=1))
    labels.close()
    second = Labels(arm, NAME, by="bob")
    assert second.tags == ["slips"]
    assert second.of(2)["tags"] == []
    assert [tuple(span) for span in second.of(2)["spans"]] == [("slips", 1, 3)]
    second.add(Label(kind="failure", episode=3))
    assert second.save().name == "1.1.0"
    second.close()
    layer = orlog.load_dataset(NAME)
    assert layer.column("episodes/success").tolist() == [True, True, False, False]
    assert layer.roles["episodes/success"] == "success"
    assert layer.filter_episodes("success and labelled_by == 'ann'").total_episodes == 2
    assert [*json.loads((layer.folder / "manifest.json").read_text())["base"]] == ["name", "version", "digest"]


def test_what_was_not_saved_yet_is_there_again(arm, labels, home):
    labels.add(Label(kind="success", episode=1))
    labels._file.close()
    with journal(home).open("ab") as file:
        file.write(b'{"kind":"failure","epi')  # cut by a power failure
    again = Labels(arm, NAME, by="ann", tags=["slips"])
    assert again.of(1)["success"] is True
    again.add(Label(kind="undo"))
    assert again.of(1)["success"] is None
    again.close()
    assert not journal(home).exists()


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (Label(kind="success", episode=4), "there is none; it has 4 episodes"),
        (Label(kind="tag", episode=0, tag="other"), "no tag 'other'; name it first: --tag other"),
        (Label(kind="tag", episode=1, tag="slips", first=0, last=1), "no span of its 1 steps"),
        (Label(kind="tag", episode=2, tag="slips", first=3, last=1), "no span"),
        (Label(kind="tag", episode=2, tag="slips", first=3), "no span"),
        (Label(kind="undo"), "nothing to undo"),
    ],
)
def test_what_cannot_be_said_is_refused_and_leaves_nothing(labels, home, label, text):
    before = journal(home).read_bytes()
    with pytest.raises(SchemaError, match=text):
        labels.add(label)
    assert journal(home).read_bytes() == before


def test_a_layer_of_other_columns_is_not_gone_on_with(arm):
    arm.with_columns("infos/value", np.arange(arm.total_steps, dtype="f4")).save_layer("lab/values-v1")
    with pytest.raises(SchemaError, match=r"lab/values-v1@1.0.0: infos/value is no label that is made here"):
        Labels(arm, "lab/values-v1", by="ann")


def test_two_do_not_label_one_layer_at_once_and_other_bytes_are_refused(arm, labels, home):
    with pytest.raises(StorageError, match="somebody labels it now"):
        Labels(arm, NAME, by="bob")
    labels.add(Label(kind="success", episode=1))
    labels._file.close()
    other = record("lab/other-v1", seed=3)
    with pytest.raises(SchemaError, match="holds labels of"):
        Labels(other, NAME, by="bob")
    journal(home).write_bytes(journal(home).read_bytes() + b"no json\n")
    with pytest.raises(ManifestError, match="move the file away"):
        Labels(arm, NAME, by="ann")
    with pytest.raises(SchemaError, match="a version is labelled as a whole"):
        Labels(arm[:2], NAME, by="ann")
    with pytest.raises(SchemaError, match="at most 10 tags"):
        Labels(arm, "lab/more-v1", by="ann", tags=["success"])


LABELLER = """
import itertools, sys, orlog
from orlog.datasets.recording.labelling import Label, Labels
labels = Labels(orlog.load_dataset("lab/arm-v1"), "lab/labels-v1", by="ann", tags=["slips"])
for number in itertools.count():
    episode = number % 4
    kind = ("success", "failure")[number // 4 % 2]
    labels.add(Label(kind=kind, episode=episode))
    print(kind, episode, flush=True)
    if number % 5 == 4:
        labels.save()
        print("saved", flush=True)
"""


@pytest.mark.scaled
def test_a_labeller_that_is_killed_loses_no_label_that_was_said_to_be_made(arm):
    rng = random.Random(0)
    for _ in range(scaled(50, 3)):
        with subprocess.Popen([sys.executable, "-c", LABELLER], stdout=subprocess.PIPE, text=True) as process:
            lines = [process.stdout.readline() for _ in range(rng.randrange(1, 30))]
            process.kill()
            lines += process.stdout.read().splitlines(keepends=True)
        words = [line.split() for line in lines if line.endswith("\n") and line != "saved\n"]
        made = {int(episode): kind == "success" for kind, episode in words}
        labels = Labels(arm, NAME, by="ann")
        # The label after the last one that was printed may be there too.
        wrong = [episode for episode, success in made.items() if labels.of(episode)["success"] != success]
        assert len(wrong) <= 1
        labels.save()
        labels.close()
        layer = orlog.load_dataset(NAME)
        assert orlog.verify_store(NAME)[1] == []
        assert len(layer.column("episodes/success")) == 4


FULL = """
import resource, signal, orlog
from orlog.datasets.recording.labelling import Label, Labels
labels = Labels(orlog.load_dataset("lab/arm-v1"), "lab/labels-v1", by="ann")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
made = 0
try:
    while True:
        labels.add(Label(kind="success", episode=made % 2))
        made += 1
except orlog.errors.StorageError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
labels.add(Label(kind="failure", episode=3))
print(made + 1)
"""


def test_a_label_that_a_full_disk_refused_is_not_written_later(arm, home):
    done = subprocess.run([sys.executable, "-B", "-c", FULL], check=True, capture_output=True, text=True)
    assert len(journal(home).read_bytes().splitlines()) == int(done.stdout) + 1  # the first line names the base
    labels = Labels(arm, NAME, by="ann")
    assert [labels.of(episode)["success"] for episode in range(4)] == [True, True, None, False]
    labels.close()
