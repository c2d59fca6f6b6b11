"""What readers of third-party files are asked for and give: episodes, in pieces, as they are read.

A reader is a generator that opens files, yields one `Opened`, and closes them at the end:

    @contextlib.contextmanager
    def _open(asked: Asked) -> Iterator[Opened]:
        with open_hdf5(asked.files[0], asked.sources[0]) as file:
            yield Opened(schema=.., steps=_steps(file), total_steps=..)

`write_episodes` pulls the steps, writes them, and counts what a person wants to see of them.

Of several files one is read at a time here, or a file a job by several processes (`read_pieces`): what is read is the same and
comes in the same order. What goes on from one file to the next, such as cutting rows into episodes, is done by the process that asks.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from orlog.base.jobs import Execute, check_seen, do_jobs
from orlog.datasets.columns.episode import Columns
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.notes import Blanks, Note, note_all, noted_blanks
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.store.zarr_writer import WrittenPart
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.counterparts import BenchmarkEnvironment
from orlog.manifests.manifest import EnvironmentRecord, Video


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user says about files that do not say it themselves, as `orlog.import_dataset` has it; each format uses some of it.

    `video` is `keep` where videos are kept as they are, else frames are decoded. `time_limit` is the horizon of the environment that the user or a list names; files may say otherwise.
    """

    horizon: int | None = None
    time_limit: int | None = None
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    episode: str = ""
    step: str = ""
    length: str = ""
    sort: bool = False
    task: str = ""
    no_video: bool = False
    rate: float | None = None
    clock: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resample: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ends: str = ""
    partial: bool = False
    reward: str = ""
    shift: Mapping[str, int] = dataclasses.field(default_factory=dict)
    flip: Sequence[str] = ()
    bgr: Sequence[str] = ()
    video: str = ""

    @property
    def limit(self) -> int | None:
        """Steps after which an episode is truncated, whoever says it."""
        return self.time_limit if self.horizon is None else self.horizon

    def given(self) -> list[str]:
        """Return the names of those that the user gives, that are not at their default."""
        default = Options()
        names = [field.name for field in dataclasses.fields(self) if field.name != "time_limit"]
        return [name for name in names if getattr(self, name) != getattr(default, name)]


def tell_lack(options: Options, notes: list[Note], error: SchemaError | IntegrityError) -> None:
    """Note that data are shorter than their own index where they may be read in part; else raise the error."""
    if not options.partial:
        error.args = (f"{error} partial=True reads what is there.", *error.args[1:])
        raise error
    notes.append(Note("partial", lack=str(error)))


class Sharing(NamedTuple):
    """Who reads the values of files: jobs of an executor, or of so many processes of this machine."""

    execute: Execute | None
    workers: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The files to read.

    Attributes:
        files: Files, or one folder; they are not trusted.
        sources: What errors call each of them: its URL or path.
        options: What the user says about them.
        benchmark: The environment of a benchmark that the data belong to, whose bounds the actions
            have; for formats that take it.
        sharing: Who reads the values, for formats whose files several processes can read; None for this one.
    """

    files: Sequence[Path]
    sources: Sequence[str]
    options: Options = Options()
    benchmark: BenchmarkEnvironment | None = None
    sharing: Sharing | None = None

    def only_file(self, layout: str) -> tuple[Path, str]:
        """Return the one file of a dataset, and what errors call it.

        Args:
            layout: What the files have, such as "D4RL's layout".

        Raises SchemaError if there are several.
        """
        if len(self.files) != 1:
            raise SchemaError(f"{self.sources[0]}: a dataset in {layout} is one file, and {len(self.files)} are given.")
        return self.files[0], self.sources[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Some steps of an episode; the pieces of one follow each other, and the last one ends it.

    Attributes:
        observations: A space's columns with n + 1 rows in the first piece of an episode, beginning
            with that of the reset; n rows in later pieces, the observation after each action.
        actions: n rows.
        rewards: (n,).
        ends: Whether the episode ends after these steps.
        terminated: Whether the task itself ended there.
        truncated: Whether the episode was cut off there. One that is neither is unfinished.
        infos: Extra columns of n rows each; all pieces have the same.
        seed: Seed of the reset, where the piece ends the episode and the files tell it.
        metadata: Values for the whole episode, where the piece ends it; all episodes have the same.
    """

    observations: Columns
    actions: Columns
    rewards: np.ndarray
    ends: bool = True
    terminated: bool = False
    truncated: bool = False
    infos: Mapping[str, Columns] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class Opened:
    """What files say before their steps are read.

    Attributes:
        schema: Spaces and the dtype of rewards.
        steps: All steps, episode by episode; memory is bounded by one piece.
        total_steps: How many steps there are as far as the files say, for progress; else 0.
        lengths: Rows of each episode, where what says them is read first.
        notes: What was repaired, left out, or cannot be known. More may be added until the last step is read.
        facts: What the files say about the dataset: `environment`, `behavior_policy`,
            `description`, `license`, as the manifest has them.
        reads: Names in these files that are read, as patterns like those of `Format.reads`.
        dimension_names: What the numbers in a row of a column are, as the manifest has them.
        roles: What columns mean, where their names do not say it (`manifests/roles.py`).
        always_said: A sentence of the description that stands behind one of the user's own too, since an
            export writes it back; not in versions of listed files.
        videos: Files of columns of observations, in their order, whose rows are not pixels but which frames of these
            they are, (3,) int64 (`datasets/store/videos.py`).
        video_facts: What the manifest says of each; complete once the last step was read.
    """

    schema: Schema
    steps: Iterator[Steps]
    total_steps: int = 0
    lengths: Sequence[int] = ()
    notes: list[Note] = dataclasses.field(default_factory=list)
    environment: EnvironmentRecord | None = None
    behavior_policy: str = ""
    description: str = ""
    license: str = ""
    reads: Sequence[str] = ()
    dimension_names: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    roles: dict[str, str] = dataclasses.field(default_factory=dict)
    always_said: str = ""
    videos: Mapping[str, Sequence[Path]] = dataclasses.field(default_factory=dict)
    video_facts: dict[str, Video] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, kw_only=True)
class Found:
    """What reading the files gave.

    Attributes:
        format: Name of the format.
        schema: The columns.
        episodes: Episodes.
        steps: Steps of all of them.
        terminated: Episodes that the task ended.
        truncated: Episodes that were cut off.
        shortest: Steps of the shortest episode.
        longest: Steps of the longest one.
        lowest_return: The lowest sum of an episode's rewards.
        highest_return: The highest one.
        total_return: Sum of all rewards.
        non_finite: How many numbers of each column are infinite or NaN, where some are.
        has_checksums: Whether a list of checksums, beside the files or of a catalogue, proves them.
        notes: What was repaired, left out, or cannot be known.
    """

    schema: Schema
    format: str = ""
    episodes: int = 0
    steps: int = 0
    terminated: int = 0
    truncated: int = 0
    shortest: int = 0
    longest: int = 0
    lowest_return: float = 0.0
    highest_return: float = 0.0
    total_return: float = 0.0
    non_finite: dict[str, int] = dataclasses.field(default_factory=dict)
    has_checksums: bool = False
    notes: list[Note] = dataclasses.field(default_factory=list)

    def count(self, steps: int, total: float, last: Steps) -> None:
        """Count an episode of some steps and that sum of rewards, which ends as `last` does."""
        is_first = self.episodes == 0
        self.shortest = steps if is_first else min(self.shortest, steps)
        self.longest = max(self.longest, steps)
        self.lowest_return = total if is_first else min(self.lowest_return, total)
        self.highest_return = total if is_first else max(self.highest_return, total)
        self.total_return += total
        self.episodes += 1
        self.steps += steps
        self.terminated += last.terminated
        self.truncated += last.truncated


def write_episodes(
    opened: Opened, folder: Path, name: str, *, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> tuple[WrittenPart, Found]:
    """Write all episodes into a new folder, in the Zarr container; return what was written and what was found.

    There must be one, and the last one must be ended. `progress` gets steps done and in all.
    """
    writer = EpisodeWriter(folder, opened.schema, name)
    summary = Found(schema=opened.schema)
    steps, total = 0, 0.0
    try:
        progress(0, opened.total_steps)
        for piece in opened.steps:
            count = len(piece.rewards)
            flags = np.zeros((2, count), bool)
            flags[:, -1:] = [[piece.terminated], [piece.truncated]]
            writer.add_steps(
                observations=piece.observations,
                actions=piece.actions,
                rewards=piece.rewards,
                terminations=flags[0],
                truncations=flags[1],
                infos=piece.infos,
            )
            with np.errstate(over="ignore", invalid="ignore"):  # as of infinity less infinity
                total += float(np.sum(piece.rewards, dtype=np.float64))
            steps += count
            if piece.ends:
                writer.end_episode(seed=piece.seed, metadata=piece.metadata)
                summary.count(steps, total, piece)
                steps, total = 0, 0.0
            done = summary.steps + steps
            progress(done, max(done, opened.total_steps))
        written = writer.finish()
    finally:
        writer.close()
    summary.schema, summary.notes = written.schema, [*opened.notes]
    summary.non_finite = written.non_finite
    return written, summary


File = TypeVar("File")
Part = TypeVar("Part")


def read_pieces(
    asked: Asked, read: Callable[[Iterable[File]], Iterable[Part]], files: Sequence[File]
) -> Iterator[Part]:
    """Yield what `read` yields of files, in their order.

    Args:
        asked: Says who reads; several processes get a file each.
        read: Yields what files hold; for other processes it, files and what it yields can be pickled.
        files: The files, shards or files of episodes, in whatever form `read` takes them.
    """
    if asked.sharing is None or len(files) < 2:
        if asked.sharing is not None:
            warn_of_one_process(asked, "a job reads a whole file, and the data are in one")
        yield from read(files)
        return
    folders = sorted({file if file.is_dir() else file.parent for file in asked.files})
    jobs = ([file] for file in files)
    there = functools.partial(_read_there, read, folders)
    for parts, blanks in do_jobs(there, jobs, **asked.sharing._asdict()):
        note_all(blanks)
        yield from parts


def read_steps(
    asked: Asked, read: Callable[[Iterable[File]], Iterable[Steps | Note]], files: Sequence[File], notes: list[Note]
) -> Iterator[Steps]:
    """Yield the steps of files as `read_pieces` does, and add each different note of theirs to the notes once."""
    for part in read_pieces(asked, read, files):
        if isinstance(part, Steps):
            yield part
        elif part not in notes:
            notes.append(part)


def warn_of_one_process(asked: Asked, why: str) -> None:
    """Warn that this process reads the data, though several were asked for."""
    warnings.warn(
        f"{asked.sources[0]}: one process reads these data, since {why}; workers and executors change nothing.",
        stacklevel=2,
    )


def _read_there(
    read: Callable[[Iterable[File]], Iterable[Part]], folders: Sequence[Path], files: Sequence[File]
) -> tuple[list[Part], Blanks]:
    """Read files in a process that may be on another machine, with what was noted about their values."""
    check_seen(*folders)
    with noted_blanks() as blanks:
        return [*read(files)], blanks
