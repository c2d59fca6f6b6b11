"""Trains algorithms on datasets."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.algos.training.stopping import StopRequest
from orlog.cli.application import (
    CORES,
    Algorithm,
    Device,
    Imports,
    Log,
    Name,
    TrustEnvironment,
    app,
)
from orlog.errors import StoppedError
from orlog.terminal import console, errors, printable, table

if TYPE_CHECKING:
    from orlog.algos.presets import Recipe
    from orlog.datasets.reading.dataset import Dataset
    from orlog.seeds import SeedOutcome


@app.command(epilog="Example: orlog train iql pointmaze/umaze-v1 --seeds 0-3 --set expectile=0.8")
def train(
    algorithm: Algorithm,
    name: Name,
    seed: Annotated[int, typer.Option(min=0, help="Seed of networks, batches and noise.")] = 0,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="SEEDS",
            help="How many seeds, from 0, each in a process of its own; or which, as 0-4 or 0,2,5.",
            show_default=False,
        ),
    ] = "",
    processes: Annotated[
        int,
        typer.Option(
            min=1, help="How many seeds to train at a time.", show_default="number of cores"
        ),
    ] = CORES,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, as name=value; may be repeated.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Gradient steps.", show_default="the recipe's")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Whose settings: authors, corl, .. where published for the dataset; none for the "
            "algorithm's defaults.",
            show_default="the recipe's or the authors'",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run; with --seeds, of the folders seed-N.",
            show_default="runs/ALGO/NAME/seed-N; for a view its name too",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint in the folder.")
    ] = False,
    evaluations: Annotated[
        int, typer.Option(min=0, help="Points on the learning curve; 0 needs no environment.")
    ] = 5,
    keep_checkpoints: Annotated[
        bool,
        typer.Option(
            "--keep-checkpoints", help="Keep that of each of these points, as orlog ope needs."
        ),
    ] = False,
    device: Device = "cpu",
    precision: Annotated[
        str,
        typer.Option(
            metavar="PRECISION",
            help="Of the products between hidden layers: float32, or bf16 where that is faster.",
        ),
    ] = "float32",
    log: Log = "none",
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
) -> None:
    """Train an algorithm on a dataset by its recipe or published settings, with one or more seeds.

    It prints which settings it uses and from where, and how they differ from what was published.
    Ctrl-C and SIGTERM save the state first and print the command that continues from there; with
    --seeds it continues all that are not finished.

    With --seeds, a seed that fails does not end the others; the exit code is then 1.
    """
    from orlog.algos.algorithms import algorithm_name
    from orlog.algos.presets import recipe_for
    from orlog.algos.settings import check_for_any_form
    from orlog.algos.training.devices import find_device
    from orlog.datasets.loading import load_dataset
    from orlog.logs import check_log
    from orlog.seeds import parse_seeds

    several = parse_seeds(seeds) if seeds else []
    if several and seed:
        raise typer.BadParameter("--seed is for one seed; name all of them with --seeds.")
    chosen = dict(read_setting(text) for text in settings or [])
    check_for_any_form(
        algorithm, chosen
    )  # a wrong setting is refused before the data are looked for
    find_device(device)
    check_log(log)
    dataset = load_dataset(name)
    recipe = recipe_for(algorithm_name(algorithm), dataset, preset=preset)
    command = ["orlog", "train", algorithm, name]
    command += ["--seeds", seeds] if several else ["--seed", str(seed)]
    command += [] if processes == CORES else ["--processes", str(processes)]
    for text in settings or []:
        command += ["--set", text]
    command += [] if steps is None else ["--steps", str(steps)]
    command += [] if not preset else ["--preset", preset]
    command += [] if out is None else ["--out", str(out)]
    command += ["--evaluations", str(evaluations)]
    command += ["--keep-checkpoints"] if keep_checkpoints else []
    command += [] if device == "cpu" else ["--device", device]
    command += [] if precision == "float32" else ["--precision", precision]
    command += [] if log == "none" else ["--log", log]
    command += ["--trust-environment"] if trust_environment else []
    options: dict[str, Any] = {
        "steps": steps,
        "preset": preset,
        "resume": resume,
        "evaluations": evaluations,
        "keep_checkpoints": keep_checkpoints,
        "device": device,
        "precision": precision,
        "trust_environment": trust_environment,
    }
    again = shlex.join([*command, "--resume"])

    def introduce(steps: int, taken: Sequence[str] = ()) -> None:
        _introduce(algorithm, dataset, recipe, steps, settings or [], taken)

    if several:
        introduce(steps or recipe.steps)
        options["log"] = log
        _train_several(algorithm, dataset, out, several, processes, chosen, options, again)
    else:
        _train_one(algorithm, dataset, out, seed, chosen, options, again, introduce, log)


def _introduce(
    algorithm: str,
    dataset: Dataset,
    recipe: Recipe,
    steps: int,
    settings: Sequence[str],
    taken: Sequence[str],
) -> None:
    """Print what it trains by, and where that is from."""
    from orlog.algos.algorithms import algorithm_name
    from orlog.algos.presets import DEFAULTS, preset_names

    for line in recipe.lines(steps):
        _tell(line)
    if settings:
        _tell(f"changed with --set: {', '.join(settings)}")
    for line in taken:
        _tell(f"from the data: {line}")
    others = preset_names(algorithm_name(algorithm), dataset)
    others.remove(recipe.preset)
    if others:
        named = [
            "none, which is the algorithm's defaults" if one == DEFAULTS else one for one in others
        ]
        _tell(f"other presets: {', '.join(named)} (--preset)")


def _tell(text: str) -> None:
    errors.print(text, soft_wrap=True, markup=False)


@contextlib.contextmanager
def watched_run(
    label: str,
    dataset: Dataset,
    folder: Path,
    log: str,
    *,
    resume: bool,
    again: str,
    introduce: Callable[[int], None] = lambda _steps: None,
) -> Iterator[dict[str, Any]]:
    """Show a line of a run while it is trained, copy its log, and let signals stop it.

    Args:
        label: What the line begins with.
        dataset: What it is trained on.
        folder: Folder of the run.
        log: Where to copy its log: `none`, `tensorboard` or `wandb`.
        resume: Whether it was asked to go on from a checkpoint; then it is said where it does.
        again: The command that continues it, to print after a signal.
        introduce: Called with the number of steps before the first one.

    Yields:
        The arguments of `train_run` or `finetune_run` that do so.

    Raises:
        typer.Exit: a signal stopped the run.
    """
    from orlog.logs import in_turn, log_to
    from orlog.progress import Watcher, status_lines

    request, has_begun = StopRequest(), False
    with contextlib.ExitStack() as stack:
        update = stack.enter_context(status_lines())
        watcher = Watcher(dataset, lambda status: update(label, status))
        copy_line = stack.enter_context(log_to(log, folder, watcher.normalize))

        def show(step: int, total: int) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                stack.enter_context(request.noted())
                introduce(total)
                if resume:
                    _tell(
                        f"resuming from step {step:,} of {total:,}"
                        if step
                        else "no checkpoint; starting from step 0"
                    )
            watcher.progress(step, total)

        try:
            yield {
                "progress": show,
                "log": in_turn(watcher.log, copy_line),
                "begin": copy_line.begin,
                "stop": lambda: request.signal != 0,
            }
        except StoppedError as stopped:
            _tell(f"stopped at step {stopped.step:,}, with a checkpoint; to continue, run: {again}")
            raise typer.Exit(128 + request.signal) from stopped


def _train_one(
    algorithm: str,
    dataset: Dataset,
    out: Path | None,
    seed: int,
    chosen: dict[str, object],
    options: dict[str, Any],
    again: str,
    introduce: Callable[[int, Sequence[str]], None],
    log: str,
) -> None:
    from orlog.algos.training.runs import run_folder
    from orlog.algos.training.train import train_run

    folder = out or run_folder("runs", algorithm, dataset, seed)
    taken: list[str] = []
    with watched_run(
        f"{title(algorithm)} seed {seed}",
        dataset,
        folder,
        log,
        resume=options["resume"],
        again=again,
        introduce=lambda total: introduce(total, taken),
    ) as watching:
        record = train_run(
            algorithm,
            dataset,
            folder,
            seed=seed,
            settings=chosen,
            note=_tell,
            tell=taken.append,
            **watching,
            **options,
        )
    advice = f"run: orlog evaluate {shlex.quote(str(folder))}"
    if dataset.environment is None:
        advice = f"{dataset.name} names no environment, so there is nothing to evaluate it in"
    else:
        advice += f" --algorithm {shlex.quote(algorithm)}" if ":" in algorithm else ""
        advice += " --trust-environment" if options["trust_environment"] else ""
    console.print(
        f"trained {title(algorithm)} for {record.steps:,} steps; {advice}", soft_wrap=True
    )


def _train_several(
    algorithm: str,
    dataset: Dataset,
    out: Path | None,
    seeds: Sequence[int],
    processes: int,
    chosen: dict[str, object],
    options: dict[str, Any],
    again: str,
) -> None:
    from orlog.progress import Status, status_lines
    from orlog.seeds import train_seeds

    request = StopRequest()
    noted: set[str] = set()
    with status_lines() as update, request.noted():

        def show(seed: int, status: Status) -> None:
            for note in status.notes:
                if note not in noted:
                    noted.add(note)
                    _tell(note)
            update(f"{title(algorithm)} seed {seed}", status)

        outcomes = train_seeds(
            algorithm,
            dataset,
            out,
            seeds=seeds,
            processes=min(processes, len(seeds)),
            settings=chosen,
            show=show,
            stop=lambda: request.signal != 0,
            **options,
        )
    _print_outcomes(outcomes)
    unfinished = [one for one in outcomes if one.status.state != "finished"]
    for one in outcomes:
        if one.message:
            _tell(printable(f"{one.details}error: seed {one.seed}: {one.message}"))
    if unfinished:
        _tell(
            f"{len(unfinished)} of {len(outcomes)} seeds are not finished; to continue them, run: "
            f"{again}"
        )
    if request.signal:
        raise typer.Exit(128 + request.signal)
    if unfinished:
        raise typer.Exit(1)


def _print_outcomes(outcomes: Sequence[SeedOutcome]) -> None:
    scored = "score" if outcomes[0].status.is_normalized else "return"
    rows = []
    for one in outcomes:
        status = one.status
        score = "" if status.score is None else f"{status.score:.1f}"
        speed = "" if status.speed is None else f"{status.speed:,.0f}"
        step = f"{status.step:,}"
        rows.append([str(one.seed), status.state, step, score, speed, str(one.folder)])
    headings = ("seed", "state", "step", f"last {scored}", "updates/s", "folder")
    console.print(table(headings, rows, numbers=(0, 2, 3, 4)))


def title(algorithm: str) -> str:
    """Return how an algorithm is shown."""
    return algorithm.rpartition(":")[2].upper()


def read_setting(text: str) -> tuple[str, object]:
    """Return name and value of a setting that is given as name=value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes name=value, such as expectile=0.8; found {text!r}.")
    return name.strip(), value.strip()
