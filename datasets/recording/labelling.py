"""Labels by hand: success, failure, tags and spans of steps, durable one by one, saved as versions of a layer.

    ORLOG_HOME/labels/lab/my-labels-v1.jsonl

Each line of this journal is a label, on the disk before anybody is told that it is. `save` makes the next version of the
layer of them, and only then deletes the journal. A kill in between does no harm: the same labels are made again. A last line that
was cut is no label.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from orlog.base.files import lock_open_file, make_folder, storage_errors
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.records import known_versions
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.layers import LABELLED_BY
from orlog.datasets.reading.opening import open_dataset
from orlog.datasets.reading.selection import episode_column
from orlog.errors import ManifestError, SchemaError, StorageError
from orlog.manifests.names import counted, parse_name

MOST_TAGS = 10
BY, AT, SUCCESS = f"episodes/{LABELLED_BY}", "episodes/labelled_at", "episodes/success"
_TAG = re.compile(r"[a-z][a-z0-9_]{0,39}")
_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What somebody says of an episode, or of a span of its steps.

    Attributes:
        episode: Its index in the base.
        kind: `success`, `failure`, `tag`, or `undo`: the last label that was not undone.
        tag: Name of the tag.
        on: Whether the tag holds from now on; `add` turns it on or off.
        first: First step of a span; None for the whole episode.
        last: Last step of a span.
        by: Who says so.
        at: When, in UTC.
    """

    kind: Literal["success", "failure", "tag", "undo"]
    episode: _Count = 0
    tag: _Text = ""
    on: bool = True
    first: _Count | None = None
    last: _Count | None = None
    by: _Text = ""
    at: _Text = ""

    @property
    def held(self) -> Any:
        """What a state holds of a tag: its name, with the steps of a span."""
        return self.tag if self.first is None else (self.tag, self.first, self.last)


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first line of a journal: which version is labelled."""

    base: str


@dataclasses.dataclass
class State:
    """What is said of one episode: `success` is None where nobody said it."""

    success: bool | None = None
    tags: set[str] = dataclasses.field(default_factory=set)
    spans: set[tuple[str, int, int]] = dataclasses.field(default_factory=set)
    by: str = ""
    at: str = ""

    def after(self, label: Label) -> State:
        """Return what holds after a label."""
        made = dataclasses.replace(self, tags={*self.tags}, spans={*self.spans}, by=label.by, at=label.at)
        if label.kind != "tag":
            made.success = label.kind == "success"
        else:
            held: set[Any] = made.tags if label.first is None else made.spans
            (held.add if label.on else held.discard)(label.held)
        return made


class Labels:
    """Labels of the episodes of a stored version that are being made."""

    def __init__(self, base: Dataset, name: str, *, by: str, tags: Iterable[str] = ()) -> None:
        """Go on with the newest version of the layer and with a journal, where there are.

        Raises:
            SchemaError: the dataset is a view; the layer lies over another version; a tag has no name of a tag.
            StorageError: somebody else labels this layer now, on this machine or another that shares the home.
            ManifestError: the journal is damaged.
        """
        if base.operation is not None:
            raise SchemaError(f"{base.name}: a version is labelled as a whole; open the version that the view is of.")
        self.base, self.name, self.by = base, parse_name(name).name, by
        self.tags = [*dict.fromkeys(tags)]  # in the order of their keys
        self._states: dict[int, State] = {}
        self._done: list[Label] = []
        versions = known_versions(self.name)
        self._after = next(iter(versions), "")
        if self._after:
            self._read(open_dataset(f"{self.name}@{self._after}"))
        self._saved = dict(self._states)
        there = {*base.schema.columns(), *base.schema.extras}
        self._stated = np.asarray(base.column(SUCCESS)) if SUCCESS in there else None
        taken = {name.partition("/")[2] for name in {*there, SUCCESS, BY, AT}}
        wrong = [tag for tag in self.tags if not _TAG.fullmatch(tag) or tag in taken]
        if wrong or len(self.tags) > MOST_TAGS:
            raise SchemaError(
                f"{self.name}: a layer has at most {MOST_TAGS} tags, named as gripper_slips, and not as a column of "
                f"{base.name}; found {', '.join(wrong or self.tags)}."
            )
        self._path = datasets_folder().parent / "labels" / f"{self.name}.jsonl"
        with storage_errors(self._path):
            make_folder(self._path.parent)
            self._file = self._path.open("a+b", buffering=0)  # a label that failed may not be written later
        if not lock_open_file(self._file, shared=False):
            self._file.close()
            raise StorageError(f"{self.name}: somebody labels it now; close that viewer first, or use another name.")
        try:
            self._replay()
        except BaseException:
            self._file.close()
            raise

    def _read(self, layer: Dataset) -> None:
        """Take what the newest version of the layer says."""
        (stored,) = layer.parents[1:]
        if stored.manifest.base is None or stored.manifest.base.digest != self.base.digest:
            raise SchemaError(
                f"{self.name}@{layer.version}: lies over {stored.manifest.base}, not over {self.base.name}@"
                f"{self.base.version}; label that, or use another name."
            )
        tagged = [spec for name, spec in stored.schema.extras.items() if name not in (SUCCESS, BY, AT)]
        if other := [spec.name for spec in tagged if spec.dtype != np.bool_ or spec.shape]:
            raise SchemaError(
                f"{self.name}@{layer.version}: {', '.join(other)} is no label that is made here; use another name, and lay "
                "both over the version (with_layers)."
            )
        columns = {name: episode_column(layer, name) for name in stored.schema.extras if name.startswith("episodes/")}
        spans = {name: layer.column(name) for name in stored.schema.extras if name.startswith("infos/")}
        own = [name.partition("/")[2] for name in [*columns, *spans] if name not in (SUCCESS, BY, AT)]
        self.tags = [*dict.fromkeys([*self.tags, *own])]
        starts = layer.episode_starts
        for episode in range(layer.total_episodes):
            state = State()
            if BY in columns and columns[BY][episode]:
                state.by, state.at = str(columns[BY][episode]), str(columns[AT][episode])
            if SUCCESS in columns and np.isfinite(columns[SUCCESS][episode]):
                state.success = bool(columns[SUCCESS][episode])
            state.tags = {tag for tag in own if f"episodes/{tag}" in columns and columns[f"episodes/{tag}"][episode]}
            for name, flags in spans.items():
                rows = flags[starts[episode] : starts[episode] + layer.episode_lengths[episode]]
                edges = np.flatnonzero(np.diff(np.r_[False, rows, False]))
                tag = name.partition("/")[2]
                state.spans |= {(tag, int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)}
            if state != State():
                self._states[episode] = state

    def _replay(self) -> None:
        """Read the journal; a new one gets its first line."""
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        self._file.truncate(whole)  # a last line that was cut
        lines = data[:whole].splitlines()
        try:
            if lines:
                head = msgspec.json.decode(lines[0], type=_Head)
                if head.base != self.base.digest:
                    raise SchemaError(
                        f"{self._path}: holds labels of {head.base[:19]}, not of {self.base.name}@{self.base.version} "
                        f"({self.base.digest[:19]}); label that, or use another name."
                    )
                for line in lines[1:]:
                    self._take(msgspec.json.decode(line, type=Label))
            else:
                self._write(_Head(base=self.base.digest))
        except msgspec.MsgspecError as error:
            raise ManifestError(
                f"{self._path}: {error}; move the file away to begin anew.", file=str(self._path)
            ) from error

    def _write(self, line: msgspec.Struct) -> None:
        data = msgspec.json.encode(line) + b"\n"
        with storage_errors(self._path):
            before = self._file.seek(0, os.SEEK_END)
            try:
                while data:  # the system may take a part of it before it refuses the rest
                    data = data[self._file.write(data) :]
                os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(before)
                raise

    def _take(self, label: Label) -> int:
        """Take a label, and return the episode that it is about."""
        if label.kind != "undo":
            self._done.append(label)
            self._states[label.episode] = self._states.get(label.episode, State()).after(label)
            return label.episode
        if not self._done:
            raise SchemaError(f"{self.name}: there is nothing to undo.")
        undone = self._done.pop().episode
        state = self._saved.get(undone, State())
        for earlier in self._done:
            state = state.after(earlier) if earlier.episode == undone else state
        self._states[undone] = state
        return undone

    def add(self, label: Label) -> int:
        """Make a label that is on the disk when this returns; return the episode that it is about.

        Raises:
            SchemaError: there is no such episode, step or tag, or nothing to undo.
            StorageError: the disk is full; the label is not made.
        """
        where = f"{self.base.name}, episode {label.episode}"
        if label.episode >= self.base.total_episodes:
            raise SchemaError(f"{where}: there is none; it has {counted(self.base.total_episodes, 'episode')}.")
        if label.kind == "tag" and label.tag not in self.tags:
            raise SchemaError(f"{where}: no tag {label.tag!r:.60}; name it first: --tag {label.tag:.60}.")
        length = int(self.base.episode_lengths[label.episode])
        if (label.first is None) != (label.last is None) or not (label.first or 0) <= (label.last or 0) < length:
            raise SchemaError(f"{where}: steps {label.first} to {label.last} are no span of its {length} steps.")
        if label.kind == "undo" and not self._done:
            raise SchemaError(f"{self.name}: there is nothing to undo.")
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        state = self._states.get(label.episode, State())
        on = label.kind != "tag" or label.held not in (state.tags if label.first is None else state.spans)
        label = msgspec.structs.replace(label, on=on, by=self.by, at=now)
        self._write(label)
        return self._take(label)

    def of(self, episode: int) -> dict[str, Any]:
        """Return what is said of an episode, for the page."""
        shown = self._states.get(episode, State())
        return {
            "episode": episode,
            "success": shown.success,
            "tags": sorted(shown.tags),
            "spans": sorted(shown.spans),
            "by": shown.by,
            "at": shown.at,
            "labelled": sum(state.success is not None for state in self._states.values()),
            "unsaved": len(self._done),
        }

    def save(self) -> Path | None:
        """Store all labels as the next version of the layer, and return its folder; None if there is nothing new."""
        if not self._done:
            return None
        columns, is_complete = self._columns()
        # What is not said of every episode is no success that a score may count.
        roles = {SUCCESS: "success" if is_complete else "none"}
        layer = self.base.with_columns(columns, roles=roles, replaces=self._stated is not None)
        folder = layer.save_layer(self.name, **self._facts())
        self._saved, self._done, self._after = dict(self._states), [], folder.name
        with storage_errors(self._path):
            self._file.truncate(0)
            os.fsync(self._file.fileno())
        self._write(_Head(base=self.base.digest))
        return folder

    def _facts(self) -> dict[str, str]:
        version = "1.0.0"
        if self._after:
            major, minor, _ = self._after.partition("+")[0].split(".")
            version = f"{major}.{int(minor) + 1}.0"
        return {
            "version": version,
            "changes": f"{counted(len(self._done), 'label')} by {self.by}" if self._after else "",
        }

    def _columns(self) -> tuple[dict[str, Any], bool]:
        """Return the columns of the layer, and whether all episodes have a success, be it that of the base."""
        base, states = self.base, self._states
        every = [states.get(episode, State()) for episode in range(base.total_episodes)]
        success = np.full(base.total_episodes, np.nan, np.float32) if self._stated is None else self._stated.copy()
        for episode, state in enumerate(every):
            if state.success is not None:
                success[episode] = state.success
        is_complete = bool(np.isin(success, (0, 1)).all())
        success = success.astype(np.bool_) if is_complete else success
        columns: dict[str, Any] = {SUCCESS: success, BY: [s.by for s in every], AT: [s.at for s in every]}
        for tag in self.tags:
            if any(tag in state.tags for state in every):
                columns[f"episodes/{tag}"] = np.array([tag in state.tags for state in every])
            spans = [(episode, a, b) for episode, state in states.items() for name, a, b in state.spans if name == tag]
            if spans:
                flags = np.zeros(base.total_steps, np.bool_)
                for episode, first, last in spans:
                    start = int(base.episode_starts[episode])
                    flags[start + first : start + last + 1] = True
                columns[f"infos/{tag}"] = flags
        return columns, is_complete

    def close(self) -> None:
        """Let others label; a journal without labels is deleted."""
        if not self._done:
            self._path.unlink(missing_ok=True)
        self._file.close()
