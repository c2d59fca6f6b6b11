"""Arguments that all kinds of sampling share."""

import inspect

import pytest

import orlog
from orlog.loaders.best_episodes import best_transitions

KINDS = [
    *(orlog.transitions, orlog.sequences, orlog.action_chunks, orlog.windows, orlog.episodes),
    *(orlog.goals, orlog.subgoals, orlog.preferences, best_transitions),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_kind_of_sampling_shows_the_arguments_that_all_share(kind):
    shown = inspect.signature(kind).parameters
    shared = {name: shown[name].default for name in ("start", "infos", "rank", "ranks")}
    assert shared == {"start": 0, "infos": (), "rank": None, "ranks": None}
    assert shown["seed"].default is inspect.Parameter.empty
    assert all(one.kind is not one.VAR_KEYWORD for one in shown.values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_an_unknown_argument_is_refused_before_anything_is_read(kind):
    said = rf"^{kind.__name__}\(\) got an unexpected keyword argument 'rnak'; did you mean rank\?"
    with pytest.raises(TypeError, match=said):
        kind("no/such-v1", seed=0, rnak=1)
    with pytest.raises(TypeError, match=rf"{kind.__name__}\(\).*missing.*'seed'"):
        kind("no/such-v1", length=5) if kind is orlog.preferences else kind("no/such-v1")
