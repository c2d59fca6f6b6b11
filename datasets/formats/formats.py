"""The formats of third-party files: each is a row `FORMAT`, or one of a table `FORMATS`, of a module in this folder.

`NAME.py`, or `NAME/format.py` where it is large, declares it, and nothing else has to know about it. Listing the formats imports
all of these modules, so libraries are imported inside their functions.

A format of one's own needs `Format`, `Asked`, `Note`, `Opened` and `Steps` from here (docs/your-own-format.md).
"""

from __future__ import annotations

import dataclasses
import importlib
import runpy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

import orlog.datasets.formats
from orlog.datasets.formats.episode_cutter import HOW
from orlog.datasets.formats.episodes import Asked as Asked
from orlog.datasets.formats.episodes import Found, Options, warn_of_one_process, write_episodes
from orlog.datasets.formats.episodes import Opened as Opened
from orlog.datasets.formats.episodes import Steps as Steps
from orlog.datasets.formats.inventory import about_others, not_read, refuse_pointers, refuse_programs
from orlog.datasets.formats.notes import NOT_IN_LISTED, notes_of_blanks, sentences
from orlog.datasets.formats.notes import Note as Note
from orlog.datasets.formats.overrides import CONVENTIONS, GivenSpaces, of_benchmark, put_conventions, put_rewards
from orlog.datasets.formats.places import EPISODES, of_steps
from orlog.datasets.formats.safe_reading import SUMS_FILE
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.recording.finishing import make_manifest, with_indexes, with_videos
from orlog.errors import FormatVersionError, NotFoundError, SchemaError
from orlog.manifests.counterparts import BenchmarkEnvironment, benchmark_environment, benchmark_environments
from orlog.manifests.manifest import Manifest, Parent
from orlog.manifests.names import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A format of third-party files.

    Attributes:
        name: Name in registries and in the lineage of versions; never changes.
        open: Opens files to be read; None if the format can only be written. Raises SchemaError
            where they are not of this format, and IntegrityError where one is damaged.
        recognizes: Whether files, or one folder, look like this format; looks at names and first
            bytes, and need not be certain. It raises nothing for files of others.
        extensions: Endings of the names of its files, such as `.hdf5`; the empty one is a folder.
        options: Names of the fields of `Options` that it uses; `episodes` stands for `columns` that are all
            `episodes/NAME`.
        takes_benchmark: Whether it reads actions by the environment of a benchmark, as D4RL's files
            need, which hold choices as floats.
        notes_in_lineage: Whether what reading left out or repaired stands in the lineage too, not
            only in the description; false where digests were pinned before it did.
        shares: Whether several processes can read a file each, by `read_pieces` of `episodes.py`.
        only_mapped: Whether files are taken for it only where the user says what their columns are.
        any_layout: Whether it takes files of any layout, and so only those that no other format fits.
        describe: What files hold, and how one could say what it means, where no format fits them;
            nothing where it cannot say.
        write: Writes a dataset into a new empty folder; None if the format can only be read.
            Called with steps done and in all, and the `write_options` that the user gives, by name.
        write_options: What a user can say of files that are written: `video`, `rate`, `codebase`.
        losses: What of a dataset the format cannot hold, a sentence each; for `write`.
        reads: Patterns of the names in its files that are read, or say nothing that is lost
            (`inventory.py`); an import names all others. Without any it names none.
        check: Raises MissingExtraError if a package that it needs is not installed.
    """

    name: str
    open: Callable[[Asked], AbstractContextManager[Opened]] | None = None
    recognizes: Callable[[Sequence[Path]], bool] = lambda _files: True
    extensions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    takes_benchmark: bool = False
    notes_in_lineage: bool = True
    shares: bool = False
    only_mapped: bool = False
    any_layout: bool = False
    describe: Callable[[Sequence[Path]], str] = lambda _files: ""
    write: Callable[..., None] | None = None
    write_options: tuple[str, ...] = ()
    losses: Callable[[Dataset], list[str]] = lambda _dataset: []
    reads: tuple[str, ...] = ()
    check: Callable[[], object] = lambda: None


def formats() -> dict[str, Format]:
    """Return each format by the name of its module, folder, or row of a table (`layouts.py`), sorted."""
    here = __name__.rpartition(".")[0]
    modules: dict[str, str] = {}
    for folder in map(Path, orlog.datasets.formats.__path__):
        modules |= {file.stem: f"{here}.{file.stem}" for file in folder.glob("*.py")}
        modules |= {file.parent.name: f"{here}.{file.parent.name}.format" for file in folder.glob("*/format.py")}
    modules.pop(__name__.rpartition(".")[2])
    known: dict[str, Format] = {}
    for name, module in modules.items():
        declared = importlib.import_module(module)
        known |= getattr(declared, "FORMATS", {})
        known |= {name: declared.FORMAT} if hasattr(declared, "FORMAT") else {}
    return dict(sorted(known.items()))


def find_format(wanted: str, dataset: str, shown: Iterable[str] = ()) -> Format:
    """Return the format of a name; a FormatVersionError if there is none, which offers `shown` instead of such names."""
    known = {file_format.name: file_format for file_format in formats().values()}
    if wanted not in known:
        names = [*shown] or sorted(known)
        instead = did_you_mean(wanted, names) or f"; it reads {', '.join(names)}."
        raise FormatVersionError(f"{dataset}: no format {wanted!r} is known{instead}")
    return known[wanted]


def own_format(wanted: str) -> Format | None:
    """Return the format that a file of the user's own declares; None if it is no path of one."""
    path = Path(wanted)
    if path.suffix != ".py":
        return None
    if not path.is_file():
        raise NotFoundError(f"{wanted}: there is no such file.")
    try:
        declared = runpy.run_path(str(path), run_name=path.stem)
    except Exception as error:  # a user's code raises anything
        raise ValueError(f"{wanted}: {type(error).__name__} when it was run: {error}.") from error
    file_format = declared.get("FORMAT")
    if type(file_format) is not Format:
        raise ValueError(f"{wanted}: declares no FORMAT; docs/your-own-format.md shows one.")
    return dataclasses.replace(file_format, shares=False)  # other processes could not import its functions


def choose_format(files: Sequence[Path], wanted: str | None, dataset: str, *, is_mapped: bool = False) -> Format:
    """Return the format to read files, or one folder, with; a file that is a pickle or holds some is refused.

    `wanted` is the name of a format or of its module, such as `d4rl`, or the path of a file of the user's own
    (`./my_format.py`); None for the only one that the files look like. With `is_mapped` the user says what
    their columns are.
    """
    known = {name: kind for name, kind in formats().items() if kind.open is not None}
    refuse_pointers(files, dataset)
    if files[0].is_dir() and not any(inside.is_file() for inside in files[0].rglob("*")):
        raise ValueError(f"{dataset}: {files[0]} is an empty folder; name one that holds files.")
    if wanted is not None:
        return known.get(wanted) or own_format(wanted) or find_format(wanted, dataset, known)
    empty = [file for file in files if file.is_file() and not file.stat().st_size]
    if empty:
        raise ValueError(f"{dataset}: {empty[0]} is empty; get this file again.")
    endings = {"" if file.is_dir() else file.suffix.lower() or "." for file in files}
    for file in files:
        refuse_programs(file, dataset)
    possible = {name: kind for name, kind in known.items() if endings <= set(kind.extensions)}
    fitting = [key for key, kind in possible.items() if (is_mapped or not kind.only_mapped) and kind.recognizes(files)]
    if is_mapped:
        fitting = [name for name in fitting if "columns" in possible[name].options] or fitting
    fitting = [name for name in fitting if not possible[name].any_layout] or fitting
    if len(fitting) > 1:
        call = f"orlog.import_dataset({str(files[0])!r}, {dataset!r}, format={fitting[0]!r})"
        raise ValueError(
            f"{dataset}: several formats fit the files; choose one as format=: {', '.join(fitting)}. Run: {call}"
        )
    if not fitting:
        described = "".join(kind.describe(files) for kind in possible.values()) or about_others(files)
        raise ValueError(
            f"{dataset}: the files look like no known format. orlog import --list shows those that are read, and a file of "
            f"your own can be one: docs/your-own-format.md{described}"
        )
    return known[fitting[0]]


def only_file(path: Path) -> Path:
    """Return the file of a folder with one exported file beside its checksums; any other path as it is."""
    if not (path / SUMS_FILE).is_file():
        return path
    files = [file for file in path.iterdir() if file.name != SUMS_FILE]
    of_folders = (kind for kind in formats().values() if "" in kind.extensions and not kind.any_layout)
    if len(files) != 1 or not files[0].is_file() or any(kind.recognizes([path]) for kind in of_folders):
        return path
    return files[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """The version that files are to become, and what is said of it.

    Attributes:
        name: Name of the dataset.
        version: Its version.
        lineage: What the version was derived from.
        like: Name of a benchmark's dataset whose environment, bounds and references hold. By
            default the dataset's own name, if a benchmark has it.
        spaces: What the user gives of environment and bounds.
        description: What the data are; by default what the files say.
        license: SPDX identifier; by default what the files say.
        notes: What else is to be known about the files.
        tells_names: Whether names in the files that were not read stand in the version too; those of listed
            files are only shown, since their versions have digests that others know.
    """

    name: str
    version: str
    lineage: Sequence[Parent] = ()
    like: str = ""
    spaces: GivenSpaces = dataclasses.field(default_factory=GivenSpaces)
    description: str = ""
    license: str = ""
    notes: Sequence[Note] = ()
    tells_names: bool = False


def read_version(
    file_format: Format,
    asked: Asked,
    folder: Path,
    wanted: Wanted,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Manifest, Found]:
    """Write the objects of the version that files hold into a new folder; return its manifest, and what was found.

    The description is followed by what reading left out, repaired, or could not know. The horizon is that of the benchmark by
    default.
    """
    name, given, options = wanted.name, wanted.spaces, asked.options
    if file_format.open is None:
        raise ValueError(f"{name}: files of the format {file_format.name} are written, not read.")
    _check_options(file_format, options, name)
    if asked.sharing is not None and not file_format.shares:
        warn_of_one_process(asked, f"one file after the other is read of {file_format.name}")
        asked = dataclasses.replace(asked, sharing=None)
    benchmark = _find_benchmark(file_format, name, wanted.like)
    horizon = given.horizon if benchmark is None else benchmark.horizon
    if options.time_limit is None:
        asked = dataclasses.replace(asked, options=dataclasses.replace(options, time_limit=horizon))
    if benchmark is not None and file_format.takes_benchmark:
        asked = dataclasses.replace(asked, benchmark=benchmark)
    elif benchmark is not None:
        given = of_benchmark(benchmark, given)
    with file_format.open(asked) as opened:
        opened.schema = given.put_into(opened.schema, asked.sources[0])
        put_conventions(opened, options, asked.sources[0])
        if options.reward:
            put_rewards(opened, options.reward)
        what = f"{name}@{wanted.version} ({asked.sources[0]})"
        if opened.videos and (options.flip or options.bgr):
            raise SchemaError(f"{what}: frames of kept videos are as they are; flip and bgr need video=frames.")
        schema = opened.schema
        opened.schema = with_indexes(schema, opened.videos)
        written, summary = write_episodes(opened, folder, what, progress=progress)
        written = with_videos(written, schema, folder, opened.videos)
        summary.schema = written.schema
    environment = opened.environment if benchmark is None else benchmark.record
    if given.environment is not None:
        if opened.environment is not None and opened.environment.id != given.environment.id:
            ids = {"named": opened.environment.id, "given": given.environment.id}
            summary.notes.append(Note("other_environment", **ids))
        environment = given.environment
    summary.format = file_format.name
    notes = [*wanted.notes, *summary.notes, *notes_of_blanks()]
    names = written.schema.columns()
    named = [pattern for patterns in asked.options.columns.values() for pattern in patterns.split(",")]
    known = [pattern + "*" if pattern.endswith("*") else pattern for pattern in named]
    known = [*file_format.reads, *opened.reads, *known] if file_format.reads else []
    notes += not_read(asked.files, known, notes, names)
    later = [note for note in notes if note.code in NOT_IN_LISTED]
    kept = [note for note in notes if note not in later]
    summary.notes = kept + later
    remarks = " ".join(sentences(summary.notes if wanted.tells_names else kept))
    lineage = wanted.lineage
    description = wanted.description or opened.description
    if wanted.description and wanted.tells_names:
        description = " ".join(filter(None, (description, opened.always_said)))
    if file_format.notes_in_lineage and remarks:
        lineage = [msgspec.structs.replace(parent, operation=f"{parent.operation}. {remarks}") for parent in lineage]
    manifest = make_manifest(
        written.schema,
        [written.part],
        written.objects,
        non_finite=written.non_finite,
        outside=written.outside,
        name=name,
        version=wanted.version,
        description=" ".join(filter(None, (description, remarks))),
        license=wanted.license or opened.license,
        lineage=lineage,
        environment=environment,
        behavior_policy=opened.behavior_policy,
        benchmark="" if benchmark is None else wanted.like or name,
        dimension_names=opened.dimension_names,
        roles=opened.roles,
        videos=opened.video_facts,
    )
    return manifest, summary


def _check_options(file_format: Format, options: Options, name: str) -> None:
    """Raise ValueError if the format has no use for an option, or `ends` is no way in which episodes end."""
    if options.ends not in ("", *HOW):
        raise ValueError(f"{name}: ends={options.ends!r}: expected {', '.join(HOW)}.")
    for option in options.given():
        is_of_episodes = option == "columns" and not of_steps(options.columns)
        used = EPISODES if is_of_episodes and EPISODES in file_format.options else option
        if used not in (*file_format.options, "reward", *CONVENTIONS):
            raise ValueError(f"{name}: the format {file_format.name} does not use {option}=; leave it out.")


def _find_benchmark(file_format: Format, name: str, like: str) -> BenchmarkEnvironment | None:
    """Return the environment of the benchmark's dataset `like`, or of the dataset's own name."""
    benchmark = benchmark_environment(like or name)
    if like and benchmark is None:
        known = [dataset for known in benchmark_environments() for dataset in known.datasets]
        instead = did_you_mean(like, known) or "; give a name of D4RL, such as d4rl/hopper-medium-v2."
        raise NotFoundError(f"{name}: orlog knows no environment of {like!r} (like=){instead}")
    if benchmark is None or not (like or file_format.takes_benchmark):
        return None
    # Errors name the dataset that was meant, not all that share the environment.
    return msgspec.structs.replace(benchmark, datasets=[like or name])
