"""The command line. Exit codes: 0 good, 1 user error, 2 usage, 3 integrity."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import orlog
from orlog.errors import OrlogError
from orlog.terminal import console, errors, progress_bar, progress_bars, table

__all__ = ["app", "main"]

app = typer.Typer(
    name="orlog",
    help="Offline-RL datasets pinned byte by byte, reference algorithms, and honest scores.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with: orlog quickstart",
)

Name = Annotated[
    str, typer.Argument(help="Dataset: a name such as pointmaze/umaze-v1, or a folder.")
]
Algorithm = Annotated[str, typer.Argument(help="bc, cql or iql.")]
Workers = Annotated[
    int, typer.Option(min=1, help="Processes to use.", show_default="number of cores")
]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print_version(asked: bool) -> None:
    if asked:
        console.print(orlog.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show where an error came from.")] = False,
) -> None:
    _Debug.on = debug


class _Debug:
    on = False


@app.command("list", epilog="Example: orlog list")
def list_datasets() -> None:
    """List the datasets of the catalogue and those on this machine."""
    from orlog.datasets.catalogue import CATALOGUE
    from orlog.datasets.dataset import load_dataset
    from orlog.datasets.home import datasets_folder, installed_names, installed_versions

    rows = []
    for name in sorted({*CATALOGUE, *installed_names()}):
        versions = installed_versions(name)
        size = steps = "-"
        state = "not here; orlog build builds it"
        if versions:
            try:
                manifest = load_dataset(name).manifest
                size, steps = f"{manifest.size_bytes / 1e6:.1f} MB", f"{manifest.total_steps:,}"
                state = "here"
            except OrlogError as error:
                state = f"damaged: {error}"
        elif name in CATALOGUE:
            steps = f"{CATALOGUE[name].recipe.steps:,}"
        version = versions[0] if versions else CATALOGUE[name].version
        rows.append([name, version, steps, size, escape(state)])
    console.print(table(("name", "version", "steps", "size", "state"), rows, numbers=(2, 3)))
    console.print(f"\nfolder: {datasets_folder()}", soft_wrap=True)


@app.command(epilog="Example: orlog show pointmaze/umaze-v1")
def show(name: Name) -> None:
    """Show what is known about a dataset: totals, columns, origin, references, baselines."""
    from orlog.algos.algorithms import ALGORITHMS
    from orlog.datasets.catalogue import recorded_manifest
    from orlog.datasets.dataset import as_folder, load_dataset
    from orlog.datasets.names import parse_name
    from orlog.errors import NotFoundError
    from orlog.records import read_baseline, references_of

    recorded = None
    if as_folder(name) is None:
        wanted = parse_name(name)
        recorded = recorded_manifest(wanted.name, wanted.version)
    try:
        dataset = load_dataset(name)
        manifest, where = dataset.manifest, str(dataset.folder)
    except NotFoundError:
        if recorded is None or not recorded.digest.startswith(parse_name(name).digest):
            raise
        manifest, where = recorded, f"not on this machine; run: orlog build {recorded.name}"
    environment = manifest.environment
    facts = [
        ("name", f"{manifest.name}@{manifest.version}"),
        ("digest", manifest.digest),
        ("folder", where),
        ("description", manifest.description),
        ("episodes", f"{manifest.total_episodes:,}"),
        ("steps", f"{manifest.total_steps:,}"),
        ("size", f"{manifest.size_bytes / 1e6:.1f} MB in {len(manifest.objects)} objects"),
        ("observations", str(manifest.spaces[0])),
        ("actions", str(manifest.spaces[1])),
        ("behavior policy", manifest.behavior_policy),
        ("license", manifest.license),
    ]
    if environment is not None:
        versions = ", ".join(f"{key} {value}" for key, value in environment.versions.items())
        facts.insert(9, ("environment", f"{environment.id}, {environment.kwargs} ({versions})"))
    if manifest.recipe is not None:
        recipe = manifest.recipe
        facts.append(("recipe", f"{recipe.name} {recipe.version}, seed {recipe.seed}"))
    references = references_of(manifest)
    if references is not None:
        facts.append(
            (
                f"reference returns ({references.protocol.episodes} episodes)",
                f"random {references.random.mean:.2f}, expert {references.expert.mean:.2f}",
            )
        )
    console.print(table(("", ""), [(f"[bold]{key}[/bold]", escape(text)) for key, text in facts]))
    console.print()
    rows = [
        (column.name, column.dtype, str(tuple(column.shape)), f"{column.rows:,}")
        for column in manifest.columns
    ]
    console.print(table(("column", "type", "row", "rows"), rows, numbers=(3,)))
    baselines = [
        (algorithm.upper(), f"{sum(means) / len(means):.1f}", str(len(means)))
        for algorithm in ALGORITHMS
        if references is not None
        and (baseline := read_baseline(algorithm, manifest.name)) is not None
        and (means := [scores.mean() for scores in baseline.scores(references).values()])
    ]
    if baselines:
        console.print()
        console.print(table(("recorded baseline", "score", "seeds"), baselines, numbers=(1, 2)))


@app.command(epilog="Example: orlog build pointmaze/umaze-v1")
def build(
    name: Name,
    workers: Workers = CORES,
    replace: Annotated[
        bool, typer.Option("--replace", help="Build again even if it is here.")
    ] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Record the manifest among those that ship (maintainers)."),
    ] = False,
) -> None:
    """Build a dataset of the catalogue from its recipe. Interrupting it leaves nothing behind."""
    from orlog.datasets.build import build_dataset, compare_with_recorded
    from orlog.datasets.catalogue import recorded_folder
    from orlog.datasets.dataset import load_dataset

    with progress_bar("steps") as update:
        folder = build_dataset(
            name,
            workers=workers,
            replace=replace,
            progress=update,
            on_wait=lambda: console.print("another process is building it; waiting"),
        )
    dataset = load_dataset(folder)
    comparison = compare_with_recorded(dataset.manifest)
    if record:
        path = recorded_folder(dataset.name) / f"{dataset.version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dataset.manifest.to_json(), "utf-8")
    console.print(f"{dataset.name}@{dataset.version} is in {folder}", soft_wrap=True)
    console.print(f"{dataset.digest}\n{comparison}", soft_wrap=True)


@app.command(epilog="Example: orlog verify pointmaze/umaze-v1")
def verify(name: Name) -> None:
    """Check every byte of a dataset against its manifest. Exit code 3 if one is wrong."""
    from orlog.datasets.dataset import as_folder, find_dataset
    from orlog.datasets.manifest import MANIFEST_FILE, read_manifest
    from orlog.datasets.verify import verify_store

    folder = find_dataset(name)
    total = read_manifest(folder / MANIFEST_FILE).size_bytes
    done = 0
    with progress_bar("bytes") as update:

        def count(size: int) -> None:
            nonlocal done
            done += size
            update(done, total)

        manifest, problems = verify_store(folder, progress=count)
    for problem in problems:
        errors.print(f"[red]{escape(str(problem))}[/red]", soft_wrap=True)
    if problems:
        again = (
            f"run: orlog build {manifest.name} --replace"
            if as_folder(name) is None
            else "copy it again from where it came"
        )
        errors.print(
            f"{len(problems)} of {len(manifest.objects)} objects of {manifest.name}@"
            f"{manifest.version} are not as in the manifest ({folder}); {again}",
            soft_wrap=True,
        )
        raise typer.Exit(3)
    console.print(
        f"{manifest.name}@{manifest.version}: {len(manifest.objects)} objects, {total:,} bytes, "
        f"all as in the manifest\n{manifest.digest}",
        soft_wrap=True,
    )


@app.command(epilog="Example: orlog train iql pointmaze/umaze-v1 --seed 0 --set expectile=0.8")
def train(
    algorithm: Algorithm,
    name: Name,
    seed: Annotated[int, typer.Option(min=0, help="Seed of networks, batches and noise.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, as name=value; may be repeated.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Gradient steps.", show_default="the recipe's")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/ALGO/NAME/seed-N")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")
    ] = False,
    evaluations: Annotated[
        int, typer.Option(min=0, help="Points of the learning curve; 0 needs no environment.")
    ] = 5,
) -> None:
    """Train an algorithm on a dataset by its recipe, with one seed."""
    from orlog.datasets.dataset import load_dataset
    from orlog.runs import train_run

    dataset = load_dataset(name)
    folder = out or Path("runs") / algorithm / dataset.name / f"seed-{seed}"
    chosen = dict(_setting(text) for text in settings or [])
    with progress_bar(f"{algorithm.upper()} seed {seed}") as update:
        record = train_run(
            algorithm,
            dataset,
            folder,
            seed=seed,
            settings=chosen,
            steps=steps,
            resume=resume,
            evaluations=evaluations,
            progress=update,
        )
    console.print(
        f"trained {algorithm.upper()} for {record.steps:,} steps; run: orlog evaluate {folder}",
        soft_wrap=True,
    )


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes name=value, found {text!r}; for example --set expectile=0.8")
    return name.strip(), value.strip()


@app.command(epilog="Example: orlog evaluate runs/iql/pointmaze/umaze-v1/seed-0")
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    dataset: Annotated[
        str | None,
        typer.Option(help="The dataset, if it is not found by its recorded name."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to run.")] = 100,
) -> None:
    """Run a trained policy in the dataset's environment and print return and score."""
    import numpy as np

    from orlog.datasets.dataset import load_dataset
    from orlog.records import references_for
    from orlog.runs import evaluate_run

    with progress_bar("episodes") as update:
        record, evaluation = evaluate_run(
            run,
            dataset=None if dataset is None else load_dataset(dataset),
            episodes=episodes,
            progress=lambda done: update(done, episodes),
        )

    returns = np.array(evaluation.returns)
    error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
    console.print(
        f"{record.algorithm.upper()} seed {record.seed} on {record.dataset}, step "
        f"{evaluation.step:,} of {record.steps:,}: return {returns.mean():.2f} (standard error {error:.2f}, "
        f"{episodes} episodes)"
    )
    protocol = evaluation.protocol
    references = references_for(protocol.environment_id, protocol.environment_kwargs)
    if references is None:
        console.print("no reference returns are recorded, so there is no normalized score")
    else:
        console.print(
            f"normalized score {references.normalize(returns).mean():.1f} "
            f"(0 = random, {references.random.mean:.2f}; 100 = expert, {references.expert.mean:.2f})"
        )


@app.command(epilog="Example: orlog references pointmaze/umaze-v1")
def references(
    name: Name,
    episodes: Annotated[int, typer.Option(min=2, help="Episodes of each policy.")] = 1000,
    record: Annotated[
        bool, typer.Option("--record", help="Record them among those that ship (maintainers).")
    ] = False,
) -> None:
    """Measure the returns of a random and an expert policy, which anchor normalized scores."""
    from orlog.datasets.dataset import load_dataset
    from orlog.records import measure_references, record_references, references_of

    dataset = load_dataset(name)
    finished = 0
    with progress_bar("episodes") as update:

        def count(done: int) -> None:
            nonlocal finished
            finished = done if done >= finished else episodes + done
            update(finished, 2 * episodes)

        measured = measure_references(dataset, episodes=episodes, progress=count)
    recorded = references_of(dataset.manifest)
    rows = [
        (
            kind,
            f"{new.mean:.2f}",
            f"{new.standard_deviation / episodes**0.5:.2f}",
            "none" if old is None else f"{old.mean:.2f}",
            new.policy,
        )
        for kind, new, old in (
            ("random", measured.random, recorded.random if recorded else None),
            ("expert", measured.expert, recorded.expert if recorded else None),
        )
    ]
    headings = ("reference", "return", "standard error", "recorded", "policy")
    console.print(table(headings, rows, numbers=(1, 2, 3)))
    if record:
        console.print(f"recorded in {record_references(dataset, measured)}", soft_wrap=True)


@app.command(epilog="Example: orlog reproduce iql pointmaze/umaze-v1 --seeds 3")
def reproduce(
    algorithm: Algorithm,
    name: Name,
    seeds: Annotated[int, typer.Option(min=1, help="Number of training seeds, from 0.")] = 3,
    episodes: Annotated[int, typer.Option(min=1, help="Evaluation episodes of each seed.")] = 100,
    workers: Workers = CORES,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/reproduce"),
    record: Annotated[
        bool, typer.Option("--record", help="Record the scores as the baseline (maintainers).")
    ] = False,
) -> None:
    """Train and score an algorithm by its recipe, and compare with the recorded baseline."""
    from orlog.algos.algorithms import make_config
    from orlog.datasets.dataset import load_dataset
    from orlog.records import record_baseline
    from orlog.report import HEADINGS, result_cells
    from orlog.reproduce import reproduce as run

    make_config(algorithm, {})
    dataset = load_dataset(name)
    with progress_bars() as update:
        result = run(
            algorithm,
            dataset,
            out,
            seeds=range(seeds),
            episodes=episodes,
            workers=workers,
            progress=lambda job, step: update(f"seed {job.seed}", step, job.steps),
        )
    console.print(table(HEADINGS, [result_cells(result)], numbers=(1, 2, 3, 6)))
    for note in result.notes:
        console.print(f"note: {note}")
    if record:
        console.print(f"recorded in {record_baseline(result.as_baseline())}", soft_wrap=True)


@app.command(epilog="Example: orlog quickstart")
def quickstart(
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for runs and page.", show_default="orlog-quickstart, -2, .."),
    ] = None,
    workers: Workers = CORES,
    smoke: Annotated[
        bool,
        typer.Option("--smoke", help="Seconds instead of minutes: shows that everything works."),
    ] = False,
) -> None:
    """Build, verify, train, score, compare: the main job on one dataset, and a page about it."""
    from orlog.quickstart import quickstart as run

    run(out or _free_folder("orlog-quickstart"), smoke=smoke, workers=workers)


def _free_folder(name: str) -> Path:
    """Return the first of name, name-2, name-3 ... that is not there."""
    return next(
        path
        for number in itertools.count(1)
        if not (path := Path(name if number == 1 else f"{name}-{number}")).exists()
    )


def main() -> None:
    """Run the command line; known errors become one line and an exit code."""
    try:
        app(prog_name="orlog")
    except OrlogError as error:
        _fail(error, error.exit_code)
    except (ValueError, FloatingPointError, OSError) as error:
        _fail(error, 1)


def _fail(error: Exception, code: int) -> None:
    if _Debug.on:
        raise error
    errors.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
