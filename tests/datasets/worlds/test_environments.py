import importlib.metadata

import gymnasium
import pytest

from orlog.datasets.worlds import environments
from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.errors import MissingExtraError, NotFoundError


def test_a_registered_environment_is_made_with_its_arguments():
    with make_environment("CartPole-v1", {"sutton_barto_reward": True}) as env:
        assert env.spec.id == "CartPole-v1"
        env.reset(seed=0)
        assert env.step(0)[1] == 0.0


def test_a_family_is_registered_by_its_package():
    with make_environment("PointMaze_UMaze-v3", {}) as env:
        assert isinstance(env.observation_space, gymnasium.spaces.Dict)


@pytest.mark.parametrize(
    ("environment_id", "arguments", "package", "extra"),
    [
        ("PointMaze_UMaze-v3", {}, "gymnasium_robotics", "mujoco"),
        ("orlog/tag-v0", {}, "mpe2", "agents"),
        ("orlog/metaworld-mt50-v0", {}, "metaworld", "tasks"),
        ("orlog/uncertain-v0", {"environment": "Hopper-v5", "action_delay": 1}, "mujoco", "mujoco"),
    ],
)
def test_a_missing_package_is_an_error_that_says_what_to_install(
    monkeypatch, environment_id, arguments, package, extra
):
    def missing(module):
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(environments, "_import_quietly", missing)
    message = rf'{arguments.get("environment", environment_id)} needs {package}, .*pip install "orlog\[{extra}\]"'
    with pytest.raises(MissingExtraError, match=message) as caught:
        make_environment(environment_id, arguments)
    assert caught.value.install == f"orlog[{extra}]"
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    "environment_id",
    [
        "antigravity:CartPole-v1",
        "os:CartPole-v1",
        "CartPole-v1\n",
        "CartPole",
        "Unknown-v0",
        "PointMaze_Unknown-v3",
        "",
        "../CartPole-v1",
    ],
)
def test_an_id_that_gymnasium_does_not_register_is_refused(environment_id):
    with pytest.raises(NotFoundError, match=r"is not registered with the installed Gymnasium"):
        make_environment(environment_id, {})


def test_an_id_that_names_a_module_is_refused_without_importing_it(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "orlog_test_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(NotFoundError):
        make_environment("orlog_test_module:CartPole-v1", {})


def test_versions_are_those_of_the_packages_that_decide():
    versions = environment_versions("PointMaze_UMaze-v3")
    assert list(versions) == ["gymnasium", "gymnasium-robotics", "mujoco", "numpy"]
    assert versions["mujoco"] == importlib.metadata.version("mujoco")
    assert list(environment_versions("CartPole-v1")) == ["gymnasium", "numpy"]
