"""What a run is asked for, and what training tells and asks while it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

CURVE_EPISODES = 20


class TrainOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run is asked for. The command line, Python, sweeps and `run.json` share it.

    Attributes:
        seed: Seed of networks, batches and noise.
        settings: Settings that differ from the recipe's or preset's; None for none.
        steps: Gradient steps; None for the recipe's or preset's.
        preset: Whose settings: one of `orlog.algos.presets.preset_names`; empty for the first.
        evaluations: How often, evenly spread over the run and at its end, a few episodes are run
            for the learning curve and the state is saved; 0 needs no environment and saves 5 times.
            Training is refused where the dataset names no environment, or it cannot be made here.
        curve_episodes: Episodes at each point of the learning curve.
        keep_checkpoints: Whether the checkpoint of each of these points is also kept, in
            `checkpoints/`.
        stream: Whether batches come from the stored blocks as they are read, epoch after epoch, instead of from
            all steps in memory (`orlog.transitions(.., stream=True)`). They are other batches.
        trust_environment: Consent to arguments of the environment that come with the data.
        device: Where it computes: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one.
        precision: `float32`, or `bf16` for products between hidden layers in bfloat16 where the
            device computes these faster; elsewhere a note says that it trains in float32.
        log: Where the log of metrics is copied to: `none`, `tensorboard` or `wandb`.
    """

    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    settings: dict[str, Any] | None = None
    steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    preset: str = ""
    evaluations: Annotated[int, msgspec.Meta(ge=0)] = 5
    curve_episodes: Annotated[int, msgspec.Meta(ge=1)] = CURVE_EPISODES
    keep_checkpoints: bool = False
    stream: bool = False
    trust_environment: bool = False
    device: str = "cpu"
    precision: str = "float32"
    log: str = "none"


class Earlier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a record said before its run was told to take more steps: `steps` and `config`."""

    steps: int
    config: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What training tells while it goes on, and how it is stopped.

    Attributes:
        progress: Called with steps done and steps in all: before the first step, then about twice a
            second.
        log: Called with each line of `metrics.jsonl` after it was written; a run that is resumed
            first calls it with the lines that stand.
        begin: Called before the first step, when the folder has the run's record. If it raises an
            error, what a new run has written is removed.
        stop: Called after each step; if it returns true, the state is saved and StoppedError is
            raised.
        note: Called with one line for each thing asked for that is left out or differs, and why.
        tell: Called with a line on each setting that is taken from the data.
    """

    progress: Callable[[int, int], None] = lambda _step, _steps: None
    log: Callable[[Mapping[str, Any]], None] = lambda _line: None
    begin: Callable[[], None] = lambda: None
    stop: Callable[[], bool] = lambda: False
    note: Callable[[str], None] = lambda _text: None
    tell: Callable[[str], None] = lambda _text: None
