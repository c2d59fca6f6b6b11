"""Trains algorithms on datasets, and goes on with trained runs in their environments."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orlog.algos.algorithms import algorithm_title
from orlog.base.processes import StopRequest
from orlog.base.terminal import progress_bars, say, tell
from orlog.cli.advice import command_to_go_on, in_options
from orlog.cli.options import (
    CORES,
    Algorithm,
    AlgorithmOfRun,
    AsJson,
    Begun,
    DatasetOfRun,
    Device,
    Imports,
    Log,
    OptionalName,
    Overwrite,
    Settings,
    Steps,
    TrustEnvironment,
    command,
    read_bytes,
)
from orlog.cli.results import show, show_rows
from orlog.errors import NotFoundError, StoppedError
from orlog.manifests.names import counted, is_url, size_text

if TYPE_CHECKING:
    from orlog.algos.training.runs import TrainOptions
    from orlog.algos.training.train import Hooks
    from orlog.datasets.reading.dataset import Dataset
    from orlog.runs.running import Status


ASKED_ABOVE = 10e9  # bytes of a dataset that is read in place


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What a run, or several that differ in their seeds, are asked for.

    Options:
        seed (>= 0): Seed of networks, batches and noise.
        seeds (SEEDS): How many seeds, from 0, each in a process of its own; or which, as 0-4 or 0,2,5.
        processes (>= 1, default: number of cores): How many seeds to train at a time.
        cache (SIZE, default: 20G or ORLOG_CACHE): How much to keep on the disk of datasets that are
            read in place, such as 20G.
        preset (default: the recipe's or the authors'): Whose settings: authors, corl, .. where
            published for the dataset; none for the algorithm's defaults.
        out (default: runs/ALGO/NAME/seed-N; for a view its name too): Folder of the run; with --seeds,
            of the folders seed-N.
        resume: Continue from the checkpoint in the folder; with the folder of a run in place of
            the dataset, or alone, all options are those of its record. --steps may ask for more.
        evaluations (>= 0): Points on the learning curve; 0 needs no environment.
        curve_episodes (>= 1): Episodes at each of these points.
        keep_checkpoints: Keep that of each of these points, as orlog ope needs.
        stream (--stream/--no-stream, default: yes where they are read in place): Read
            the data block by block instead of all of them into memory; those of a URL in place.
        layers (--layer NAME): A layer to lay over the dataset (orlog layer); may be repeated.
        weights (COLUMN): Draw steps by a column, such as infos/weight; episodes/NAME has a weight for all steps
            of an episode.
        precision (PRECISION): Of the products between hidden layers: float32, or bf16 where that is
            faster.
    """

    seed: int = 0
    seeds: str = ""
    processes: int = CORES
    cache: str = ""
    settings: Settings = None
    steps: Steps = None
    preset: str = ""
    out: Path | None = None
    resume: bool = False
    overwrite: Overwrite = False
    evaluations: int = 5
    curve_episodes: int = 20
    keep_checkpoints: bool = False
    stream: bool | None = None
    layers: list[str] | None = None
    weights: str = ""
    device: Device = "cpu"
    precision: str = "float32"
    log: Log = "none"
    trust_environment: TrustEnvironment = False
    imports: Imports = None


@command("orlog train iql pointmaze/umaze-v1 --seeds 0-3 --expectile 0.8")
def train(
    context: typer.Context, algorithm: Algorithm, name: OptionalName = None, *, given: Training, as_json: AsJson = False
) -> None:
    """Train an algorithm on a dataset by its recipe or published settings, with one or more seeds.

    It prints which settings it uses and from where, and how they differ from what was published. Any
    setting of the algorithm is an option too: --batch-size 64 is --set batch_size=64.
    Ctrl-C and SIGTERM save the state first and print the command that continues from there; with
    --seeds it continues all that are not finished. `orlog train --resume RUN` continues the run in a
    folder with the options of its record; an algorithm of your own is named before RUN, and consent is given again.

    With --seeds, a seed that fails does not end the others; the exit code is then 1.
    """
    from orlog.algos.settings import check_for_any_form
    from orlog.algos.training.data import find_device
    from orlog.algos.training.runs import run_folder, setting_text
    from orlog.runs.run_folders import replacing
    from orlog.runs.running import check_log, parse_seeds, seed_folders

    if given.cache:
        read_bytes(given.cache, "a size such as 500M or 20G")
        os.environ["ORLOG_CACHE"] = given.cache
    seeds = parse_seeds(given.seeds) if given.seeds else []
    if seeds and given.seed:
        raise typer.BadParameter("--seed is for one seed; name all of them with --seeds.")
    options, folder, settings = _train_options(given), given.out, given.settings or []
    run = _run_to_resume(algorithm, name) if given.resume else None
    if run is None and name is None:
        raise typer.BadParameter("name a dataset too; with --resume, the folder of a run will do.")
    if run is not None:
        if seeds or folder is not None or given.layers:
            raise typer.BadParameter(f"--seeds, --out and --layer cannot be given with the run {run}.")
        changed = [field for field in options.__struct_fields__ if _is_given(context, field)]
        algorithm, dataset, options = _recorded(run, algorithm if name else "", options, changed)
        settings = [f"{key}={setting_text(one)}" for key, one in (options.settings or {}).items()]
        folder = run
    else:
        # What is wrong is said before the data are looked for.
        check_for_any_form(algorithm, options.settings or {})
        find_device(options.device)
        check_log(options.log)
        dataset = _dataset(name or "", given.stream)
        dataset = dataset.with_layers(*given.layers) if given.layers else dataset
        options = _choose_stream(algorithm, dataset, options, given.stream)
    introduce = functools.partial(_introduce, algorithm, dataset, options.preset, settings)
    if seeds:
        introduce(options.steps)
        folders = seed_folders(algorithm, dataset, seeds, folder)
        with replacing(folders.values(), given.overwrite, resume=given.resume):
            _train_several(algorithm, dataset, folders, options, given, as_json)
        return
    folder = folder or run_folder("runs", algorithm, dataset, options.seed)
    with replacing([folder], given.overwrite, resume=given.resume):
        end = _train_one(algorithm, dataset, folder, options, given, introduce)
    _print_runs([folder], as_json, lambda _: say(end))


def _dataset(name: str, stream: bool | None) -> Dataset:
    """Return a dataset; one of the catalogue that is not here is built, and a URL that is to be streamed read in place."""
    from orlog.datasets.loading import load_dataset
    from orlog.datasets.worlds.recipe import catalogue
    from orlog.runs.sweeps import load_or_make

    if name.partition("@")[0] not in catalogue():
        return load_dataset(name, in_place=True if stream and is_url(name) else None)
    with progress_bars() as update:
        return load_or_make(name, CORES, update)


def _choose_stream(algorithm: str, dataset: Dataset, options: TrainOptions, asked: bool | None) -> TrainOptions:
    """Return options that say whether the data are streamed; tell what that fetches, or may not fit into memory.

    `asked` is what was asked for, None if nothing was. Where very much would be fetched at once, the user is asked.
    """
    import msgspec

    from orlog.errors import OrlogError
    from orlog.loaders.filling import layout_of
    from orlog.loaders.memory import measure_memory
    from orlog.loaders.places import RAM_SHARE
    from orlog.loaders.videos import without_videos
    from orlog.runs.running import streams_by_default

    stream = streams_by_default(algorithm, dataset, options) if asked is None else asked
    size = size_text(dataset.manifest.size_bytes)
    if dataset.in_place and stream:
        what = f"training streams it: {size} an epoch, less what is kept here."
        tell(f"{dataset.name}: read in place; {what}")
    elif dataset.in_place:
        tell(f"{dataset.name}: read in place; training reads all of it once: {size}.")
        if dataset.manifest.size_bytes > ASKED_ABOVE:
            typer.confirm(f"Fetch {size}?", abort=True)
    elif not stream:
        with contextlib.suppress(OrlogError):  # said when the data are read
            needed, free = without_videos(dataset, layout_of(dataset))[0].total_bytes, measure_memory().ram_bytes
            if needed > RAM_SHARE * free:
                tell(
                    f"{dataset.name}: takes {size_text(needed)} of the {size_text(free)} of free memory; to read a "
                    "part at a time: --stream"
                )
    return msgspec.structs.replace(options, stream=stream)


def _train_options(given: Any) -> TrainOptions:
    from orlog.algos.training.runs import TrainOptions

    settings: dict[str, object] = {}
    for text in given.settings or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes name=value, such as expectile=0.8; found {text!r}.")
        settings[name.strip()] = value.strip()
    names = [name for name in TrainOptions.__struct_fields__ if hasattr(given, name)]
    asked = {name: getattr(given, name) for name in names} | {"settings": settings}
    return TrainOptions(**asked | {"stream": bool(asked.get("stream"))})


def _run_to_resume(first: str, second: str | None) -> Path | None:
    """Return the folder of the run that the last argument names; None if it names a dataset."""
    from orlog.algos.training.runs import RUN_FILE

    place = Path(first if second is None else second).expanduser()
    return place if second is None or (place / RUN_FILE).is_file() else None


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _recorded(
    run: Path, algorithm: str, options: TrainOptions, given: Sequence[str]
) -> tuple[str, Dataset, TrainOptions]:
    """Return algorithm, dataset and options of a run by its record, with the options that were given.

    `algorithm` is empty if none was given.
    """
    import msgspec

    from orlog.algos.training.evaluating import algorithm_of_run, dataset_of_run
    from orlog.algos.training.runs import read_run, resume_command, run_command
    from orlog.errors import clause

    record = read_run(run)
    again = run_command(run, record, more=["--resume"])
    if record.online is not None and record.online.run:
        raise ValueError(f"{run} is a fine-tuned run; continue it with: {again}")
    if ":" in record.algorithm and not algorithm:  # code that a record names is not run
        raise ValueError(
            f"{run}: trained with {record.algorithm}, which is not part of orlog; name its file "
            f"too: {resume_command(run, record)}"
        )
    algorithm_of_run(run, record, algorithm or None)
    try:
        dataset = dataset_of_run(run, record)
    except NotFoundError as error:
        raise NotFoundError(
            f"{clause(error)}; or name its path in place of {record.dataset}@{record.version} in: {again}"
        ) from error
    recorded = record.options()
    changed = {name: getattr(options, name) for name in given if name != "settings"}
    changed["trust_environment"] = options.trust_environment  # consent is not taken from a file
    changed["settings"] = {**(recorded.settings or {}), **(options.settings or {})}
    return algorithm or record.algorithm, dataset, msgspec.structs.replace(recorded, **changed)


def _introduce(
    algorithm: str, dataset: Dataset, preset: str, settings: Sequence[str], steps: int | None, taken: Sequence[str] = ()
) -> None:
    """Print what it trains by, and where that is from."""
    from orlog.algos.algorithms import algorithm_name
    from orlog.algos.presets import DEFAULTS, preset_names, recipe_for

    name = algorithm_name(algorithm)
    recipe = recipe_for(name, dataset, preset=preset)
    for line in recipe.lines(steps or recipe.steps):
        tell(line)
    if settings:
        tell(f"changed with --set: {', '.join(settings)}")
    for line in taken:
        tell(f"from the data: {line}")
    if others := [preset for preset in preset_names(name, dataset) if preset != recipe.preset]:
        listed = ", ".join(others).replace(DEFAULTS, f"{DEFAULTS}, which is the algorithm's defaults")
        tell(f"other presets: {listed} (--preset)")


@contextlib.contextmanager
def _watched_run(
    label: str,
    dataset: Dataset,
    folder: Path,
    log: str,
    *,
    resume: bool,
    again: Callable[[], str],
    introduce: Callable[[int, Sequence[str]], None] = lambda _steps, _taken: None,
) -> Iterator[Hooks]:
    """Show a line of a run while it is trained, copy its log, and let signals stop it.

    It yields the hooks that do so. The line begins with `label`, and after a signal `again` returns
    the command that continues. `introduce` is called before the first step with the number of steps,
    and a line on each setting that is taken from the data.
    """
    from orlog.runs.running import Watcher, status_lines, watching

    request, has_begun = StopRequest(), False
    taken: list[str] = []
    with contextlib.ExitStack() as stack:
        update = stack.enter_context(status_lines())
        watcher = Watcher(dataset, lambda status: update(label, status))
        watched = watching(watcher, folder, log, lambda: request.signal != 0)
        hooks = stack.enter_context(watched)

        def show(step: int, total: int) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun, Begun.more = True, ("--resume",)
                stack.enter_context(request.noted())
                introduce(total, taken)
                if resume and step:
                    tell(f"resuming from step {step:,} of {total:,}")
                elif resume:
                    tell("no checkpoint; starting from step 0")
            hooks.progress(step, total)

        try:
            yield dataclasses.replace(hooks, progress=show, note=tell, tell=taken.append)
        except StoppedError as stopped:
            tell(f"stopped at step {stopped.step:,}, with a checkpoint; to continue, run: {again()}")
            raise typer.Exit(128 + request.signal) from stopped


def _train_one(
    algorithm: str,
    dataset: Dataset,
    folder: Path,
    options: TrainOptions,
    given: Training,
    introduce: Callable[[int, Sequence[str]], None],
) -> str:
    """Train a run, and return what to say in the end."""
    from orlog.algos.training.runs import evaluate_command, read_run, resume_command
    from orlog.algos.training.train import train_run

    cache = ["--cache", given.cache] if given.cache else []
    with _watched_run(
        f"{algorithm_title(algorithm)} seed {options.seed}",
        dataset,
        folder,
        options.log,
        resume=given.resume,
        again=lambda: resume_command(folder, read_run(folder), dataset, algorithm, cache),
        introduce=introduce,
    ) as hooks:
        record = train_run(algorithm, dataset, folder, options, hooks, resume=given.resume)
    advice = f"{dataset.name} names no environment, so there is nothing to evaluate it in"
    if dataset.environment is not None:
        own = algorithm if ":" in algorithm else None
        advice = f"run: {evaluate_command(folder, record, dataset, own, options.trust_environment)}"
    title = algorithm_title(algorithm, record.config)
    return f"trained {title} for {counted(record.steps, 'step')}; {advice}"


def _print_runs(
    folders: Iterable[Path], as_json: bool, text: Callable[[Any], None], failures: Mapping[int, str] | None = None
) -> None:
    from orlog.runs.run_folders import find_run_folders

    runs = [run.to_json() for folder in folders if folder.is_dir() for run in find_run_folders(folder)]
    failed = [{"seed": seed, "message": message} for seed, message in (failures or {}).items()]
    show({"runs": runs, "failures": failed}, as_json, text)


def _train_several(
    algorithm: str, dataset: Dataset, folders: Mapping[int, Path], options: TrainOptions, given: Training, as_json: bool
) -> None:
    """Train several seeds, print a line for each, and the command that continues those that are not finished."""
    from orlog.runs.running import status_lines, train_seeds

    request, Begun.more = StopRequest(), ("--resume",)
    noted: set[str] = set()
    with status_lines() as update, request.noted():

        def show_status(seed: int, status: Status) -> None:
            for note in (note for note in status.notes if note not in noted):
                noted.add(note)
                tell(note)
            update(f"{algorithm_title(algorithm)} seed {seed}", status)

        ends = train_seeds(
            algorithm,
            dataset,
            folders,
            options,
            processes=min(given.processes, len(folders)),
            resume=given.resume,
            show=show_status,
            stop=lambda: request.signal != 0,
        )
    failures = {seed: in_options(end.message) for seed, end in ends.items() if end.message}
    rows = [
        {
            "seed": seed,
            "state": end.state,
            "step": end.step,
            "score": end.score,
            "speed": end.speed,
            "folder": folders[seed],
        }
        for seed, end in ends.items()
    ]
    last = f"last_{'score' if all(end.is_normalized for end in ends.values()) else 'return'}"
    columns = f"seed state step score={last} speed=updates_a_second folder"
    _print_runs(folders.values(), as_json, lambda _: show_rows(rows, columns), failures)
    failed: dict[tuple[str, str], list[str]] = {}  # seeds, by what they say: often all the same
    for seed, message in failures.items():
        failed.setdefault((ends[seed].details, message), []).append(str(seed))
    for (details, message), seeds in failed.items():
        which = "seed" if len(seeds) == 1 else "seeds"
        tell(f"{details}error: {which} {', '.join(seeds)}: {message}")
    unfinished = sum(end.state != "finished" for end in ends.values())
    if unfinished:
        tell(f"{unfinished} of {len(ends)} seeds are not finished; to continue them, run: {command_to_go_on()}")
    if request.signal or unfinished:
        raise typer.Exit(128 + request.signal if request.signal else 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetuning:
    """What a run that goes on in its environment is asked for.

    Options:
        steps (--steps, >= 1): Steps in the environment; each is followed by an update.
        settings (--set): A setting that differs from the run's, as name=value.
        prior (default: even for flow policies, else 0.5): Share of the dataset in each batch, 0 to 1; or even: each
            step of the dataset and of the environment has the same chance.
        random_steps (>= 0): Steps with random actions before the first update.
        warm_up_steps (>= 0, default: 5,000 for policies of chunks, else 0): Steps after these with the policy's
            actions, and without updates too.
        noise (>= 0, default: explore as the algorithm does): Deviation of noise on actions, whose bounds count as -1
            and 1.
        out (default: runs/finetune/ALGO/NAME/seed-N): Folder of the new run.
        resume: Continue from the new run's checkpoint.
        evaluations (>= 0): Points on the learning curve after the start; 0: none.
    """

    steps: int
    settings: list[str] | None = None
    prior: str | None = None
    random_steps: int = 0
    warm_up_steps: int | None = None
    noise: float | None = None
    out: Path | None = None
    resume: bool = False
    overwrite: Overwrite = False
    evaluations: int = 5
    dataset: DatasetOfRun = None
    algorithm: AlgorithmOfRun = None
    device: Device = "cpu"
    log: Log = "none"
    trust_environment: TrustEnvironment = False
    imports: Imports = None


@command("orlog finetune fql pointmaze/umaze-v1 --steps 50000")
def finetune(run: Path, name: OptionalName = None, *, given: Finetuning, as_json: AsJson = False) -> None:
    """Go on with a trained run in the environment of its dataset, which stays in the batches.

    An algorithm and a dataset stand for their run with seed 0 where `orlog train` puts it. Seed, settings and transforms are those of the run, which stays as it is; settings that are given,
    with --set or as options of their own such as --batch-size 64, take the place of its own.
    Ctrl-C and SIGTERM save the state at the end of the running episode and print the command that
    continues from there: a simulator's state cannot be saved within one.

    Options:
        run: Folder of the run to go on with, or its algorithm.
    """
    from orlog.algos.training.runs import RUN_FILE, evaluate_command, read_run, resume_command, run_folder
    from orlog.algos.training.train import find_finetuned, finetune_run
    from orlog.runs.run_folders import replacing
    from orlog.runs.running import check_log

    options, algorithm = _train_options(given), given.algorithm
    online = {"prior": _share_of_data(given.prior), "random_steps": given.random_steps, "noise": given.noise}
    online["warm_up_steps"] = "usual" if given.warm_up_steps is None else given.warm_up_steps
    check_log(given.log)
    if name is not None:
        method, run = str(run), run_folder("runs", str(run), _dataset(name, None), 0)
        if not (run / RUN_FILE).exists():
            raise NotFoundError(f"{run}: no run is there to go on with; train it first: orlog train {method} {name}")
    old, data, folder = find_finetuned(run, given.out, dataset=given.dataset, algorithm=algorithm)
    with (
        replacing([folder], given.overwrite, resume=given.resume),
        _watched_run(
            f"{algorithm_title(old.algorithm)} seed {old.seed}",
            data,
            folder,
            given.log,
            resume=given.resume,
            again=lambda: resume_command(folder, read_run(folder), data, algorithm or ""),
        ) as hooks,
    ):
        record = finetune_run(
            run, folder, options, online, hooks, resume=given.resume, dataset=data, algorithm=algorithm
        )[1]
    line = evaluate_command(folder, record, data, algorithm, given.trust_environment)
    end = f"fine-tuned {algorithm_title(record.algorithm)} for {counted(record.steps, 'step')}; run: {line}"
    _print_runs([folder], as_json, lambda _: say(end))


def _share_of_data(text: str | None) -> float | str | None:
    """Return the share of a batch that is from the dataset; None for even."""
    try:
        return "usual" if text is None else None if text == "even" else float(text)
    except ValueError:
        raise ValueError(f"--prior takes a number from 0 to 1, or even; found {text!r}.") from None
