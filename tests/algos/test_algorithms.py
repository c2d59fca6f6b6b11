import re
from pathlib import Path

import msgspec
import pytest
from gymnasium import spaces

import orlog
from orlog.algos.algorithms import ALGORITHMS, algorithm_title, find_algorithm, known_as
from orlog.algos.presets import RECIPES, recipe_for
from orlog.algos.settings import check_for_any_form, make_config


def test_no_module_seeds_or_uses_a_global_generator():
    root = Path(orlog.__file__).parent
    rooms = ["", "algos", "loaders", "normalize", "datasets", "datasets/worlds"]
    modules = [path for room in rooms for path in (root / room).glob("*.py")]
    # OGBench draws from NumPy's global generator, which is seeded for it and put back.
    modules.remove(root / "datasets/worlds/ogbench.py")
    assert len(modules) > 30
    forbidden = ("torch.manual_seed", "torch.random.manual_seed", "np.random.seed", "random.seed(")
    for path in modules:
        text = path.read_text("utf-8")
        assert not [word for word in forbidden if word in text], path


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("expectile", "0.9", 0.9),
        ("expectile", 0.9, 0.9),
        ("hidden", "[64, 64]", (64, 64)),
        ("hidden", "64,32", (64, 32)),
        ("hidden", "64, 32,", (64, 32)),
        ("hidden", [64], (64,)),
        ("hidden", (32, 16), (32, 16)),
        ("steps", "1000", 1000),
        ("learning_rate", "1e-3", 1e-3),
        ("max_weight", "50", 50.0),
    ],
)
def test_settings_are_read_as_their_types(name, value, expected):
    config = make_config("iql", {name: value})
    found = getattr(config, name)
    assert found == expected
    assert type(found) is type(expected)
    changed = msgspec.structs.replace(config, **{name: getattr(make_config("iql", {}), name)})
    assert changed == make_config("iql", {})


@pytest.mark.parametrize(
    ("value", "expected"), [("5", 5.0), (None, None), ("none", None), ("None", None), ("null", None)]
)
def test_a_setting_that_may_be_left_out_is_read_as_a_number_or_none(value, expected):
    found = make_config("cql", {"target_gap": value})
    assert found == msgspec.structs.replace(make_config("cql", {}), target_gap=expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(
            ("hidden", one, "a list, such as hidden=64,64 or hidden=[64], each a whole number >= 1")
            for one in ("64", "64,x", "[1.5]")
        ),
        ("expectile", "high", "a number > 0 and < 1"),
        *(("batch_size", one, "a whole number >= 1") for one in ("1.5", True)),
        ("learning_rate", [1], "a number > 0"),
        ("policy_goals", "1,0", "a list of 3, each a number >= 0 and <= 1"),
    ],
)
def test_a_value_of_another_type_names_setting_and_value_and_what_it_takes(name, value, expected):
    kind = "hiql" if name == "policy_goals" else "iql"
    with pytest.raises(ValueError, match=re.escape(f"{kind}: {name} must be {expected}, found {value}.")):
        make_config(kind, {name: value})


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("expectil", "expectile"),
        ("lr_learning_rate", "learning_rate"),
        ("batchsize", "batch_size"),
        ("inverse_temp", "inverse_temperature"),
    ],
)
def test_an_unknown_setting_names_the_nearest(wrong, nearest):
    with pytest.raises(ValueError, match=rf"{wrong!r}; did you mean {nearest}\?"):
        make_config("iql", {wrong: 1})


def test_a_setting_that_resembles_none_lists_those_of_the_form():
    discrete = find_algorithm("cql", action_space=spaces.Discrete(3))
    with pytest.raises(ValueError, match="cql has no setting 'cloning_steps'; it has encoder"):
        make_config(discrete, {"cloning_steps": 3})


def test_an_unknown_algorithm_lists_what_there_is():
    with pytest.raises(ValueError, match=rf"no algorithm 'td7'; choose one of: {', '.join(ALGORITHMS)}"):
        make_config("td7", {})


def test_every_recipe_makes_a_configuration():
    for (algorithm, dataset), recipe in RECIPES.items():
        check_for_any_form(algorithm, recipe.settings)
        assert recipe.steps > 0
        assert recipe.source
        assert recipe_for(algorithm, dataset) is recipe


def test_a_dataset_without_a_recipe_gets_the_published_defaults():
    recipe = recipe_for("iql", "some/thing-v0")
    assert recipe.steps == 1_000_000
    assert recipe.settings == {}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_spelling_of_a_name_finds_the_algorithm(name):
    title = algorithm_title(name)
    for spelling in (name, name.upper(), title, title.lower(), title.replace("+", "_"), f" {title}"):
        assert known_as(spelling) == name, spelling
        assert find_algorithm(spelling) is ALGORITHMS[name]
        assert recipe_for(spelling, "pointmaze/umaze-v1") == recipe_for(name, "pointmaze/umaze-v1")


def test_titles_are_those_of_the_papers():
    titles = [algorithm_title(name) for name in ("bc", "percent_bc", "td3bc", "rebrac", "calql")]
    assert titles == ["BC", "BC-10%", "TD3+BC", "ReBRAC", "Cal-QL"]
    safe = {"percent": 100.0, "cost_limit": 20.0}
    assert [algorithm_title(name, safe) for name in ("percent_bc", "cpq")] == ["BC-Safe", "CPQ"]
    assert algorithm_title("percent_bc", {**safe, "cost_limit": None}) == "BC-100%"
    assert algorithm_title("percent_bc", {"percent": 2.5}) == "BC-2.5%"
    assert algorithm_title("percent_bc", {"percent": "a file from anywhere"}) == "BC-10%"
    assert algorithm_title("my_method:MyMethod") == known_as("MyMethod") == "MyMethod"
    assert known_as("MINE.py:IQL") == "MINE.py:IQL"
