"""Arguments of environments that data name reach a simulator with consent only."""

import dataclasses

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.home.consent import note_environment
from orlog.datasets.home.records import Origin, origin_file
from orlog.datasets.home.registries import add_registry
from orlog.errors import NotFoundError, SimulatorError
from orlog.manifests.manifest import EnvironmentRecord
from tests.episodes import record_episodes, whole_episode

ARGUMENTS = {"sutton_barto_reward": True}
KEY = "ed25519:" + "ab" * 32
WRAPPERS = ("GymV21Environment-v0", "GymV26Environment-v0", "dm_control/compatibility-env-v0")


def record(name, env=None):
    """Return one recorded step of CartPole."""
    step = whole_episode(np.zeros((2, 4), np.float32), np.zeros(1, np.int64))
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return record_episodes(name, [step], box, spaces.Discrete(2), environment=env)


def foreign(environment_id, kwargs, name="lab/foreign-v1"):
    """Return a dataset whose manifest names an environment, as one from elsewhere may."""
    dataset = record(name)
    environment = EnvironmentRecord(id=environment_id, kwargs=kwargs, max_episode_steps=None, versions={})
    manifest = msgspec.structs.replace(dataset.manifest, environment=environment)
    (dataset.folder / "manifest.json").write_text(manifest.to_json())
    return orlog.load_dataset(dataset.folder)


@pytest.mark.parametrize(
    ("environment_id", "kwargs"),
    [("CartPole-v1", ARGUMENTS), ("FrozenLake-v1", {"desc": ["S" + "F" * 2999] + ["F" * 3000] * 299})],
)
def test_arguments_from_elsewhere_need_consent(environment_id, kwargs):
    with pytest.raises(SimulatorError, match=r"trust_environment=True"):
        foreign(environment_id, kwargs).recover_environment()


def test_with_consent_or_without_arguments_of_its_own_it_is_made():
    dataset = foreign("CartPole-v1", ARGUMENTS)
    with dataset.recover_environment(trust_environment=True) as env:
        env.reset(seed=0)
        assert env.step(0)[1] == 0.0
    foreign("CartPole-v1", {}, "lab/plain-v1").recover_environment().close()
    registered = dict(gymnasium.registry["FrozenLake-v1"].kwargs)
    foreign("FrozenLake-v1", registered, "lab/lake-v1").recover_environment().close()


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize(
    ("environment_id", "kwargs", "match"),
    [
        *(
            ("HalfCheetah-v5", {"deep": [{"xml_file": path}]}, "deep")
            for path in ("/tmp/evil.xml", "evil.xml", "..\\evil.mjb", "~/evil", "file:evil")
        ),
        *((wrapper, {"env_id": "os"}, wrapper) for wrapper in WRAPPERS),
    ],
)
def test_what_is_never_taken_from_data(environment_id, kwargs, match, monkeypatch, *, trust):
    if environment_id in WRAPPERS and environment_id not in gymnasium.registry:
        spec = dataclasses.replace(gymnasium.registry["CartPole-v1"], id=environment_id)
        monkeypatch.setitem(gymnasium.registry, environment_id, spec)
    with pytest.raises(SimulatorError, match=match):
        foreign(environment_id, kwargs).recover_environment(trust_environment=trust)


@pytest.mark.parametrize(
    "kwargs", [{"no_such_argument": 1}, {"disable_env_checker": True}, {"id": "x"}, {"render_mode": 3}]
)
def test_an_environment_that_cannot_be_made_is_a_typed_error(kwargs):
    with pytest.raises(SimulatorError, match="CartPole-v1"):
        foreign("CartPole-v1", kwargs).recover_environment(trust_environment=True)


def test_what_was_recorded_on_this_machine_or_ships_needs_no_consent(mini, monkeypatch, tmp_path):
    mini.recover_environment().close()
    with gymnasium.make("CartPole-v1", **ARGUMENTS) as env:
        dataset = record("lab/own-v1", env)
    dataset.recover_environment().close()
    view = dataset.filter_episodes("lengths > 0")
    view.recover_environment().close()
    orlog.save_dataset(view, "lab/derived-v1")
    orlog.load_dataset("lab/derived-v1").recover_environment().close()
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "another"))
    elsewhere = orlog.load_dataset(dataset.folder)
    orlog.save_dataset(elsewhere.filter_episodes("lengths > 0"), "lab/derived-v1")
    for other in (elsewhere, orlog.load_dataset("lab/derived-v1")):
        with pytest.raises(SimulatorError):
            other.recover_environment()


def test_a_signer_of_a_registry_of_this_machine_is_trusted():
    dataset = foreign("CartPole-v1", ARGUMENTS)
    origin = Origin(
        origin_version=1, digest=dataset.digest, mirrors=["https://example.org"], registry="lab", signed_by=KEY
    )
    origin_file(dataset.folder).write_bytes(msgspec.json.encode(origin))
    with pytest.raises(SimulatorError):
        dataset.recover_environment()
    add_registry("lab", "https://example.org", keys=[KEY])
    dataset.recover_environment().close()
    other = msgspec.structs.replace(origin, digest="sha256:" + "0" * 64)
    origin_file(dataset.folder).write_bytes(msgspec.json.encode(other))
    with pytest.raises(SimulatorError):
        dataset.recover_environment()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"environment": "CartPole-v1", "action_delay": 7, "sticky_actions": 0.25}, ""),
        ({"environment": "orlog/Hazard-v0", "action_delay": 7}, ""),
        ({"environment": "CartPole-v1", "arguments": ARGUMENTS}, "CartPole-v1 has arguments from"),
        ({"environment": "CartPole-v1", "action_delay": [1]}, "uncertain-v0 has arguments from"),
        ({"environment": ["CartPole-v1"]}, "uncertain-v0 has arguments from"),
        ({"environment": "GymV26Environment-v0"}, "wraps environments of other libraries"),
        ({"environment": "os.path:Env-v0"}, "is not registered"),
        ({"environment": "orlog/uncertain-v0", "arguments": {"environment": "CartPole-v1"}}, "looks like a path"),
        ({"environment": "CartPole-v1", "action_delay": 10**12}, "at most 10,000"),
    ],
)
def test_the_world_behind_uncertainty_needs_consent_and_its_numbers_do_not(kwargs, message):
    dataset = foreign("orlog/uncertain-v0", kwargs)
    if message:
        with pytest.raises((NotFoundError, SimulatorError), match=message):
            dataset.recover_environment()
    else:
        with dataset.recover_environment() as env:
            env.reset(seed=0)


def test_other_arguments_than_the_noted_ones_need_consent():
    dataset = foreign("CartPole-v1", ARGUMENTS)
    note_environment(msgspec.structs.replace(dataset.environment, kwargs={"sutton_barto_reward": False}))
    with pytest.raises(SimulatorError):
        dataset.recover_environment()
    note_environment(dataset.environment)
    dataset.recover_environment().close()
