"""Algorithms in words: how they speak, and runs with their tokenizer."""

import math
import string

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.algos.bc_text import BCText
from orlog.algos.ilql import ILQL
from orlog.algos.transformer import CausalTransformer, recency
from orlog.datasets.columns.vocabulary import read_vocabulary, train_vocabulary
from orlog.errors import ManifestError, SchemaError
from tests.loaders.test_token_sequences import record

pytest.importorskip("tokenizers")
SMALL = {"width": 8, "layers": 1, "heads": 2, "length": 40, "batch_size": 4}
SMALL |= {"vocabulary": 300, "longest_answer": 6}


def test_later_tokens_count_more_and_those_ahead_nothing():
    bias = recency(2, 4)
    assert bias[0].tolist()[2] == [-0.125, -0.0625, 0.0, -math.inf]
    assert bias[1].tolist()[3][0] == -3 / 256
    body = CausalTransformer(8, 1, 2, generator=torch.Generator().manual_seed(0))
    tokens = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 4:] *= torch.linspace(-1, 1, 8)
    one, other = (body(given, bias=recency(2, 6)) for given in (tokens, changed))
    torch.testing.assert_close(one[:, :4], other[:, :4])
    assert not torch.allclose(one[:, 4:], other[:, 4:])


def test_what_is_learned_is_said_and_each_environment_has_its_own_context(make, batches_of):
    made = make(BCText, width=16, learning_rate=1e-2, sampling_temperature=0.0)
    for batch in batches_of(made, 60):
        made.update(batch)
    speaker = made.actor(2)
    told = ["A room. An exit to the east.", "You have won!"]
    both = speaker.act(told)
    assert {*both} <= {"go east", "go west", "take coin"}
    alone = made.actor(1)
    alone.act(told[:1])
    speaker.begin(torch.tensor([False, True]))
    assert speaker.act([told[1]] * 2)[0] == alone.act(told[1:])[0]
    for _ in range(9):  # more than it can see at once
        speaker.act(told)
    assert max(sum(map(len, steps)) for steps in speaker.steps) <= made.config.length


@pytest.fixture
def dialogue():
    return record("lab/told-v1")


def test_a_run_keeps_its_tokenizer_and_goes_on_with_no_other(dialogue, tmp_path):
    folder, settings = tmp_path / "run", {**SMALL}
    options = {"out": folder, "evaluations": 0}
    run = orlog.train("bc", dialogue, steps=4, settings=settings, **options)
    digest = run.record.config["tokenizer"]
    assert read_vocabulary(folder / "tokenizer.json").digest == digest
    assert isinstance(orlog.load_policy(folder)("You are in room 0."), str)
    other = train_vocabulary(["something else"], 280)
    (tmp_path / "other.json").write_text(other.text)
    with pytest.raises(FileExistsError, match=f"tokenizer {digest}, .*not tokenizer {other.digest}"):
        orlog.train(
            "bc",
            dialogue,
            steps=4,
            resume=True,
            settings={**settings, "tokenizer": str(tmp_path / "other.json")},
            **options,
        )
    kept = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(other.text)
    with pytest.raises(ManifestError, match=r"tokenizer\.json: is not the tokenizer of the run"):
        orlog.load_policy(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ManifestError, match=r"tokenizer\.json: is missing"):
        orlog.train("bc", dialogue, steps=4, resume=True, settings=settings, **options)
    (folder / "tokenizer.json").write_text(kept)
    orlog.train("bc", dialogue, steps=4, resume=True, settings=settings, **options)


def test_the_spaces_of_a_dataset_choose_the_form(dialogue):
    from orlog.algos.training.policy import fitting_form

    assert fitting_form("bc", dialogue) is BCText
    assert fitting_form("ilql", dialogue) is ILQL
    with pytest.raises(SchemaError, match=r"(?s)iql takes actions that are .*: bc, ilql, percent_bc\."):
        fitting_form("iql", dialogue)


def test_choices_are_said_as_numbers_and_only_those_of_the_data(tmp_path):
    text = spaces.Text(80, min_length=0, charset=string.printable)
    both = spaces.Dict(told=text, size=spaces.Discrete(3))
    with orlog.DatasetWriter(
        "lab/choices-v1", observation_space=both, action_space=spaces.Discrete(9, start=4)
    ) as writer:
        for one in (4, 12):
            writer.add_steps(
                observations={"told": [f"Take {one}."] * 3, "size": np.zeros(3, np.int64)},
                actions=np.array([one, one]),
                rewards=np.ones(2),
                terminations=np.array([False, True]),
                truncations=np.zeros(2, bool),
            )
            writer.end_episode()
    choices = orlog.load_dataset("lab/choices-v1")
    options = {"steps": 60, "evaluations": 0}
    settings = {**SMALL, "vocabulary": 262, "learning_rate": 0.03}
    run = orlog.train("bc", choices, out=tmp_path / "run", settings=settings, **options)
    words = read_vocabulary(run.record.config["tokenizer"])
    said = {token for one in words.encode(["4", "12"]) for token in one}
    assert {*run.record.config["spoken"]} == {*said, words.end}
    policy = orlog.load_policy(tmp_path / "run")
    assert {int(policy({"told": f"Take {one % 9}.", "size": 0})) for one in range(30)} == {4, 12}
    short = {**settings, "longest_answer": 1}
    with pytest.raises(ValueError, match=r"longest_answer must be 3 or more"):
        orlog.train("ilql", choices, out=tmp_path / "other", settings=short, **options)
