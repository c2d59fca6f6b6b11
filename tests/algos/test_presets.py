"""Published presets: every number is that of the published file, and nothing published is dropped."""

import json

import pytest

from orlog.algos.algorithms import ALGORITHMS
from orlog.algos.presets import RECIPES, Rewards, preset_names, recipe_for
from orlog.algos.settings import make_config
from orlog.manifests.tables import presets_file, published_settings, read_table

D4RL = [f"d4rl/{row['dataset_id']}" for row in read_table("d4rl")]
FILES = sorted(presets_file("iql").parent.glob("*.json"))


NAMES = {"td3bc": "TD3+BC", "rebrac": "ReBRAC"}


def recipes():
    for path in FILES:
        for dataset in D4RL:
            for preset in preset_names(path.stem, dataset):
                yield path.stem, dataset, preset


TASK = "singletask-task3-v0"
NOT_STANDARDIZED = {"standardize_observations": False}
TAKEN = [
    # algorithm, dataset, preset asked for, and of the recipe: preset, steps, rewards, some settings, other fields
    ("iql", "d4rl/antmaze-medium-play-v2", "", "authors", 10**6, Rewards(shift=-1.0),
     {"expectile": 0.9, "inverse_temperature": 10.0}, {**NOT_STANDARDIZED, "evaluation": {"eval_every": 100_000, "eval_episodes": 100}}),
    ("iql", "d4rl/halfcheetah-expert-v2", "", "authors", 10**6, Rewards(return_range=1000.0), {}, NOT_STANDARDIZED),
    ("iql", "d4rl/walker2d-random-v0", "", "authors", 10**6, Rewards(return_range=1000.0), {}, NOT_STANDARDIZED),
    ("iql", "d4rl/hopper-medium-v2", "corl", "corl", 10**6, Rewards(return_range=1000.0), {"target_rate": 0.001}, {}),
    ("iql", "d4rl/hopper-expert-v2", "CORL", "corl", 10**6, Rewards(), {}, {}),
    # The authors' code scales three families; ant is not among them, and nobody else published it.
    ("iql", "d4rl/ant-medium-v2", "", "none", 10**6, Rewards(), {}, {}),
    # (r - 0.5) * 4, and a threshold of 5 on a weighted gap of weight 5
    ("cql", "d4rl/antmaze-umaze-v2", "", "authors", 10**6, Rewards(scale=4.0, shift=-2.0), {"target_gap": 1.0}, {}),
    ("cql", "d4rl/antmaze-umaze-v2", "corl", "corl", 10**6, Rewards(scale=10.0, shift=-5.0), {"target_gap": 0.8}, NOT_STANDARDIZED),
    ("td3bc", "d4rl/hopper-medium-v0", "", "authors", 10**6, Rewards(), {"value_weight": 2.5}, {"differences": ()}),
    ("td3bc", "d4rl/antmaze-umaze-v2", "", "corl", 10**6, Rewards(shift=-1.0), {}, {}),
    ("awac", "d4rl/antmaze-umaze-v2", "", "corl", 10**6, Rewards(shift=-1.0), {}, {}),
    ("awac", "d4rl/pen-human-v1", "", "corl", 10**6, Rewards(), {}, {}),
    ("rebrac", "d4rl/walker2d-medium-v2", "", "authors", 10**6, Rewards(),
     {"policy_penalty": 0.05, "critic_penalty": 0.1, "batch_size": 1024}, {**NOT_STANDARDIZED, "differences": ()}),
    ("rebrac", "d4rl/antmaze-umaze-v2", "", "authors", 10**6, Rewards(scale=100.0), {"discount": 0.999}, {}),
    ("rebrac", "d4rl/maze2d-large-v1", "", "corl", 10**6, Rewards(), {}, {}),
    ("edac", "d4rl/hopper-medium-v2", "", "corl", 3 * 10**6, Rewards(), {"critics": 50, "diversity": 1}, NOT_STANDARDIZED),
    ("edac", "d4rl/hopper-medium-v2", "SAC-N", "sac-n", 3 * 10**6, Rewards(), {"critics": 500, "diversity": 0}, {}),
    ("edac", "d4rl/pen-cloned-v1", "", "authors", 200_000, Rewards(), {"critics": 20, "diversity": 10}, {}),
    ("fql", "d4rl/pen-cloned-v1", "", "authors", 500_000, Rewards(),
     {"distillation_weight": 10_000, "target": "smallest"}, {**NOT_STANDARDIZED, "differences": ()}),
    ("fql", "d4rl/antmaze-large-play-v2", "", "authors", 500_000, Rewards(shift=-1.0), {"distillation_weight": 3}, {}),
    ("fql", f"ogbench/humanoidmaze-large-navigate-{TASK}", "", "authors", 10**6, Rewards(), {"discount": 0.995}, {}),
    ("ifql", "ogbench/humanoidmaze-medium-navigate-singletask-v0", "", "authors", 10**6, Rewards(),
     {"discount": 0.995, "sampled_actions": 32}, {"differences": ()}),
    ("qcfql", "ogbench/cube-triple-play-singletask-task2-v0", "", "authors", 10**6, Rewards(),
     {"chunk_length": 5, "distillation_weight": 100}, {"differences": ()}),
    ("hiql", "ogbench/antmaze-giant-stitch-v0", "", "ogbench", 10**6, Rewards(),
     {"discount": 0.995, "policy_goals": [0.0, 0.5, 0.5], "value_goals": [0.2, 0.5, 0.3]}, NOT_STANDARDIZED),
    ("gcivl", "ogbench/antmaze-giant-stitch-v0", "", "ogbench", 10**6, Rewards(),
     {"inverse_temperature": 10, "policy_goals": [0, 0.5, 0.5]}, {}),
    ("gciql", "ogbench/pointmaze-medium-navigate-v0", "", "ogbench", 10**6, Rewards(), {"cloning_weight": 0.003}, {}),
    ("crl", "ogbench/antmaze-large-explore-v0", "", "ogbench", 10**6, Rewards(), {"policy_goals": [0.0, 0.0, 1.0]}, {}),
    ("qrl", "ogbench/pointmaze-large-navigate-v0", "", "ogbench", 10**6, Rewards(), {"cloning_weight": 3e-4}, {}),
    ("qrl", "ogbench/visual-cube-double-play-v0", "", "none", 10**6, Rewards(), {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "dataset", "asked", "preset", "steps", "rewards", "settings", "others"), TAKEN)
def test_recipes_are_what_was_published(algorithm, dataset, asked, preset, steps, rewards, settings, others):
    recipe = recipe_for(algorithm, dataset, preset=asked)
    assert (recipe.preset, recipe.steps, recipe.rewards) == (preset, steps, rewards)
    assert settings.items() <= recipe.settings.items()
    assert {name: getattr(recipe, name) for name in others} == others


def test_differences_and_sources_are_said():
    def source(*asked, **preset):
        return recipe_for(*asked, **preset).source

    def differs(*asked, **preset):
        return " ".join(recipe_for(*asked, **preset).differences)

    assert "-v0 in the README" in differs("iql", "d4rl/antmaze-medium-play-v2")
    assert "deterministic" in differs("iql", "d4rl/hopper-medium-v2", preset="corl")
    corl = differs("cql", "d4rl/antmaze-umaze-v2", preset="corl")
    assert all(words in corl for words in ("cql_clip_diff_min=-200", "the best of 10", "published: 5"))
    assert "-v0 list" in differs("td3bc", "d4rl/hopper-medium-v2")
    assert source("edac", "d4rl/hopper-medium-v2", preset="SAC-N").startswith("SAC-N, CORL: ")
    assert "1d4140997f" in source("hiql", "ogbench/antmaze-giant-stitch-v0")


def test_all_datasets_of_ogbench_have_settings_of_all_algorithms_for_goals():
    for row in read_table("ogbench"):
        for algorithm in ("crl", "gcbc", "gciql", "gcivl", "hiql", "qrl"):
            recipe = recipe_for(algorithm, f"ogbench/{row['dataset_id']}")
            make_config(algorithm, recipe.settings)
            assert not recipe.differences


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


def test_every_preset_makes_a_configuration_and_says_where_it_is_from_and_what_it_does_not_use():
    unknown = set()
    for algorithm, dataset, preset in recipes():
        recipe = recipe_for(algorithm, dataset, preset=preset)
        make_config(algorithm, recipe.settings)
        assert recipe.preset == preset
        assert recipe.source
        assert recipe.steps > 0
        for line in recipe.lines():
            assert "{value}" not in line
        for text in recipe.differences:
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
