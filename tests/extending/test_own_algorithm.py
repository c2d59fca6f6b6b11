"""The page about an algorithm of one's own: its example trains, and broken files are explained."""

import contextlib
import functools
import importlib.util
import json
import random
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import orlog
from orlog.algos.algorithms import anywhere, find_algorithm
from orlog.algos.bc import BC
from orlog.algos.networks import Scaling
from orlog.algos.training.runs import TrainOptions
from orlog.errors import StoppedError
from orlog.runs.jobs import make_jobs, run_jobs
from orlog.runs.running import seed_folders, train_seeds
from tests.command_line import orlog as command
from tests.training import train_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-own-algorithm.md").read_text("utf-8")
SCALING = Scaling(obs_mean=torch.zeros(3), obs_std=torch.ones(3), action_low=-torch.ones(2), action_high=torch.ones(2))


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Return the current folder, which holds the example and nothing else."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(ROOT / "examples" / "cocoa.py", folder)
    monkeypatch.chdir(folder)
    present = set(sys.modules)
    yield folder
    for name in set(sys.modules) - present:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def cocoa(empty):
    """Return the example as a module."""
    spec = importlib.util.spec_from_file_location("cocoa", empty / "cocoa.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cocoa"] = module
    spec.loader.exec_module(module)
    return module


def test_the_code_of_the_page_is_the_example():
    spec = importlib.util.spec_from_file_location("write", ROOT / "docs" / "write_examples.py")
    assert spec is not None
    assert spec.loader is not None
    write = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write)
    for page in write.PAGES:
        assert write.page_with_code(page) == page.read_text("utf-8"), "run: make docs"


@pytest.mark.slow
def test_the_commands_of_the_page_train_and_score_it(mini, empty):
    assert mini.folder.is_dir()
    lines = [line for line in PAGE.splitlines() if line.startswith("orlog ")]
    assert [line.split()[1] for line in lines] == ["build", "train", "evaluate"]
    found = {line.split()[1]: command(*line.split()[1:]) for line in lines[1:]}
    assert found["train"].returncode == 0, found["train"].stderr
    assert found["evaluate"].returncode == 0, found["evaluate"].stderr
    assert ": score " in found["evaluate"].stdout
    # What the command says next is a command that works.
    said = re.search(r"run: orlog (evaluate .*)", found["train"].stdout)
    assert said is not None
    assert command(*said[1].split(), "--episodes", "1").returncode == 0
    assert (empty / "runs/COCOA/pointmaze/umaze-mini-v1/seed-0/run.json").is_file()


SMALL = {
    "hidden": [8, 8],
    "model_hidden": [8],
    "anchor_hidden": [8],
    "embedding": 2,
    "sampled_actions": 2,
    "batch_size": 16,
    "model_steps": 3,
    "anchor_steps": 3,
    "cloning_steps": 0,
}


@pytest.mark.slow
def test_a_run_that_stopped_in_any_phase_goes_on_to_the_bit(cocoa, mini, tmp_path):
    options = {"seed": 0, "steps": 9, "settings": SMALL, "evaluations": 0}
    train_run(cocoa.COCOA, mini, tmp_path / "whole", **options)
    for stop in (2, 5, 8):
        folder, calls = tmp_path / str(stop), iter([False] * (stop - 1) + [True] * 99)
        with pytest.raises(StoppedError):
            train_run(cocoa.COCOA, mini, folder, **options, stop=functools.partial(next, calls))
        train_run(cocoa.COCOA, mini, folder, **options, resume=True)
        expected, found = (load_file(one / "checkpoint.safetensors") for one in (tmp_path / "whole", folder))
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


BROKEN = {
    "a class that is not there": (
        lambda text: text.replace("class COCOA(CQL)", "class Cocoa(CQL)"),
        r"has no class COCOA; it has COCOAConfig, Anchors, Transductive, Policy, Critics, Cocoa\.",
    ),
    "an error of syntax": (
        lambda text: text.replace("def away(self,", "def away(self"),
        r"cocoa\.py, line \d+: .*; correct the file\.",
    ),
    "an import that fails": (
        lambda text: text.replace("import torch\n", "import torchh\n", 1),
        r"cocoa\.py, line \d+: ModuleNotFoundError: No module named 'torchh'; correct the file\.",
    ),
    "a name that is not defined": (
        lambda text: text.replace("class Anchors(nn.Module)", "class Anchors(nn.Thing)"),
        r"cocoa\.py, line \d+: AttributeError: .*'Thing'.*; correct the file\.",
    ),
    "declarations that are missing": (
        lambda text: text.replace("class COCOA(CQL):", "class COCOA:"),
        r"COCOA does not declare OBSERVATIONS, ACTIONS, loader, act; see",
    ),
    "another constructor": (
        lambda text: text.replace("scaling: Scaling, *, seed: int,", "scaling: Scaling, *,"),
        r"COCOA\.__init__ cannot be called with \(config, scaling, seed=, device=\): got .* 'seed'; see",
    ),
    "another update": (
        lambda text: text.replace("def update(self, batch: Batch)", "def update(self)"),
        r"COCOA\.update cannot be called with \(batch\): too many positional arguments; see",
    ),
    "an error in an update": (
        lambda text: re.sub(r"(def update\(.*\n)", r"\1        1 / 0\n", text),
        r"cocoa\.py, line \d+: ZeroDivisionError: division by zero; correct the file\.",
    ),
    "settings that are no dataclass": (
        lambda text: text.replace("CONFIG = COCOAConfig", "CONFIG = dict"),
        r"COCOA\.CONFIG must be a msgspec\.Struct, found dict; see",
    ),
    "an attribute that no checkpoint would save": (
        lambda text: text.replace("self.prepared = 0", "self.prepared, self.find = 0, find"),
        r"COCOA\.find: checkpoints cannot save a method; name it in COCOA\.CONSTANTS",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_explained_in_one_line(what, mini, empty):
    assert mini.folder.is_dir()
    change, words = BROKEN[what]
    text = (empty / "cocoa.py").read_text("utf-8")
    changed = change(text)
    assert changed != text
    (empty / "cocoa.py").write_text(changed, "utf-8")
    found = command("train", "./cocoa.py:COCOA", mini.name, "--steps", "1", "--evaluations", "0")
    assert found.returncode == 1
    (line,) = found.stderr.strip().splitlines()[-1:]
    assert line.startswith("error: ")
    assert re.search(words, line), line
    assert "Traceback" not in found.stderr
    assert (empty / "runs").exists() == (what == "an error in an update")


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("./cocoa.py", ValueError, "names no class; add :CLASS, one of: COCOAConfig"),
        ("none.py", ValueError, r"none\.py: no such file"),
        ("./none.py:Method", ValueError, "no such file"),
        ("no_such_module:Method", ValueError, "No module named 'no_such_module'"),
        ("orlog.algos.bc:cloning_loss", TypeError, "must be a class, found function"),
    ],
)
def test_what_names_no_class_is_answered_without_running_a_file(name, error, words):
    with pytest.raises(error, match=words):
        find_algorithm(name)
    assert "cocoa" not in sys.modules


RAW = """
import random

import msgspec
import numpy as np
import torch
from torch import nn


class RawConfig(msgspec.Struct, frozen=True, kw_only=True):
    batch_size: int = 8


class Raw:
    CONFIG = RawConfig
    OBSERVATIONS, ACTIONS = ("vector",), ("continuous",)

    @staticmethod
    def loader(config):
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size}

    def __init__(self, config, scaling, *, seed, device="cpu"):
        self.config = config
        self.policy = nn.Linear(len(scaling.obs_mean), len(scaling.action_low))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), 1e-3 * random.uniform(1, 2))

    def update(self, batch):
        noise = torch.randn(batch.actions.shape) + np.random.normal() + random.random()
        loss = (self.policy(batch.observations) - batch.actions - noise).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}

    def act(self, observations):
        actions = self.policy(observations)
        return (actions + torch.randn(actions.shape)).clamp(-1, 1)


class Elsewhere(Raw):
    def __init__(self, config, scaling, *, seed, device="cpu"):
        super().__init__(config, scaling, seed=seed, device=device)
        self.chosen = float(np.random.default_rng().normal())
"""


def global_states():
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002 (the global one is meant)
    return f"{torch.get_rng_state().tolist()} {numbers} {random.getstate()}"


def test_a_class_that_seeds_nothing_gives_equal_checkpoints(mini, empty):
    (empty / "my_method.py").write_text(RAW, "utf-8")
    words = ["train", "my_method.py:Raw", mini.name, "--seed", "0", "--steps", "12"]
    words += ["--curve-episodes", "1"]
    before = global_states()
    saved = []
    for out, evaluations in (("one", "2"), ("two", "2"), ("three", "0")):
        found = command(*words, "--evaluations", evaluations, "--out", out)
        assert found.returncode == 0, found.stderr
        assert "differs" not in found.stderr
        random.random()
        torch.rand(1)
        saved.append(load_file(f"{out}/checkpoint.safetensors"))
    assert Path("one/checkpoint.safetensors").read_bytes() == Path("two/checkpoint.safetensors").read_bytes()
    for name, value in saved[0].items():  # evaluations draw from a stream of their own
        np.testing.assert_array_equal(saved[2][name], value, err_msg=name)
    returns = []
    for out in ("one", "two"):
        of_own = ["--algorithm", "my_method.py:Raw", "--episodes", "2", "--json"]
        returns.append(json.loads(command("evaluate", out, *of_own).stdout)["returns"])
    assert returns[0] == returns[1]
    assert before != global_states()  # as drawn above, and not as seeded


def test_a_stopped_run_of_a_class_that_seeds_nothing_goes_on_to_the_bit(mini, empty):
    (empty / "my_method.py").write_text(RAW, "utf-8")
    raw = find_algorithm("my_method.py:Raw")
    options = {"seed": 0, "steps": 12, "evaluations": 2, "curve_episodes": 1}
    before = global_states()
    train_run(raw, mini, "whole", **options)
    for stop in (3, 11):
        calls = iter([False] * (stop - 1) + [True] * 99)
        with pytest.raises(StoppedError):
            train_run(raw, mini, f"cut-{stop}", **options, stop=functools.partial(next, calls))
        train_run(raw, mini, f"cut-{stop}", **options, resume=True)
        whole, cut = (Path(one) / "checkpoint.safetensors" for one in ("whole", f"cut-{stop}"))
        assert whole.read_bytes() == cut.read_bytes()
    assert global_states() == before
    resumed = command("train", "--resume", "whole")
    assert resumed.returncode != 0  # code that a record names is not run
    assert "my_method.py:Raw" in resumed.stderr
    assert command("train", "--resume", "my_method.py:Raw", "whole").returncode == 0


def test_other_processes_are_told_where_a_file_is(empty):
    (empty / "my_method.py").write_text(RAW, "utf-8")
    whole = f"{empty}/my_method.py:Raw"
    assert anywhere("my_method.py:Raw") == anywhere(f"../{empty.name}/my_method.py:Raw") == whole
    assert [anywhere(one) for one in ("iql", "module:Raw", whole)] == ["iql", "module:Raw", whole]
    raw = find_algorithm("my_method.py:Raw")
    assert anywhere(raw) == whole
    assert anywhere(BC) is BC


def test_jobs_in_other_folders_find_the_file_and_the_folder_of_the_run(mini, empty):
    (empty / "my_method.py").write_text(RAW, "utf-8")
    other = empty / "other"
    other.mkdir()

    def execute(function, jobs, **_):
        for index, job in enumerate(jobs):
            sys.modules.pop("my_method", None)
            with contextlib.chdir(other):
                found = function(job)
            yield index, found

    options = TrainOptions(steps=2, evaluations=0)
    folders = seed_folders("my_method.py:Raw", mini, [0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orlog.runs.running.find_executor", lambda _: execute)
        ends = train_seeds("my_method.py:Raw", mini, folders, options, processes=1)
    assert ends[0].state == "finished"
    jobs = make_jobs("my_method.py:Raw", mini, "jobs", seeds=[0], episodes=1, options=options)
    run_jobs(jobs, workers=1, executor=execute)
    assert all((one / "run.json").is_file() for one in (folders[0], jobs[0].folder))
    assert not [*other.iterdir()]


def test_a_class_that_draws_elsewhere_is_named(mini, empty):
    (empty / "my_method.py").write_text(RAW, "utf-8")
    with pytest.warns(UserWarning, match="chosen differs"):
        orlog.train("my_method.py:Elsewhere", mini, out="one", steps=1, evaluations=0)
