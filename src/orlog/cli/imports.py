"""The commands that import third-party files of this machine, and export to their formats."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import orlog
from orlog.base.terminal import printable, progress_bar, say, show_facts, show_table, tell, waits
from orlog.cli.advice import in_options
from orlog.cli.options import ChunkHashes, Executing, Imports, Name, command, option
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.datasets.formats.episodes import Found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Importing:
    """What files do not say of themselves, under the names that `import_dataset` has for it.

    Options:
        format (FORMAT, default: what the files look like): Format of the files, such as d4rl, or a file of your own
            that declares one.
        horizon (STEPS, >= 1): Steps after which the environment truncates, for files that do not say where; the rule
            is in docs/formats.md.
        columns (--map NAME=COLUMNS): For tables, HDF5, npz, Zarr and recordings of any layout: which columns, arrays
            or topics are the observation, action, reward, terminated, truncated or infos/NAME, such as
            observation=obs_*. For HDF5 and Zarr also episodes/NAME: an attribute such as @current_task or
            @ep_meta:lang.
        episode (COLUMN): What an episode is: a column or an array that tells them apart, an array of ends, file for a
            file each, row for a row each of arrays [episodes, time, ..], # for the arrays of a number each (--map
            observation=states_#), or a pattern of groups such as demo_*.
        step (COLUMN): For tables: what counts an episode's steps.
        length (COLUMN): An episode's length: a column of a table, or with --episode row an array of lengths or a
            mask.
        sort: For tables: put rows in the order of episodes and steps.
        task (NAME): The task whose rewards are taken, or the vault that is read, if there are several.
        no_video: For LeRobotDatasets: leave out the frames of videos.
        partial: Read what is there of files that are shorter than their own index.
        rate (HZ, >= 1e-6): For recordings of robots (MCAP, bags): rows a second.
        ends (HOW): How episodes ended where the files do not say it: terminated, truncated or unknown. Where they
            state success, terminated holds for those that succeeded.
        reward (FROM): Rewards in place of those of the files: constant, constant=NUMBER, success (1 where an episode
            succeeded), or FILE.py:function.
        shift (COLUMN=ROWS): Move a column of steps by rows within each episode: action=-1 where each observation was
            recorded after the action of its row (LIBERO). Rewards and infos move with the action.
        flip (COLUMN): Turn frames that are stored upside down (OpenGL), such as observation/image.
        bgr (COLUMN): Swap red and blue of frames, as where cv2 encoded them, such as observation/image.
        like (NAME): A benchmark's dataset whose environment, bounds and references hold, such as
            d4rl/hopper-medium-v2.
        environment (ID[,NAME=VALUE..]): The environment that the data are of, with its spaces and time limit, such as
            Pendulum-v1 or Pendulum-v1,g=9.81.
        bounds (SPACE=LOW:HIGH): Bounds of the action or the observation, each a number or one for each dimension:
            action=-2:2, observation=-1,-1,0:1,1,9. Either side may be left out: action=-1: has a lower bound only.
        description: What the data are.
        license: SPDX identifier of the data.
        dry_run: Read the files and show what they hold; keep nothing.
    """

    format: str | None = None
    horizon: int | None = None
    columns: list[str] | None = None
    episode: str = ""
    step: str = ""
    length: str = ""
    sort: bool = False
    task: str = ""
    no_video: bool = False
    partial: bool = False
    rate: float | None = None
    ends: str = ""
    reward: str = ""
    shift: list[str] | None = None
    flip: list[str] | None = None
    bgr: list[str] | None = None
    like: str = ""
    environment: str | None = None
    bounds: list[str] | None = None
    description: str = ""
    license: str = ""
    chunk_hashes: ChunkHashes = False
    dry_run: bool = False
    imports: Imports = None

    def arguments(self) -> dict[str, Any]:
        """Return them as `import_dataset` takes them."""
        columns = _pairs("map", self.columns, "NAME=COLUMNS, each NAME once, such as observation=obs_*")
        shift = _pairs("shift", self.shift, "COLUMN=ROWS, each COLUMN once, such as action=-1")
        for column, rows in shift.items():
            if not rows.lstrip("+-").isdecimal():
                raise ValueError(f"--shift {column}={rows}: expected a whole number of rows.")
        given = dataclasses.asdict(self) | {
            "columns": columns,
            "shift": {column: int(rows) for column, rows in shift.items()},
            "flip": self.flip or (),
            "bgr": self.bgr or (),
        }
        del given["imports"], given["bounds"]  # the modules are imported
        return given | _bounds(self.bounds or [])


def _pairs(option: str, given: list[str] | None, expected: str) -> dict[str, str]:
    """Return what `NAME=TEXT` stands for, given any number of times."""
    pairs: dict[str, str] = {}
    for text in given or []:
        name, _, value = text.partition("=")
        if not name or not value or name in pairs:
            raise ValueError(f"--{option} {text}: expected {expected}.")
        pairs[name] = value
    return pairs


def _bounds(given: list[str]) -> dict[str, list[float] | float]:
    """Return the bounds that `action=-2:2` and the like mean, under the names that `import_dataset` has for them."""
    bounds: dict[str, list[float] | float] = {}
    for text in given:
        space, _, sides = text.partition("=")
        low, colon, high = sides.partition(":")
        if space not in ("action", "observation") or not colon or f"{low}{high}" == "":
            raise ValueError(f"--bounds {text}: expected action=LOW:HIGH or observation=LOW:HIGH.")
        for name, side in ((f"{space}_low", low), (f"{space}_high", high)):
            if name in bounds:
                raise ValueError(f"--bounds {text}: {space} has bounds already; give them once.")
            if side:
                bounds[name] = _numbers(text, side)
    return bounds


def _numbers(option: str, text: str) -> list[float] | float:
    """Return one number, or several with commas between them."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            f"--bounds {option}: expected a number, or one for each dimension such as -1,-1,0; found {text!r}."
        ) from error
    return numbers[0] if len(numbers) == 1 else numbers


def _list_formats(asked: bool) -> None:
    """Print the formats that orlog reads and writes."""
    if not asked:
        return
    from orlog.datasets.formats.formats import formats

    rows = []
    for name, layout in formats().items():
        can = (layout.open is not None, layout.write is not None, layout.shares)
        files = " ".join(ending or "folder" for ending in layout.extensions)
        rows.append((name, *("yes" if one else "" for one in can), files))
    show_table(("format", "reads", "writes", "several processes", "files"), rows)
    raise typer.Exit


@command("orlog import hopper.hdf5 lab/hopper-v1", name="import")
def import_files(
    files: list[Path],
    name: str,
    workers: int | None = None,
    *,
    where: Executing,
    given: Importing,
    list_formats: Annotated[  # noqa: ARG001 (its callback does the work)
        bool,
        option(
            "--list", "List the formats that orlog reads and writes, and exit.", is_eager=True, callback=_list_formats
        ),
    ] = False,
) -> None:
    """Import third-party files as a new version; the files stay as they are.

    It shows what it found: episodes, how they end, spaces, and what was left out and why. The
    version's lineage holds the SHA-256 of each file.
    With --workers several processes read a file each; with --executor a cluster does, from a disk
    that all of its machines share. They are written here, and the version is the same. `orlog import --list` says
    of which formats.

    Options:
        files (FILE): The files of one dataset, in order, or its folder.
        name: Name of the dataset, NAME or NAME@VERSION; 1.0.0 by default.
        workers (>= 1, default: 1): Processes to use; with --executor, jobs at a time.
    """
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

    execute = where.on_cluster()
    with progress_bar("import") as update:
        folder = orlog.import_dataset(
            files,
            name,
            **given.arguments(),
            execute=execute,
            workers=1 if workers is None and execute is None else workers,
            progress=update,
            on_wait=waits("importing it"),
            on_found=_show_found,
        )
    if given.dry_run:
        say("nothing was kept (--dry-run).")
        return
    manifest = read_manifest(folder / MANIFEST_FILE)
    say(f"{manifest.name}@{manifest.version} in {folder}\n{manifest.digest}")


def _show_found(found: Found) -> None:
    """Show what files hold."""
    stopped = found.episodes - found.terminated - found.truncated
    ends = {"terminated": found.terminated, "truncated": found.truncated, "unfinished": stopped}
    unfinite = [f"{name} {count:,}" for name, count in found.non_finite.items()]
    longest = counted(found.longest, "step")
    rows: list[tuple[str, str | Text]] = [
        ("format", found.format),
        ("episodes", f"{found.episodes:,}, of {found.shortest:,} to {longest}"),
        ("steps", f"{found.steps:,}"),
        ("ends", ", ".join(f"{count:,} {how}" for how, count in ends.items() if count > 0)),
        ("returns", f"{found.lowest_return:.6g} to {found.highest_return:.6g}"),
        ("mean return", f"{found.total_return / found.episodes:.6g}"),
        ("observations", str(found.schema.observation_space)),
        ("actions", str(found.schema.action_space)),
        ("more columns", ", ".join(found.schema.extras) or "none"),
        ("not finite", ", ".join(unfinite) or "none"),
        ("checksums", _checksums(found)),
        ("notes", Text(printable("\n".join(map(str, found.notes)) or "nothing was left out or repaired"))),
    ]
    show_facts(rows)


def _checksums(found: Found) -> str:
    if found.has_checksums:
        return "compared, and right"
    return "none beside the files, so damage inside of them may go unnoticed"


@command("orlog export lab/robot-v3 ./out --to lerobot")
def export(
    name: Name,
    folder: Path,
    to: str,
    lossy: bool = False,
    observation: str = "",
    video: bool = False,
    rate: float | None = None,
    codebase: str = "",
    _imports: Imports = None,
) -> None:
    """Write a dataset or a view in the format of another tool.

    What the format cannot hold is listed first, and needs --lossy.

    Options:
        folder (FOLDER): The new folder; it must not exist.
        to (--to FORMAT): Format to write, of `orlog import --list`, or a file of yours.
        lossy: Leave out what the format cannot hold.
        observation (KEY): Write one part of a Dict of observations, such as state.
        video: For LeRobotDatasets: frames as videos, not images.
        rate (HZ, >= 1): For LeRobotDatasets: steps a second.
        codebase (VERSION, default: v3.0): For LeRobotDatasets: v3.0, or v2.1, which many tools still read.
    """
    dataset = orlog.load_dataset(name)
    with progress_bar("export") as update:
        orlog.export_dataset(
            dataset,
            folder,
            to=to,
            lossy=lossy,
            observation=observation,
            video=video,
            rate=rate,
            codebase=codebase,
            progress=update,
            on_losses=lambda losses: tell(in_options("\n".join(losses))),
        )
    say(f"{dataset.name} as {to} in {folder}")
