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

What was published is in `manifests/recorded/published/hyperparameters.json`, and
`published/presets/ALGORITHM.json` says for which datasets it is and what each published name means
here. A new algorithm adds such a file.

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
        settings_tried: Settings that were tried before these were chosen; 0 if nobody noted it.
        tuning_seeds: Training seeds of those trials: 100 and above, which nobody scores, but in what was recorded first.
    """

    steps: int
    settings: Mapping[str, object]
    source: str
    preset: str = OWN
    rewards: Rewards = Rewards()
    standardize_observations: bool = True
    differences: tuple[str, ...] = ()
    evaluation: Mapping[str, object] = dataclasses.field(default_factory=dict)
    settings_tried: int = 0
    tuning_seeds: tuple[int, ...] = ()

    def lines(self, steps: int | None = None) -> list[str]:
        """Return what it uses and from where, in lines to print; `steps` are those of a run."""
        chosen = ", ".join(
            f"{name}={'none' if value is None else _text(value)}" for name, value in self.settings.items()
        )
        seen = "standardized" if self.standardize_observations else "as they are"
        length = f"{counted(self.steps, 'step')}"
        if steps not in (None, self.steps):
            length = f"{counted(steps, 'step')} (the preset has {self.steps:,})"
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


class _OwnRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recipe as the file of own recipes has it."""

    steps: int
    settings: dict[str, Any]
    source: str
    preset: str = OWN
    return_range: float | None = None
    standardize_observations: bool = True
    settings_tried: int = 0
    tuning_seeds: tuple[int, ...] = ()


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Datasets with recipes in common, by algorithm."""

    datasets: list[str]
    recipes: dict[str, _OwnRecipe]


class _Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the defaults of an algorithm come from, and for how many steps they are."""

    source: str = _NO_SOURCE
    steps: int = 1_000_000


class _OwnTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file of own recipes."""

    sources: dict[str, str]
    defaults: dict[str, _Defaults]
    libraries: dict[str, _OwnRecipe]
    groups: list[_Group]


def _own_recipe(table: _OwnTable, written: _OwnRecipe) -> Recipe:
    return Recipe(
        steps=written.steps,
        settings=written.settings,
        source=written.source.format_map(table.sources),
        preset=written.preset,
        rewards=Rewards(return_range=written.return_range),
        standardize_observations=written.standardize_observations,
        settings_tried=written.settings_tried,
        tuning_seeds=written.tuning_seeds,
    )


_OWN_TABLE = convert_json(parse_json((records_folder() / "recipes.json").read_bytes()), _OwnTable)
_LIBRARIES = {form: _own_recipe(_OWN_TABLE, one) for form, one in _OWN_TABLE.libraries.items()}

RECIPES: dict[tuple[str, str], Recipe] = {
    (algorithm, dataset): _own_recipe(_OWN_TABLE, written)
    for group in _OWN_TABLE.groups
    for dataset in group.datasets
    for algorithm, written in group.recipes.items()
}
"""Own recipes by algorithm and dataset."""


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
    `preset` names another one (`preset_names`).
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
    defaults, none = _OWN_TABLE.defaults, _Defaults()
    return Recipe(
        steps=defaults.get(algorithm, none).steps,
        settings={},
        source=defaults.get(_form(algorithm, dataset), none).source,
        preset=DEFAULTS,
    )


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
    return algorithm if isinstance(dataset, str) else form_of(algorithm, _kind_of_actions(dataset))


def _kind_of_actions(dataset: Dataset) -> str:
    """Return the kind of a dataset's actions; where there is one for each agent, that of the first."""
    space: Any = dataset.action_space
    parts = getattr(space, "spaces", None)
    return action_kind(next(iter(parts.values())) if isinstance(parts, dict) and parts else space)


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
            effects.append(msgspec.convert({rule: value} if rule in _FIELDS else {"settings": {rule: value}}, _Effect))
        else:
            text = rule.difference.replace("{value}", _text(value))
            effects.append(msgspec.structs.replace(rule, difference=text))
    settings: dict[str, object] = {}
    for effect in effects:
        settings |= effect.settings
    fields = {
        field: next((found for one in effects if (found := getattr(one, field)) is not None), None) for field in _FIELDS
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
