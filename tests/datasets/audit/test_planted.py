"""Defects of the corpus that the audit finds, and the good data, in which it finds nothing."""

import copy
import functools

import pytest

from benchmarks.audit_corpus import SETS, audited, write
from benchmarks.planted_defects import DEFECTS, plant

FOUND = {
    "arm": """changes declared as positions, half; an action frozen, one; rewards a step late, few;
        rewards a step early, every; rewards zero, few; rewards zero, every; rewards ten times as large, few;
        rewards negated, few; a spike of the reward, one; episodes cut in two; an episode of two steps, one;
        an episode backwards, one; steps lost and numbered anew, one; a sensor frozen, few; all sensors frozen, one;
        zeros for some steps, few; quaternions as xyzw, few; quaternions without length 1, few; two sensors exchanged, few;
        a sensor reversed, few; a sensor three steps late, few; half a frame, few; frames of noise, few; camera hangs, few;
        a color lost, few; frames mirrored, few; frames upside down, few; cameras exchanged, few;
        times at half the rate, few; a time stands still, every; actions three steps late, every; tasks exchanged, few;
        tasks without words, few; camera five steps late, few; frames of the episode before; frames dropped, few""",
    "runner": """two actions exchanged, few; a sensor reversed, few; final observations of the next episode;
        first observations of the one before; actions three steps late, every""",
}
CASES = [(label, name) for label, names in FOUND.items() for name in " ".join(names.split()).split("; ")]
good_data = functools.cache(lambda label, seed: SETS[label](seed))


def loud(label, drafts, environment):
    return [one for one in audited(write(label, drafts, environment)).findings if one.severity != "note"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("label", FOUND)
def test_good_data_have_no_defect(label, seed):
    assert loud(label, *good_data(label, seed)) == []


@pytest.mark.parametrize(("label", "name"), CASES)
def test_a_planted_defect_is_found_and_named(label, name):
    drafts, environment = good_data(label, 0)
    planted = copy.deepcopy(drafts)
    plant(name, planted)
    found = loud(label, planted, environment)
    assert {one.check for one in found} & {*DEFECTS[name].checks.split(",")}, found
