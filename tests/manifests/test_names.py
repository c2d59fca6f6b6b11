import pytest

from orlog.errors import InvalidNameError
from orlog.manifests.names import did_you_mean, either, parse_name, said_of, size_text


@pytest.mark.parametrize(
    "text",
    [
        "pointmaze/umaze-v1",
        "pointmaze/umaze-v1@1.0.0",
        "d4rl/hopper-medium-v2",
        "minari/mujoco/hopper/medium-v0",
        "ogbench/pointmaze-medium-navigate-v0",
        "minari/d4rl/door/v2",
        "pointmaze/umaze-v1@sha256:ab12cd",
    ],
)
def test_a_name_is_the_text_of_its_parsed_form(text):
    assert str(parse_name(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "umaze-v1",
        "pointmaze/umaze",
        "Pointmaze/umaze-v1",
        "pointmaze/../umaze-v1",
        "/pointmaze/umaze-v1",
        "pointmaze//umaze-v1",
        "pointmaze/umaze-v1@",
        "pointmaze/umaze-v1@1.0",
        "pointmaze/umaze-v1@01.0.0",
        "pointmaze/umaze-v1@sha256:xyz",
        "pointmaze/umaze-v1@latest",
        "pointmaze/umaze-v1\n",
        "a/" * 200 + "b-v1",
    ],
)
def test_a_malformed_name_is_refused_with_the_grammar_and_an_example(text):
    with pytest.raises(InvalidNameError, match="for example pointmaze/umaze-v1"):
        parse_name(text)


@pytest.mark.parametrize("name", ["lab/arm-v1/1.0.0/x-v1", "lab/arm-v1/versions.json/x-v1", "v1/x-v1", "lab/v2/x-v1"])
def test_no_dataset_lies_inside_of_another(name):
    with pytest.raises(InvalidNameError):
        parse_name(name)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("pointmase/umaze-v1", "pointmaze/umaze-v1"),
        ("d4rl/pen-humans-v1", "d4rl/pen-human-v1"),
        ("pen-human-v1", "d4rl/pen-human-v1"),
        ("lab/nothing-v1", ""),
        ("lab/arm-v1", ""),
        ("nope", ""),
    ],
)
def test_only_close_names_are_suggested(word, meant):
    known = ["d4rl/pen-human-v1", "pointmaze/umaze-v1", "lab/legs-v2"]
    assert did_you_mean(word, known) == (f"; did you mean {meant}?" if meant else "")


def test_words_are_a_choice_in_a_sentence():
    assert [either(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a or b", "a, b or c"]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (556_500, "556.5 kB"), (2.5e9, "2.5 GB")],
)
def test_sizes_are_written_in_one_way(size_bytes, text):
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("number", "clause", "text"),
    [
        (1, "episodes that ended have no end", "1 episode that ended has no end"),
        (1, "last rows of episodes were left out", "1 last row of episodes was left out"),
        (1, "records with no action", "1 record with no action"),
        (2000, "records end without is_last", "2,000 records end without is_last"),
        (0, "texts are no UTF-8", "0 texts are no UTF-8"),
    ],
)
def test_a_clause_about_one_thing_has_no_plural(number, clause, text):
    assert said_of(number, clause) == text
