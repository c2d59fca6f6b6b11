"""Settings of algorithms: the types and ranges that they share, and how text or JSON becomes settings.

The settings of an algorithm are a frozen `msgspec.Struct`, whose annotations say the range of each. What nearly all
have is in `Common` or `ActorCritic`; a page names what it adds, and what has another default there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, inspect

from orlog.algos.algorithms import ALGORITHMS, AlgorithmLike, algorithm_forms, algorithm_name, find_algorithm
from orlog.manifests.names import did_you_mean

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
AnyNumber = Annotated[float, Meta(title="any")]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Inside = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Widths = Annotated[tuple[Count, ...], Meta(min_length=1)]
Goals = tuple[Share, Share, Share]
"""Probabilities that a goal is the state itself, a later one of its episode, or a random one; they sum to 1."""
EncoderKind = Literal["nature", "impala"]
"""The convolutions that frames pass."""


class FrameSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is set about frames."""

    encoder: EncoderKind = "nature"
    """Convolutions for frames: `nature` or `impala`."""
    random_shift: Natural = 0
    """Pixels by which frames are moved at random in training, at most; 0 leaves them."""


class NetworkSettings(FrameSettings, frozen=True, kw_only=True):
    """What is set where networks learn from batches."""

    hidden: Widths = (256, 256)
    """Widths of the hidden layers of each network."""
    batch_size: Count = 256
    """Items in a batch."""


class Common(NetworkSettings, frozen=True, kw_only=True):
    """What is set where one optimizer trains all."""

    learning_rate: Positive = 3e-4
    """Step size of Adam."""


class Valued(Common, frozen=True, kw_only=True):
    """What is set where values are learned besides, by one optimizer or by several with one rate."""

    discount: Fraction = 0.99
    """Weight of the next step's value."""
    target_rate: Fraction = 0.005
    """Fraction by which target networks move towards their networks in each update."""


class NStepValued(Valued, frozen=True, kw_only=True):
    """As `Valued`, where targets may sum the rewards of several steps."""

    n_steps: Count = 1
    """Steps whose rewards a target sums before the value of the state after them; the end of an episode stops it."""


class ActorCritic(NetworkSettings, frozen=True, kw_only=True):
    """As `Valued`, where policy and critics have rates of their own."""

    policy_learning_rate: Positive = 3e-4
    """Step size of Adam for the policy."""
    critic_learning_rate: Positive = 3e-4
    """Step size of Adam for the critics."""
    discount: Fraction = 0.99
    target_rate: Fraction = 0.005


class NStepActorCritic(ActorCritic, frozen=True, kw_only=True):
    """As `ActorCritic`, where targets may sum the rewards of several steps."""

    n_steps: Count = 1
    """Steps whose rewards a target sums before the value of the state after them; the end of an episode stops it."""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an algorithm for one agent where it learns from several (`training/agents.py`)."""

    agents: Literal["shared", "separate"] = "shared"
    """Whether all agents share one set of parameters, or each has its own."""
    agent_rewards: Literal["own", "team"] = "own"
    """Whether an agent is rewarded with its own reward or with the team's."""


def of_run(kind: type[Any]) -> list[str]:
    """Return the settings of an algorithm that are those of the run: `steps` and `seed`, if it has them."""
    return [name for name in ("steps", "seed") if name in kind.CONFIG.__struct_fields__]


def make_config(algorithm: AlgorithmLike, settings: Mapping[str, object]) -> Any:
    """Return the configuration of an algorithm with some settings changed.

    Text is read as the type that the setting has (`"0.9"`, `"64,64"`, `"[64, 64]"`, `"none"`).
    """
    return read_config(find_algorithm(algorithm).CONFIG, algorithm_name(algorithm), settings)


def setting_types(algorithm: AlgorithmLike) -> dict[str, Any]:
    """Return the settings that any form of an algorithm has, each with its type."""
    forms = [*(form.CONFIG for form in algorithm_forms(algorithm)), AgentSettings]
    return {field.name: field.type for form in forms for field in msgspec.structs.fields(form)}


def read_config(config: type[Any], label: str, settings: Mapping[str, object]) -> Any:
    """Return a configuration with some of its settings changed; errors begin with the label."""
    types = {field.name: field.type for field in msgspec.structs.fields(config)}
    read: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in types:
            raise ValueError(
                f"{label} has no setting {name!r}" + (did_you_mean(name, types) or f"; it has {', '.join(types)}.")
            )
        try:
            read[name] = _converted(value, types[name])
        except msgspec.ValidationError as error:
            raise ValueError(f"{label}: {name} must be {_allowed(types[name], name)}, found {value}.") from error
        numbers = read[name] if isinstance(read[name], tuple) else (read[name],)
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise ValueError(f"{label}: {name} must be finite, found {value}.")
    try:
        return config(**read)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{label}: {error}") from error


def check_for_any_form(algorithm: AlgorithmLike, settings: Mapping[str, object]) -> None:
    """Refuse settings that no form of an algorithm has, before the data are known.

    Those that it has on data of several agents are taken, too.
    """
    of_agents = {name: value for name, value in settings.items() if name in AgentSettings.__struct_fields__}
    read_config(AgentSettings, algorithm_name(algorithm), of_agents)
    own = {name: value for name, value in settings.items() if name not in of_agents}
    refused = []
    for form in algorithm_forms(algorithm):
        try:
            make_config(form, own)
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


def _converted(value: object, kind: Any) -> object:
    """Return a value as a type, also where it is given as text: `none`, `64,64`, `[64, 64]`."""
    if not isinstance(value, str):
        return msgspec.convert(value, kind, strict=False)
    try:
        return msgspec.convert(None if value.lower() == "none" else value, kind, strict=False)
    except msgspec.ValidationError:
        items = value.strip("[]").rstrip(", ").split(",")
        if not value.startswith("[") and "," not in value:
            raise
        return msgspec.convert([item.strip() for item in items if item.strip()], kind, strict=False)


def _allowed(kind: Any, name: str) -> str:
    """Return what values a type has, as a part of a sentence."""
    match inspect.type_info(kind) if not isinstance(kind, inspect.Type) else kind:
        case inspect.IntType() | inspect.FloatType() as number:
            limits = ((">", number.gt), (">=", number.ge), ("<", number.lt), ("<=", number.le))
            ranges = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
            word = "a whole number" if isinstance(number, inspect.IntType) else "a number"
            return f"{word} {ranges}".rstrip()
        case inspect.LiteralType(values=values):
            return " or ".join(map(str, values))
        case inspect.UnionType(types=types):
            return " or ".join(_allowed(member, name) for member in types)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return f"a list, such as {name}=64,64 or {name}=[64], each {_allowed(item, name)}"
        case inspect.TupleType(item_types=items):
            return f"a list of {len(items)}, each {_allowed(items[0], name)}"
        case inspect.Metadata(type=inner):
            return _allowed(inner, name)
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "none"
        case inspect.StrType():
            return "a text"
    return str(kind)
