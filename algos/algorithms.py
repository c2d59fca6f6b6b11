"""What the class of an algorithm declares, and how to find it: by name, by file or as the class.

Each algorithm in this folder is a file named after it: `iql.py` with a class `IQL`, `td3_bc.py` with a class `TD3BC`.
It needs no registration, and is imported on first use. An algorithm from elsewhere is named by module and class,
`my_method.py:MyMethod`, or passed as the class itself.

A method has one name for all spaces. A form of it for others is a class of the same file or of a file of its own
(`FORMS`): `cql_discrete.py` with a class `CQLDiscrete` for discrete actions, `bc_text.py` with `BCText` for texts.
The spaces of a dataset choose between them and `cql.py`, and records of runs hold the name `cql`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, overload

import msgspec

from orlog.base.files import absolute_path
from orlog.errors import AlgorithmError, OrlogError, SchemaError
from orlog.manifests.names import did_you_mean, squeezed

if TYPE_CHECKING:
    import gymnasium
    from jaxtyping import Bool, Float32
    from torch import Tensor

    from orlog.algos.networks import Scaling

AlgorithmLike: TypeAlias = str | type[Any]
"""A name (`iql`), a module or file with a class (`my_method.py:MyMethod`), or the class itself."""


class Actor(Protocol):
    """Acts in several environments side by side and remembers their episodes.

    An algorithm whose actions depend on earlier steps of an episode has a method
    `actor(environments: int) -> Actor`, which returns a fresh one that acts with the algorithm's
    present weights. Each evaluation starts with a fresh one, so noise that it draws should come from
    a generator of its own with a fixed seed.
    """

    def begin(self, which: Bool[Tensor, " environments"]) -> None:
        """Forget the episodes of these environments: new ones begin with the next observations."""

    def act(self, *observations: Any) -> Float32[Tensor, "environments act"]:
        """Return the actions; observations, after them goals if there are any, and actions are unscaled, as in batches."""

    def reward(self, rewards: Float32[Tensor, " environments"]) -> None:
        """Take note of the rewards of the last actions, in the unit that they have in batches."""

    # One that looks at infos also has `notice(infos)`, which is given the infos of the last steps before
    # `reward`: those that its loader asks for, by the same names, float32 `[environments, ...]`.


class Algorithm(Protocol):
    """The interface of an algorithm; one with memory also has `actor` (see `Actor`).

    Attributes:
        CONFIG: Frozen `msgspec.Struct` of its settings, with the range of each (`orlog.algos.settings`); `steps` and
            `seed`, where it has them, are those of the run.
        OBSERVATIONS: Kinds of observations that it takes, out of those in `training/policy.py`.
        ACTIONS: Kinds of actions that it takes, out of those in `training/policy.py`.
        REWARDS: Optional; False for one that learns without rewards, which is then given data whose
            rewards are all 0. Those for goals are given them too.
        CONSTANTS: May be left out if they are `config` and `scaling`. Attributes that its arguments determine;
            checkpoints save all others.
        TITLE: How people write its name; may be left out if it is that of the class.
        TITLE_WITH: May be left out. A setting, and how people write its name where that is not None.
        TITLE_BY: May be left out. A setting that is a number, and how people write its name with that number.
        FROM_DATA: May be left out. Settings that, where they are None, are taken from the data: those
            that `training/policy.py` knows, or a mapping with a `Source` for each.

        REPLAYS: May be left out. Whether a GPU may record the operations of an update once and repeat them
            (`repeated_updates.py`), which is several times as fast: orlog's may, but for those that say
            False, and yours may where it says True. Then nothing in `update` waits for a number, an
            attribute `step`, if there is one, counts the updates, `phase()` returns what else decides
            which operations come next, and `set_rates()` sets rates of `orlog.algos.optimizers.Adam`
            that change; both may be left out.

    One that learns from several agents at once says so with `AGENTS = True` (`training/agents.py`).

    One that reaches goals says so with `GOALS = True`. Then its observations are states, and it acts
    with `act(observations, goals)` (`orlog.loaders.goals`).
    """

    CONFIG: ClassVar[type[Any]]
    OBSERVATIONS: ClassVar[tuple[str, ...]]
    ACTIONS: ClassVar[tuple[str, ...]]

    @staticmethod
    def loader(config: Any) -> tuple[str, dict[str, Any]]:
        """Return the function that makes its batches, as `module:function`, and its arguments.

        It is called as `function(arrays, seed=.., start=.., **arguments)`, as the loaders are.
        """

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch."""

    def act(self, observations: Any) -> Float32[Tensor, "batch act"]:
        """Return the actions to evaluate; observations and actions are unscaled, as in batches."""

    # One that can be fine-tuned in an environment also has `explore(observations, generator)`, which
    # returns actions as `act` does, random ones drawn by the given generator. One that learns from chunks of
    # actions returns whole ones, `[batch, length, act]`, which are acted out. How its authors fine-tune, where that
    # is not half and half, it may say with `FINETUNING`: fields of `training/runs.py`, `OnlineRecord`, by name.
    # One that starts in the environment, such as RLPD, has `ONLINE = True` and settings `prior` and
    # `random_steps` (`training/runs.py`, `OnlineRecord`).


_DECLARED = ("CONFIG", "OBSERVATIONS", "ACTIONS", "loader", "update", "act")


class _Algorithms(Mapping[str, type[Any]]):
    """The algorithms of this folder by name, each in its first form, imported when looked up."""

    def __getitem__(self, name: str) -> type[Any]:
        return _import_form(_files()[name][0])

    def __iter__(self) -> Iterator[str]:
        return iter(_files())

    def __len__(self) -> int:
        return len(_files())

    def __contains__(self, name: object) -> bool:
        return name in _files()


ALGORITHMS: Mapping[str, type[Any]] = _Algorithms()

ACTION_WORDS = {
    "continuous": "a Box",
    "discrete": "a Discrete space",
    "multidiscrete": "a MultiDiscrete or MultiBinary space",
    "text": "a Text space",
}
FORMS = {"discrete": "_discrete", "text": "_text"}
"""How the file of a method's form for a kind of actions ends, if it is not the first form."""

_SEE = "see orlog.algos.algorithms.Algorithm for what an algorithm declares"
_PACKAGE = "orlog.algos"
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_TITLE = re.compile(r'^    TITLE = "(.+)"', re.MULTILINE)
_TITLES = re.compile(r'^    TITLE_(?:WITH|BY) = \("(\w+)", "(.+)"\)', re.MULTILINE)


_Named: TypeAlias = tuple[str, str, dict[str, str], str]
"""A class, its title, its other titles by the setting with which it has them, and its module."""


def _classes() -> dict[str, _Named]:
    """Return how each algorithm of this folder is called by name, in the order of names."""
    folders = map(Path, sys.modules[_PACKAGE].__path__)
    return dict(sorted(item for folder in folders for item in _classes_in(folder, folder.stat().st_mtime_ns).items()))


@functools.cache
def _classes_in(folder: Path, _changed: int) -> dict[str, _Named]:
    """Return how each algorithm of a folder is called, read again once files come or go."""
    classes: dict[str, _Named] = {}
    for path in folder.glob("*.py"):
        text = path.read_text("utf-8")
        for name in _CLASS.findall(text):
            for form in (path.stem, *(path.stem + ending for ending in FORMS.values())):
                if name.lower() == form.replace("_", ""):
                    title = _TITLE.search(text)
                    classes[form] = name, name if title is None else title[1], dict(_TITLES.findall(text)), path.stem
    return classes


def _files() -> dict[str, list[str]]:
    """Return the files of each algorithm of this folder by name: its forms, the first one first."""
    classes = _classes()
    files: dict[str, list[str]] = {}
    for file in classes:
        plain = (file.removesuffix(ending) for ending in FORMS.values() if file.endswith(ending))
        files.setdefault(next((name for name in plain if name in classes), file), []).append(file)
    return files


def _import_form(file: str) -> type[Any]:
    name, _, _, module = _classes()[file]
    kind: type[Any] = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
    return kind


def known_as(algorithm: str) -> str:
    """Return orlog's name of an algorithm in any spelling: `td3bc` of TD3+BC, td3_bc and Td3-BC.

    What names none of orlog's, such as `my_method.py:MyMethod`, is returned as it is.
    """
    if ":" in algorithm or algorithm.endswith(".py") or algorithm in _files():
        return algorithm
    spelled = squeezed(algorithm)
    for name in _files():
        if spelled in (squeezed(name), squeezed(algorithm_title(name))):
            return name
    return algorithm


def algorithm_title(name: str, settings: Mapping[str, Any] | None = None) -> str:
    """Return how people write an algorithm: `TD3+BC` of `td3bc`, `MyMethod` of `my_method:MyMethod`.

    With its settings it may have another name, as `percent_bc` with a `cost_limit` is BC-Safe, and with `percent=25`
    BC-25%.
    """
    if name not in _files():
        return name.rpartition(":")[2]
    _, title, others, _ = _classes()[name]
    for setting, other in others.items():
        value = (settings or {}).get(setting)
        if value is not None and ("{" not in other or isinstance(value, int | float)):
            return other.format(value)
    return title


def find_algorithm(
    algorithm: AlgorithmLike, *, action_space: gymnasium.Space[Any] | None = None, observations: str = ""
) -> type[Any]:
    """Return the class of an algorithm: the form that takes the actions, or the first one.

    Of several that do, it is the first that takes the kind of observations too, if that is given.
    """
    forms = algorithm_forms(algorithm)
    if action_space is None:
        return forms[0]
    kind = action_kind(action_space)
    fitting = [form for form in forms if kind in form.ACTIONS]
    if fitting:
        return next((form for form in fitting if observations in form.OBSERVATIONS), fitting[0])
    takes = " or ".join(ACTION_WORDS[action] for form in forms for action in form.ACTIONS)
    others = [
        name
        for name in ALGORITHMS
        if any(kind in form.ACTIONS and not for_teams(form) for form in algorithm_forms(name))
    ]
    raise SchemaError(
        f"{algorithm_name(algorithm)} takes actions that are {takes}, found {action_space}"
        + (f"; choose one of: {', '.join(others)}." if others else ".")
    )


def algorithm_forms(algorithm: AlgorithmLike) -> list[type[Any]]:
    """Return the classes of an algorithm, one for each of its forms."""
    if not isinstance(algorithm, str):
        forms = [algorithm]
    elif ":" in algorithm:
        forms = [_import_class(algorithm)]
    elif algorithm.endswith(".py"):
        path = Path(algorithm).expanduser()
        if not path.is_file():
            raise ValueError(f"{path}: no such file; give the path of a Python file that holds the algorithm.")
        classes = _CLASS.findall(path.read_text("utf-8", "replace"))  # read, and not imported
        raise ValueError(f"{algorithm} names no class; add :CLASS, one of: {', '.join(classes) or 'it has none'}.")
    else:
        files, name = _files(), known_as(algorithm)
        if name not in files:
            of = next((first for first, others in files.items() if name in others), None)
            if of is not None:
                raise ValueError(
                    f"{name!r} is a form of {of}: name {of}, and the action space of the dataset chooses the form."
                )
            hint = did_you_mean(name, files) or f"; choose one of: {', '.join(files)}."
            raise ValueError(f"no algorithm {name!r}{hint}")
        forms = [_import_form(file) for file in files[name]]
    for form in forms:
        _check_class(algorithm, form)
    return forms


def _check_class(algorithm: AlgorithmLike, kind: Any) -> None:
    if not isinstance(kind, type):
        raise AlgorithmError(f"{algorithm}: an algorithm must be a class, found {type(kind).__name__}.")
    missing = [name for name in _DECLARED if not hasattr(kind, name)]
    if missing:
        raise AlgorithmError(f"{kind.__name__} does not declare {', '.join(missing)}; {_SEE}.")
    config: Any = getattr(kind, "CONFIG")  # noqa: B009 (that it is there was just checked)
    if not (isinstance(config, type) and issubclass(config, msgspec.Struct)):
        text = getattr(config, "__name__", repr(config))
        raise AlgorithmError(f"{kind.__name__}.CONFIG must be a msgspec.Struct, found {text}; {_SEE}.")
    observations = ["observations", "goals"] if takes_goals(kind) else ["observations"]
    for name, arguments, options in (
        ("loader", ["config"], []),
        ("__init__", ["config", "scaling"], ["seed", "device"]),
        ("update", ["batch"], []),
        ("act", observations, []),
    ):
        called = kind if name == "__init__" else getattr(kind, name)
        given = arguments if name in ("loader", "__init__") else ["self", *arguments]
        try:
            inspect.signature(called).bind(*given, **dict.fromkeys(options, 0))
        except TypeError as error:
            shown = ", ".join([*arguments, *(f"{option}=" for option in options)])
            raise AlgorithmError(f"{kind.__name__}.{name} cannot be called with ({shown}): {error}; {_SEE}.") from error


def action_kind(space: gymnasium.Space[Any]) -> str:
    """Return the kind of a space's actions, as algorithms declare it: a key of `ACTION_WORDS`."""
    from gymnasium import spaces

    match space:
        case spaces.Box():
            return "continuous"
        case spaces.Discrete():
            return "discrete"
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            return "multidiscrete"
        case spaces.Text():
            return "text"
        case _:
            return "other"


def form_of(algorithm: str, kind: str) -> str:
    """Return the name of the file of an algorithm's form for a kind of actions; of what has none, its own."""
    form = f"{algorithm}{FORMS.get(kind, '')}"
    return form if form in _files().get(algorithm, ()) else algorithm


def algorithm_name(algorithm: AlgorithmLike) -> str:
    """Return the name of an algorithm in records: `iql`, or `my_method:MyMethod` for others."""
    if isinstance(algorithm, type):
        module, name = algorithm.__module__, algorithm.__qualname__
        if not module.startswith(_PACKAGE):
            return f"{module}:{name}"
        file = module.rpartition(".")[2]
        return next((name for name, files in _files().items() if file in files), file)
    module, colon, name = algorithm.rpartition(":")
    if not colon:
        return known_as(algorithm)
    return f"{Path(module).stem if module.endswith('.py') else module}:{name}"


@overload
def anywhere(algorithm: str) -> str: ...
@overload
def anywhere(algorithm: AlgorithmLike) -> AlgorithmLike: ...
def anywhere(algorithm: AlgorithmLike) -> AlgorithmLike:
    """Return an algorithm as other processes find it, whatever folder they work in: a file by its absolute path.

    A class of a user's file is named by that file too, since others could not import it by its module alone.
    """
    if isinstance(algorithm, str):
        path, colon, name = algorithm.rpartition(":")
        return f"{absolute_path(path)}:{name}" if path.endswith(".py") and colon else algorithm
    file = getattr(sys.modules.get(algorithm.__module__), "__file__", None) or ""
    is_lone = is_own(algorithm) and Path(file).stem == algorithm.__module__ != "__main__"
    if is_lone and "." not in algorithm.__qualname__:
        return f"{Path(file).resolve()}:{algorithm.__qualname__}"
    return algorithm


def is_own(algorithm: type[Any]) -> bool:
    """Return whether an algorithm is one of a user's own, and not part of orlog."""
    return algorithm.__module__.partition(".")[0] != _PACKAGE.partition(".")[0]


def takes_goals(algorithm: type[Any]) -> bool:
    """Return whether an algorithm acts for goals."""
    return bool(getattr(algorithm, "GOALS", False))


def for_teams(algorithm: type[Any]) -> bool:
    """Return whether an algorithm sees several agents at once (`training/agents.py`)."""
    return bool(getattr(algorithm, "AGENTS", False))


def make_algorithm(
    algorithm: AlgorithmLike, config: Any, scaling: Scaling, *, seed: int, device: str = "cpu"
) -> Algorithm:
    """Return a fresh algorithm with networks drawn from `seed`."""
    kind = find_algorithm(algorithm)
    with own_errors(kind):
        made: Algorithm = kind(config, scaling, seed=seed, device=device)
    return made


class own_errors:  # noqa: N801 (a context manager; a generator would cost more than a step may)
    """Say where in the user's file an algorithm that is not orlog's failed.

    orlog's own errors, a lack of memory, and what is raised in orlog's algorithms pass through. An
    AlgorithmError says it.
    """

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, OrlogError | MemoryError):
            return
        if not is_own(self._kind):
            return
        file = getattr(sys.modules.get(self._kind.__module__), "__file__", None)
        if file is not None:
            raise AlgorithmError(_why_failed(Path(file), error)) from error


def _import_class(text: str) -> Any:
    """Return what `module:Class` or `path.py:Class` names."""
    name, _, attribute = text.rpartition(":")
    try:
        module = _import_file(Path(name).expanduser()) if name.endswith(".py") else importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"no algorithm {text!r}: {error}.") from error
    values = vars(module)
    if attribute not in values:
        there = [key for key, kind in values.items() if isinstance(kind, type) and kind.__module__ == module.__name__]
        raise ValueError(
            f"no algorithm {text!r}: {name} has no class {attribute}; it has {', '.join(there) or 'none'}."
        )
    return values[attribute]


def _import_file(path: Path) -> Any:
    """Import a file as the module that it is named after."""
    path = path.resolve()
    present = sys.modules.get(path.stem)
    if present is not None:
        if Path(getattr(present, "__file__", None) or "").resolve() == path:
            return present
        raise ValueError(f"{path}: another module named {path.stem} is imported already; rename the file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"{path}: no such file; give the path of a Python file that holds the algorithm.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # types of settings are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem]
        if not isinstance(error, Exception):
            raise
        raise AlgorithmError(_why_failed(path, error)) from error
    return module


def _why_failed(path: Path, error: Exception) -> str:
    """Return in one line where a file's import, or a method of its class, failed, and why."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    line, reason = lines[-1] if lines else None, f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, reason = error.lineno, error.msg
    place = str(path) if line is None else f"{path}, line {line}"
    return f"{place}: {' '.join(reason.split()).removesuffix('.')}; correct the file."
