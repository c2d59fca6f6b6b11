import json

import pytest

from orlog.algos.algorithms import algorithm_forms
from orlog.algos.bc import BCConfig
from orlog.algos.cql import CQLConfig
from orlog.algos.iql import IQLConfig
from orlog.algos.presets import RECIPES, recipe_for
from orlog.errors import NotFoundError
from orlog.manifests.tables import published_file, published_settings


def test_the_file_ships_with_its_sources():
    body = json.loads(published_file().read_text("utf-8"))
    for implementations in body["algorithms"].values():
        for settings in implementations.values():
            assert settings["source"]
    assert published_settings("IQL", "CORL")["n_datasets"] == 42


def test_what_is_not_there_is_refused_with_what_is():
    with pytest.raises(NotFoundError, match=r"did you mean.*IQL"):
        published_settings("IQLL", "CORL")
    with pytest.raises(NotFoundError, match="It has: official, CORL, "):
        published_settings("IQL", "nobody")


def test_defaults_of_iql_are_the_authors_for_locomotion():
    official = published_settings("IQL", "official")
    common, locomotion = official["common"], official["locomotion"]
    default = IQLConfig()
    assert common["actor_lr"] == common["value_lr"] == common["critic_lr"] == default.learning_rate
    assert tuple(common["hidden"]) == default.hidden
    assert common["discount"] == default.discount
    assert common["tau"] == default.target_rate
    assert common["batch_size"] == default.batch_size
    assert common["steps"] == default.steps == recipe_for("iql", "any/other-v1").steps
    assert locomotion["expectile"] == default.expectile
    assert locomotion["temperature"] == default.inverse_temperature
    assert f"clipped at {default.max_weight:g}" in common["advantage_weight"]


def test_defaults_of_cql_are_the_authors_for_gym():
    official = published_settings("CQL", "official d4rl (mujoco)")
    default = CQLConfig()
    count, width = map(int, official["hidden"].split("x"))
    assert default.hidden == (width,) * count
    assert official["policy_lr"] == default.policy_learning_rate
    assert official["qf_lr"] == default.critic_learning_rate
    assert official["batch_size"] == default.batch_size
    assert official["discount"] == default.discount
    assert official["tau"] == default.target_rate
    assert official["num_random_actions"] == default.sampled_actions
    assert official["policy_eval_start"] == default.cloning_steps
    assert official["min_q_weight"].startswith(f"{default.conservative_weight} or")
    assert official["lagrange"].startswith("off")
    assert default.target_gap is None


def test_defaults_of_bc_are_corls():
    corl = published_settings("BC", "CORL")
    default = BCConfig()
    assert corl["common"]["batch_size"] == default.batch_size
    assert corl["common"]["max_timesteps"] == recipe_for("bc", "any/other-v1").steps
    details = corl["implementation_details"]
    assert details["optimizer"] == "Adam lr 3e-4"
    assert default.learning_rate == 3e-4
    assert details["actor"].startswith(f"deterministic, {len(default.hidden)}x{default.hidden[0]}")


def test_recipes_that_cite_published_values_hold_them():
    antmaze = published_settings("IQL", "official")["antmaze"]
    sampled = published_settings("CQL", "official d4rl (mujoco)")["num_random_actions"]
    for (algorithm, _), recipe in RECIPES.items():
        if "authors' AntMaze configuration" in recipe.source:
            assert recipe.settings["expectile"] == antmaze["expectile"]
            assert recipe.settings["inverse_temperature"] == antmaze["temperature"]
        if "relocate-human-v1" in recipe.source:
            authors = published_settings("ReBRAC", "official")["per_dataset"]["relocate-human-v1"]
            assert recipe.settings["policy_penalty"] == authors["actor_bc_coef"]
            assert recipe.settings["critic_penalty"] == authors["critic_bc_coef"]
        if "CORL's configurations for AntMaze" in recipe.source:
            corl = published_settings("AWAC", "CORL")["per_dataset"]["antmaze-umaze-v2"]
            assert recipe.settings["temperature"] == corl["awac_lambda"]
        if "sampled_actions" in recipe.settings and algorithm == "cql":
            assert f"{recipe.settings['sampled_actions']} sampled actions" in recipe.source
            assert f"instead of {sampled}" in recipe.source
        forms = [form.CONFIG.__struct_fields__ for form in algorithm_forms(algorithm)]
        assert any({*recipe.settings} <= {*names} for names in forms)
