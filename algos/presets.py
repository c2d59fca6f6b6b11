"""Steps, settings and transforms per algorithm and dataset: orlog's own recipes and published presets.

Own recipes are in the table below. Published presets are data: what was published is in
`manifests/recorded/published/hyperparameters.json`, and `published/presets/ALGORITHM.json` says for
which datasets it is and what each published name means here. A new algorithm adds such a file.

    {"algorithm": "IQL",                          its name in hyperparameters.json
     "presets": {
       "authors": {                               what --preset takes; the first that fits is the default
         "implementation": "official",            whose settings, in hyperparameters.json
         "algorithm": "..",                       its name there, if not that of the file
         "also": EFFECT,                          facts that are not in hyperparameters.json
         "keys": {"tau": "target_rate",           published name -> our setting, `steps`, `reward_scale`,
                                                  `reward_shift` or `standardize_observations`
                  "eval_every": "evaluation",     how it was evaluated: shown, not used
                  "reward": {"r - 1": EFFECT,     published value -> effect
                             "*": EFFECT}},       any other value
         "families": [{"datasets": ["d4rl/antmaze-*"],          patterns; the first that fits counts
                       "sections": ["common", "per_dataset"],   parts of the implementation; none: all
                       "implementation": "..", "keys": {..}}]   in place of, or besides, those above
    }}}

    EFFECT: {"settings": {..}, "steps": 1, "reward_scale": 1.0, "reward_shift": 0.0,
             "return_range": 1000.0, "standardize_observations": true, "difference": "text"}

A published setting that no key covers is a difference, which is shown: none is dropped silently. A
recipe changes only the settings it names; all others are the algorithm's defaults.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from orlog.algos.algorithms import action_kind, known_as
from orlog.manifests.documents import convert_json, parse_json
from orlog.manifests.names import did_you_mean
from orlog.manifests.published_settings import presets_file, published_settings

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset

DEFAULTS = "none"
"""The preset without any: the algorithm's defaults."""

OWN = "orlog"
"""The preset of orlog's own recipes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """What rewards become in training; evaluations always use raw returns.

    reward -> scale * (reward * return_range / (best - worst return of an episode)) + shift

    Attributes:
        scale: Factor.
        shift: Added after that.
        return_range: Range that the returns of the dataset's episodes are brought to first; None
            leaves them.
    """

    scale: float = 1.0
    shift: float = 0.0
    return_range: float | None = None

    def __str__(self) -> str:
        """Return it as a formula, or in words where nothing changes."""
        if self == Rewards():
            return "as they are"
        text = "reward"
        if self.return_range is not None:
            text = f"{self.return_range:g} reward / (best - worst return of an episode)"
        if self.scale != 1:
            text = f"{self.scale:g} {text}"
        sign = "-" if self.shift < 0 else "+"
        return f"{text} {sign} {abs(self.shift):g}" if self.shift else text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an algorithm is trained on a dataset.

    Attributes:
        steps: Gradient steps.
        settings: Settings that differ from the algorithm's defaults.
        source: Source of the steps and settings.
        preset: Its name: `orlog` for own recipes, `none` for defaults, else that of a published one.
        rewards: What rewards become in training.
        standardize_observations: Whether networks see standardized observations.
        differences: How training here differs from what was published.
        evaluation: How the published policies were evaluated, by published name.
    """

    steps: int
    settings: Mapping[str, object]
    source: str
    preset: str = OWN
    rewards: Rewards = Rewards()
    standardize_observations: bool = True
    differences: tuple[str, ...] = ()
    evaluation: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def lines(self, steps: int | None = None) -> list[str]:
        """Return what it uses and from where, in lines to print; `steps` are those of a run."""
        chosen = ", ".join(
            f"{name}={'none' if value is None else _text(value)}"
            for name, value in self.settings.items()
        )
        seen = "standardized" if self.standardize_observations else "as they are"
        length = f"{self.steps:,} steps"
        if steps not in (None, self.steps):
            length = f"{steps:,} steps (the preset has {self.steps:,})"
        source = self.source
        if self.preset == DEFAULTS:
            source = "the algorithm's defaults" + ("" if source == _NO_SOURCE else f"; {source}")
        lines = [
            f"preset {self.preset}: {source}",
            f"settings: {chosen or 'the defaults'}; {length}",
            f"rewards: {self.rewards}; observations: {seen}",
        ]
        lines += [f"differs from what was published: {one}" for one in self.differences]
        if self.evaluation:
            found = ", ".join(f"{name}={_text(value)}" for name, value in self.evaluation.items())
            lines.append(f"published evaluation, not used here: {found}")
        return lines


_NO_SOURCE = "defaults"
_PUBLISHED = {
    "awac": "published: CORL's configuration, with a temperature of 1",
    "bc": "published: CORL's configuration",
    "bc_discrete": "published: d3rlpy's defaults for discrete actions",
    "calql": "published: CORL's configuration for AntMaze, without its scaling of rewards",
    "crl": "published: OGBench's configuration",
    "cql": "published: the authors' configuration for MuJoCo, with 1 million steps",
    "cql_discrete": "published: d3rlpy's defaults for discrete actions, with the square loss",
    "dt": "published: the authors' configuration for Gym, with target and scale of returns from the data",
    "iql": "published: the authors' configuration for locomotion, without its reward scaling",
    "iql_discrete": "the published settings for continuous actions, since none were published for discrete ones",
    "edac": "published: CORL's common configuration, with 10 critics and diversity 1",
    "fql": "published: the authors' configuration, whose distillation weight they choose for each dataset",
    "hiql": "published: OGBench's configuration",
    "qrl": "published: OGBench's configuration",
    "gcbc": "published: OGBench's configuration",
    "gciql": "published: OGBench's configuration",
    "gcivl": "published: OGBench's configuration",
    "ifql": "published: the authors' configuration",
    "qcfql": "published: the authors' configuration, whose distillation weight they choose for each dataset",
    "percent_bc": "published: CORL's configuration",
    "percent_bc_discrete": "those of the discrete form of bc",
    "rlpd": "published: the authors' configuration for locomotion",
    "rebrac": "published: the authors' configuration for MuJoCo, with both penalties 0.01",
    "td3bc": "published: the authors' configuration",
}
_LIBRARIES: dict[str, Recipe] = {
    "cql_discrete": Recipe(
        steps=1_000_000,
        settings={"bellman_loss": "huber"},
        source="published: d3rlpy's defaults for discrete actions",
        preset="d3rlpy",
        standardize_observations=False,
    )
}
"""Defaults of a library, for every dataset with such actions; never chosen unless asked for."""

_STEPS = {"dt": 100_000}
"""Published gradient steps where they are not a million."""

_QUICK = (
    "small on purpose, to train on two CPU cores in about a minute: two hidden layers of 64 and "
    "few steps, hence higher learning rates than the published ones"
)

_UMAZE: dict[str, Recipe] = {
    "awac": Recipe(
        steps=8_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.02,
            "batch_size": 1024,
            "temperature": 0.1,
        },
        source=_QUICK
        + "; the temperature of CORL's configurations for AntMaze, and a batch of 1024, because with "
        "such a low temperature few transitions have large weights",
    ),
    "bc": Recipe(steps=12_000, settings={"hidden": [64, 64], "learning_rate": 1e-3}, source=_QUICK),
    "cql": Recipe(
        steps=8_000,
        settings={
            "hidden": [64, 64],
            "policy_learning_rate": 3e-4,
            "critic_learning_rate": 1e-3,
            "target_rate": 0.02,
            "conservative_weight": 1.0,
            "sampled_actions": 2,
            "cloning_steps": 0,
        },
        source=_QUICK
        + "; 2 sampled actions of each kind instead of 10, because evaluating them takes nearly all "
        "of an update; a conservative weight of 1, because rewards are sparse; no cloning steps",
    ),
    "calql": Recipe(
        steps=5_000,
        settings={
            "hidden": [64, 64],
            "policy_learning_rate": 3e-4,
            "critic_learning_rate": 1e-3,
            "target_rate": 0.02,
            "conservative_weight": 1.0,
            "sampled_actions": 2,
            "target_gap": None,
        },
        source=_QUICK
        + "; 2 sampled actions of each kind instead of 10, because evaluating them takes nearly all "
        "of an update; a fixed conservative weight of 1, as for CQL",
    ),
    "dt": Recipe(
        steps=5_000,
        settings={
            "width": 64,
            "layers": 2,
            "heads": 2,
            "length": 10,
            "learning_rate": 1e-3,
            "warmup_steps": 500,
        },
        source="small on purpose, to train on one CPU core in a few minutes: 10 steps at once, two "
        "layers of 64, and few steps, hence a higher learning rate than the published one",
    ),
    "edac": Recipe(
        steps=6_000,
        settings={
            "hidden": [64, 64],
            "policy_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
            "temperature_learning_rate": 1e-3,
            "target_rate": 0.02,
        },
        source=_QUICK + "; fewer than the others', because each passes 10 critics five times",
    ),
    "fql": Recipe(
        steps=10_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.02,
            "normalize_values": True,
            "distillation_weight": 0.1,
            "flow_steps": 5,
        },
        source=_QUICK
        + "; normalized values, as the authors recommend for new tasks; a weight of 0.1, as good as "
        "0.3 and better than 1 and 3 with two seeds; 5 steps of the flow",
    ),
    "ifql": Recipe(
        steps=8_000,
        settings={"hidden": [64, 64], "learning_rate": 1e-3, "target_rate": 0.02},
        source=_QUICK,
    ),
    "qcfql": Recipe(
        steps=8_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.02,
            "normalize_values": True,
            "distillation_weight": 0.1,
            "flow_steps": 5,
        },
        source=_QUICK
        + "; normalized values, with the weight and the steps of the flow that FQL has",
    ),
    "rebrac": Recipe(
        steps=10_000,
        settings={
            "hidden": [64, 64],
            "batch_size": 256,
            "target_rate": 0.02,
            "policy_penalty": 0.1,
            "critic_penalty": 0.01,
        },
        source=_QUICK
        + "; a batch of 256; penalties of 0.1 and 0.01, as the authors have for relocate-human-v1",
    ),
    "percent_bc": Recipe(
        steps=12_000, settings={"hidden": [64, 64], "learning_rate": 1e-3}, source=_QUICK
    ),
    "rlpd": Recipe(
        steps=10_000,
        settings={
            "hidden": [64, 64],
            "policy_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
            "critics": 4,
            "updates": 2,
            "target_rate": 0.01,
            "backup_entropy": False,
            "random_steps": 1_000,
        },
        source=_QUICK
        + "; 4 critics and 2 updates for each step instead of 10 and 20; no entropy in targets, as the "
        "authors have it for AntMaze",
    ),
    "td3bc": Recipe(
        steps=10_000,
        settings={
            "hidden": [64, 64],
            "policy_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
            "target_rate": 0.02,
            "value_weight": 10.0,
        },
        source=_QUICK + "; a value weight of 10, the better of 2.5 and 10 on this dataset",
    ),
    "iql": Recipe(
        steps=8_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.02,
            "batch_size": 1024,
            "expectile": 0.9,
            "inverse_temperature": 10.0,
        },
        source=_QUICK
        + "; expectile and inverse temperature of the authors' AntMaze configuration, and a batch "
        "of 1024, because with such a high inverse temperature few transitions have large weights",
    ),
}

_LARGE: dict[str, Recipe] = {
    name: dataclasses.replace(
        _UMAZE[name], source=f"that of pointmaze/umaze-v1: {_UMAZE[name].source}"
    )
    for name in ("bc", "cql", "fql", "iql", "percent_bc", "rebrac", "td3bc")
}

_STITCH_SOURCE = _QUICK + "; goals of the policy as in OGBench's settings for its data to stitch"
_STITCH: dict[str, Recipe] = {
    "gcbc": Recipe(
        steps=12_000,
        settings={"hidden": [64, 64], "learning_rate": 1e-3, "batch_size": 256},
        source=_QUICK,
    ),
    "gcivl": Recipe(
        steps=12_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.02,
            "batch_size": 256,
            "policy_goals": [0.0, 0.5, 0.5],
        },
        source=_STITCH_SOURCE,
    ),
    "gciql": Recipe(
        steps=4_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.1,
            "batch_size": 256,
            "cloning_weight": 0.01,
            "policy_goals": [0.0, 0.5, 0.5],
        },
        source=_STITCH_SOURCE
        + "; a target rate of 0.1, as for HIQL; a cloning weight of 0.01, the only one that was tried",
    ),
    "crl": Recipe(
        steps=4_000,
        settings={
            "hidden": [64, 64],
            "representation": 64,
            "learning_rate": 1e-3,
            "batch_size": 256,
            "cloning_weight": 0.03,
            "policy_goals": [0.0, 0.5, 0.5],
        },
        source=_STITCH_SOURCE + "; the cloning weight too; 64 numbers in a representation",
    ),
    "qrl": Recipe(
        steps=3_000,
        settings={
            "hidden": [64, 64],
            "representation": 64,
            "learning_rate": 1e-3,
            "batch_size": 256,
            "cloning_weight": 0.01,
            "policy_goals": [0.0, 0.5, 0.5],
        },
        source=_STITCH_SOURCE
        + "; a cloning weight of 0.01, the better of 0.01 and 0.001 with seed 0; 64 numbers in a "
        "representation",
    ),
    "hiql": Recipe(
        steps=4_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.1,
            "batch_size": 256,
            "subgoal_steps": 50,
            "high_inverse_temperature": 1.0,
            "policy_goals": [0.0, 0.5, 0.5],
        },
        source=_STITCH_SOURCE + "; a target rate of 0.1, "
        "because values spread over the maze by one step of the data with each renewal of the "
        "targets; 50 steps to a subgoal, since 25 lead to the next cell at best; chosen among 6 "
        "settings with seed 0",
    ),
}

_CARTPOLE: dict[str, Recipe] = {
    "bc": Recipe(steps=10_000, settings={"hidden": [64, 64]}, source=_QUICK),
    "percent_bc": Recipe(steps=10_000, settings={"hidden": [64, 64]}, source=_QUICK),
    "cql": Recipe(
        steps=12_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "batch_size": 256,
            "discount": 0.95,
            "conservative_weight": 0.1,
            "bellman_loss": "huber",
            "target_interval": 100,
        },
        source=_QUICK
        + "; a discount of 0.95 and a low conservative weight, chosen among 15 settings with one "
        "seed: others leave the cart where the data's controller does",
    ),
    "iql": Recipe(
        steps=10_000,
        settings={
            "hidden": [64, 64],
            "learning_rate": 1e-3,
            "target_rate": 0.02,
            "expectile": 0.8,
            "inverse_temperature": 30.0,
        },
        source=_QUICK
        + "; a high inverse temperature, because every step has the same reward; chosen among 4 "
        "settings with one seed",
    ),
}

_SMALL = (
    "small networks and few steps, so that a sweep over a suite ends in minutes: two hidden layers of "
    "64, and higher learning rates than the published ones"
)
_SMALL_NETWORKS: dict[str, object] = {"hidden": [64, 64], "learning_rate": 1e-3, "batch_size": 256}
_SMALL_POLICY_AND_CRITIC: dict[str, object] = {
    "hidden": [64, 64],
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "batch_size": 256,
    "target_rate": 0.02,
}

_SMALL_CQL: dict[str, object] = {
    **_SMALL_POLICY_AND_CRITIC,
    "sampled_actions": 2,
    "cloning_steps": 0,
}
_SMALL_CQL_SOURCE = (
    _SMALL
    + "; 2 sampled actions of each kind instead of 10, because evaluating them takes nearly all "
    "of an update"
)
_SMALL_FQL: dict[str, object] = {
    **_SMALL_NETWORKS,
    "target_rate": 0.02,
    "normalize_values": True,
    "flow_steps": 5,
}

_CLASSIC: dict[str, Recipe] = {
    "bc": Recipe(steps=4_000, settings=_SMALL_NETWORKS, source=_SMALL),
    "percent_bc": Recipe(steps=4_000, settings=_SMALL_NETWORKS, source=_SMALL),
    "iql": Recipe(
        steps=3_000,
        settings={**_SMALL_NETWORKS, "target_rate": 0.02},
        rewards=Rewards(return_range=100.0),
        source=_SMALL
        + "; returns brought to a range of 100, so that advantages are alike on all datasets, chosen "
        "over 1,000 on pendulum with seed 0",
    ),
}

_CLASSIC_CONTINUOUS: dict[str, Recipe] = {
    **_CLASSIC,
    "cql": Recipe(
        steps=2_000,
        settings={**_SMALL_CQL, "policy_learning_rate": 3e-4, "conservative_weight": 1.0},
        source=_SMALL_CQL_SOURCE
        + "; a conservative weight of 1, as on pointmaze/umaze-v1; no cloning steps",
    ),
    "fql": Recipe(
        steps=2_000,
        settings={**_SMALL_FQL, "distillation_weight": 0.1},
        source=_SMALL
        + "; normalized values, as the authors recommend for new tasks; a weight of 0.1, "
        "chosen over 1 on pendulum with seed 0; 5 steps of the flow",
    ),
    "rebrac": Recipe(
        steps=3_000,
        settings={**_SMALL_POLICY_AND_CRITIC, "policy_penalty": 0.1, "critic_penalty": 0.01},
        source=_SMALL + "; penalties of 0.1 and 0.01, as the authors have for relocate-human-v1",
    ),
    "td3bc": Recipe(steps=4_000, settings=_SMALL_POLICY_AND_CRITIC, source=_SMALL),
}

_MOUNTAINCAR_SOURCE = (
    _SMALL + "; a discount of 0.999, because the reward comes at the end of up to 999 steps; "
)
_MOUNTAINCAR: dict[str, Recipe] = {
    "iql": dataclasses.replace(
        _CLASSIC["iql"],
        steps=8_000,
        settings={
            **_CLASSIC["iql"].settings,
            "discount": 0.999,
            "expectile": 0.9,
            "inverse_temperature": 10.0,
        },
        source=_MOUNTAINCAR_SOURCE
        + "expectile and inverse temperature of the authors' AntMaze configuration, and 8,000 steps, the "
        "best of 3 settings with seeds that are not reported; returns brought to a range of 100, as on other "
        "small control tasks",
    ),
    "td3bc": Recipe(
        steps=12_000,
        settings={**_SMALL_POLICY_AND_CRITIC, "discount": 0.999, "value_weight": 1.0},
        source=_MOUNTAINCAR_SOURCE
        + "a value weight of 1, and three times as many steps as on other small control tasks, which the "
        "critic needs: the best of 7 settings with seeds that are not reported",
    ),
}

_CLASSIC_DISCRETE: dict[str, Recipe] = {
    **_CLASSIC,
    "cql": Recipe(
        steps=5_000,
        settings={**_SMALL_NETWORKS, "bellman_loss": "huber", "target_interval": 100},
        source=_SMALL
        + "; targets renewed every 100 steps; Huber's loss, because with the square one 2 of 5 runs on acrobot fail",
    ),
}

_LUNARLANDER: dict[str, Recipe] = {
    "cql": Recipe(
        steps=5_000,
        settings={**_SMALL_NETWORKS, "bellman_loss": "square", "target_interval": 100},
        source=_SMALL + "; targets renewed every 100 steps",
    )
}

_MUJOCO: dict[str, Recipe] = {
    "bc": Recipe(steps=3_000, settings=_SMALL_NETWORKS, source=_SMALL),
    "percent_bc": Recipe(steps=3_000, settings=_SMALL_NETWORKS, source=_SMALL),
    "iql": Recipe(
        steps=4_000,
        settings={**_SMALL_NETWORKS, "target_rate": 0.02},
        rewards=Rewards(return_range=1000.0),
        source=_SMALL + "; rewards as in the authors' configuration for locomotion",
    ),
    "cql": Recipe(
        steps=2_500,
        settings={**_SMALL_CQL, "conservative_weight": 10.0},
        source=_SMALL_CQL_SOURCE
        + "; a conservative weight of 10, the better of 1 and 10 on hopper-medium-replay with seed 0; no "
        "cloning steps",
    ),
    "fql": Recipe(
        steps=2_000,
        settings={**_SMALL_FQL, "distillation_weight": 1.0},
        source=_SMALL + "; normalized values; 5 steps of the flow",
    ),
    "rebrac": Recipe(
        steps=3_000,
        settings={**_SMALL_POLICY_AND_CRITIC, "policy_penalty": 0.1, "critic_penalty": 0.1},
        source=_SMALL
        + "; penalties of 0.1, the best of three pairs on hopper-medium-replay with seed 0",
    ),
    "td3bc": Recipe(
        steps=4_000,
        settings={**_SMALL_POLICY_AND_CRITIC, "value_weight": 0.4},
        source=_SMALL
        + "; a value weight of 0.4, since critics are poor after few steps: 1 and 2.5 score below 10 on "
        "hopper-expert with seed 0",
    ),
}

_PIXELS_SOURCE = (
    "small on purpose, to train on one CPU core in minutes: one hidden layer of 128 after the Nature "
    "convolutions and few steps, hence higher learning rates than the published ones"
)
_PIXELS_CLONING: dict[str, object] = {"hidden": [128], "learning_rate": 1e-3, "batch_size": 128}
_PIXELS: dict[str, Recipe] = {
    "bc": Recipe(steps=3_000, settings=_PIXELS_CLONING, source=_PIXELS_SOURCE),
    "percent_bc": Recipe(
        steps=3_000,
        settings={**_PIXELS_CLONING, "percent": 25.0},
        source=_PIXELS_SOURCE + "; the best quarter of the episodes, since a third are good ones",
    ),
}

_CATCH: dict[str, Recipe] = {
    **_PIXELS,
    "cql": Recipe(
        steps=5_000,
        settings={
            "hidden": [128],
            "learning_rate": 5e-4,
            "batch_size": 128,
            "discount": 0.97,
            "conservative_weight": 0.2,
            "bellman_loss": "huber",
            "target_interval": 200,
        },
        source=_PIXELS_SOURCE + "; a discount of 0.97, since things land within 50 steps",
    ),
    "iql": Recipe(
        steps=5_000,
        settings={
            "hidden": [128],
            "learning_rate": 5e-4,
            "batch_size": 128,
            "discount": 0.97,
            "target_rate": 0.02,
            "expectile": 0.8,
            "inverse_temperature": 10.0,
        },
        source=_PIXELS_SOURCE + "; a discount of 0.97, since things land within 50 steps",
    ),
}

_REACH_SOURCE = _PIXELS_SOURCE + "; a discount of 0.95, since episodes have 40 steps"
_REACH_CRITIC: dict[str, object] = {
    "hidden": [128],
    "batch_size": 128,
    "discount": 0.95,
    "target_rate": 0.02,
}
_REACH_POLICY_AND_CRITIC: dict[str, object] = {
    **_REACH_CRITIC,
    "policy_learning_rate": 3e-4,
    "critic_learning_rate": 1e-3,
}
_REACH: dict[str, Recipe] = {
    **_PIXELS,
    "cql": Recipe(
        steps=8_000,
        settings={**_SMALL_CQL, **_REACH_POLICY_AND_CRITIC, "conservative_weight": 1.0},
        source=_REACH_SOURCE + "; 2 sampled actions of each kind instead of 10; no cloning steps",
    ),
    "fql": Recipe(
        steps=8_000,
        settings={**_SMALL_FQL, **_REACH_CRITIC, "distillation_weight": 1.0},
        source=_REACH_SOURCE + "; normalized values; 5 steps of the flow",
    ),
    "iql": Recipe(
        steps=12_000,
        settings={
            **_REACH_CRITIC,
            "learning_rate": 1e-3,
            "expectile": 0.9,
            "inverse_temperature": 10.0,
        },
        source=_REACH_SOURCE
        + "; expectile and inverse temperature of the authors' AntMaze configuration: after 5,000 steps "
        "with 0.8 and 3, policies are no better than those of BC",
    ),
    "rebrac": Recipe(
        steps=8_000,
        settings={**_REACH_POLICY_AND_CRITIC, "policy_penalty": 1.0, "critic_penalty": 0.1},
        source=_REACH_SOURCE + "; a policy penalty of 1, alike to the value weight of TD3+BC here",
    ),
    "td3bc": Recipe(
        steps=12_000,
        settings={**_REACH_POLICY_AND_CRITIC, "value_weight": 1.0},
        source=_REACH_SOURCE
        + "; a value weight of 1, and a lower learning rate of the policy than of the critic, which has "
        "to be good first",
    ),
}

_UMAZE_STITCH: dict[str, Recipe] = {
    "hiql": dataclasses.replace(
        _STITCH["hiql"],
        settings={
            **_STITCH["hiql"].settings,
            "subgoal_steps": 25,
            "low_inverse_temperature": 10.0,
            "high_inverse_temperature": 10.0,
            "policy_goals": [0.0, 1.0, 0.0],
        },
        source=_QUICK
        + "; a target rate of 0.1, as on the other mazes; 25 steps to a subgoal, half an episode; inverse "
        "temperatures of 10; policies learn for goals of the same episode alone, since half of them random "
        "gave 44 in place of 95; the best of 10 settings with seeds that are not reported",
    )
}

_OWN_GOALS: dict[str, Recipe] = {
    "qrl": dataclasses.replace(
        _STITCH["qrl"],
        settings={
            **_STITCH["qrl"].settings,
            "cloning_weight": 0.1,
            "policy_goals": [0.0, 1.0, 0.0],
        },
        source=_QUICK
        + "; a cloning weight of 0.1 and goals of the same episode alone, as in OGBench's settings for its "
        "data to navigate; 64 numbers in a representation",
    )
}

_NAVIGATE: dict[str, Recipe] = {
    name: dataclasses.replace(
        recipe,
        steps=8_000 if name == "gcbc" else recipe.steps,
        settings={key: one for key, one in recipe.settings.items() if key != "policy_goals"},
        source="that of pointmaze/medium-stitch-v1, with goals from the same episode: "
        + recipe.source.replace(_STITCH_SOURCE, _QUICK),
    )
    for name, recipe in _STITCH.items()
}

_CUBE_SOURCE = (
    "small on purpose, to train on one CPU core in minutes: two hidden layers of 128 and few steps, "
    "hence a higher learning rate than the published one; other settings are OGBench's for cube-single-play"
)
_CUBE_NETWORKS: dict[str, object] = {**_SMALL_NETWORKS, "hidden": [128, 128]}
_CUBE: dict[str, Recipe] = {
    name: Recipe(steps=steps, settings={**_CUBE_NETWORKS, **settings}, source=_CUBE_SOURCE)
    for name, steps, settings in (
        ("gcbc", 10_000, {}),
        ("gcivl", 15_000, {"target_rate": 0.02, "inverse_temperature": 10.0}),
        ("gciql", 20_000, {"target_rate": 0.02, "cloning_weight": 1.0}),
        ("crl", 10_000, {"representation": 64, "cloning_weight": 3.0}),
        ("qrl", 10_000, {"representation": 64, "cloning_weight": 0.3}),
        (
            "hiql",
            10_000,
            {
                "target_rate": 0.02,
                "subgoal_steps": 10,
                "low_inverse_temperature": 3.0,
                "high_inverse_temperature": 3.0,
            },
        ),
    )
}

RECIPES: dict[tuple[str, str], Recipe] = {
    (algorithm, dataset): recipe
    for datasets, recipes in (
        (("pointmaze/umaze-v1", "pointmaze/umaze-mini-v1"), _UMAZE),
        (("pointmaze/medium-v1", "pointmaze/large-v1"), _LARGE),
        (
            (
                "pointmaze/umaze-stitch-v1",
                "pointmaze/medium-stitch-v1",
                "pointmaze/large-stitch-v1",
                "pointmaze/large-goals-v1",
            ),
            _STITCH,
        ),
        (("pointmaze/umaze-stitch-v1",), _UMAZE_STITCH),
        (("pointmaze/umaze-stitch-v1", "pointmaze/medium-stitch-v1"), _OWN_GOALS),
        (("ogbench-local/pointmaze-medium-navigate-v1",), _NAVIGATE),
        (("ogbench-local/cube-single-play-v1",), _CUBE),
        (
            (
                "classic/lunarlander-continuous-mixed-v1",
                "classic/mountaincar-continuous-mixed-v1",
                "classic/pendulum-mixed-v1",
            ),
            _CLASSIC_CONTINUOUS,
        ),
        (("classic/mountaincar-continuous-mixed-v1",), _MOUNTAINCAR),
        (
            (
                "classic/acrobot-mixed-v1",
                "classic/cartpole-mixed-v2",
                "classic/lunarlander-mixed-v1",
            ),
            _CLASSIC_DISCRETE,
        ),
        (("classic/lunarlander-mixed-v1",), _LUNARLANDER),
        (("classic/cartpole-mixed-v1",), _CARTPOLE),
        (
            tuple(
                f"mujoco/{task}-{kind}-v1"
                for task in ("halfcheetah", "hopper", "walker2d")
                for kind in ("random", "medium", "medium-replay", "medium-expert", "expert")
            ),
            _MUJOCO,
        ),
        (("pixels/catch-mixed-v1",), _CATCH),
        (("pixels/reach-mixed-v1",), _REACH),
    )
    for dataset in datasets
    for algorithm, recipe in recipes.items()
}


class _Effect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a published value means here."""

    settings: dict[str, Any] = {}
    steps: int | None = None
    reward_scale: float | None = None
    reward_shift: float | None = None
    return_range: float | None = None
    standardize_observations: bool | None = None
    difference: str = ""


_Keys = dict[str, str | dict[str, _Effect]]


class _Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Datasets with settings in common."""

    datasets: list[str]
    sections: list[str] = []
    implementation: str = ""
    keys: _Keys = {}


class _Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one implementation."""

    implementation: str
    algorithm: str = ""
    keys: _Keys
    families: list[_Family]
    also: _Effect = _Effect()


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The presets of one algorithm."""

    algorithm: str
    presets: dict[str, _Preset]


_FIELDS = ("steps", "reward_scale", "reward_shift", "return_range", "standardize_observations")
_ABOUT = ("source", "code", "n_datasets", "flags_source")


def recipe_for(algorithm: str, dataset: Dataset | str, *, preset: str = "") -> Recipe:
    """Return how to train an algorithm on a dataset.

    That is by default orlog's own recipe, else the authors' settings for the dataset or for the
    benchmark's dataset that it names, else those of another implementation, else the defaults.

    Args:
        algorithm: Name of the algorithm.
        dataset: The dataset, or its name.
        preset: Name of a preset (`preset_names`); `none` for the algorithm's defaults.

    Raises:
        ValueError: there is no such preset for this dataset.
    """
    algorithm, names = known_as(algorithm), _names(dataset)
    wanted = preset.lower()
    if wanted in ("", OWN) and (algorithm, names[0]) in RECIPES:
        return RECIPES[algorithm, names[0]]
    if wanted != DEFAULTS:
        for name, found, family, dataset_name in _fitting(algorithm, names):
            if wanted in ("", name):
                return _published(_table(algorithm), name, found, family, dataset_name)
        library = _LIBRARIES.get(_form(algorithm, dataset))
        if library is not None and wanted == library.preset:
            return library
        if wanted:
            known = preset_names(algorithm, dataset)
            raise ValueError(
                f"{algorithm} has no preset {preset!r} for {names[0]}; there are "
                f"{', '.join(known)}{did_you_mean(wanted, known) or '.'}"
            )
    source = _PUBLISHED.get(_form(algorithm, dataset), _NO_SOURCE)
    steps = _STEPS.get(algorithm, 1_000_000)
    return Recipe(steps=steps, settings={}, source=source, preset=DEFAULTS)


def preset_names(algorithm: str, dataset: Dataset | str) -> list[str]:
    """Return the names of the presets of an algorithm for a dataset, the default first."""
    algorithm, names = known_as(algorithm), _names(dataset)
    own = [OWN] if (algorithm, names[0]) in RECIPES else []
    found = [name for name, *_ in _fitting(algorithm, names)]
    library = _LIBRARIES.get(_form(algorithm, dataset))
    libraries = [] if library is None else [library.preset]
    return [*own, *dict.fromkeys([*found, *libraries, DEFAULTS])]


def _form(algorithm: str, dataset: Dataset | str) -> str:
    """Return the name of an algorithm's form for the actions of a dataset, if these are known."""
    is_discrete = not isinstance(dataset, str) and action_kind(dataset.action_space) == "discrete"
    return f"{algorithm}_discrete" if is_discrete else algorithm


def _names(dataset: Dataset | str) -> list[str]:
    """Return the names under which settings are looked for: its own and the benchmark's."""
    if isinstance(dataset, str):
        return [dataset]
    return [name for name in dict.fromkeys((dataset.name, dataset.benchmark)) if name]


@functools.cache
def _table(algorithm: str) -> _Table:
    path = presets_file(algorithm)
    if ":" in algorithm or not path.is_file():
        return _Table(algorithm=algorithm, presets={})
    return convert_json(parse_json(path.read_bytes()), _Table)


def _fitting(algorithm: str, names: list[str]) -> list[tuple[str, _Preset, _Family, str]]:
    """Return the presets that fit a dataset: name, preset, family, and the name that it fits."""
    table, fitting = _table(algorithm), []
    for name, preset in table.presets.items():
        for one in names:
            family = _family(table, preset, one)
            if family is not None:
                fitting.append((name, preset, family, one))
                break
    return fitting


def _family(table: _Table, preset: _Preset, name: str) -> _Family | None:
    for family in preset.families:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in family.datasets):
            if "per_dataset" not in family.sections:
                return family
            body = _implementation(table, preset, family)
            if name.rpartition("/")[2] in body["per_dataset"]:
                return family
    return None


def _implementation(table: _Table, preset: _Preset, family: _Family) -> dict[str, Any]:
    algorithm = preset.algorithm or table.algorithm
    return published_settings(algorithm, family.implementation or preset.implementation)


def _published(table: _Table, name: str, preset: _Preset, family: _Family, dataset: str) -> Recipe:
    """Return a published preset as a recipe."""
    body = _implementation(table, preset, family)
    values: dict[str, Any] = {}
    for section in family.sections:
        part = body[section]
        if section == "per_dataset":
            part = part[dataset.rpartition("/")[2]]
        values |= part if isinstance(part, dict) else {section: part}
    if not family.sections:
        values = {key: value for key, value in body.items() if key not in _ABOUT}
    effects = [preset.also]
    evaluation: dict[str, object] = {}
    copied: dict[str, object] = {}
    for key, value in values.items():
        rule = _rule(preset.keys, family.keys, key, value)
        if rule == "evaluation":
            evaluation[key] = value
        elif isinstance(rule, str) and copied.setdefault(rule, value) != value:
            one = f"one {rule}, {_text(copied[rule])}, published: {key}={_text(value)}"
            effects.append(_Effect(difference=one))
        elif isinstance(rule, str):
            effects.append(
                msgspec.convert(
                    {rule: value} if rule in _FIELDS else {"settings": {rule: value}}, _Effect
                )
            )
        else:
            text = rule.difference.replace("{value}", _text(value))
            effects.append(msgspec.structs.replace(rule, difference=text))
    settings: dict[str, object] = {}
    for effect in effects:
        settings |= effect.settings
    fields = {
        field: next((found for one in effects if (found := getattr(one, field)) is not None), None)
        for field in _FIELDS
    }
    implementation = family.implementation or preset.implementation
    return Recipe(
        steps=fields["steps"] or 1_000_000,
        settings=settings,
        source=f"{preset.algorithm or table.algorithm}, {implementation}: {body['source']}",
        preset=name,
        rewards=Rewards(
            scale=1.0 if fields["reward_scale"] is None else fields["reward_scale"],
            shift=fields["reward_shift"] or 0.0,
            return_range=fields["return_range"],
        ),
        standardize_observations=fields["standardize_observations"] is not False,
        differences=tuple(dict.fromkeys(one.difference for one in effects if one.difference)),
        evaluation=evaluation,
    )


def _rule(general: _Keys, special: _Keys, key: str, value: object) -> str | _Effect:
    """Return what a published value means; a value that no key covers is a difference."""
    for keys in (special, general):
        rule = keys.get(key)
        if isinstance(rule, str):
            return rule
        if rule is not None and (found := rule.get(_text(value), rule.get("*"))) is not None:
            return found
    return _Effect(difference=f"orlog has no setting for the published {key}={_text(value)}")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        value = list(value)
    return value if isinstance(value, str) else json.dumps(value)
