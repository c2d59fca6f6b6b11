"""Checks stored versions: their bytes and values, with repair, and whether the data make sense."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

import orlog
from orlog.base.terminal import progress_bar, progress_bars, say, show_table, tell
from orlog.cli.options import AsJson, Imports, Name, Transfer, TrustEnvironment, Workers, command
from orlog.cli.results import show
from orlog.errors import NotFoundError, OrlogError, TransferError
from orlog.manifests.names import counted, is_url

if TYPE_CHECKING:
    from orlog.datasets.audit.findings import Audit
    from orlog.datasets.audit.replay import Certificate, Replay
    from orlog.datasets.reading.dataset import Dataset
    from orlog.datasets.store.objects import Problem
    from orlog.manifests.manifest import Manifest

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}
_MOST_REPLAYS = 20  # in the table of a terminal


@command("orlog verify pointmaze/umaze-v1 --repair")
def verify(
    name: str,
    repair: bool = False,
    quick: bool = False,
    values: bool = False,
    offline: bool = False,
    in_place: bool = False,
    sample: str | None = None,
    whole_files: bool = False,
    as_json: AsJson = False,
    *,
    transfer: Transfer,
) -> None:
    """Check every byte of a dataset against its manifest. Exit code 3 if one is wrong.

    With --repair, what is damaged or missing is downloaded again, and nothing else: from the mirrors given here
    (URLs of the version's folder), then from where it was downloaded, or else from the registries.

    The place it was downloaded from is asked whether it still offers this digest; if it offers
    another one, the exit code is 3 too. For a view, the stored versions that it is made from are
    checked, and --json prints one JSON object for each.

    Options:
        name: Name, path or URL of a dataset.
        repair: Download again what is damaged or missing.
        quick: Skip files verified before whose size, times and inode are unchanged.
        values: Also decode every value, and check the BLAKE3 of the columns, their counts of infinities and NaN,
            hashes of chunks, and that each file belongs to a column.
        offline: Do not ask its source whether it still offers this digest.
        in_place: Check it where it is, in a registry or at a URL.
        sample (PERCENT, default: 100%): With --in-place, check only this share of the chunks, such as 1%.
        whole_files: With --in-place, also check a version without hashes of chunks: each file is fetched whole.
    """
    if (in_place or whole_files or sample is not None) and (not in_place or repair or quick or values or offline):
        raise typer.BadParameter(
            "--sample and --whole-files are for --in-place, which goes with --json alone.", param_hint="--in-place"
        )
    if repair and (quick or values or offline):
        raise typer.BadParameter(
            "it reads every byte; leave out --quick, --values and --offline.", param_hint="--repair"
        )
    if not repair and (transfer.mirror or transfer.limit_rate):
        raise typer.BadParameter("--mirror and --limit-rate go with it.", param_hint="--repair")
    from orlog.datasets.reading.finding import folders_to_repair, folders_to_verify

    if in_place:
        is_right = _verify_in_place(name, sample, whole_files, as_json)
    elif repair:
        is_right = True
        for folder in folders_to_repair(name):
            _repair(folder, transfer.arguments(), as_json)
    else:
        rights = [_verify(folder, name, quick, values, offline, as_json) for folder in folders_to_verify(name)]
        is_right = all(rights)
    if not is_right:
        raise typer.Exit(3)


def _verify(folder: Path, name: str, quick: bool, values: bool, offline: bool, as_json: bool) -> bool:
    """Check the version in a folder and print what was found; return whether all is right."""
    from orlog.datasets.download.sources import confirm_version
    from orlog.datasets.home.folders import how_much, is_whole, present_objects, unless_deleted
    from orlog.datasets.home.records import was_downloaded
    from orlog.datasets.store.verify import check_opening, verify_folder
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
    from orlog.manifests.rebuilds import rebuild_text

    total = _bytes_of(present_objects(folder, read_manifest(folder / MANIFEST_FILE)))
    with unless_deleted(folder), bytes_bar(total) as count:
        manifest, problems = verify_folder(folder, quick=quick, progress=count)
    damaged = len(problems)
    problems = problems or check_opening(folder, manifest)
    if values and not problems:
        problems = _find_wrong_values(folder)
    origin = confirm_version(folder, manifest, offline=offline)
    objects, is_complete = present_objects(folder, manifest), is_whole(folder, manifest)
    body = {
        "name": manifest.name,
        "version": manifest.version,
        "rebuild": rebuild_text(manifest) or None,
        "digest": manifest.digest,
        "folder": folder,
        "partial": not is_complete,
        "objects": len(objects),
        "bytes": _bytes_of(objects),
        "origin": dataclasses.asdict(origin),
        "problems": [dataclasses.asdict(problem) for problem in problems],
    }

    def text(body: dict[str, Any]) -> None:
        for problem in problems:
            tell(problem, style="red")
        title = f"{body['name']}@{body['version']}"
        if damaged:
            tell(
                f"{damaged} of {len(manifest.objects)} files of {title} are not as in the manifest "
                f"({folder}); {_how_to_mend(folder, name, manifest)}"
            )
        elif problems:
            tell(
                f"the files of {title} are as in the manifest, but not what it says of them ({folder}): "
                "try another machine, then ask the author for a new version."
            )
        else:
            files = counted(len(objects), "file") if is_complete else how_much(folder, manifest)
            how = " (those that did not change since they were hashed were not read)" * quick
            say(f"{title}: {files}, {body['bytes']:,} bytes, all as in the manifest{how}\n{body['digest']}")
            if body["rebuild"]:
                say(f"{body['rebuild']}: not the recorded data")
            if values:
                columns = counted(len(manifest.columns), "column")
                say(f"{columns}, {_value_bytes(manifest):,} bytes of values, all as stated")
        if origin.state == "other":
            tell(origin.text, style="red")
        elif was_downloaded(folder):
            say(origin.text)

    show(body, as_json, text)
    return not problems and origin.state != "other"


def _repair(folder: Path, transfer: dict[str, Any], as_json: bool) -> None:
    def text(_: object) -> None:
        for problem in problems:
            say(problem)
        outcome = f"{counted(len(problems), 'problem')}, repaired" if problems else "no damage found"
        say(f"{folder}: {outcome}.")

    with progress_bars() as update:
        problems = orlog.repair_dataset(
            folder,
            progress=functools.partial(update, "repair", in_bytes=True),
            on_objects=functools.partial(update, "files"),
            **transfer,
        )
    show({"folder": folder, "repaired": [dataclasses.asdict(problem) for problem in problems]}, as_json, text)


def _verify_in_place(name: str, sample: str | None, whole_files: bool, as_json: bool) -> bool:
    from orlog.datasets.download.in_place import open_in_place
    from orlog.datasets.store.chunk_hashes import has_chunk_hashes
    from orlog.datasets.store.verify import check_where_it_is

    share = 0.0
    with contextlib.suppress(ValueError):
        share = float((sample or "100").removesuffix("%")) / 100
    if not 0 < share <= 1:
        raise typer.BadParameter(f"{sample!r}: expected a percentage such as 1%.", param_hint="--sample")
    version = open_in_place(name, whole_files=whole_files).selection().versions[0]
    manifest = version.manifest
    with progress_bar("files", f"checking {manifest.name}") as update:
        checked = check_where_it_is(version, share, progress=update)
    body = {
        "name": manifest.name,
        "version": manifest.version,
        "digest": version.digest,
        "chunks": checked.chunks,
        "of_chunks": checked.of_chunks,
        "checked_by": "hashes" if has_chunk_hashes(manifest) else "whole files",
        "problems": [dataclasses.asdict(problem) for problem in checked.problems],
    }

    def text(body: dict[str, Any]) -> None:
        for problem in checked.problems:
            tell(problem, style="red")
        outcome = f"{counted(len(checked.problems), 'file')} damaged" if checked.problems else "all right"
        say(
            f"{manifest.name}@{manifest.version}: {checked.chunks:,} of {counted(checked.of_chunks, 'chunk')} "
            f"fetched and checked by {body['checked_by']}: {outcome}\n{body['digest']}"
        )

    show(body, as_json, text)
    return not checked.problems


def _how_to_mend(folder: Path, name: str, manifest: Manifest) -> str:
    from orlog.datasets.home.records import was_downloaded
    from orlog.datasets.reading.finding import as_folder
    from orlog.datasets.worlds.recipe import catalogue

    if was_downloaded(folder):
        return f"run: orlog verify {name} --repair"
    if as_folder(name) is None and manifest.name in catalogue():
        return f"run: orlog build {manifest.name} --replace"
    return (
        f"where a registry has it, run: orlog verify {name} --repair; else copy it from its source again, or name a copy: "
        f"orlog verify {name} --repair --mirror URL"
    )


def _find_wrong_values(folder: Path) -> list[Problem]:
    """Decode all values of a version whose bytes are right, and return the problems found."""
    from orlog.datasets.home.folders import is_whole
    from orlog.datasets.store.verify import check_values, check_videos, locate
    from orlog.datasets.store.version import StoredVersion
    from orlog.datasets.store.videos import decoder_version
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

    if not is_whole(folder, read_manifest(folder / MANIFEST_FILE)):
        raise NotFoundError(
            f"{folder}: only a part of the version is here, and its checksums of values are for the whole "
            "version; complete it with orlog download, or leave out --values."
        )
    stored = StoredVersion(folder)
    with bytes_bar(_value_bytes(stored.manifest)) as count:
        problems = check_values(stored, count)
    if stored.manifest.videos:
        tell(f"frames are decoded by {decoder_version()}")
    return locate(folder, stored.manifest, [*problems, *check_videos(stored)])


def _bytes_of(objects: Any) -> int:
    return sum(item.size_bytes for item in objects)


def _value_bytes(manifest: Manifest) -> int:
    import numpy as np

    return sum(column.rows * math.prod(column.shape) * np.dtype(column.dtype).itemsize for column in manifest.columns)


@contextlib.contextmanager
def bytes_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield a function that takes the bytes done since its last call."""
    done = 0
    with progress_bar("bytes") as update:

        def count(size: int) -> None:
            nonlocal done
            done += size
            update(done, total)

        yield count


@command("orlog audit pointmaze/umaze-v1 --html audit.html")
def audit(
    name: Name,
    html: Path | None = None,
    against: list[str] | None = None,
    trust_environment: TrustEnvironment = False,
    workers: Workers = 1,
    replay: bool = False,
    episodes: int | None = None,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Check whether the data of a dataset make sense. Exit code 3 if something is wrong.

    It reads every value: NaN, bounds, constant, stuck and clipped dimensions, other units, flags against the
    time limit, final observations, returns, lengths and times, jumps inside of episodes, cameras that hang or
    are late, rows that are held, actions that are copies or change their sense, actions and rewards that are
    shifted by a step, rewards as the environment computes them, duplicates, and splits that share data. Errors
    mean that the data are wrong; warnings and notes leave the exit code 0. The page of --html plots the
    first places.
    With --workers several processes read the data. The findings are the same.

    With --replay the recorded actions are taken again instead, in the dataset's environment as it is installed
    here: from the seed of each episode's reset, or else from the recorded state of its simulator. It shows the
    first step at which observations differ by more than rounding, and whether the task is reached again. The
    exit code is 3 if an episode leaves what was recorded.

    Options:
        html (FILE): Also write a page with all of it there.
        against (NAME): A held-out dataset or view, such as a test set, that must share nothing with this one. May be
            repeated.
        replay: Replay the episodes, and check nothing else.
        episodes (>= 1, default: all): With --replay, how many; they lie evenly in the data.
    """
    if replay and (html is not None or against or workers != 1):
        raise typer.BadParameter("--html, --against and --workers do not go with it.", param_hint="--replay")
    if episodes is not None and not replay:
        raise typer.BadParameter("it is for --replay.", param_hint="--episodes")
    if replay:
        _replay(name, episodes, trust_environment, as_json)
        return
    with progress_bar("audit") as update:
        audited = orlog.audit(
            _audited(name),
            against=[_audited(other) for other in against or ()],
            trust_environment=trust_environment,
            workers=workers,
            progress=update,
        )
    if html is not None:
        from orlog.runs.results_page import write_audit_page

        write_audit_page(audited, html, _opened(name))
        tell(f"written: {html}")
    show(audited.to_json(), as_json, lambda _: _print_audit(audited))
    if not audited.is_good:
        raise typer.Exit(3)


def _replay(name: str, episodes: int | None, trust_environment: bool, as_json: bool) -> None:
    """Replay episodes of a dataset and print which come out as recorded."""
    from orlog.datasets.audit.replay import replay

    with progress_bar("replay") as update:
        replayed = replay(_audited(name), episodes=episodes, trust_environment=trust_environment, progress=update)
    show(replayed.to_json(), as_json, lambda _: _print_replays(replayed))
    if not replayed.is_good:
        raise typer.Exit(3)


def _print_replays(replayed: Certificate) -> None:
    from orlog.datasets.audit.replay import VERDICTS

    say(
        f"{replayed.name}@{replayed.version}: {len(replayed.replays):,} of {counted(replayed.episodes, 'episode')} "
        f"replayed: {replayed.summary()}"
    )
    recorded = replayed.recorded_versions
    packages = [
        f"{package} {version}"
        + ("" if recorded.get(package) == version else f" (recorded with {recorded.get(package, 'an unknown one')})")
        for package, version in replayed.versions.items()
    ]
    say(f"{replayed.environment}, {', '.join(packages)}; tolerance {replayed.tolerance:g}, relative and absolute")
    order = list(VERDICTS)
    rows = sorted(replayed.replays, key=lambda each: order.index(each.verdict))
    shown: list[list[str | Text]] = [
        [
            str(each.episode),
            f"{each.steps:,}",
            each.start + (f" {each.seed}" if each.start == "seed" else ""),
            _verdict_text(each),
            each.column + ("" if each.difference is None else f" by {each.difference:.3g}"),
            "" if each.is_reached is None else f"{each.recorded_end}{'' if each.is_reached else ' not'} reached again",
        ]
        for each in rows[:_MOST_REPLAYS]
    ]
    show_table(
        ["episode", "steps", "begun from", "replay", "largest difference", "recorded end"], shown, numbers=(0, 1)
    )
    if len(rows) > _MOST_REPLAYS:
        say(f"and {len(rows) - _MOST_REPLAYS:,} more, which --json lists")


def _verdict_text(replay: Replay) -> Text:
    from orlog.datasets.audit.replay import VERDICTS

    if replay.verdict == "left":
        return Text("left at its start" if replay.step is None else f"left at step {replay.step:,}", "red")
    return Text(VERDICTS[replay.verdict], "yellow" if replay.verdict == "unknown" else "")


def _opened(name: str) -> Dataset | None:
    """Return what a name or URL stands for; None for a part of a version, or what cannot be opened."""
    try:
        return orlog.load_dataset(name, in_place=True if is_url(name) else None)
    except TransferError:
        raise
    except OrlogError:
        return None  # the audit says what is wrong


def _audited(name: str) -> Dataset | str:
    """Return what is read in place, opened; any other name as it is."""
    opened = _opened(name)
    return name if opened is None or not opened.in_place else opened


def _print_audit(audited: Audit) -> None:
    from orlog.datasets.audit.findings import place_text

    name = f"{audited.name}@{audited.version}" if audited.version else audited.name
    size = f"{counted(audited.episodes, 'episode')}, {counted(audited.steps, 'step')}"
    say(f"{name}: {size}: {audited.summary()}")
    rows: list[list[str | Text]] = [
        [Text(one.severity, _COLORS[one.severity]), one.check, one.column, place_text(one), one.text]
        for one in audited.findings
    ]
    if rows:
        show_table(["", "check", "column", "first at", "finding"], rows)
    for check, reason in audited.not_checked.items():
        tell(f"not checked: {check}: {reason}")
