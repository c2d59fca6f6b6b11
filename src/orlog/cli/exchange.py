"""What comes from elsewhere and goes there: registries and their keys, imports and exports of third-party files."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import orlog
from orlog.base.terminal import printable, progress_bar, progress_bars, say, show_facts, show_table, tell, waits
from orlog.cli.advice import in_options
from orlog.cli.checking import bytes_bar
from orlog.cli.options import (
    AsJson,
    ChunkHashes,
    Executing,
    Imports,
    Name,
    Signing,
    Transfer,
    argument,
    command,
    command_group,
    option,
)
from orlog.cli.results import show
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.datasets.formats.episodes import Found

registries = command_group(
    "registry", "The places that datasets are fetched from, asked in order.", "orlog registry list"
)


@command("orlog download lab/arm-v1 --episodes 0:100 --limit-rate 20M")
def download(name: str, episodes: str | None = None, columns: str | None = None, *, transfer: Transfer) -> None:
    """Download a version from a registry or a URL, every byte checked.

    An interrupted download resumes where it stopped; what is here is not transferred again. A part
    is opened by orlog.load_dataset with the same episodes and columns, and completed by downloading
    without them. A mirror of a name is the URL of another registry with the same versions; a mirror
    of a URL is the URL of another copy of the folder.

    Options:
        name: Dataset's name, or the URL of a version's folder.
        episodes (A:B,.., default: all): Only the files that hold these episodes: 0:100 are the first hundred.
        columns (NAME,.., default: all): Keep only these of the optional columns: infos/.., parts of observations, ..
    """
    from orlog.datasets.home.folders import is_partial, present_objects
    from orlog.datasets.home.records import read_origin
    from orlog.datasets.store.verify import verify_folder
    from orlog.errors import IntegrityError
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

    has_come = False

    def progress(done: int, total: int) -> None:
        nonlocal has_come
        has_come = True
        update("download", done, total, in_bytes=True)

    with progress_bars() as update:
        folder = orlog.download_dataset(
            name,
            episodes=_positions(episodes),
            columns=None if columns is None else [name for name in columns.split(",") if name],
            progress=progress,
            on_objects=functools.partial(update, "files"),
            on_wait=waits("downloading it"),
            on_read=lambda: tell("downloaded; importing it as a version"),
            on_mirror=tell,
            **transfer.arguments(),
        )
    manifest = read_manifest(folder / MANIFEST_FILE)
    objects, whole = present_objects(folder, manifest), counted(len(manifest.objects), "file")
    size, problems = sum(item.size_bytes for item in objects), list[Any]()
    if not has_come:  # what comes is checked as it comes, and nothing did
        with bytes_bar(size) as count:
            problems = verify_folder(folder, quick=True, progress=count)[1]
    if problems:
        raise IntegrityError(
            f"{folder}: was here already, with {counted(len(problems), 'file')} that the manifest does not have so: "
            f"{problems[0].file} is {problems[0].kind}; run: orlog verify {manifest.name}@{manifest.version} --repair"
        )
    part = f" (a part: {len(objects)} of {whole})" if is_partial(folder) else ""
    say(f"{manifest.name}@{manifest.version}: {size:,} bytes in {folder}{part}\n{manifest.digest}")
    origin = read_origin(folder)
    if origin is not None:
        signed = f"signed by {origin.signed_by}" if origin.signed_by else "no signature required"
        say(f"from {origin.registry or origin.mirrors[0]}, {signed}")
    elif manifest.lineage:
        say(manifest.lineage[-1].operation)


def _positions(text: str | None) -> list[int] | None:
    """Return the episodes that `0:100,200:300` means."""
    if text is None:
        return None
    positions: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or first + 1) if match else 0
        if last <= first:
            raise typer.BadParameter(f"{text!r}: expected ranges such as 0:100 or 0:100,200:300.")
        positions += range(first, last)
    return positions


@command("orlog publish lab/arm-v1 s3://our-bucket/datasets --sign lab.key")
def publish(
    name: Name, target: str, signing: Signing, no_audit: bool = False, no_hashes: bool = False, jobs: int = 8
) -> None:
    """Put a version into a registry, so that any static file server of that folder is a mirror.

    The data are audited first (orlog audit); with errors, nothing is published and the exit code is 3. A version
    that has files of more than 1 MiB needs hashes of its chunks (orlog save --chunk-hashes).

    A version that is there is never changed. An interrupted command continues when you give it again. With
    --sign, an index that is there must be signed by that key or one that --trust names. A view is
    stored as a version first: orlog save VIEW NAME@VERSION.

    Options:
        target: Registry to publish it to: a folder, or a URL such as s3://..
        no_audit: Publish without an audit; the registry's index then says so.
        no_hashes: Publish a version without hashes of its chunks, which is meant for downloads.
        jobs (>= 1): Files to transfer at once.
    """
    signer = signing.signer()
    with progress_bars() as update:
        url = orlog.publish_dataset(
            name,
            target,
            sign=signer,
            trusted=signing.trust or (),
            sign_existing=signing.sign_existing,
            audit=not no_audit,
            hashes=not no_hashes,
            jobs=jobs,
            progress=functools.partial(update, "publish", in_bytes=True),
            on_audit=functools.partial(update, "audit"),
            on_wait=waits("publishing there"),
        )
    say(f"published: {url}")


@command("orlog registry add lab https://data.example.org/registry --key ed25519:..", registries)
def add(
    name: str,
    url: str,
    mirrors: list[str] | None = None,
    public_keys: list[str] | None = None,
    first: bool = False,
    in_place: bool = False,
    whole_files: bool = False,
) -> None:
    """Add a registry; nothing is fetched yet.

    Options:
        name: Its name on this machine: a word.
        url: Its URL (https, http, file, s3, hf, ..) or a folder.
        mirrors (--mirror URL): Another place with the same files; may be repeated.
        public_keys (--key KEY): Public key that signs it; then unsigned indexes and versions are refused. May be
            repeated.
        first: Ask it before the others, not after them.
        in_place: Read its versions where they are: only what is needed is fetched, and checked.
        whole_files: With --in-place: also read versions without hashes of chunks, whose files are fetched whole.
    """
    from orlog.datasets.home.registries import add_registry

    if whole_files and not in_place:
        raise typer.BadParameter("it goes with --in-place.", param_hint="--whole-files")
    registry = add_registry(
        name,
        url,
        mirrors=mirrors or (),
        keys=public_keys or (),
        first=first,
        in_place=in_place,
        whole_files=whole_files,
    )
    state = "signed" if registry.keys else "not signed: its index is trusted as it is"
    say(f"added {registry.name}: {registry.url} ({state}{'; read in place' if in_place else ''})")


@command("orlog registry list", registries, "list")
def list_registries(as_json: AsJson = False) -> None:
    """List the registries in the order in which they are asked; the last ones ship with orlog."""
    from orlog.datasets.home.registries import read_registries, registries_file
    from orlog.manifests.shipped import SHIPPED

    keys = ("name", "url", "mirrors", "keys", "in_place", "whole_files")
    asked = [{key: getattr(registry, key) for key in keys} for registry in read_registries()]
    asked += [dict(zip(keys, (name, None, [], [], False, False), strict=True)) for name in SHIPPED]
    columns = "name url=URL mirrors keys=signed_by in_place whole_files"
    show({"file": registries_file(), "registries": asked}, as_json, registries=columns)


@command("orlog registry remove lab", registries)
def remove(name: str) -> None:
    """Remove a registry; datasets that were fetched from it stay.

    Options:
        name: Its name on this machine.
    """
    from orlog.datasets.home.registries import remove_registry

    removed = remove_registry(name)
    say(f"removed {removed.name}: {removed.url}")


@command("orlog registry key lab.pem --new", registries)
def key(path: Path, new: bool = False) -> None:
    """Print the public key of a private key that signs what you publish, or make a new one.

    Options:
        path (FILE): File of the private key.
        new: Make the key; a file that is there is never overwritten.
    """
    from orlog.manifests.signatures import new_key, public_key

    if not new:
        say(public_key(path))
        return
    public = new_key(path)
    say(f"private key: {path} (keep it secret, and keep a copy)")
    say(f"public key: {public} (for those who use your registry)")


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
        video (HOW): For LeRobotDatasets: keep stores videos as they are (the default), and frames decodes them once
            and stores pixels.
        partial: Read what is there of files that are shorter than their own index.
        rate (HZ, >= 1e-6): For recordings of robots (MCAP, bags): rows a second.
        clock (CLOCK|TOPIC=CLOCK): For recordings of robots: the times of messages: log (the default), header (header.stamp)
            or publish (MCAP), of all topics or of one, such as /camera=header.
        resample (RULE|TOPIC=RULE): For recordings of robots: what a row has of a topic: the last message up to then (the
            default), the nearest, or linear between two, for floats of observations and infos.
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
    video: str = ""
    partial: bool = False
    rate: float | None = None
    clock: list[str] | None = None
    resample: list[str] | None = None
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
        columns = pairs("map", self.columns, "NAME=COLUMNS, each NAME once, such as observation=obs_*")
        shift = pairs("shift", self.shift, "COLUMN=ROWS, each COLUMN once, such as action=-1")
        for column, rows in shift.items():
            if not rows.lstrip("+-").isdecimal():
                raise ValueError(f"--shift {column}={rows}: expected a whole number of rows.")
        given = dataclasses.asdict(self) | {
            "columns": columns,
            "shift": {column: int(rows) for column, rows in shift.items()},
            "clock": _by_topic("clock", self.clock),
            "resample": _by_topic("resample", self.resample),
            "flip": self.flip or (),
            "bgr": self.bgr or (),
        }
        del given["imports"], given["bounds"]  # the modules are imported
        return given | _bounds(self.bounds or [])


def pairs(option: str, given: list[str] | None, expected: str) -> dict[str, str]:
    """Return what `NAME=TEXT` stands for, given any number of times."""
    pairs: dict[str, str] = {}
    for text in given or []:
        name, _, value = text.partition("=")
        if not name or not value or name in pairs:
            raise ValueError(f"--{option} {text}: expected {expected}.")
        pairs[name] = value
    return pairs


def _by_topic(option: str, given: list[str] | None) -> dict[str, str]:
    """Return what `TOPIC=WORD` stands for, where a word alone is that of all other topics, `*`."""
    texts = [text if "=" in text else f"*={text}" for text in given or []]
    return pairs(option, texts, "a word, or TOPIC=WORD, each TOPIC once, such as /camera=WORD")


def _bounds(given: list[str]) -> dict[str, list[float] | float]:
    """Return the bounds that `action=-2:2` and the like mean, under the names that `import_dataset` has for them."""
    bounds: dict[str, list[float] | float] = {}
    for text in given:
        match = re.fullmatch(r"(action|observation)=([^:]*):([^:]*)", text)
        sides = {f"{match[1]}_low": match[2], f"{match[1]}_high": match[3]} if match else {}
        if not any(sides.values()) or bounds.keys() & sides:
            raise ValueError(f"--bounds {text}: expected action=LOW:HIGH or observation=LOW:HIGH, each space once.")
        for name, side in sides.items():
            try:
                numbers = [float(part) for part in side.split(",")] if side else []
            except ValueError:
                raise ValueError(
                    f"--bounds {text}: expected a number, or one for each dimension such as -1,-1,0; found {side!r}."
                ) from None
            if numbers:
                bounds[name] = numbers[0] if len(numbers) == 1 else numbers
    return bounds


def _list_formats(asked: bool) -> None:
    if not asked:
        return
    from orlog.datasets.formats.formats import formats

    rows = []
    for name, layout in formats().items():
        can = (layout.open is not None, layout.write is not None, layout.shares)
        files = " ".join(ending or "folder" for ending in layout.extensions)
        rows.append((name, *("yes" if able else "" for able in can), files))
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
    stopped = found.episodes - found.terminated - found.truncated
    ends = {"terminated": found.terminated, "truncated": found.truncated, "unfinished": stopped}
    checked = "compared, and right" if found.has_checksums else "none beside the files, so damage may go unnoticed"
    rows: list[tuple[str, str | Text]] = [
        ("format", found.format),
        ("episodes", f"{found.episodes:,}, of {found.shortest:,} to {counted(found.longest, 'step')}"),
        ("steps", f"{found.steps:,}"),
        ("ends", ", ".join(f"{count:,} {how}" for how, count in ends.items() if count > 0)),
        ("returns", f"{found.lowest_return:.6g} to {found.highest_return:.6g}"),
        ("mean return", f"{found.total_return / found.episodes:.6g}"),
        ("observations", str(found.schema.observation_space)),
        ("actions", str(found.schema.action_space)),
        ("more columns", ", ".join(found.schema.extras) or "none"),
        ("not finite", ", ".join(f"{name} {count:,}" for name, count in found.non_finite.items()) or "none"),
        ("checksums", checked),
        ("notes", Text(printable("\n".join(map(str, found.notes)) or "nothing was left out or repaired"))),
    ]
    show_facts(rows)


@command("orlog export lab/robot-v3 lerobot out/")
def export(
    name: Name,
    to: Annotated[str, argument("FORMAT", "Format to write, of `orlog import --list`, or a file of yours.")] = "",
    folder: Annotated[Path | None, argument("OUT", "The new folder; it must not exist.")] = None,
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
        lossy: Leave out what the format cannot hold.
        observation (KEY): Write one part of a Dict of observations, such as state.
        video: For LeRobotDatasets: frames as videos, not images.
        rate (HZ, >= 1): For LeRobotDatasets: steps a second.
        codebase (VERSION, default: v3.0): For LeRobotDatasets: v3.0, or v2.1, which many tools still read.
    """
    if folder is None:
        from orlog.datasets.exporting import writable_formats

        raise typer.BadParameter(
            f"expected NAME FORMAT OUT; FORMAT is {', '.join(writable_formats())}, or a file of yours."
        )
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
