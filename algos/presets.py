"""Steps, settings and transforms per algorithm and dataset: orlog's own recipes and published presets.

All of them are data. Own recipes are in `manifests/recorded/recipes.json`:

    {"sources": {"quick": "small on purpose .."},     texts that sources name as {quick}
     "defaults": {"bc": {"source": "..", "steps": 1}}  of each form: where its defaults are from
     "libraries": {"cql_discrete": ..},                defaults of a library for each dataset with such
                                                       actions, never chosen unless asked for
     "groups": [{"datasets": ["pointmaze/umaze-v1"],   names; later groups replace earlier ones
                 "recipes": {"bc": {"steps": 1, "settings": {..}, "source": "{quick}; ..",
                                    "return_range": 100.0, and of how they were chosen
                                    "settings_tried": 4, "tuning_seeds": [100, 101]}}}]}

What was published is in `manifests/recorded/published/hyperparameters.json`, and `published/presets/ALGORITHM.json`
says for which datasets it is and what each published name means here. A new algorithm adds such a file.

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

A published setting that no key covers is a difference, which is shown: none is dropped silently. A recipe changes
only the settings it names; all others are the algorithm's defaults.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from orlog.algos.algorithms import action_kind, form_of, known_as
from orlog.manifests.documents import convert_json, parse_json
from orlog.manifests.names import counted, did_you_mean
from orlog.manifests.shipped import records_folder
from orlog.manifests.tables import presets_file, published_settings

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset

DEFAULTS = "none"
"""The preset without any: the algorithm's defaults."""

OWN = "orlog"
"""The preset of orlog's own recipes."""

_NO_SOURCE = "defaults"


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What files say, without fields that nobody knows."""


class Rewards(_Strict, frozen=True, kw_only=True):
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


class Recipe(_Strict, frozen=True, kw_only=True):
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
        settings_tried: Settings that were tried before these were chosen; 0 if nobody noted it.
        tuning_seeds: Training seeds of those trials: 100 and above, which nobody scores, but in what was recorded first.
    """

    steps: int
    settings: Mapping[str, Any]
    source: str
    preset: str = OWN
    rewards: Rewards = Rewards()
    standardize_observations: bool = True
    differences: tuple[str, ...] = ()
    evaluation: Mapping[str, Any] = {}
    settings_tried: int = 0
    tuning_seeds: tuple[int, ...] = ()

    def lines(self, steps: int | None = None) -> list[str]:
        """Return what it uses and from where, in lines to print; `steps` are those of a run."""
        chosen = _named({name: "none" if value is None else value for name, value in self.settings.items()})
        seen = "standardized" if self.standardize_observations else "as they are"
        length = counted(self.steps, "step")
        if steps not in (None, self.steps):
            usual = "the default is" if self.preset == DEFAULTS else "the preset has"
            length = f"{counted(steps, 'step')} ({usual} {self.steps:,})"
        source = self.source
        if self.preset == DEFAULTS:
            source = "the algorithm's defaults" + ("" if source == _NO_SOURCE else f"; {source}")
        lines = [
            f"preset {self.preset}: {source}",
            f"settings: {chosen or 'the defaults'}; {length}",
            f"rewards: {self.rewards}; observations: {seen}",
            *(f"differs from what was published: {difference}" for difference in self.differences),
        ]
        if self.evaluation:
            lines.append(f"published evaluation, not used here: {_named(self.evaluation)}")
        return lines


class _Group(_Strict, frozen=True, kw_only=True):
    """Datasets with recipes in common, by algorithm."""

    datasets: list[str]
    recipes: dict[str, dict[str, Any]]


class _Defaults(_Strict, frozen=True, kw_only=True):
    """Where the defaults of an algorithm come from, and for how many steps they are."""

    source: str = _NO_SOURCE
    steps: int = 1_000_000


class _OwnTable(_Strict, frozen=True, kw_only=True):
    sources: dict[str, str]
    defaults: dict[str, _Defaults]
    libraries: dict[str, dict[str, Any]]
    groups: list[_Group]

    def recipe(self, written: dict[str, Any]) -> Recipe:
        rewards = {"return_range": written.get("return_range")}
        rest = {name: value for name, value in written.items() if name != "return_range"}
        source = written["source"].format_map(self.sources)
        return msgspec.convert({**rest, "source": source, "rewards": rewards}, Recipe)


_OWN_TABLE = convert_json(parse_json((records_folder() / "recipes.json").read_bytes()), _OwnTable)
_LIBRARIES = {form: _OWN_TABLE.recipe(written) for form, written in _OWN_TABLE.libraries.items()}

RECIPES: dict[tuple[str, str], Recipe] = {
    (algorithm, dataset): recipe
    for group in _OWN_TABLE.groups
    for algorithm, written in group.recipes.items()
    for recipe in [_OWN_TABLE.recipe(written)]
    for dataset in group.datasets
}
"""Own recipes by algorithm and dataset."""


class _Effect(_Strict, frozen=True, kw_only=True):
    """What a published value means here."""

    settings: dict[str, Any] = {}
    steps: int | None = None
    reward_scale: float | None = None
    reward_shift: float | None = None
    return_range: float | None = None
    standardize_observations: bool | None = None
    difference: str = ""


_Keys = dict[str, str | dict[str, _Effect]]


class _Family(_Strict, frozen=True, kw_only=True):
    datasets: list[str]
    sections: list[str] = []
    implementation: str = ""
    keys: _Keys = {}


class _Preset(_Strict, frozen=True, kw_only=True):
    implementation: str
    algorithm: str = ""
    keys: _Keys
    families: list[_Family]
    also: _Effect = _Effect()


class _Table(_Strict, frozen=True, kw_only=True):
    algorithm: str
    presets: dict[str, _Preset]


class _Published(_Strict, frozen=True, kw_only=True):
    """A published preset that fits a dataset of a name."""

    name: str
    preset: _Preset
    family: _Family
    dataset: str
    algorithm: str
    implementation: str
    body: dict[str, Any]


_ABOUT = ("source", "code", "n_datasets", "flags_source")


def recipe_for(algorithm: str, dataset: Dataset | str, *, preset: str = "") -> Recipe:
    """Return how to train an algorithm on a dataset.

    That is by default orlog's own recipe, else the authors' settings for the dataset or for the
    benchmark's dataset that it names, else those of another implementation, else the defaults.
    `preset` names another one (`preset_names`).
    """
    algorithm, names, form = _asked(algorithm, dataset)
    wanted = preset.lower()
    if wanted in ("", OWN) and (algorithm, names[0]) in RECIPES:
        return RECIPES[algorithm, names[0]]
    if wanted != DEFAULTS:
        for published in _fitting(algorithm, names):
            if wanted in ("", published.name):
                return _as_recipe(published)
        if form in _LIBRARIES and wanted == _LIBRARIES[form].preset:
            return _LIBRARIES[form]
        if wanted:
            known = preset_names(algorithm, dataset)
            raise ValueError(
                f"{algorithm} has no preset {preset!r} for {names[0]}; there are "
                f"{', '.join(known)}{did_you_mean(wanted, known) or '.'}"
            )
    defaults, none = _OWN_TABLE.defaults, _Defaults()
    steps, source = defaults.get(algorithm, none).steps, defaults.get(form, none).source
    return Recipe(steps=steps, settings={}, source=source, preset=DEFAULTS)


def preset_names(algorithm: str, dataset: Dataset | str) -> list[str]:
    """Return the names of the presets of an algorithm for a dataset, the default first."""
    algorithm, names, form = _asked(algorithm, dataset)
    own = [OWN] if (algorithm, names[0]) in RECIPES else []
    libraries = [_LIBRARIES[form].preset] if form in _LIBRARIES else []
    published = [fitting.name for fitting in _fitting(algorithm, names)]
    return list(dict.fromkeys([*own, *published, *libraries, DEFAULTS]))


def _asked(algorithm: str, dataset: Dataset | str) -> tuple[str, list[str], str]:
    """Return an algorithm, the names of a dataset (its own and the benchmark's), and the form for its actions."""
    algorithm = known_as(algorithm)
    if isinstance(dataset, str):
        return algorithm, [dataset], algorithm
    space: Any = dataset.action_space
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict) and parts:  # an action for each agent
        space = next(iter(parts.values()))
    names = [name for name in dict.fromkeys((dataset.name, dataset.benchmark)) if name]
    return algorithm, names, form_of(algorithm, action_kind(space))


@functools.cache
def _table(algorithm: str) -> _Table:
    path = presets_file(algorithm)
    if ":" in algorithm or not path.is_file():
        return _Table(algorithm=algorithm, presets={})
    return convert_json(parse_json(path.read_bytes()), _Table)


def _fitting(algorithm: str, names: list[str]) -> list[_Published]:
    """Return the presets that fit a dataset, each by the first of its names that fits."""
    table, fitting = _table(algorithm), []
    for name, preset in table.presets.items():
        by_name = (_published(table, name, preset, dataset) for dataset in names)
        fitting += [published for published in by_name if published is not None][:1]
    return fitting


def _published(table: _Table, name: str, preset: _Preset, dataset: str) -> _Published | None:
    for family in preset.families:
        if any(fnmatch.fnmatchcase(dataset, pattern) for pattern in family.datasets):
            algorithm = preset.algorithm or table.algorithm
            implementation = family.implementation or preset.implementation
            body = published_settings(algorithm, implementation)
            if "per_dataset" not in family.sections or dataset.rpartition("/")[2] in body["per_dataset"]:
                return _Published(
                    name=name,
                    preset=preset,
                    family=family,
                    dataset=dataset,
                    algorithm=algorithm,
                    implementation=implementation,
                    body=body,
                )
    return None


def _as_recipe(published: _Published) -> Recipe:
    body, preset, family = published.body, published.preset, published.family
    values: dict[str, Any] = {}
    for section in family.sections:
        part = body[section]
        if section == "per_dataset":
            part = part[published.dataset.rpartition("/")[2]]
        values |= part if isinstance(part, dict) else {section: part}
    if not family.sections:
        values = {key: value for key, value in body.items() if key not in _ABOUT}
    effects, evaluation = [preset.also], {}
    copied: dict[str, object] = {}
    for key, value in values.items():
        rule = _rule(preset.keys, family.keys, key, value)
        if rule == "evaluation":
            evaluation[key] = value
        elif isinstance(rule, str) and copied.setdefault(rule, value) != value:
            difference = f"one {rule}, {_text(copied[rule])}, published: {key}={_text(value)}"
            effects.append(_Effect(difference=difference))
        elif isinstance(rule, str):
            is_effect = rule in _Effect.__struct_fields__
            effects.append(msgspec.convert({rule: value} if is_effect else {"settings": {rule: value}}, _Effect))
        else:
            text = rule.difference.replace("{value}", _text(value))
            effects.append(msgspec.structs.replace(rule, difference=text))

    def first(field: str, default: Any) -> Any:
        return next((value for effect in effects if (value := getattr(effect, field)) is not None), default)

    return Recipe(
        steps=first("steps", 1_000_000),
        settings=functools.reduce(lambda settings, effect: {**settings, **effect.settings}, effects, {}),
        source=f"{published.algorithm}, {published.implementation}: {body['source']}",
        preset=published.name,
        rewards=Rewards(
            scale=first("reward_scale", 1.0), shift=first("reward_shift", 0.0), return_range=first("return_range", None)
        ),
        standardize_observations=first("standardize_observations", True),
        differences=tuple(dict.fromkeys(effect.difference for effect in effects if effect.difference)),
        evaluation=evaluation,
    )


def _rule(general: _Keys, special: _Keys, key: str, value: object) -> str | _Effect:
    """Return what a published value means; a value that no key covers is a difference."""
    for rule in (special.get(key), general.get(key)):
        if isinstance(rule, str):
            return rule
        if rule is not None and (effect := rule.get(_text(value), rule.get("*"))) is not None:
            return effect
    return _Effect(difference=f"orlog has no setting for the published {key}={_text(value)}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _named(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in values.items())
