"""Environments that a module of the user's registers: named by `--import`, never by data."""

import json
import os
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.worlds.environments import import_modules
from orlog.errors import MissingExtraError, NotFoundError, SimulatorError
from tests.command_line import orlog as command
from tests.first_lines import ENVIRONMENT
from tests.programs import run_program

ROWS = 40


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return the current folder, with a module and data of its environment."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("ORLOG_IMPORT", raising=False)
    monkeypatch.setenv("ORLOG_IMPORT", "")
    monkeypatch.chdir(tmp_path)
    for name in [one for one in sys.modules if one == "my_envs"]:
        monkeypatch.delitem(sys.modules, name)
    gymnasium.registry.pop("lab/Grid-v0", None)
    (tmp_path / "my_envs.py").write_text(ENVIRONMENT)
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz",
        observations=rng.uniform(-1, 1, (ROWS, 3)),
        actions=rng.uniform(-2, 2, (ROWS, 1)),
        rewards=rng.normal(size=ROWS),
        terminals=np.zeros(ROWS, bool),
        timeouts=np.arange(ROWS) % 5 == 4,
    )
    return tmp_path


def forget():
    """Forget the module, as a process that never imported it."""
    del sys.modules["my_envs"], os.environ["ORLOG_IMPORT"], gymnasium.registry["lab/Grid-v0"]


def run(folder, *words):
    """Run a command in a process of its own, where nothing is registered yet."""
    environment = {name: text for name, text in os.environ.items() if name != "ORLOG_IMPORT"}
    return run_program([sys.executable, "-m", "orlog.cli", *words], cwd=folder, env=environment | {"COLUMNS": "200"})


@pytest.mark.slow
def test_the_first_lines_work_as_written_and_in_worker_processes(here):
    given = ("import", "data.npz", "lab/grid-v1", "--environment", "lab/Grid-v0")
    assert command(*given).returncode == 1  # nothing is registered here
    made = command(*given, "--import", "my_envs")
    assert made.returncode == 0, made.stderr
    forget()
    words = ("train", "iql", "lab/grid-v1", "--seeds", "2", "--steps", "4", "--set", "hidden=4,4")
    without = command(*words)
    assert without.returncode == 1
    assert without.stderr.count("is not registered") == 1  # and not once a seed
    assert "if you name it: --import my_envs" in without.stderr
    assert not (here / "runs").exists()
    trained = run(here, *words, "--import", "my_envs.py", "--evaluations", "1")
    assert trained.returncode == 0, trained.stderr
    without = command("evaluate", "runs/iql/lab/grid-v1", "--episodes", "2")
    assert without.returncode == 1
    assert "my_envs" in without.stderr
    found = command("evaluate", "runs/iql/lab/grid-v1", "--import", "my_envs", "--episodes", "2", "--json")
    assert found.returncode == 0, found.stderr
    assert [one["seed"] for one in json.loads(found.stdout)["runs"]] == [0, 1]


def test_the_module_is_recorded_beside_the_id_and_never_imported_for_that(here):
    import_modules(["my_envs"])
    folder = orlog.import_dataset("data.npz", "lab/grid-v1", environment="lab/Grid-v0")
    body = json.loads((folder / "manifest.json").read_text())
    assert body["environment"]["module"] == "my_envs"
    forget()
    with pytest.raises(NotFoundError, match="recorded with the module 'my_envs'"):
        orlog.load_dataset(folder).recover_environment()
    assert "my_envs" not in sys.modules
    (here / "my_envs.py").unlink()


def test_an_export_takes_the_module_of_the_environment_that_it_writes(here):
    import_modules(["my_envs"])
    orlog.import_dataset("data.npz", "lab/grid-v1", environment="lab/Grid-v0")
    forget()
    words = ("export", "lab/grid-v1", "minari", "out")
    refused = command(*words)
    assert refused.returncode == 1
    assert "lab/Grid-v0 is left out, since it is not registered here" in refused.stderr
    done = command(*words, "--import", "my_envs")
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = here.glob("out/**/metadata.json")
    spec = gymnasium.envs.registration.EnvSpec.from_json(json.loads(path.read_text())["env_spec"])
    assert (spec.id, str(spec.entry_point).partition(":")[0]) == ("lab/Grid-v0", "my_envs")
    gymnasium.make(spec).reset()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("raise OSError('no robot')", SimulatorError, "OSError: no robot"),
        ("import not_there", SimulatorError, "not_there"),
        ("x = (", SimulatorError, "SyntaxError"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_module_that_fails_says_why(text, kind, message):
    Path("bad_envs.py").write_text(text)
    with pytest.raises(kind, match=message):
        import_modules(["bad_envs"])
    with pytest.raises(NotFoundError, match="no_such"):
        import_modules(["no_such"])


def test_one_message_names_all_that_a_download_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r'"orlog\[formats,mujoco\]"') as caught:
        orlog.download_dataset("d4rl/hopper-medium-v2")
    assert caught.value.install == "orlog[formats,mujoco]"


def test_commands_of_a_run_name_the_modules_that_it_imported(here):
    import_modules(["my_envs"])
    data = orlog.import_dataset(here / "data.npz", "lab/grid-v1", environment="lab/Grid-v0")
    run = orlog.train("bc", data, out="runs/a", steps=2, evaluations=1)
    assert run.folder.name == "a"
    again = command("runs", "runs/a", "--command").stdout
    assert f"--import {here / 'my_envs.py'}" in " ".join(again.split())
