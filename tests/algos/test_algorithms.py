from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file

import orlog
from orlog.algos.algorithms import (
    ALGORITHMS,
    algorithm_title,
    find_algorithm,
    known_as,
    make_algorithm,
)
from orlog.algos.networks import Scaling
from orlog.algos.presets import RECIPES, recipe_for
from orlog.algos.settings import check_for_any_form, make_config
from orlog.algos.training.checkpoint import save_checkpoint
from orlog.loaders.batch import Tensors
from tests.algos import plain

BatchesOf: TypeAlias = Callable[[Any, int], list[Any]]


def make(name: str, scaling: Scaling, *, seed: int) -> Any:
    return make_algorithm(name, make_config(name, plain.small_settings(name)), scaling, seed=seed)


def trained(name: str, scaling: Scaling, batches_of: BatchesOf, *, seed: int, steps: int) -> Any:
    made = make(name, scaling, seed=seed)
    for batch in batches_of(made, steps):
        made.update(batch)
    return made


def tensors(batch: Tensors) -> dict[str, torch.Tensor]:
    """Return a copy of the tensors of a batch."""
    found = {}
    for field in dataclasses.fields(batch):  # type: ignore[arg-type]  # all batches are dataclasses
        value = getattr(batch, field.name)
        if isinstance(value, torch.Tensor):
            found[field.name] = value.clone()
    return found


def state(algorithm: Any, path: Path) -> dict[str, torch.Tensor]:
    save_checkpoint(algorithm, path, metadata={})
    return dict(load_file(path))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_seed_alone_decides_every_bit(
    scaling: Scaling, batches_of: BatchesOf, tmp_path: Path, name: str
) -> None:
    one = state(trained(name, scaling, batches_of, seed=4, steps=3), tmp_path / "state")
    torch.rand(5)
    again = state(trained(name, scaling, batches_of, seed=4, steps=3), tmp_path / "state")
    other = state(trained(name, scaling, batches_of, seed=5, steps=3), tmp_path / "state")
    assert one.keys() == again.keys() == other.keys()
    assert all(torch.equal(tensor, again[key]) for key, tensor in one.items())
    weights = [key for key in one if key.endswith("weight")]
    assert weights
    assert not any(torch.equal(one[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_and_acting_touch_no_global_generator(
    scaling: Scaling, batches_of: BatchesOf, name: str
) -> None:
    made = make(name, scaling, seed=0)
    (batch,) = batches_of(made, 1)
    before, numbers = torch.random.get_rng_state(), np.random.get_state(legacy=False)  # noqa: NPY002 (it is what must not change)
    made.update(batch)
    plain.act(made, torch.zeros(5, 3))
    after = np.random.get_state(legacy=False)  # noqa: NPY002 (as above)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert repr(after) == repr(numbers)


def test_no_module_seeds_or_uses_a_global_generator() -> None:
    root = Path(orlog.__file__).parent
    rooms = ["", "algos", "loaders", "normalize", "datasets", "datasets/recipes"]
    modules = [path for room in rooms for path in (root / room).glob("*.py")]
    assert len(modules) > 30
    forbidden = ("torch.manual_seed", "torch.random.manual_seed", "np.random.seed", "random.seed(")
    for path in modules:
        text = path.read_text("utf-8")
        assert not [word for word in forbidden if word in text], path


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_leaves_the_batch_as_it_was(
    scaling: Scaling, batches_of: BatchesOf, name: str
) -> None:
    made = make(name, scaling, seed=0)
    (batch,) = batches_of(made, 1)
    before = tensors(batch)
    made.update(batch)
    for field, value in tensors(batch).items():
        assert torch.equal(value, before[field]), field


@pytest.mark.parametrize("name", ALGORITHMS)
def test_actions_lie_within_the_bounds(scaling: Scaling, batches_of: BatchesOf, name: str) -> None:
    made = trained(name, scaling, batches_of, seed=0, steps=1)
    far = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) * 1e3
    actions = plain.act(made, far)
    assert actions.shape == (100, 2)
    assert (actions >= scaling.action_low - 1e-5).all()
    assert (actions <= scaling.action_high + 1e-5).all()


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
def test_settings_are_read_as_their_types(name: str, value: object, expected: object) -> None:
    config = make_config("iql", {name: value})
    found = getattr(config, name)
    assert found == expected
    assert type(found) is type(expected)
    changed = dataclasses.replace(config, **{name: getattr(make_config("iql", {}), name)})
    assert changed == make_config("iql", {})


def test_an_optional_setting_is_read_as_a_number() -> None:
    assert getattr(make_config("cql", {"target_gap": "5"}), "target_gap") == 5.0  # noqa: B009 (of one algorithm only)
    assert make_config("cql", {"target_gap": None}) == make_config("cql", {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden", "64"),
        ("hidden", "[64"),
        ("hidden", "64,x"),
        ("hidden", "[1.5]"),
        ("expectile", "high"),
        ("batch_size", "1.5"),
        ("batch_size", True),
        ("learning_rate", [1]),
    ],
)
def test_a_value_of_another_type_names_setting_and_value(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"iql: {name}={value}: ")) as caught:
        make_config("iql", {name: value})
    assert ("write a list as hidden=64,64" in str(caught.value)) == (name == "hidden")


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("expectil", "expectile"),
        ("lr_learning_rate", "learning_rate"),
        ("batchsize", "batch_size"),
        ("inverse_temp", "inverse_temperature"),
    ],
)
def test_an_unknown_setting_names_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"{wrong!r}; did you mean {nearest}\?"):
        make_config("iql", {wrong: 1})


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("expectile", "abc", "a number."),
        ("batch_size", "1.5", "a whole number."),
        ("hidden", "64", "a list of whole numbers; write"),
        ("policy_goals", "1,0", "a list of 3 numbers; write"),
    ],
)
def test_what_a_setting_takes_is_said_in_words(setting: str, value: str, expected: str) -> None:
    name = "hiql" if setting == "policy_goals" else "iql"
    with pytest.raises(ValueError, match=re.escape(f"{setting}={value}: expected {expected}")):
        make_config(name, {setting: value})


def test_a_setting_of_another_form_is_said_to_be_of_other_actions() -> None:
    discrete = find_algorithm("cql", action_space=spaces.Discrete(3))
    expected = r"cql has no setting 'cloning_steps' for discrete actions; it has hidden"
    with pytest.raises(ValueError, match=expected):
        make_config(discrete, {"cloning_steps": 3})


def test_a_setting_that_resembles_none_lists_them() -> None:
    with pytest.raises(ValueError, match="it has hidden, learning_rate, batch_size"):
        make_config("bc", {"xyzzy": 1})


def test_an_unknown_algorithm_lists_what_there_is() -> None:
    with pytest.raises(
        ValueError, match=rf"no algorithm 'td7'; choose one of: {', '.join(ALGORITHMS)}"
    ):
        make_config("td7", {})


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [
        ("iql", "expectile", "1.5"),
        ("iql", "expectile", "high"),
        ("iql", "steps", "10.5"),
        ("iql", "hidden", "64"),
        ("iql", "hidden", "[64"),
        ("iql", "hidden", "[]"),
        ("iql", "hidden", "[1.5]"),
        ("cql", "conservative_weight", -1),
        ("cql", "sampled_actions", 0),
        ("bc", "batch_size", "0"),
        ("bc", "learning_rate", [1]),
    ],
)
def test_values_that_cannot_be_are_refused(algorithm: str, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        make_config(algorithm, {name: value})


def test_every_recipe_makes_a_configuration() -> None:
    for (algorithm, dataset), recipe in RECIPES.items():
        check_for_any_form(algorithm, recipe.settings)
        assert recipe.steps > 0
        assert recipe.source
        assert recipe_for(algorithm, dataset) is recipe


def test_a_dataset_without_a_recipe_gets_the_published_defaults() -> None:
    recipe = recipe_for("iql", "some/thing-v0")
    assert recipe.steps == 1_000_000
    assert recipe.settings == {}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_making_an_algorithm_touches_no_global_generator(scaling: Scaling, name: str) -> None:
    before = torch.random.get_rng_state()
    make(name, scaling, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("text", ["none", "None", "null"])
def test_none_is_read_as_no_value(text: str) -> None:
    assert make_config("cql", {"target_gap": text}) == make_config("cql", {})


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [
        ("bc", "learning_rate", "nan"),
        ("bc", "learning_rate", "inf"),
        ("bc", "hidden", "[64, 0]"),
        ("bc", "hidden", "[-64]"),
        ("iql", "learning_rate", "nan"),
        ("iql", "inverse_temperature", "nan"),
        ("iql", "max_weight", "nan"),
        ("cql", "policy_learning_rate", "nan"),
        ("cql", "conservative_weight", "nan"),
        ("cql", "target_gap", "nan"),
    ],
)
def test_settings_that_no_run_survives_are_refused(algorithm: str, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        make_config(algorithm, {name: value})


def test_the_source_of_cqls_defaults_is_not_said_to_be_corls_configuration() -> None:
    # CORL's locomotion configuration has cql_alpha 10 and policy_lr 3e-5; these are the authors'.
    assert make_config("cql", {}) == make_config(
        "cql", {"conservative_weight": 5.0, "policy_learning_rate": 1e-4}
    )
    assert "CORL" not in recipe_for("cql", "d4rl/halfcheetah-medium-v2").source


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_spelling_of_a_name_finds_the_algorithm(name: str) -> None:
    title = algorithm_title(name)
    for spelling in (
        name,
        name.upper(),
        title,
        title.lower(),
        title.replace("+", "_"),
        f" {title}",
    ):
        assert known_as(spelling) == name, spelling
        assert find_algorithm(spelling) is find_algorithm(name)
        assert recipe_for(spelling, "pointmaze/umaze-v1") == recipe_for(name, "pointmaze/umaze-v1")


def test_titles_are_those_of_the_papers() -> None:
    titles = [algorithm_title(name) for name in ("bc", "percent_bc", "td3bc", "rebrac", "calql")]
    assert titles == ["BC", "BC-10%", "TD3+BC", "ReBRAC", "Cal-QL"]
    assert algorithm_title("my_method:MyMethod") == known_as("MyMethod") == "MyMethod"
    assert known_as("MINE.py:IQL") == "MINE.py:IQL"
