"""The table of roles: which columns fit, which have one by their names, and what is refused."""

import fnmatch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.roles import (
    FAMILIES,
    ROLES,
    TEXT,
    Values,
    check_roles,
    column_with,
    columns_with,
    fits,
    roles_of,
    shown_roles,
    spread_roles,
    values_of,
)

COLUMNS = [
    *("infos/cost", "infos/agents/a/cost", "infos/action_mask", "infos/task", "infos/other"),
    *("episodes/task", "episodes/demonstration", "observations/task", "observations/a/action_mask"),
    *("infos/agents/a/acts", "infos/agents/b/acts", "infos/objectives", "actions", "rewards"),
]
values = st.builds(Values, st.sampled_from(["b", "i", "u", "f", TEXT, "array"]), st.sampled_from([(), (3,)]))
columns = st.dictionaries(st.sampled_from(COLUMNS), values)


def test_every_role_is_explained_and_of_a_family_that_there_is():
    for name, role in ROLES.items():
        assert role.name == name
        assert role.meaning
        assert role.family in ("", *FAMILIES)
        assert role.expected


def test_values_are_told_by_the_columns_that_store_them():
    uint8, int64 = np.dtype(np.uint8), np.dtype(np.int64)
    stored = [
        ColumnSpec("infos/cost", np.dtype(np.float32), ()),
        ColumnSpec("episodes/task@offsets", int64, ()),
        ColumnSpec("episodes/task@values", uint8, ()),
        ColumnSpec("infos/hits@offsets", int64, ()),
        ColumnSpec("infos/hits@values", int64, (2,)),
        ColumnSpec("observations/said@offsets", int64, ()),
        ColumnSpec("observations/said@values", uint8, ()),
        ColumnSpec("observations/deep@offsets", int64, ()),
        ColumnSpec("observations/deep@values/x", int64, ()),
    ]
    variable = {"episodes/task": "text", "infos/hits": "array"}
    assert values_of(stored, variable) == {
        "infos/cost": Values("f", ()),
        "episodes/task": Values("text", ()),
        "infos/hits": Values("array", (2,)),
        "observations/said": Values("text", ()),
    }


@given(columns, st.dictionaries(st.sampled_from(COLUMNS), st.sampled_from([*ROLES])))
def test_a_column_has_the_stated_role_or_else_that_of_its_name(held, stated):
    stated = {column: role for column, role in stated.items() if column in held}
    found = roles_of(stated, held)
    for column, one in held.items():
        if column in stated:
            expected = stated[column]
        else:
            expected = "none"
            for name, role in ROLES.items():
                usual = [
                    pattern
                    for pattern in role.usual
                    if fnmatch.fnmatchcase(column, pattern) and pattern.count("/") == column.count("/")
                ]
                if usual and name not in stated.values() and fits(role, column, one):
                    expected = name
                    break
        assert found.get(column, "none") == expected
    assert [*found] == sorted(found)
    check_roles(roles_of({}, held), held, "lab/a-v1")


def test_a_text_called_task_is_its_words_and_a_number_its_number():
    held = {"episodes/task": Values(TEXT, ()), "infos/task": Values("i", ())}
    assert roles_of({}, held) == {"episodes/task": "task_words", "infos/task": "task"}
    assert roles_of({"infos/task": "none"}, held) == {"episodes/task": "task_words"}
    assert column_with(roles_of({}, held), "cost") is None


def test_roles_of_agents_stand_together_and_can_be_given_by_a_pattern():
    held = {f"infos/agents/{agent}/{name}": Values("f", ()) for agent in "ab" for name in ("x", "y")}
    held["infos/x"] = Values("f", ())
    spread = spread_roles({"infos/agents/*/x": "cost", "infos/gone/*": "cost"}, held)
    assert [*spread] == ["infos/agents/a/x", "infos/agents/b/x", "infos/gone/*"]
    roles = roles_of({**spread_roles({"infos/agents/*/x": "cost"}, held), "infos/x": "cost"}, held)
    assert columns_with(roles, "cost") == ["infos/x"]
    assert columns_with(roles, "cost", of_agents=True) == ["infos/agents/a/x", "infos/agents/b/x"]
    assert shown_roles(roles) == {"cost": "infos/agents/*/x, infos/x"}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"infos/cost": "costs"}, "column 'infos/cost' has the unknown role 'costs'; did you mean"),
        ({"infos/cots": "cost"}, "a column 'infos/cots', which is not there; did you mean"),
        ({"actions": "cost"}, "column actions cannot have the role cost"),
        ({"infos/note": "cost"}, "infos/note cannot .* a column of steps that holds text"),
        ({"infos/cost": "task_words"}, "with text, one in each row; .* steps that holds float"),
        ({"infos/cost": "objectives"}, "a vector in each row; it is a column of steps"),
        ({"episodes/cost": "cost"}, "a column of steps .*; it is a column of episodes"),
    ],
)
def test_roles_that_make_no_sense_name_dataset_and_column(stated, message):
    number = Values("f", ())
    held = {"infos/cost": number, "episodes/cost": number, "actions": number, "infos/note": Values(TEXT, ())}
    with pytest.raises(SchemaError, match=f"lab/a-v1.*{message}"):
        check_roles(stated, held, "lab/a-v1")
