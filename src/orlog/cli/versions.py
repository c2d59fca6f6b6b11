"""Makes versions and views, compares and pins them, and marks them as superseded or yanked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import orlog
from orlog.base.terminal import progress_bar, say, show_facts, show_table, tell, waits
from orlog.cli.options import CORES, AsJson, ChunkHashes, Container, Executing, Name, argument, command
from orlog.cli.results import facts, show, show_rows
from orlog.errors import IntegrityError, LockError, NotFoundError, VersionExistsError
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.manifests.lock import LockedDataset

Compared = Annotated[str, argument("", "Dataset, version or path.")]
SHOWN = 5  # ranges of episodes that a line of the terminal holds


@command("orlog build pointmaze/umaze-v1")
def build(
    name: Name, workers: int | None = None, *, where: Executing, replace: bool = False, record: bool = False
) -> None:
    """Build a dataset of the catalogue from its recipe. An interrupted build leaves nothing.

    The last line says whether it is identical to the recorded build, or a rebuild with other bytes that
    is statistically equal to it, as other packages or another processor make. A rebuild has a version
    of its own, such as 1.0.0+d0b2cd7c. A build whose episodes are distributed differently is
    refused: nothing is kept, and the exit code is 3.
    With --executor the episodes are made on a cluster, and written here.

    Options:
        workers (>= 1, default: number of cores): Processes to use; with --executor, jobs at a time.
        replace: Build again even if it is here.
        record: Record manifest and statistics among those that ship (maintainers).
    """
    from orlog.datasets.store.verify import verify_folder
    from orlog.datasets.worlds.build import build_dataset
    from orlog.datasets.worlds.rebuilds import compare_with_recorded, record_statistics
    from orlog.manifests.lock import find_lock, read_lock
    from orlog.manifests.rebuilds import is_rebuild
    from orlog.manifests.shipped import recorded_folder

    execute = where.on_cluster()
    with progress_bar("steps", f"building {name}") as update:
        folder = build_dataset(
            name,
            workers=CORES if workers is None and execute is None else workers,
            replace=replace,
            execute=execute,
            progress=update,
            on_wait=waits("building it", say),
        )
    if verify_folder(folder)[1]:
        raise IntegrityError(
            f"{folder}: files of the version that is here are damaged; to build it again, run: orlog build {name} --replace"
        )
    dataset = orlog.load_dataset(folder)
    comparison = compare_with_recorded(dataset)
    if record:
        if is_rebuild(dataset.manifest):
            raise VersionExistsError(
                f"{dataset.name}@{dataset.version} differs from the recorded build; give the recipe "
                "another version, or delete what is recorded of this one first."
            )
        path = recorded_folder(dataset.name) / f"{dataset.version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dataset.manifest.to_json(), "utf-8")
        record_statistics(dataset)
    say(f"{dataset.name}@{dataset.version} is in {folder}\n{dataset.digest}\n{comparison}")
    lock_file = find_lock()
    pin = read_lock(lock_file).get(dataset.name) if lock_file is not None and lock_file.exists() else None
    if pin is not None and not _is_here(dataset.name, pin):
        raise LockError(
            f"{lock_file} pins {dataset.name}@{pin.version} ({pin.digest}), and this is other data; for "
            f"those: {_how_to_meet(dataset.name, pin)}",
            file=str(lock_file),
            expected=pin.digest,
            found=dataset.digest,
        )


@command('orlog save pointmaze/umaze-v1 good.json --where "returns > 20"')
def save(
    name: Name,
    target: str,
    where: str | None = None,
    top: float | None = None,
    by: str = "returns",
    episodes: str | None = None,
    columns: list[str] | None = None,
    replace: bool = False,
    allow_empty: bool = False,
    description: str | None = None,
    changes: str = "",
    container: Container = "zarr",
    chunk_hashes: ChunkHashes = False,
    video: Literal["keep", "frames"] = "keep",
) -> None:
    """Save a dataset, or what --where, --top, --episodes and --column (in this order) leave of it.

    FILE.json is a view: it copies nothing, and load_dataset opens it. NAME@VERSION is a dataset of its own
    with its lineage. FOLDER is a copy of a whole version in another --container or with --chunk-hashes, with
    the same columns and values; it is the next patch version.

    Options:
        target (TARGET): FILE.json, NAME@VERSION, or a new FOLDER such as ./umaze-hdf5.
        where: Condition on episodes, such as returns > 20, or success.
        top: Keep this percentage of episodes, the best by return.
        by (COLUMN): The column of episodes that --top goes by, such as quality of a layer (orlog layer --score).
        episodes: Keep a slice of episodes, such as 0:100 or :-10.
        columns (--column): Keep this column; may be repeated.
        replace: Replace another view in the file.
        allow_empty: Save a view even if no episode is left.
        description (default: that of its source): What the data are.
        changes: What is new since the previous version.
        video (HOW): keep copies videos as they are; frames decodes them once and stores pixels.
    """
    from orlog.datasets.recording.saving import convert_dataset
    from orlog.manifests.names import parse_name

    dataset = orlog.load_dataset(name)
    if where is not None:
        dataset = dataset.filter_episodes(where)
    if top is not None:
        dataset = dataset.top_episodes(top, by=by)
    if episodes is not None:
        dataset = dataset[_slice(episodes)]
    if columns:
        dataset = dataset.select_columns(columns)
    if target.endswith(".json"):
        if dataset.operation is None:
            raise typer.BadParameter("choose what the view keeps, with --where, --top, --episodes or --column.")
        if not dataset.total_episodes and not allow_empty:
            raise ValueError(
                f"{name}: no episode is left, so {target} was not written; widen the condition, or save an "
                "empty view with --allow-empty."
            )
        path = dataset.save(target, replace=replace)
        say(f"{counted(dataset.total_episodes, 'episode')}, {counted(dataset.total_steps, 'step')}")
        say(f"{dataset.digest}\n{path}")
        return
    is_folder = target.startswith((".", "/", "~")) or "/" not in target.rstrip("/")
    how: dict[str, Any] = {"container": container, "chunk_hashes": chunk_hashes}
    with progress_bar("bytes" if is_folder else "steps") as update:
        if is_folder:
            folder = convert_dataset(dataset, target, **how, progress=update)
        else:
            wanted = parse_name(target)
            folder = orlog.save_dataset(
                dataset,
                wanted.name,
                version=wanted.version or "1.0.0",
                description=description,
                changes=changes,
                video=video,
                **how,
                progress=update,
            )
    saved = orlog.load_dataset(folder)
    say(f"{saved.name}@{saved.version} is in {folder}\n{saved.digest}")


def _slice(text: str) -> slice:
    try:
        bounds = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        bounds = []
    if len(bounds) not in (2, 3):
        raise ValueError(f"--episodes takes a slice such as 0:100 or :-10, found {text!r}.")
    return slice(*bounds)


@command("orlog layer lab/umaze-labels-v1 --of pointmaze/umaze-v1 --file labels.csv")
def layer(
    name: str,
    of: str,
    file: Path | None = None,
    fill: list[str] | None = None,
    run: Path | None = None,
    score: Literal["", "return", "mutual_information"] = "",
    function: str | None = None,
    roles: list[str] | None = None,
    replaces: bool = False,
    description: str = "",
    changes: str = "",
    license: str = "",  # noqa: A002
    *,
    where: Executing,
) -> None:
    """Store columns over a version that they leave as it is: labels, weights, or what a trained run thinks of each step.

    A CSV file has a row for each episode, or for each step: its first row names the columns: episode, perhaps step,
    and those that it adds. With --run they are value, q and advantage of each step, in float32, in the unit
    of the rewards that the run was trained with. If the command is stopped, it goes on when you give it again.
    With --function they are what a function of yours returns for each episode, by their names; its file is run.
    With --score the column is episodes/quality, to keep the best episodes by: orlog save NAME --top 50 --by quality

    Options:
        name (NAME): Name of the layer: NAME, or NAME@VERSION; 1.0.0 by default.
        of (--of NAME): The version that the columns are of.
        file (CSV): File with the columns.
        fill (NAME=VALUE): What episodes or steps hold that the file has no row of; may be repeated.
        run (RUN): Folder of a trained run of an algorithm with a critic, such as iql.
        score (SCORE): return, or mutual_information of states and actions (DemInf), which needs no rewards.
        function (FILE.py:NAME): A function that takes an episode; give only files that you trust, for their code is run.
        roles (--role COLUMN=ROLE): What a column means: episodes/ok=success, infos/w=weight, ..; may be repeated.
        replaces: Columns may take the place of those of the version, such as rewards.
        description: What the columns are.
        changes: What is new since the previous version.
        license (default: that of the version): SPDX identifier.
    """
    from orlog.cli.exchange import pairs
    from orlog.datasets.formats.overrides import own_function
    from orlog.datasets.recording.layering import columns_of_table
    from orlog.loaders.curation import episode_scores
    from orlog.manifests.names import parse_name
    from orlog.runs.estimates import ESTIMATES, RunEstimates

    if (file is not None) + (run is not None) + bool(score) + (function is not None) != 1:
        raise typer.BadParameter("give one of --file, --run, --score and --function.")
    dataset = orlog.load_dataset(of)
    given = pairs("role", roles, "COLUMN=ROLE, each COLUMN once, such as episodes/ok=success")
    how: dict[str, Any] = {}
    if file is not None:
        columns: Any = columns_of_table(dataset, file, pairs("fill", fill, "NAME=VALUE, each NAME once"))
    elif function is not None:
        columns = own_function(function, "function")
    elif score:
        with progress_bar("batches", f"scoring {dataset.name}") as update:
            columns = {"episodes/quality": episode_scores(dataset, score, progress=update)}
        how, given = {"made_by": f"orlog layer --score {score}"}, {"episodes/quality": "quality"} | given
    else:
        columns = RunEstimates(Path(run or ""), dataset)
        how = {"key": columns.made_by(), "made_by": columns.made_by(), "execute": where.on_cluster()}
        given = ESTIMATES | given
    with progress_bar("steps", f"writing {name}") as update:
        layered = dataset.with_columns(columns, roles=given, replaces=replaces, **how, progress=update)
    wanted = parse_name(name)
    facts = {"description": description, "changes": changes, "license": license}
    folder = layered.save_layer(wanted.name, version=wanted.version or "1.0.0", **facts)
    saved = orlog.load_dataset(folder)
    (layer,) = saved.parents[1:]
    say(f"{layer.name}@{layer.version}, over {layer.manifest.base}: {', '.join(layer.schema.extras)}")
    say(f"{layer.digest}\n{folder}")


@command("orlog diff pointmaze/umaze-v1 pointmaze/umaze-mini-v1")
def diff(before: Compared, after: Compared, as_json: AsJson = False) -> None:
    """Show which metadata, columns and episodes differ between two datasets or versions.

    Of two layers over one version it shows which episodes and steps they label otherwise, and who did.
    """
    from orlog.datasets.reading.layers import compare_layers
    from orlog.manifests.diff import diff_datasets

    pair = orlog.load_dataset(before), orlog.load_dataset(after)
    if all("layers" in (dataset.operation or {}) for dataset in pair):
        rows = [{name: value for name, value in row.items() if value is not None} for row in compare_layers(*pair)]
        if not rows and not as_json:
            say("the layers say the same of every episode and step")
        show({"labels": rows}, as_json, labels="column episode first_step last_step before after by now_by")
        return
    differences = diff_datasets(*pair)

    def text(body: dict[str, Any]) -> None:
        if body["differences"]:
            cells = [_short(row) for row in body["differences"]]
            show_rows(cells, "kind=what name change before after")
            say()
        moves = [f"{move.before} -> {move.after}" for move in differences.moved]
        counts = [("episodes unchanged", f"{differences.unchanged:,}")]
        for word in ("changed", "added", "removed"):
            ranges = getattr(differences, word)
            counts.append((f"episodes {word}", _first(sum(map(len, ranges)), ranges)))
        counts.append(("episodes moved", _first(sum(len(move.before) for move in differences.moved), moves)))
        show_facts([*counts, *facts(body, "changed_columns")])
        if differences.is_append:
            say("\nthe second is the first with episodes appended")

    show(differences.to_json(), as_json, text)


def _short(row: dict[str, Any]) -> dict[str, str]:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in row.items()}
    return {key: text if len(text) <= 60 else f"{text[:57]}..." for key, text in texts.items()}


def _first(count: int, ranges: Sequence[object]) -> str:
    rest = f", and {len(ranges) - SHOWN} more ranges" if len(ranges) > SHOWN else ""
    return f"{count:,}" + (f": {', '.join(map(str, ranges[:SHOWN]))}{rest}" if ranges else "")


@command("orlog lock pointmaze/umaze-v1")
def lock(names: list[str] | None = None, update: bool = False, rebuild: bool = False) -> None:
    """Pin datasets to their bytes in orlog.lock; without names, check what it pins.

    The exit code of a check is 3 if something that is pinned is not here, and no registry that was added with
    --in-place offers it.

    Options:
        names ([NAMES]...): Datasets to pin; with --update and no names, all pinned ones.
        update: Move existing pins to other versions or digests.
        rebuild: Pin a rebuild too, which other machines may not be able to make.
    """
    from orlog.manifests.lock import LOCK_FILE, find_lock, read_lock, write_lock

    path = find_lock() or Path(LOCK_FILE).absolute()
    pins = read_lock(path) if path.exists() else {}
    if not names and not update:
        _check_pins(path, pins)
        return
    wanted = {name.partition("@")[0]: _pin_of(name, rebuild) for name in names or sorted(pins)}
    rows = []
    for name, pin in wanted.items():
        old = pins.get(name)
        if old is not None and old.digest != pin.digest and not update:
            raise LockError(
                f"{path} pins {name} to {old.version} ({old.digest[:19]}), not {pin.version} "
                f"({pin.digest[:19]}); to move it run: orlog lock --update {name}@{pin.version}",
                file=str(path),
                expected=old.digest,
                found=pin.digest,
            )
        state = "new" if old is None else "unchanged" if old.digest == pin.digest else "moved"
        rows.append((name, old.version if old else "-", pin.version, pin.digest[:19], state))
    write_lock(path, wanted)
    show_table(("name", "was", "version", "digest", "pin"), rows)
    say(f"\n{path}: commit it with the code that uses these datasets.")


def _pin_of(name: str, rebuild: bool) -> LockedDataset:
    """Return the pin of what a name means now, whatever a lock says; of a rebuild only if allowed."""
    from orlog.datasets.loading import offered_in_place
    from orlog.datasets.reading.finding import find_dataset
    from orlog.manifests.lock import LockedDataset
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
    from orlog.manifests.names import parse_name, plain_version
    from orlog.manifests.rebuilds import rebuild_text
    from orlog.manifests.shipped import recorded_manifest

    wanted = parse_name(name)
    try:
        manifest = read_manifest(find_dataset(str(wanted)) / MANIFEST_FILE)
    except NotFoundError:
        recorded = recorded_manifest(wanted.name, wanted.version)
        if recorded is not None and recorded.digest.startswith(wanted.digest):
            manifest = recorded
        elif (offered := offered_in_place(wanted)) is not None:
            manifest = offered.manifest
        else:
            raise
    version = manifest.version
    if "+" in version and not rebuild:
        raise LockError(
            f"{wanted.name}@{version} is {rebuild_text(manifest)}: other machines may not be able to "
            f"make it. To pin it nevertheless run: orlog lock --rebuild {wanted.name}@{version}; to "
            f"pin the recorded data run: orlog lock {wanted.name}@{plain_version(version)}",
            found=manifest.digest,
        )
    return LockedDataset(version=version, digest=manifest.digest)


def _check_pins(path: Path, pins: dict[str, LockedDataset]) -> None:
    from orlog.datasets.loading import offered_in_place
    from orlog.manifests.names import DatasetName

    if not pins:
        say(f"{path} pins nothing; run: orlog lock NAME")
        return
    rows, unmet = [], []
    for name, pin in sorted(pins.items()):
        state = "here"
        if not _is_here(name, pin):
            state = "read in place"
            if offered_in_place(DatasetName(name, "", pin.digest)) is None:
                state = "not here"
                unmet.append(f"\n{name}@{pin.version}: {_how_to_meet(name, pin)}")
        rows.append((name, pin.version, pin.digest[:19], state))
    show_table(("name", "version", "digest", "state"), rows)
    say(f"\n{path}")
    if unmet:
        tell("\n".join(unmet))
        raise typer.Exit(3)


def _is_here(name: str, pin: LockedDataset) -> bool:
    from orlog.datasets.reading.finding import find_dataset

    try:
        return bool(find_dataset(f"{name}@{pin.digest}"))
    except NotFoundError:
        return False


def _how_to_meet(name: str, pin: LockedDataset) -> str:
    """Return what would bring the pinned bytes of a dataset to this machine."""
    from orlog.datasets.reading.finding import read_installed
    from orlog.manifests.names import plain_version
    from orlog.manifests.rebuilds import how_to_record, recorded_build

    recorded = recorded_build(name, pin.version)
    if recorded is not None and recorded.digest == pin.digest:
        return how_to_record(recorded, read_installed(name))
    if "+" not in pin.version:
        return f"run: orlog download {name}@{pin.version}"
    return (
        "only the packages and the processor that made this rebuild give it again; with those "
        f"run: orlog build {name}@{pin.version}. Or pin the recorded data: "
        f"orlog lock --update {name}@{plain_version(pin.version)}"
    )


@command('orlog mark lab/arm-v1@1.0.0 yanked --reason "camera upside down" --use 1.1.0')
def mark(name: str, status: Literal["superseded", "yanked", "good"], reason: str = "", use: str = "") -> None:
    """Mark a version on this machine; opening a superseded or yanked one gives a warning.

    Options:
        name: Dataset with its version, NAME@VERSION.
        status: superseded: there is a better one. yanked: must not be used; names without a version skip it. good:
            neither.
        reason: Why, in a sentence.
        use: Version or dataset to use instead.
    """
    from orlog.datasets.home.records import clear_status, known_versions, set_status
    from orlog.manifests.names import parse_name

    wanted = parse_name(name)
    if not wanted.version:
        raise ValueError(f"{name}: name the version, for example {wanted.name}@1.0.0.")
    if wanted.version not in known_versions(wanted.name):
        listing = f"orlog show {wanted.name}" if known_versions(wanted.name) else "orlog list"
        raise NotFoundError(f"{wanted} is not known; to see what is, run: {listing}")
    if status == "good":
        clear_status(wanted.name, wanted.version)
    else:
        set_status(wanted.name, wanted.version, status, reason=reason, use=use)
    say(f"{wanted} is {status}")
