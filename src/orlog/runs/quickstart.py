"""The main job from end to end: build, verify, train, score, compare, and one page about it all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from orlog.algos.training.evaluating import EPISODES
from orlog.algos.training.runs import TrainOptions
from orlog.base.terminal import progress_bar, progress_bars, say, waits
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.verify import verify_folder
from orlog.datasets.worlds.build import build_dataset
from orlog.datasets.worlds.rebuilds import compare_with_recorded
from orlog.errors import IntegrityError
from orlog.manifests.names import counted, size_text
from orlog.runs.jobs import Job, make_jobs, run_jobs
from orlog.runs.reproducing import Reproduction, summarize
from orlog.runs.results_page import show_results, write_results_page

# The slowest first, so that no process is left training alone at the end. Their steps in a second on one core
# weigh the share that is done, which gives the time left.
ALGORITHMS = {"cql": 126, "iql": 155, "bc": 993}
DATASET = "pointmaze/umaze-v1"
SEEDS = (0, 1, 2)
SMOKE_DATASET = "pointmaze/umaze-mini-v1"
SMOKE_STEPS = 50
SMOKE_EPISODES = 4
SMALL_RECIPE = (
    "These are small recipes: networks of two layers of 64 and a few thousand steps, chosen to fit "
    "two CPU cores and a few minutes. Compare them with the recorded baselines of the same recipes, "
    "not with published scores."
)
SMOKE_REMARK = "A smoke run: it shows that everything works. Its scores mean nothing."


def quickstart(folder: Path, *, smoke: bool, workers: int) -> tuple[Dataset, list[Reproduction], Path]:
    """Run every step, print progress, and return the dataset, the results and the page."""
    name = SMOKE_DATASET if smoke else DATASET
    seeds = SEEDS[:1] if smoke else SEEDS
    with _stage(f"build {name}"):
        dataset = _build_and_verify(name, workers)
    with _stage(f"train BC, CQL and IQL with {len(seeds)} seed(s) on {workers} process(es)"):
        results = _train(dataset, folder / "runs", seeds, smoke=smoke, workers=workers)
    remark = SMOKE_REMARK if smoke else SMALL_RECIPE
    page = folder / "report.html"
    title = f"orlog quickstart: {name}"
    write_results_page(page, results, [dataset], title=title, remarks={remark: ""})
    say()
    show_results(results, page.resolve())
    say(remark)
    return dataset, results, page


def _train(dataset: Dataset, folder: Path, seeds: tuple[int, ...], *, smoke: bool, workers: int) -> list[Reproduction]:
    jobs = {
        algorithm: make_jobs(
            algorithm,
            dataset,
            folder,
            seeds=seeds,
            episodes=SMOKE_EPISODES if smoke else EPISODES,
            options=TrainOptions(steps=SMOKE_STEPS, evaluations=1) if smoke else TrainOptions(),
            resume=True,
        )
        for algorithm in ALGORITHMS
    }
    every = [job for some in jobs.values() for job in some]
    total = sum(job.steps / ALGORITHMS[job.algorithm] for job in every)
    done: dict[tuple[str, int], float] = {}
    with progress_bars() as update:

        def show(job: Job, step: int) -> None:
            done[job.algorithm, job.seed] = step / ALGORITHMS[job.algorithm]
            update("training, percent done", int(100 * sum(done.values()) / total), 100)

        run_jobs(every, workers=workers, progress=show)
    return sorted(map(summarize, jobs.values()), key=lambda result: result.record.algorithm)


def _build_and_verify(name: str, workers: int) -> Dataset:
    with progress_bar("steps", f"building {name}") as update:
        folder = build_dataset(name, workers=workers, progress=update, on_wait=waits("building it", say))
    manifest, problems = verify_folder(folder)
    if problems:
        raise IntegrityError(f"{folder}: {problems[0]}; run: orlog build {name} --replace", file=problems[0].file)
    dataset = load_dataset(folder)
    say(
        f"  {counted(len(manifest.objects), 'file')}, {size_text(manifest.size_bytes)}, every byte as in "
        f"the manifest\n  {manifest.digest}\n  {compare_with_recorded(dataset)}"
    )
    return dataset


@contextlib.contextmanager
def _stage(what: str) -> Iterator[None]:
    say(what, style="bold")
    started = time.perf_counter()
    yield
    say(f"  {time.perf_counter() - started:z.0f} s")
