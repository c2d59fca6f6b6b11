"""The state of a simulator: read while recording, put back by `Dataset.restore`.

Recorded states are extra columns `infos/state/NAME`; row t is the state before action t. A simulator is
found from `env.unwrapped`:

    MuJoCo              its `model` and `data`, or those of the environment inside of it (mazes, MaMuJoCo)
    classic control     an array or tuple of numbers in its attribute `state`
    anything else       its methods `get_state()`, which returns an array of numbers, and
                        `set_state(array)`

Of MuJoCo are kept: time, qpos, qvel, act, mocap_pos, mocap_quat and qacc_warmstart, where the solver starts.
An array in the attribute `goal` of the environment is kept as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import options_from_text
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.datasets.columns.episode import Episode

STATE = "state/"
_MUJOCO = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat", "qacc_warmstart")
# D4RL and OGBench have the columns of MuJoCo's, and no others.
_NEEDED = ("qpos", "qvel", "state")


class Simulator(NamedTuple):
    """How a simulator's state is read and put back."""

    read: Callable[[], dict[str, np.ndarray]]
    write: Callable[[Mapping[str, np.ndarray]], None]


def simulator_of(env: gymnasium.Env[Any, Any]) -> Simulator:
    """Return how the state of an environment's simulator is read and put back."""
    inner: Any = env.unwrapped
    for held in (inner, *vars(inner).values()):
        holder = held.unwrapped if isinstance(held, gymnasium.Env) else held
        data = getattr(holder, "data", None)
        if type(data).__name__ == "MjData" and hasattr(holder, "model"):
            return _with_goal(inner, _mujoco(holder.model, data))
    if callable(getattr(inner, "get_state", None)) and callable(getattr(inner, "set_state", None)):
        by_methods = Simulator(
            lambda: {"state": np.array(inner.get_state())}, lambda state: inner.set_state(state["state"].copy())
        )
        return _with_goal(inner, by_methods)
    if not callable(getattr(inner, "state", len)):  # PettingZoo has a method of that name
        return _with_goal(inner, _attribute(inner))
    raise SchemaError(
        f"{_name(env)}: no state of a simulator is found: it has neither MuJoCo's model and data, nor "
        "an attribute state. Give the environment methods get_state(), which returns an array of "
        "numbers, and set_state(array), or leave out state=True."
    )


def restore(name: str, env: gymnasium.Env[Any, Any], episode: Episode, step: int) -> Any:
    """Put the state before an action back; return the observation recorded there.

    Actions count from 0, negative ones from the end. An environment of another simulator is refused.
    """
    where = f"{name}, episode {episode.index}"
    if not -len(episode) <= step < len(episode):
        raise NotFoundError(f"{where}: has {counted(len(episode), 'step')}, none of them number {step}.")
    step %= len(episode)
    for column, acts in episode.infos.items():
        if column.startswith("agents/") and column.endswith("/acts") and not acts[step]:
            raise SchemaError(
                f"{where}: agent {column.split('/')[1]} takes no part in step {step}, and an environment "
                "starts with all agents; choose another step."
            )
    recorded = {part: np.asarray(episode.infos[name][step]) for part, name in states_of(episode).items()}
    options = options_from_text(episode.metadata.get("options", ""))
    env.reset(seed=episode.seed, options=options)
    simulator = simulator_of(env)
    present = simulator.read()
    if not recorded.keys() & present.keys():
        raise NotFoundError(
            f"{where}: no state of a simulator was recorded; orlog.record(env, NAME, state=True) records it."
        )
    for part, value in present.items():
        has = f"with shape {recorded[part].shape}" if part in recorded else "not"
        is_other = part in recorded and recorded[part].shape != value.shape
        if is_other or (part not in recorded and part in _NEEDED):
            raise SchemaError(
                f"{where}: {part} was {has} recorded, and that of {_name(env)} has shape {value.shape}; "
                "give the environment that was recorded."
            )
    simulator.write({part: recorded[part] for part in present if part in recorded})
    observation = row_of(episode.observations, step)
    # Also of the environments that it is made of, as PettingZoo's are.
    for held in (env, *vars(env.unwrapped).values()):
        wrapper: Any = held
        while wrapper is env or isinstance(wrapper, gymnasium.Wrapper):
            if isinstance(wrapper, gymnasium.wrappers.TimeLimit):
                wrapper._elapsed_steps = step  # type: ignore[assignment] # declared as None
            started = getattr(wrapper, "episode_starts_from", None)
            if started is not None:
                started(observation)
            wrapper = getattr(wrapper, "env", None) if isinstance(wrapper, gymnasium.Wrapper) else None
    return observation


def states_of(episode: Episode) -> dict[str, str]:
    """Return the info that holds each part of the simulator's state; none if no state was recorded."""
    states = {name.removeprefix(STATE): name for name in episode.infos if name.startswith(STATE)}
    # D4RL and OGBench name these columns without `state/`.
    return states or {name: name for name in _NEEDED if name in episode.infos}


def _mujoco(model: Any, data: Any) -> Simulator:
    import mujoco

    names = [name for name in _MUJOCO if getattr(data, name).size]
    # These arrays are views of the simulator's memory.
    views = {name: getattr(data, name) for name in names}

    def read() -> dict[str, np.ndarray]:
        state = {name: view.copy() for name, view in views.items()}
        state["time"] = np.float64(data.time)
        return state

    def write(state: Mapping[str, np.ndarray]) -> None:
        if "time" in state:
            data.time = float(state["time"])
        for name in names:
            if name in state:
                getattr(data, name)[:] = state[name]
        mujoco.mj_forward(model, data)
        if "qacc_warmstart" in state:  # mj_forward has moved it
            data.qacc_warmstart[:] = state["qacc_warmstart"]

    return Simulator(read, write)


def _attribute(inner: Any) -> Simulator:
    def read() -> dict[str, np.ndarray]:
        values = np.array(inner.state)
        if values.dtype.kind not in "biuf":
            raise SchemaError(
                f"{_name(inner)}: its attribute state holds no numbers; call reset() first, give it "
                "methods get_state() and set_state(array), or leave out state=True."
            )
        return {"state": values}

    return Simulator(read, lambda state: setattr(inner, "state", state["state"].copy()))


def _with_goal(inner: Any, simulator: Simulator) -> Simulator:
    """Return a simulator whose state includes the environment's goal, if that is an array."""

    def read() -> dict[str, np.ndarray]:
        state = simulator.read()
        goal = getattr(inner, "goal", None)
        if isinstance(goal, np.ndarray):
            state["goal"] = goal.copy()
        return state

    def write(state: Mapping[str, np.ndarray]) -> None:
        simulator.write(state)
        if "goal" in state:
            inner.goal = state["goal"].copy()

    space = inner.observation_space
    has_goals = isinstance(space, gymnasium.spaces.Dict) and "desired_goal" in space.spaces
    return Simulator(read, write) if hasattr(inner, "goal") or has_goals else simulator


def row_of(values: Any, row: int) -> Any:
    """Return one row of a column of an episode, which may be made of dicts and tuples of columns."""
    if isinstance(values, dict):
        return {key: row_of(part, row) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(row_of(part, row) for part in values)
    return values[row]


def _name(env: gymnasium.Env[Any, Any]) -> str:
    spec = getattr(env, "spec", None)
    return type(env.unwrapped).__name__ if spec is None else str(spec.id)
