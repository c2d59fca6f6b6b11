"""Goes on with trained runs in their environments."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from orlog.algos.algorithms import algorithm_title
from orlog.cli.options import (
    AlgorithmOfRun,
    AsJson,
    DatasetOfRun,
    Device,
    Imports,
    Log,
    Overwrite,
    TrustEnvironment,
    command,
)
from orlog.cli.training import print_runs, train_options, watched_run
from orlog.manifests.names import counted

EVEN = "even"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetuning:
    """What a run that goes on in its environment is asked for.

    Options:
        steps (--steps, >= 1): Steps in the environment; each is followed by an update.
        settings (--set): A setting that differs from the run's, as name=value.
        prior: Share of the dataset in each batch, 0 to 1; or even: each step of the dataset and of the environment
            has the same chance.
        random_steps (>= 0): Steps with random actions before the first update.
        noise (>= 0, default: explore as the algorithm does): Deviation of noise on actions, whose bounds count as -1
            and 1.
        out (default: runs/finetune/ALGO/NAME/seed-N): Folder of the new run.
        resume: Continue from the new run's checkpoint.
        evaluations (>= 0): Points on the learning curve after the start; 0: none.
    """

    steps: int
    settings: list[str] | None = None
    prior: str = "0.5"
    random_steps: int = 0
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


@command("orlog finetune runs/iql/pointmaze/umaze-v1/seed-0 --steps 50000")
def finetune(run: Path, *, given: Finetuning, as_json: AsJson = False) -> None:
    """Go on with a trained run in the environment of its dataset, which stays in the batches.

    Seed, settings and transforms are those of the run, which stays as it is; settings that are given,
    with --set or as options of their own such as --batch-size 64, take the place of its own.
    Ctrl-C and SIGTERM save the state at the end of the running episode and print the command that
    continues from there: a simulator's state cannot be saved within one.

    Options:
        run: Folder of the run to go on with.
    """
    from orlog.algos.training.commands import evaluate_command, resume_command
    from orlog.algos.training.finetuning import find_finetuned, finetune_run
    from orlog.algos.training.runs import OnlineRecord, read_run
    from orlog.runs.progress import check_log
    from orlog.runs.run_folders import replacing

    options, share, algorithm = train_options(given), _share(given.prior), given.algorithm
    check_log(given.log)
    old, data, folder = find_finetuned(run, given.out, dataset=given.dataset, algorithm=algorithm)
    with (
        replacing([folder], given.overwrite, resume=given.resume),
        watched_run(
            f"{algorithm_title(old.algorithm)} seed {old.seed}",
            data,
            folder,
            given.log,
            resume=given.resume,
            again=lambda: resume_command(folder, read_run(folder), data, algorithm or ""),
        ) as hooks,
    ):
        record = finetune_run(
            run,
            folder,
            options,
            OnlineRecord(prior=share, random_steps=given.random_steps, noise=given.noise),
            hooks,
            resume=given.resume,
            dataset=data,
            algorithm=algorithm,
        )[1]
    line = evaluate_command(folder, record, data, algorithm, given.trust_environment)
    end = f"fine-tuned {algorithm_title(record.algorithm)} for {counted(record.steps, 'step')}; run: {line}"
    print_runs([folder], end, as_json=as_json)


def _share(text: str) -> float | None:
    if text == EVEN:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--prior takes a number from 0 to 1, or {EVEN}; found {text!r}.") from None
