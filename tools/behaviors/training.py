"""Trains behavior policies for recipes, and keeps a few policies of one training in a file.

The file and the record beside it (the same name, `.json`) hold, in the order of training: up to
`BEFORE` policies at even distances before the medium one; the medium one, whose mean return is the
nearest to a third of the best one's; and the best one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import msgspec
import numpy as np
from jaxtyping import Float64

from orlog.algos.settings import read_config
from orlog.algos.training.data import one_thread
from orlog.base.files import absolute_path, make_folder, replace_file, storage_errors
from orlog.base.processes import processor_name
from orlog.datasets.worlds.behavior_policies import BehaviorPolicy, Layers, check_weights, read_policies, write_policies
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.errors import SchemaError
from tools.behaviors.ars import ARSConfig, ars
from tools.behaviors.sac import SACConfig, sac

# Settings of each method, and the function that yields steps and policies.
TRAINERS: dict[str, tuple[type[Any], Callable[..., Iterator[tuple[int, Layers]]]]] = {
    "ars": (ARSConfig, ars),
    "sac": (SACConfig, sac),
}

BEFORE = 4
EPISODES_WHILE_TRAINING = 5
EPISODES_OF_KEPT = 100
FIRST_SEED = 1_000_000


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy returned.

    Attributes:
        steps: Steps in the environment that it was trained for.
        returns: Undiscounted return of each episode, with actions drawn from the policy.
    """

    steps: int
    returns: list[float]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))


class BehaviorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file of behavior policies comes from.

    Attributes:
        digest: BLAKE3 of the file.
        environment_id: The environment they were trained in.
        versions: Versions of the packages that decide what it does.
        processor: The processor they were trained on; another one may give other last bits.
        algorithm: `ars` or `sac`.
        settings: Its settings.
        seed: Root of all randomness.
        log: What the policy returned while it was trained.
        policies: What each policy of the file returned.
    """

    digest: str
    environment_id: str
    versions: dict[str, str]
    processor: str
    algorithm: str
    settings: dict[str, Any]
    seed: int
    log: list[LogLine]
    policies: list[LogLine]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BehaviorOptions:
    """What a training of behavior policies is asked for.

    Attributes:
        algorithm: `ars` or `sac`.
        steps: Steps in the environment.
        seed: Root of all randomness.
        every: Steps from one evaluation to the next.
        settings: Settings that differ from the defaults.
    """

    algorithm: str
    steps: int
    seed: int = 0
    every: int = 50_000
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)


class Evaluated(NamedTuple):
    """A policy in training, and what it returned."""

    line: LogLine
    layers: Layers


def train_behavior(
    environment_id: str,
    path: Path,
    options: BehaviorOptions,
    *,
    progress: Callable[[LogLine], None] = lambda _line: None,
    stops: Callable[[], bool] = lambda: False,
) -> BehaviorRecord:
    """Train policies in an environment, and write some of them to a file with a record beside it.

    The same options give the same bytes on processors of one kind. The environment has actions in
    [-1, 1]. `stops` is asked after each evaluation; true ends training as if it had these steps. That
    the files can be written is tried before training.
    """
    algorithm, steps, seed, every = options.algorithm, options.steps, options.seed, options.every
    if path.suffix != ".safetensors":
        raise ValueError(f"the file of policies must end in .safetensors, found {path}.")
    if steps < 1 or every < 1 or seed < 0:
        raise ValueError(f"steps and every must be >= 1 and seed >= 0, found {steps}, {every} and {seed}.")
    config = _config(algorithm, options.settings)
    with (
        contextlib.closing(make_environment(environment_id, {})) as env,
        contextlib.closing(make_environment(environment_id, {})) as other,
        one_thread(),
    ):
        _check_spaces(environment_id, env)
        path = absolute_path(path)
        _check_writable(path)
        found: list[Evaluated] = []
        for taken, layers in TRAINERS[algorithm][1](env, config, seed=seed, every=every):
            check_weights(layers, taken)
            line = _evaluate(BehaviorPolicy(layers), taken, other, EPISODES_WHILE_TRAINING)
            found.append(Evaluated(line, layers))
            progress(line)
            if taken >= steps or stops():
                break
        return keep(found, path, other, algorithm=algorithm, settings=msgspec.structs.asdict(config), seed=seed)


def keep(
    found: Sequence[Evaluated],
    path: Path,
    env: gymnasium.Env[Any, Any],
    *,
    algorithm: str,
    settings: dict[str, Any],
    seed: int,
) -> BehaviorRecord:
    """Choose policies among those that were evaluated, and write the file and its record."""
    assert env.spec is not None
    kept = [found[index] for index in chosen([one.line.mean for one in found])]
    digest = write_policies(path, [one.line.steps for one in kept], [one.layers for one in kept])
    record = BehaviorRecord(
        digest=digest,
        environment_id=env.spec.id,
        versions=environment_versions(env.spec.id, env.spec.kwargs),
        processor=processor_name(),
        algorithm=algorithm,
        settings=settings,
        seed=seed,
        log=[one.line for one in found],
        policies=[_evaluate(one.policy, one.steps, env, EPISODES_OF_KEPT) for one in read_policies(path, digest)],
    )
    with storage_errors(path):
        text = msgspec.json.format(msgspec.json.encode(record), indent=1)
        replace_file(path.with_suffix(".json"), text + b"\n")
    return record


def _check_writable(path: Path) -> None:
    """Make the folder of a file and write there, before hours of training."""
    probe = path.with_name(f".{path.name}.probe")
    with storage_errors(path):
        make_folder(path.parent)
        replace_file(probe, b"")
        probe.unlink()


def chosen(means: Sequence[float]) -> list[int]:
    """Return which evaluations are kept, in order, by their mean returns."""
    best = int(np.argmax(means))
    if best == 0:
        return [0]
    medium = min(range(best), key=lambda index: abs(means[index] - means[best] / 3))
    before = np.linspace(0, medium, BEFORE, endpoint=False).astype(int).tolist()
    return sorted({*before, medium, best})


def _config(algorithm: str, settings: Mapping[str, object]) -> Any:
    if algorithm not in TRAINERS:
        raise ValueError(f"behavior policies are trained by {' or '.join(TRAINERS)}, found {algorithm!r}.")
    return read_config(TRAINERS[algorithm][0], algorithm, settings)


def _check_spaces(environment_id: str, env: gymnasium.Env[Any, Any]) -> None:
    observations, actions = env.observation_space, env.action_space
    if not isinstance(observations, gymnasium.spaces.Box) or len(observations.shape) != 1:
        raise SchemaError(
            f"{environment_id}: behavior policies are trained on vectors of observations, found {observations}."
        )
    if (
        not isinstance(actions, gymnasium.spaces.Box)
        or len(actions.shape) != 1
        or not ((actions.low == -1) & (actions.high == 1)).all()
    ):
        raise SchemaError(
            f"{environment_id}: behavior policies are trained for vectors of actions in [-1, 1], found {actions}."
        )


def _evaluate(policy: BehaviorPolicy, steps: int, env: gymnasium.Env[Any, Any], episodes: int) -> LogLine:
    returns = sampled_returns(policy, env, episodes=episodes)
    return LogLine(steps=steps, returns=returns.tolist())


def sampled_returns(
    policy: BehaviorPolicy, env: gymnasium.Env[Any, Any], *, episodes: int
) -> Float64[np.ndarray, " episodes"]:
    """Return the undiscounted return of each episode, with actions drawn as in recordings."""
    assert env.action_space.shape is not None
    returns = np.zeros(episodes)
    for index in range(episodes):
        seed = FIRST_SEED + index
        rng = np.random.Generator(np.random.PCG64(seed))
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            action, _ = policy.act(observation, rng.standard_normal(env.action_space.shape))
            observation, reward, terminated, truncated, _ = env.step(action)
            returns[index] += float(reward)
            ended = terminated or truncated
    return returns
