"""Published presets: every number is that of the published file, and nothing published is dropped."""

import json

import pytest

from orlog.algos.algorithms import ALGORITHMS
from orlog.algos.presets import RECIPES, Rewards, preset_names, recipe_for
from orlog.algos.settings import make_config
from orlog.manifests.tables import presets_file, published_file, published_settings, read_table

D4RL = [f"d4rl/{row['dataset_id']}" for row in read_table("d4rl")]
FILES = sorted(presets_file("iql").parent.glob("*.json"))


NAMES = {"td3bc": "TD3+BC", "rebrac": "ReBRAC"}


def recipes():
    for path in FILES:
        for dataset in D4RL:
            for preset in preset_names(path.stem, dataset):
                yield path.stem, dataset, preset


def test_iql_on_antmaze_takes_the_authors_settings_and_rewards():
    recipe = recipe_for("iql", "d4rl/antmaze-medium-play-v2")
    body = json.loads(published_file().read_text("utf-8"))["algorithms"]["IQL"]["official"]
    assert recipe.preset == "authors"
    assert body["source"] in recipe.source
    assert recipe.settings["expectile"] == body["antmaze"]["expectile"] == 0.9
    assert recipe.settings["inverse_temperature"] == body["antmaze"]["temperature"] == 10.0
    assert recipe.rewards == Rewards(shift=-1.0)
    assert body["antmaze"]["reward"] == "r - 1"
    assert not recipe.standardize_observations
    assert recipe.steps == 1_000_000
    assert str(recipe.rewards) == "reward - 1"
    assert any("-v0 in the README" in one for one in recipe.differences)
    assert recipe.evaluation == {"eval_every": 100_000, "eval_episodes": 100}


def test_iql_on_locomotion_scales_by_the_range_of_returns_and_corl_standardizes_too():
    for name in ("halfcheetah-expert-v2", "hopper-medium-v2", "walker2d-random-v0"):
        recipe = recipe_for("iql", f"d4rl/{name}")
        assert recipe.rewards == Rewards(return_range=1000.0)
        assert not recipe.standardize_observations
    corl = recipe_for("iql", "d4rl/hopper-medium-v2", preset="corl")
    assert corl.standardize_observations
    assert corl.rewards == Rewards(return_range=1000.0)
    assert corl.settings["target_rate"] == 0.001
    assert any("deterministic" in one for one in corl.differences)
    assert recipe_for("iql", "d4rl/hopper-expert-v2", preset="CORL").rewards == Rewards()
    # The authors' code scales three families; ant is not among them, and nobody else published it.
    assert recipe_for("iql", "d4rl/ant-medium-v2").preset == "none"


def test_cql_on_antmaze_takes_each_implementations_rewards_and_gap():
    authors = recipe_for("cql", "d4rl/antmaze-umaze-v2")
    # (r - 0.5) * 4, and a threshold of 5 on a weighted gap of weight 5
    assert authors.rewards == Rewards(scale=4.0, shift=-2.0)
    assert authors.settings["target_gap"] == 5.0 / 5.0
    corl = recipe_for("cql", "d4rl/antmaze-umaze-v2", preset="corl")
    assert corl.rewards == Rewards(scale=10.0, shift=-5.0)
    assert corl.settings["target_gap"] == 0.8
    assert not corl.standardize_observations
    differences = " ".join(corl.differences)
    assert "cql_clip_diff_min=-200" in differences
    assert "the best of 10" in differences
    assert "published: 5" in differences


@pytest.mark.parametrize(
    ("algorithm", "published", "ours"),
    [
        ("iql", "iql_tau", "expectile"),
        ("iql", "beta", "inverse_temperature"),
        ("iql", "tau", "target_rate"),
        ("cql", "cql_alpha", "conservative_weight"),
        ("cql", "policy_lr", "policy_learning_rate"),
        ("cql", "qf_lr", "critic_learning_rate"),
        ("bc", "batch_size", "batch_size"),
        ("td3bc", "alpha", "value_weight"),
        ("awac", "awac_lambda", "temperature"),
        ("edac", "num_critics", "critics"),
        ("edac", "eta", "diversity"),
        ("rebrac", "actor_bc_coef", "policy_penalty"),
        ("rebrac", "critic_bc_coef", "critic_penalty"),
    ],
)
def test_corls_values_for_each_dataset_are_those_of_its_file(algorithm, published, ours):
    body = published_settings(NAMES.get(algorithm, algorithm.upper()), "CORL")
    assert len(body["per_dataset"]) in (30, 39, 42)
    for name, special in body["per_dataset"].items():
        recipe = recipe_for(algorithm, f"d4rl/{name}", preset="corl")
        assert recipe.settings[ours] == {**body["common"], **special}[published], name


def test_td3bc_and_awac_take_the_published_rewards_and_observations():
    authors = recipe_for("td3bc", "d4rl/hopper-medium-v0")
    assert (authors.preset, authors.differences) == ("authors", ())
    assert authors.settings["value_weight"] == 2.5
    assert authors.standardize_observations
    (difference,) = recipe_for("td3bc", "d4rl/hopper-medium-v2").differences
    assert "-v0 list" in difference
    assert recipe_for("td3bc", "d4rl/antmaze-umaze-v2").rewards == Rewards(shift=-1.0)
    assert recipe_for("awac", "d4rl/antmaze-umaze-v2").rewards == Rewards(shift=-1.0)
    assert recipe_for("awac", "d4rl/hopper-medium-v2").rewards == Rewards()
    assert recipe_for("awac", "d4rl/pen-human-v1").rewards == Rewards()
    assert recipe_for("awac", "d4rl/pen-human-v1").standardize_observations


def test_rebrac_takes_both_penalties_of_the_dataset():
    recipe = recipe_for("rebrac", "d4rl/walker2d-medium-v2")
    assert (recipe.preset, recipe.differences) == ("authors", ())
    assert recipe.settings["policy_penalty"] == 0.05
    assert recipe.settings["critic_penalty"] == 0.1
    assert recipe.settings["batch_size"] == 1024
    assert not recipe.standardize_observations
    antmaze = recipe_for("rebrac", "d4rl/antmaze-umaze-v2")
    assert antmaze.rewards == Rewards(scale=100.0)
    assert antmaze.settings["discount"] == 0.999
    assert recipe_for("rebrac", "d4rl/maze2d-large-v1").preset == "corl"


def test_edac_takes_critics_and_diversity_of_the_dataset_and_sac_n_has_none():
    recipe = recipe_for("edac", "d4rl/hopper-medium-v2")
    assert (recipe.preset, recipe.steps, recipe.differences) == ("corl", 3_000_000, ())
    assert (recipe.settings["critics"], recipe.settings["diversity"]) == (50, 1)
    assert not recipe.standardize_observations
    sac_n = recipe_for("edac", "d4rl/hopper-medium-v2", preset="SAC-N")
    assert (sac_n.settings["critics"], sac_n.settings["diversity"]) == (500, 0)
    assert sac_n.source.startswith("SAC-N, CORL: ")
    authors = recipe_for("edac", "d4rl/pen-cloned-v1")
    assert (authors.preset, authors.steps) == ("authors", 200_000)
    assert (authors.settings["critics"], authors.settings["diversity"]) == (20, 10)
    assert len(authors.differences) == 2


def test_every_preset_makes_a_configuration_and_says_where_it_is_from():
    for algorithm, dataset, preset in recipes():
        recipe = recipe_for(algorithm, dataset, preset=preset)
        make_config(algorithm, recipe.settings)
        assert recipe.preset == preset
        assert recipe.source
        assert recipe.steps > 0
        for line in recipe.lines():
            assert "{value}" not in line


def test_every_published_setting_is_used_or_shown():
    """Count what each preset takes in, and where each published name comes out again."""
    unknown = set()
    for algorithm, dataset, preset in recipes():
        for text in recipe_for(algorithm, dataset, preset=preset).differences:
            if "orlog has no setting" in text:
                unknown.add(text.rpartition(" ")[2])
    assert unknown == {"cql_clip_diff_min=-200"}


def test_a_published_setting_that_the_table_does_not_name_is_shown_as_a_difference(tmp_path, monkeypatch):
    table = {
        "algorithm": "IQL",
        "presets": {
            "d3rlpy": {
                "implementation": "d3rlpy",
                "keys": {"actor_lr": "learning_rate", "critic_lr": "learning_rate"},
                "families": [{"datasets": ["lab/*"]}],
            }
        },
    }
    (tmp_path / "newest.json").write_text(json.dumps(table), "utf-8")
    monkeypatch.setattr("orlog.algos.presets.presets_file", lambda name: tmp_path / f"{name}.json")
    recipe = recipe_for("newest", "lab/arm-v1")
    assert recipe.settings == {"learning_rate": 0.0003}
    shown = " ".join(recipe.differences)
    for key in published_settings("IQL", "d3rlpy"):
        assert key in ("source", "actor_lr", "critic_lr") or f" {key}=" in shown


def test_facts_beside_the_sections_are_in_a_family_too():
    for path in FILES:
        table = json.loads(path.read_text("utf-8"))
        for preset in table["presets"].values():
            algorithm = preset.get("algorithm", table["algorithm"])
            body = published_settings(algorithm, preset["implementation"])
            facts = {key for key, value in body.items() if not isinstance(value, dict)}
            sections = [set(family.get("sections", [])) for family in preset["families"]]
            if all(sections):
                assert facts - {"source", "code", "n_datasets", "flags_source"} <= set.union(*sections)


def test_keys_of_the_tables_are_names_that_were_published():
    for path in FILES:
        table = json.loads(path.read_text("utf-8"))
        for preset in table["presets"].values():
            for family in preset["families"]:
                name = family.get("implementation", preset["implementation"])
                algorithm = preset.get("algorithm", table["algorithm"])
                body = published_settings(algorithm, name)
                names = {*body, *(key for part in parts(body) for key in part)}
                assert set(family.get("keys", {})) <= names
                assert set(family.get("sections", [])) <= set(body)
        assert path.stem in ALGORITHMS


def parts(body):
    for value in body.values():
        if isinstance(value, dict):
            yield value
            yield from parts(value)


def test_flow_policies_take_what_the_authors_chose_for_the_dataset():
    recipe = recipe_for("fql", "d4rl/pen-cloned-v1")
    assert (recipe.preset, recipe.differences, recipe.steps) == ("authors", (), 500_000)
    assert recipe.settings["distillation_weight"] == 10_000
    assert recipe.settings["target"] == "smallest"
    assert not recipe.standardize_observations
    antmaze = recipe_for("fql", "d4rl/antmaze-large-play-v2")
    assert (antmaze.rewards, antmaze.settings["distillation_weight"]) == (Rewards(shift=-1.0), 3)
    task = recipe_for("fql", "ogbench/humanoidmaze-large-navigate-singletask-task3-v0")
    assert (task.settings["discount"], task.steps) == (0.995, 1_000_000)
    best = recipe_for("ifql", "ogbench/humanoidmaze-medium-navigate-singletask-v0")
    assert (best.preset, best.differences) == ("authors", ())
    assert (best.settings["discount"], best.settings["sampled_actions"]) == (0.995, 32)
    chunks = recipe_for("qcfql", "ogbench/cube-triple-play-singletask-task2-v0")
    assert (chunks.preset, chunks.differences) == ("authors", ())
    assert (chunks.settings["chunk_length"], chunks.settings["distillation_weight"]) == (5, 100)


def test_goal_conditioned_algorithms_take_ogbenchs_flags_for_the_dataset():
    hiql = recipe_for("hiql", "ogbench/antmaze-giant-stitch-v0")
    assert (hiql.preset, hiql.steps, hiql.standardize_observations) == ("ogbench", 1_000_000, False)
    assert "1d4140997f" in hiql.source
    assert hiql.settings["discount"] == 0.995
    assert hiql.settings["policy_goals"] == [0.0, 0.5, 0.5]
    assert hiql.settings["value_goals"] == [0.2, 0.5, 0.3]
    gcivl = recipe_for("gcivl", "ogbench/antmaze-giant-stitch-v0").settings
    assert (gcivl["inverse_temperature"], gcivl["policy_goals"]) == (10, [0, 0.5, 0.5])
    gciql = recipe_for("gciql", "ogbench/pointmaze-medium-navigate-v0").settings
    assert (gciql["cloning_weight"], gciql["policy_goals"]) == (0.003, [0, 1, 0])
    explore = recipe_for("crl", "ogbench/antmaze-large-explore-v0").settings
    assert (explore["policy_goals"], explore["cloning_weight"]) == ([0.0, 0.0, 1.0], 0.003)
    assert recipe_for("qrl", "ogbench/pointmaze-large-navigate-v0").settings["cloning_weight"] == 3e-4
    assert recipe_for("qrl", "ogbench/visual-cube-double-play-v0").preset == "none"
    for row in read_table("ogbench"):
        for algorithm in ("crl", "gcbc", "gciql", "gcivl", "hiql", "qrl"):
            recipe = recipe_for(algorithm, f"ogbench/{row['dataset_id']}")
            make_config(algorithm, recipe.settings)
            assert not recipe.differences


def test_own_recipes_come_first_and_the_defaults_can_be_asked_for():
    recipe = recipe_for("iql", "pointmaze/umaze-v1")
    assert recipe is RECIPES["iql", "pointmaze/umaze-v1"]
    assert (recipe.rewards, recipe.standardize_observations) == (Rewards(), True)
    assert preset_names("iql", "pointmaze/umaze-v1") == ["orlog", "none"]
    plain = recipe_for("iql", "pointmaze/umaze-v1", preset="none")
    assert (plain.settings, plain.steps) == ({}, 1_000_000)
    assert preset_names("cql", "d4rl/pen-human-v1") == ["corl", "none"]
    assert preset_names("my_method:MyMethod", "d4rl/pen-human-v1") == ["none"]


def test_an_unknown_preset_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="; there are authors, corl, none"):
        recipe_for("iql", "d4rl/hopper-medium-v2", preset="corll")
    with pytest.raises(ValueError, match="no preset 'corl' for lab/arm-v1; there are none"):
        recipe_for("iql", "lab/arm-v1", preset="corl")


@pytest.mark.parametrize(
    ("rewards", "text"),
    [
        (Rewards(), "as they are"),
        (Rewards(scale=4.0, shift=-2.0), "4 reward - 2"),
        (Rewards(shift=0.5), "reward + 0.5"),
        (Rewards(return_range=1000.0), "1000 reward / (best - worst return of an episode)"),
    ],
)
def test_what_rewards_become_is_shown_as_a_formula(rewards, text):
    assert str(rewards) == text


def test_a_recipe_says_how_long_this_run_is_and_leaves_no_empty_words():
    own = recipe_for("iql", "pointmaze/umaze-v1")
    assert own.lines()[1].endswith("; 8,000 steps")
    assert own.lines(8_000) == own.lines()
    assert own.lines(200)[1].endswith("; 200 steps (the preset has 8,000)")
    assert own.lines()[2] == "rewards: as they are; observations: standardized"
    defaults = recipe_for("bc", "lab/arm-v1").lines()[0]
    assert defaults == "preset none: the algorithm's defaults; published: CORL's configuration"
    assert recipe_for("mine", "lab/arm-v1").lines()[0] == "preset none: the algorithm's defaults"
