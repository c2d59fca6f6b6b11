"""Makes the settings of algorithms from text or JSON, and checks those that algorithms share."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_forms, algorithm_name, find_algorithm

_AT_LEAST_1 = (
    "batch_size",
    "steps",
    "fits",
    "sampled_actions",
    "policy_interval",
    "target_interval",
    "critics",
    "updates",
    "flow_steps",
    "chunk_length",
    "seen",
    "planned",
    "executed",
    "subgoal_steps",
    "representation",
    "length",
    "width",
    "mixer_width",
    "hyper_width",
    "layers",
    "heads",
    "longest_episode",
    "warmup_steps",
    "vocabulary",
    "longest_answer",
    "least_count",
    "autoencoder_width",
)
_AT_LEAST_0 = (
    "random_shift",
    "random_steps",
    "cloning_steps",
    "cloning_weight",
    "conservative_weight",
    "distillation_weight",
    "value_weight",
    "inverse_temperature",
    "low_inverse_temperature",
    "high_inverse_temperature",
    "policy_penalty",
    "critic_penalty",
    "log_penalty",
    "cost_limit",
    "cost_weight",
    "cost_prediction_weight",
    "costliest",
    "unseen_factor",
    "unsafe_weight",
    "divergence_weight",
    "target_noise",
    "noise_clip",
    "diversity",
    "weight_decay",
    "advantage_weight",
    "sampling_temperature",
    "lower_bound",
    "entropy_weight",
)
_ABOVE_0 = (
    "temperature",
    "max_weight",
    "local_cost",
    "adam_epsilon",
    "return_scale",
    "cost_scale",
    "initial_temperature",
    "episode_length",
    "max_gradient_norm",
)

_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a text", type(None): "none"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Settings of an algorithm for one agent where it learns from several (`training/agents.py`)."""

    agents: Literal["shared", "separate"] = "shared"
    """Whether all agents share one set of parameters, or each has its own."""
    agent_rewards: Literal["own", "team"] = "own"
    """Whether an agent is rewarded with its own reward or with the team's."""


def make_config(algorithm: AlgorithmLike, settings: Mapping[str, object]) -> Any:
    """Return the configuration of an algorithm with some settings changed.

    Text is read as the type that the setting has (`"0.9"`, `"64,64"`, `"[64, 64]"`, `"none"`).
    """
    config, label = find_algorithm(algorithm).CONFIG, algorithm_name(algorithm)
    known = [field.name for field in dataclasses.fields(config)]
    for name in settings:
        if name not in known:
            raise ValueError(_unknown(algorithm, label, name, known))
    return read_config(config, label, settings)


def setting_types(algorithm: AlgorithmLike) -> dict[str, Any]:
    """Return the settings that any form of an algorithm has, each with its type."""
    forms = [*(form.CONFIG for form in algorithm_forms(algorithm)), AgentSettings]
    return {name: kind for form in forms for name, kind in get_type_hints(form).items()}


def read_config(config: type[Any], label: str, settings: Mapping[str, object]) -> Any:
    """Return a configuration with some of its settings changed; errors begin with the label."""
    types = get_type_hints(config)
    read = {name: _read(label, name, value, types[name]) for name, value in settings.items()}
    try:
        return config(**read)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from error


def _unknown(algorithm: AlgorithmLike, label: str, name: str, known: list[str]) -> str:
    """Return why there is no such setting, and which one may be meant."""
    there = f"it has {', '.join(known)}."
    kind = find_algorithm(algorithm)
    others = [one for one in algorithm_forms(label) if one is not kind] if label in ALGORITHMS else []
    if any(name in [field.name for field in dataclasses.fields(one.CONFIG)] for one in others):
        actions = " or ".join(kind.ACTIONS)
        return f"{label} has no setting {name!r} for {actions} actions; {there}"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else there
    return f"{label} has no setting {name!r}; {hint}"


def check_for_any_form(algorithm: AlgorithmLike, settings: Mapping[str, object]) -> None:
    """Refuse settings that no form of an algorithm has, before the data are known.

    Those that it has on data of several agents are taken, too.
    """
    own, refused = [one.name for one in dataclasses.fields(AgentSettings)], []
    of_agents = {name: value for name, value in settings.items() if name in own}
    read_config(AgentSettings, algorithm_name(algorithm), of_agents)
    settings = {name: value for name, value in settings.items() if name not in own}
    for form in algorithm_forms(algorithm):
        try:
            make_config(form, settings)
        except ValueError as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def complete_config(algorithm: str, recorded: Mapping[str, object]) -> dict[str, Any]:
    """Return recorded settings, and at their defaults those that the algorithm has had only since.

    A setting that is added to an algorithm does by default what was done before, or its configuration
    says in `RECORDED_BEFORE` what that was. Settings of algorithms that are not orlog's stay as they are.
    """
    for form in algorithm_forms(algorithm) if algorithm in ALGORITHMS else []:
        before = getattr(form.CONFIG, "RECORDED_BEFORE", {})
        try:
            config = make_config(form, {**before, **recorded})
        except ValueError:
            continue
        completed: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
        return completed
    return dict(recorded)


def _read(label: str, name: str, value: object, kind: Any) -> object:
    """Return the value of one setting, which may be given as text."""
    is_list = get_origin(kind) is tuple
    parsed = value
    try:
        if isinstance(value, str) and value.startswith("["):
            parsed = msgspec.json.decode(value)
        elif isinstance(value, str) and is_list and "," in value:
            parsed = [item.strip() for item in value.rstrip(", ").split(",")]
        elif isinstance(value, str) and value.lower() in ("none", "null"):
            parsed = None
        return msgspec.convert(parsed, kind, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        if get_origin(kind) is Literal:
            choices = " or ".join(map(str, get_args(kind)))
            raise ValueError(f"{label}: {name} must be {choices}, found {value!r}.") from error
        example = f"; write a list as {name}=64,64 and a single number as {name}=[64]"
        raise ValueError(f"{label}: {name}={value}: expected {_in_words(kind)}{example if is_list else ''}.") from error


def _in_words(kind: Any) -> str:
    """Return what values a type has, as a part of a sentence."""
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        count = "" if parts[-1] is Ellipsis else f"{len(parts)} "
        return f"a list of {count}{_WORDS[parts[0]].removeprefix('a ')}s"
    return " or ".join(_WORDS.get(one, str(one)) for one in parts or (kind,))


def check_settings(config: Any) -> None:
    """Refuse settings with which no run can work; the name of a setting decides its check."""
    types = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, found {value}.")
        if value is None and type(None) in get_args(types[name]):
            continue
        if (name in _ABOVE_0 or name.endswith("learning_rate")) and value <= 0:
            raise ValueError(f"{name} must be > 0, found {value}.")
        if name in _AT_LEAST_0 and value < 0:
            raise ValueError(f"{name} must be >= 0, found {value}.")
        if name in _AT_LEAST_1 and value < 1:
            raise ValueError(f"{name} must be >= 1, found {value}.")
        if name in ("discount", "target_rate") and not 0 < value <= 1:
            raise ValueError(f"{name} must lie in (0, 1], found {value}.")
        if name == "expectile" and not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), found {value}.")
        if name == "percent" and not 1 <= value <= 100:
            meant = f"; for {100 * value:g} % give {100 * value:g}" if 0 < value < 1 else ""
            raise ValueError(f"{name} must lie in [1, 100], found {value}{meant}.")
        choices = get_args(types[name]) if get_origin(types[name]) is Literal else (value,)
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, found {value}.")
        if name.endswith("_goals") and not (all(0 <= one <= 1 for one in value) and math.isclose(sum(value), 1)):
            raise ValueError(
                f"{name} must be three probabilities that sum to 1 (of the state itself, a later one "
                f"of its episode, and a random one), found {value}."
            )
        if name == "hidden" and (not value or min(value) < 1):
            raise ValueError(f"{name} must name at least one layer of at least one unit, found {value}.")
