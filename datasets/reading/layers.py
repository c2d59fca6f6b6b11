"""Layers: versions whose columns lie over another version, which they name by digest.

    pointmaze/umaze-v1     observations actions rewards ..
    lab/umaze-labels-v1    episodes/success        of the same episodes
    lab/umaze-values-v1    infos/value             of the same steps

A layer is a version like any other, with its own manifest, objects and digest; of its base it holds nothing but
the lengths of the episodes, which are compared. A dataset with layers is a view, `{"layers": {}}`, of a base and its
layers in the order of their digests. A column that two layers have with unequal values is an error, unless `rename`
gives it another name or `later_wins`; a column that the base has too, unless `replaces`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.selection import Selection, episode_column
from orlog.datasets.store.version import StoredVersion
from orlog.errors import IntegrityError, NotFoundError, SchemaError
from orlog.manifests.columns import offsets_column, values_column
from orlog.manifests.documents import canonical_json

if TYPE_CHECKING:
    from orlog.datasets.download.in_place import Coming
    from orlog.datasets.reading.dataset import Dataset

DRAFT = "draft/layer-v1"
"""Name of columns that were not saved as a layer yet."""
Chosen = dict[str, tuple[StoredVersion, str]]
"""By the name of a column here: the layer that has it, and its name there."""


def add_layers(parents: Sequence[Dataset], value: Any) -> tuple[Selection, Schema]:
    """Return the episodes of the first dataset with the columns of the others, which are layers.

    `value` has `replaces` and `later_wins` where they are true, and `rename`: new names of columns by the digest of
    their layer.
    """
    options = {"replaces": False, "later_wins": False, "rename": {}} | value
    if len(options) > 3 or len(parents) < 2 or not isinstance(options["rename"], dict):
        raise ValueError(f"layers takes replaces, later_wins and rename, and at least one layer, found {value!r:.99}.")
    first, selection = parents[0], parents[0].selection()
    if len(selection.versions) != 1 or first.schema.is_layer:
        raise SchemaError(
            f"{first.name}: layers lie over one stored version; add them before it is combined with other datasets."
        )
    (base,) = selection.versions
    made = LayeredVersion(base, _choose(base, parents[1:], options))
    if selection.is_whole:
        return Selection.of(made), made.schema
    new = {name: spec for name, spec in made.schema.extras.items() if name not in base.schema.extras}
    extras = {**first.schema.extras, **new}
    schema = dataclasses.replace(
        first.schema,
        reward_dtype=made.schema.reward_dtype,
        extras=dict(sorted(extras.items())),
        variable={name: kind for name, kind in made.schema.variable.items() if name in extras},
    )
    return dataclasses.replace(selection, versions=(made,)), schema


def _choose(base: StoredVersion, layers: Sequence[Dataset], options: Mapping[str, Any]) -> Chosen:
    """Return which layer each new column comes from."""
    chosen: Chosen = {}
    for layer in layers:
        stored = layer.selection().versions[0]
        _check_base(stored, base)
        names = options["rename"].get(layer.digest, {})
        for name in names.keys() - stored.schema.extras.keys():
            raise NotFoundError(f"{layer.name}: has no column {name!r:.100} to rename.")
        for own in stored.schema.extras:
            name = names.get(own, own)
            other, theirs = chosen.get(name, (stored, own))
            if _hashes(other, theirs) != _hashes(stored, own) and not options["later_wins"]:
                raise SchemaError(
                    f"{other.manifest.name} and {layer.name} both have the column {name}, with other values; "
                    "rename={LAYER: {COLUMN: NEW}} gives it two names, later_wins=True takes the later layer's."
                )
            chosen[name] = stored, own
    known = base.schema.columns().keys() | base.schema.extras.keys()
    for name, (stored, _) in chosen.items():
        if name in known and not options["replaces"]:
            raise SchemaError(
                f"{stored.manifest.name}: its base {base.manifest.name} has a column {name} too; replaces=True puts the "
                "layer's in its place, rename={LAYER: {COLUMN: NEW}} keeps both."
            )
    return chosen


def _hashes(stored: StoredVersion, name: str) -> list[str]:
    return [stored.manifest.column(column).blake3 for column in _columns_of(stored, name)]


def _columns_of(stored: StoredVersion, name: str) -> list[str]:
    """Return the stored columns of a column: two where values have any length."""
    return [offsets_column(name), values_column(name)] if name in stored.schema.variable else [name]


def _check_base(layer: StoredVersion, base: StoredVersion) -> None:
    """Refuse a layer of other bytes.

    Raises SchemaError for another version; IntegrityError for other lengths.
    """
    of, where = layer.manifest.base, layer.manifest.name
    if of is None:
        raise SchemaError(f"{where} is no layer, but a dataset; orlog.combine_datasets puts datasets together.")
    if of.digest != base.digest:
        here = f"{base.manifest.name}@{base.manifest.version}"
        raise SchemaError(
            f"{where} lies over {of} ({of.digest[:19]}), not over {here} ({base.digest[:19]}); open the former: "
            f"{of.name}@{of.digest[:19]}."
        )
    if not np.array_equal(layer.lengths, base.lengths):
        raise IntegrityError(f"{where}: its episodes have other lengths than those of {of}; download or make it again.")


class LayeredVersion(StoredVersion):
    """A stored version with the columns of layers over it."""

    def __init__(self, base: StoredVersion, chosen: Chosen) -> None:
        """Lay columns over `base`."""
        vars(self).update(vars(base))  # it is a whole version, whatever is asked of it
        self._base, self._chosen = base, chosen
        self._places: Chosen = {}  # by stored column
        self._columns = dict(self._columns)
        extras, variable = dict(base.schema.extras), dict(base.schema.variable)
        facts: dict[str, dict[str, Any]] = {
            field: dict(getattr(base.manifest, field)) for field in ("roles", "dimension_names", "non_finite")
        }
        for name, (stored, own) in chosen.items():
            for column, theirs in zip(_renamed(stored, own, name), _columns_of(stored, own), strict=True):
                self._places[column] = stored, theirs
                self._columns[column] = msgspec.structs.replace(stored.manifest.column(theirs), name=column)
            if name not in ("rewards", "episodes/returns", "episodes/seeds"):
                extras[name] = dataclasses.replace(stored.schema.extras[own], name=name)
            variable.pop(name, None)
            if own in stored.schema.variable:
                variable[name] = stored.schema.variable[own]
            for field, known in facts.items():
                known.pop(name, None)
                if own in getattr(stored.manifest, field):
                    known[name] = getattr(stored.manifest, field)[own]
        rewards = chosen.get("rewards")
        dtype = base.schema.reward_dtype if rewards is None else rewards[0].schema.extras[rewards[1]].dtype
        self.schema = dataclasses.replace(
            base.schema, reward_dtype=dtype, extras=dict(sorted(extras.items())), variable=variable
        )
        self.schema.check(base.manifest.name)
        self.manifest = msgspec.structs.replace(
            base.manifest,
            columns=[self._columns[name] for name in sorted(self._columns)],
            variable_columns=variable,
            parts=[],
            **facts,
        )
        laid = {name: [stored.identity, own] for name, (stored, own) in chosen.items()}
        self._identity = hashlib.sha256(canonical_json({"of": base.identity, "layers": laid})).hexdigest()

    @property
    def identity(self) -> str:
        """What tells it from the same version with other layers."""
        return self._identity

    def facts(self) -> dict[str, str]:
        """Return by name of each layer, with its version, which columns are its own; those in place of the base's are marked."""
        columns: dict[str, list[str]] = {}
        for name, (layer, own) in self._chosen.items():
            where = columns.setdefault(f"{layer.manifest.name}@{layer.manifest.version} ({layer.digest[:19]})", [])
            renamed = "" if name == own else f" (its {own})"
            there = {*self._base.schema.columns(), *self._base.schema.extras}
            where.append(f"{name}{renamed}" + (" in place of the base's" if name in there else ""))
        under = self._base.facts() if isinstance(self._base, LayeredVersion) else {}
        return under | {layer: ", ".join(sorted(names)) for layer, names in columns.items()}

    def read(self, name: str, start: int = 0, stop: int | None = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return rows of a column; see `StoredVersion.read`."""
        stored, own = self._places.get(name, (self._base, name))
        return stored.read(own, start, stop, out=out)

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return any rows of a column, in the order asked for; see `StoredVersion.read_rows`."""
        stored, own = self._places.get(name, (self._base, name))
        return stored.read_rows(own, rows)

    def bring(
        self,
        names: Iterable[str],
        episodes: np.ndarray,
        indexes: Container[str] = (),
        ahead: list[Coming] | None = None,
    ) -> None:
        """Fetch rows of some episodes, of the base and of layers; see `StoredVersion.bring`."""
        wanted: dict[int, tuple[StoredVersion, dict[str, str]]] = {}
        for name in names:
            stored, own = self._places.get(name, (self._base, name))
            wanted.setdefault(id(stored), (stored, {}))[1][own] = name
        for stored, several in wanted.values():
            stored.bring(several, episodes, [own for own, name in several.items() if name in indexes], ahead)


def _renamed(stored: StoredVersion, own: str, name: str) -> list[str]:
    return [column.replace(own, name, 1) for column in _columns_of(stored, own)]


MOST_DIFFERENCES = 10_000
LABELLED_BY = "labelled_by"


def compare_layers(before: Dataset, after: Dataset) -> list[dict[str, Any]]:
    """Return what two layers of one version say otherwise, of which column, episode and steps, and who says it.

    A row has `column`, `episode`, `first_step` and `last_step` (None for a column of episodes), `before` and `after`, which are
    the values at the first of these steps, None where a layer does not have the column; and `by` and `now_by`, where the
    layers say who labelled (`episodes/labelled_by`). At most 10,000 rows.

    Raises SchemaError if they lie over different versions.
    """
    layers = [dataset.parents[-1].selection().versions[0] for dataset in (before, after)]
    bases = [layer.manifest.base for layer in layers]
    if bases[0] is None or bases[1] is None or bases[0].digest != bases[1].digest:
        raise SchemaError(f"{layers[0].manifest.name} lies over {bases[0]}, {layers[1].manifest.name} over {bases[1]}.")
    who = [labellers(dataset) for dataset in (before, after)]
    rows: list[dict[str, Any]] = []
    for name in sorted(
        {*layers[0].schema.extras, *layers[1].schema.extras} - {f"episodes/{LABELLED_BY}", "episodes/returns"}
    ):
        has = [name in layer.schema.extras for layer in layers]
        if not all(has):
            rows.append(dict.fromkeys(DIFFERENCE) | {"column": name, "before": has[0], "after": has[1]})
        elif _hashes(layers[0], name) != _hashes(layers[1], name):
            for episode, first, last, values in _unequal(before, after, name):
                by = [names[episode] if names is not None else None for names in who]
                steps = (first, last) if first is not None else (None, None)
                rows.append(dict(zip(DIFFERENCE, (name, episode, *steps, *values, *by), strict=True)))
                if len(rows) >= MOST_DIFFERENCES:
                    return rows
    return rows


DIFFERENCE = ("column", "episode", "first_step", "last_step", "before", "after", "by", "now_by")


def labellers(dataset: Dataset) -> np.ndarray | None:
    """Return who labelled each episode, empty where nobody did; None if the dataset does not say."""
    name = f"episodes/{LABELLED_BY}"
    return episode_column(dataset, name) if name in dataset.schema.extras else None


def _unequal(before: Dataset, after: Dataset, name: str) -> Iterator[tuple[int, int | None, int, tuple[Any, Any]]]:
    """Yield episode, first and last step, and both values, of each run of steps with unequal values; episodes have no steps."""
    if name.startswith("episodes/"):
        values = [episode_column(dataset, name) for dataset in (before, after)]
        for episode in np.flatnonzero(~_same(*values)).tolist():
            yield episode, None, 0, (_plain(values[0][episode]), _plain(values[1][episode]))
        return
    own = name.partition("/")[2]
    pairs = zip(before.select_columns([name]), after.select_columns([name]), strict=True)
    for index, pair in enumerate(pairs):
        first, second = ((episode.infos[own] if own else episode.rewards) for episode in pair)
        edges = np.flatnonzero(np.diff(np.r_[False, ~_same(np.asarray(first), np.asarray(second)), False]))
        for start, end in edges.reshape(-1, 2).tolist():
            yield index, start, end - 1, (_plain(first[start]), _plain(second[start]))


def _same(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return for each row whether two arrays are equal there; NaN equals NaN."""
    equal: Any = first == second
    if first.dtype.kind == second.dtype.kind == "f":
        equal = equal | (np.isnan(first) & np.isnan(second))
    return np.asarray(np.asarray(equal).reshape(len(first), -1).all(1))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
