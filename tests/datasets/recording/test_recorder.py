"""`orlog.record`: an environment that is stepped as usual becomes a dataset."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.recording import recorder
from orlog.errors import NotFoundError, SchemaError, StorageError, VersionExistsError
from tests.episodes import record_episodes, whole_episode

NAME = "lab/poles-v1"


def run(env, episodes, first=0):
    """Step an environment as usual; return what it gave."""
    given = []
    for seed in range(first, first + episodes):
        env.action_space.seed(seed)
        observation, _ = env.reset(seed=seed)
        seen = {"observations": [observation], "actions": [], "rewards": []}
        seen |= {"terminations": [], "truncations": [], "infos": []}
        while True:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            for name, value in zip(
                ("observations", "actions", "rewards", "terminations", "truncations", "infos"),
                (observation, action, reward, terminated, truncated, info),
                strict=True,
            ):
                seen[name].append(value)
            if terminated or truncated:
                break
        given.append(seen)
    return given


def check(ds, given):
    """Check that a dataset holds exactly what the environment gave."""
    assert len(ds) == len(given)
    for episode, seen in zip(ds, given, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            found = getattr(episode, name)
            if isinstance(found, dict):
                for key, values in found.items():
                    np.testing.assert_array_equal(values, [one[key] for one in seen[name]])
            else:
                np.testing.assert_array_equal(found, seen[name])


def test_the_lines_of_a_user():
    env = orlog.record(gymnasium.make("CartPole-v1"), NAME)
    given = run(env, 3)
    env.close()
    ds = orlog.load_dataset(NAME)
    check(ds, given)
    assert [episode.seed for episode in ds] == [0, 1, 2]
    assert len(ds[0].observations) == len(ds[0]) + 1
    assert ds.environment is not None
    assert ds.environment.id == "CartPole-v1"
    assert orlog.verify_store(ds.folder)[1] == []


@pytest.mark.parametrize("environment", ["Pendulum-v1", "CartPole-v1"])
@pytest.mark.parametrize("steps", [1, 7, 1024])
def test_blocks_of_steps_give_the_same_version(steps, environment, monkeypatch):
    monkeypatch.setattr(recorder, "BLOCK_STEPS", steps)
    held = []

    def add_steps(self, **columns):
        held.append(len(columns["rewards"]))
        write(self, **columns)

    write = orlog.DatasetWriter.add_steps
    monkeypatch.setattr(orlog.DatasetWriter, "add_steps", add_steps)
    with orlog.record(gymnasium.make(environment, max_episode_steps=21), "lab/a-v1") as env:
        given = run(env, 2)
    check(orlog.load_dataset("lab/a-v1"), given)
    blocks = (len(given[0]["actions"]) - 1) // steps
    assert held[:blocks] == [steps] * blocks


class Toy(gymnasium.Env[Any, Any]):
    """Observations of all kinds, which it changes in place; it ends after a few steps."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "text": spaces.Text(8, min_length=0),
            "pair": spaces.Tuple([spaces.Discrete(5), spaces.MultiBinary(3)]),
            "inner": spaces.Dict({"position": spaces.Box(-9, 9, (2,), np.float64)}),
        }
    )
    action_space = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "key": spaces.Discrete(3)})

    def __init__(self, length=5):
        self.length = length
        self.image = np.zeros((4, 4, 3), np.uint8)
        self.position = np.zeros(2)

    def observation(self):
        self.image += 1
        self.position += 0.5
        return {
            "image": self.image,
            "text": "x" * self.steps,
            "pair": (self.steps % 5, np.array([1, 0, self.steps % 2], np.int8)),
            "inner": {"position": self.position},
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.image[:] = self.position[:] = 0
        self.options = options
        return self.observation(), {}

    def step(self, _):
        self.steps += 1
        info = {"level": self.steps, "note": "n" * self.steps, "place": self.position}
        info |= {"late": 1.0} if self.steps > 2 else {}
        return self.observation(), 1.0, False, self.steps == self.length, info


ACTION = {"move": np.array([0.5, -0.5], np.float32), "key": 2}


def test_observations_that_the_environment_changes_in_place_are_copied():
    with orlog.record(Toy(), NAME, infos=["level", "note", "place"]) as env:
        env.reset(seed=3, options={"cell": np.array([1, 2]), "mode": "easy"})
        for _ in range(5):
            env.step(ACTION)
        env.reset()
        env.step(ACTION)
    ds = orlog.load_dataset(NAME)
    whole, stopped = ds[0], ds[1]
    assert whole.observations["image"][:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert whole.observations["inner"]["position"][:, 1].tolist() == [0.5, 1, 1.5, 2, 2.5, 3]
    assert whole.observations["text"][3] == "xxx"
    assert whole.observations["pair"][0].tolist() == [0, 1, 2, 3, 4, 0]
    assert whole.actions["key"].tolist() == [2] * 5
    assert whole.infos["level"].tolist() == [1, 2, 3, 4, 5]
    assert whole.infos["note"] == ["n" * step for step in range(1, 6)]
    assert whole.infos["place"][:, 0].tolist() == [1, 1.5, 2, 2.5, 3]
    assert whole.seed == 3
    assert whole.metadata["options"] == ('{"cell": {"__array__": [1, 2], "dtype": "int64"}, "mode": "easy"}')
    assert stopped.seed is None
    assert stopped.metadata["options"] == ""
    assert len(stopped) == 1
    assert not stopped.terminations.any() | stopped.truncations.any()


def test_log_probabilities_come_with_the_actions():
    with orlog.record(gymnasium.make("CartPole-v1"), NAME, action_log_probs=True) as env:
        env.reset(seed=0)
        for number in range(4):
            env.step(number % 2, action_log_prob=-0.5 * number)
        with pytest.raises(SchemaError, match=r"episode 0, step 4: step needs action_log_prob"):
            env.step(1)
    assert orlog.load_dataset(NAME)[0].infos["action_log_probs"].tolist() == [0, -0.5, -1, -1.5]


def test_what_does_not_fit_is_refused_before_the_step_and_nothing_is_lost():
    with orlog.record(gymnasium.make("Pendulum-v1"), NAME) as env:
        with pytest.raises(SchemaError, match=r"no episode is running; call reset\(\) first"):
            env.step(np.zeros(1, np.float32))
        env.reset(seed=0)
        env.step(np.zeros(1, np.float32))
        with pytest.raises(SchemaError, match=r"step 1: the action does not fit .*float64"):
            env.step(np.zeros(1))
        env.step(np.zeros(1, np.float32))
        with pytest.raises(SchemaError, match="options of reset cannot be kept as JSON"):
            env.reset(options={"f": print})
    assert [len(episode) for episode in orlog.load_dataset(NAME)] == [2]


def test_an_error_in_a_step_ends_the_episode_before_it():
    class Failing(Toy):
        def step(self, action):
            if self.steps == 2:
                raise KeyboardInterrupt
            return super().step(action)

    env = orlog.record(Failing(), NAME)
    env.reset()
    env.step(ACTION)
    env.step(ACTION)
    with pytest.raises(KeyboardInterrupt):
        env.step(ACTION)
    with pytest.raises(SchemaError, match="no episode is running"):
        env.step(ACTION)
    env.close()
    assert [len(episode) for episode in orlog.load_dataset(NAME)] == [2]


class Plain(gymnasium.Env[Any, Any]):
    """Its observation, which it changes in place, is every second number of an array."""

    observation_space = spaces.Box(-99, 99, (3,), np.float64)
    action_space = spaces.Box(-99, 99, (2,), np.float32)

    def __init__(self):
        self.numbers = np.zeros(6)

    def reset(self, **_):
        self.numbers[:] = 0
        return self.numbers[::2], {}

    def step(self, action):
        if self.numbers[0] == 3:
            raise KeyboardInterrupt
        self.numbers += 1
        action[:] = 0
        return self.numbers[::2], 1.0, False, False, {}


def test_a_recording_that_stopped_goes_on():
    given = []

    def stop_in_the_middle():
        with orlog.record(gymnasium.make("CartPole-v1"), NAME) as env:
            given.extend(run(env, 3))
            env.reset(seed=3)
            env.step(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stop_in_the_middle()
    with pytest.raises(StorageError, match=r"3 episodes acknowledged; resume=True continues it"):
        orlog.record(gymnasium.make("CartPole-v1"), NAME)
    with pytest.raises(NotFoundError, match=r"is not finished: .*resume=True"):
        orlog.load_dataset(NAME)
    with orlog.record(gymnasium.make("CartPole-v1"), NAME, resume=True) as env:
        assert env.writer.total_episodes == 3
        given += run(env, 2, first=3)
    check(orlog.load_dataset(NAME), given)


def test_recording_under_a_name_that_exists():
    with orlog.record(gymnasium.make("CartPole-v1"), NAME) as env:
        given = run(env, 2)
    with pytest.raises(VersionExistsError, match=r"version=.*append=True"):
        orlog.record(gymnasium.make("CartPole-v1"), NAME)
    with orlog.record(gymnasium.make("CartPole-v1"), NAME, append=True) as env:
        given += run(env, 1, first=2)
    ds = orlog.load_dataset(NAME)
    assert ds.version == "1.1.0"
    check(ds, given)
    with pytest.raises(SchemaError, match="same observation_space"):
        orlog.record(gymnasium.make("Pendulum-v1"), NAME, append=True)
    with pytest.raises(SchemaError, match="same state"):
        orlog.record(gymnasium.make("CartPole-v1"), NAME, append=True, state=True)
    with orlog.record(gymnasium.make("CartPole-v1"), NAME, version="2.0.0") as env:
        run(env, 1)
    assert len(orlog.load_dataset(NAME)) == 1


def test_nothing_is_written_without_a_step():
    with orlog.record(gymnasium.make("CartPole-v1"), NAME) as env:
        env.reset()
    with pytest.raises(NotFoundError):
        orlog.load_dataset(NAME)


class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives something else than its environment in the fourth step; infos have `heat` before it."""

    def __init__(self, environment, **wrong):
        super().__init__(gymnasium.make(environment, max_episode_steps=9))
        self.wrong, self.steps = wrong, 0

    def step(self, action):
        self.steps += 1
        names = "observation", "reward", "terminated", "truncated", "info"
        result = dict(zip(names, self.env.step(action), strict=True))
        result["info"] = {"heat": 1.0}
        return tuple((result | self.wrong if self.steps == 4 else result).values())


def record_broken(said, environment, wrong, **options):
    """Check that the fourth step is refused, and that those before it are recorded without an end."""
    env = orlog.record(Broken(environment, **wrong), "lab/broken-v1", **options)
    env.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
    with pytest.raises(SchemaError, match=f"episode 0, step 3: {said}"):
        env.step(env.action_space.sample())
    env.close()
    (episode,) = orlog.load_dataset("lab/broken-v1")
    assert len(episode) in (3, 4)
    assert not episode.terminations.any()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"terminated": np.nan}, "terminated is nan"),
        ({"truncated": None}, "terminated is .* truncated is None"),
        ({"truncated": np.ones(2)}, r"truncated is float64\[2\]"),
        ({"reward": np.zeros(1), "terminated": True}, r"the reward is float64\[1\]; expected one"),
        ({"reward": [1.0], "terminated": True}, "the reward is list of 1 float; expected one"),
        ({"reward": True, "terminated": True}, "the reward is True; expected one"),
        ({"reward": 2**53 + 1, "terminated": True}, "the reward is 9007199254740993; .* exactly"),
    ],
)
@pytest.mark.parametrize("environment", ["Pendulum-v1", "CartPole-v1"])
def test_a_flag_or_reward_that_is_none_is_no_end_and_names_its_step(environment, wrong, said):
    record_broken(f".*{said}", environment, wrong)


class Older(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives what environments of the older Gym do: four values of a step, or no info of a reset."""

    def __init__(self, of_reset):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.of_reset = of_reset

    def reset(self, **options):
        result = self.env.reset(**options)
        return result[0] if self.of_reset else result

    def step(self, action):
        return self.env.step(action)[:4]


@pytest.mark.parametrize("infos", [[], ["heat"]])
def test_what_environments_of_the_older_gym_give_is_named(infos):
    env = orlog.record(Older(True), NAME, infos=infos)
    with env, pytest.raises(SchemaError, match=r"step 0: reset returned float32\[4\]; expected a"):
        env.reset()
    env = orlog.record(Older(False), NAME, infos=infos)
    env.reset()
    with env, pytest.raises(SchemaError, match=r"step 0: step returned tuple of 4 .*expected a"):
        env.step(0)


def test_infos_of_other_types_name_episode_and_step_and_are_met_once():
    record_broken("the info of .* no 'heat', only None", "Pendulum-v1", {"info": None}, infos=["heat"])
    env = orlog.record(Broken("Pendulum-v1", info={"heat": "much"}), NAME, infos=["heat"])
    env.reset(seed=0)
    for _ in range(8):
        env.step(env.action_space.sample())
    message = r"lab/.*, episode 0, infos: 'heat' .*'much' in step 3 after 1.0 in step 0"
    with pytest.raises(SchemaError, match=message):
        env.step(env.action_space.sample())
    env.close()


def test_options_are_refused_where_the_version_to_append_to_has_none():
    space = Plain.observation_space
    record_episodes(
        NAME, [whole_episode(np.zeros((2, 3)), np.zeros((1, 2), np.float32), end="")], space, Plain.action_space
    )
    with orlog.record(Plain(), NAME, append=True) as env:
        with pytest.raises(SchemaError, match="has no column episodes/options"):
            env.reset(options={"mode": "easy"})
        env.reset()
        env.step(np.zeros(2, np.float32))
    assert orlog.load_dataset(NAME).total_episodes == 2
