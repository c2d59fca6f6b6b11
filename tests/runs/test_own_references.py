"""One's own anchors: measured, kept beside the data or with orlog, found by every later score."""

import json
import os
import signal
import subprocess
import sys
import time

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import ManifestError, NotFoundError, SchemaError, StorageError
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.shipped import records_folder
from orlog.normalize.references import (
    Protocol,
    PublishedReferences,
    ReferenceReturn,
    ReferenceReturns,
    read_references,
    score_caveats,
)
from orlog.runs.measuring import keep_references, measure_references
from orlog.runs.references import store_references
from tests.command_line import orlog as command
from tests.episodes import record_episodes, whole_episode
from tests.pendulum import pendulum, swing_up
from tests.small_disks import files_limited_to

QUICK = {"hidden": [32, 32], "learning_rate": 3e-3, "batch_size": 64}
MEASURED = ("--random", "--expert", "0", "--source", "S", "--episodes", "1")
RUN = "runs/iql/lab/pendulum-expert/seed-0"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Return the empty folder that is the current one."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def good(*arguments):
    ended = command(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def bad(*arguments):
    """Return the one line with which a command refuses."""
    ended = command(*arguments)
    assert ended.returncode == 1, (ended.stdout, ended.stderr)
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert line.endswith(".")
    assert ".." not in line.replace("sha256", "")
    return line


@pytest.mark.usefixtures("work")
def test_own_data_get_anchors_and_a_score(home, monkeypatch):
    """Record, train an expert, measure both anchors, and score a run, where none ship."""
    monkeypatch.setattr("orlog.runs.references.records_folder", lambda: home / "nothing")
    pendulum("lab/pendulum-expert-v1", choose=swing_up, episodes=10)
    pendulum("lab/pendulum-v1")
    good(
        *("train", "iql", "lab/pendulum-expert-v1", "--out", RUN, "--steps", "1000"),
        *("--set", "hidden=32,32", "--set", "learning_rate=3e-3", "--set", "batch_size=64"),
        *("--evaluations", "0"),
    )
    orlog.train("iql", "lab/pendulum-v1", settings=QUICK, steps=5, evaluations=0)
    assert "no reference returns are known" in bad("scores", "lab/pendulum-v1")
    words = ("--random", "--expert", RUN, "--episodes", "20")
    shown = good("scores", "lab/pendulum-v1", *words)
    (file,) = (home / "references").glob("*.json")
    assert f"kept in {file}" in shown
    found = read_references(file)
    assert isinstance(found, ReferenceReturns)

    # The random policy by hand: uniform torques of PCG64, ten environments side by side.
    rng = np.random.Generator(np.random.PCG64(0))
    returns = np.zeros(10)
    envs = [gymnasium.make("Pendulum-v1") for _ in range(10)]
    for index, env in enumerate(envs):
        env.reset(seed=1_000_000 + index)
    for _ in range(200):
        torques = rng.uniform(-2, 2, (10, 1)).astype(np.float32)
        returns += [float(env.step(one)[1]) for env, one in zip(envs, torques, strict=True)]
    np.testing.assert_allclose(found.random.returns[:10], returns, rtol=1e-12)
    # The expert is the run: what evaluating it gives.
    expert = orlog.evaluate(RUN, episodes=20)
    assert expert.returns.tolist() == found.expert.returns
    assert expert.score == pytest.approx(100)
    assert "iql, seed 0, trained on lab/pendulum-expert-v1@1.0.0" in found.expert.policy
    assert "step 1,000 of 1,000" in found.expert.policy

    # Every later score finds them, of any dataset of that environment.
    assert orlog.references("lab/pendulum-expert-v1") == orlog.references("lab/pendulum-v1") == found
    result = orlog.evaluate("runs/iql/lab/pendulum-v1/seed-0", episodes=5)
    low, high = found.random.mean, found.expert.mean
    assert result.score == pytest.approx(100 * (result.mean_return - low) / (high - low))
    assert ": score " in good("evaluate", RUN, "--episodes", "3")
    shown = good("scores", "lab/pendulum-v1")
    assert f"{high:.8g}" in shown
    assert "source: measured with orlog" in shown
    assert "protocol: 20 episodes of each policy, seeds from 1000000" in shown
    assert "simulator: Pendulum-v1 (gymnasium " in shown


@pytest.mark.usefixtures("work")
def test_anchors_stay_in_the_home_and_a_number_comes_with_its_source(home):
    data = pendulum("lab/pendulum-v1")
    words = ("--random", "--expert", "-150", "--source", "Handbook, table 2", "--episodes", "5")
    body = json.loads(good("scores", "lab/pendulum-v1", *words, "--json"))
    (file,) = (home / "references").glob("*.json")
    body = body["references"]
    assert body["kept"] == str(file)
    assert (body["expert"]["return"], body["expert"]["policy"]) == (-150.0, "as published: Handbook, table 2")
    assert body["expert"]["returns"] is None
    found = orlog.references(data)
    assert isinstance(found, PublishedReferences)
    assert found.expert.mean == -150
    assert "Handbook, table 2" in found.source
    assert found.simulator.startswith("Pendulum-v1 (gymnasium ")
    assert found.random.mean == body["random"]["return"] < -800
    assert body["caveats"] == found.caveats
    assert len(found.caveats) == 1
    # Measured again, the new ones take their place.
    good("scores", "lab/pendulum-v1", *words[:2], "-100", *words[3:])
    assert orlog.references(data).expert.mean == -100
    assert list((home / "references").glob("*.json")) == [file]


def test_a_shared_home_gives_its_anchors_too(tmp_path, monkeypatch):
    data = pendulum("lab/pendulum-v1")
    found = measure_references(data, expert=0.0, source="S", episodes=2, keep=True)
    monkeypatch.setenv("ORLOG_SHARED", os.environ["ORLOG_HOME"])
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "mine"))
    assert orlog.references(data) == found
    # With an environment of other arguments it is another one.
    with pytest.raises(NotFoundError, match="no reference returns are known"):
        orlog.references(pendulum("lab/moon-v1", g=1.6))


def environment(data):
    found = data.environment
    assert found is not None
    return found


@pytest.mark.usefixtures("work")
def test_what_cannot_be_measured_is_refused_with_one_line(home):
    pendulum("lab/pendulum-v1")
    pendulum("lab/moon-v1", g=1.6)
    orlog.train("bc", "lab/moon-v1", settings={"hidden": [4]}, steps=2, evaluations=0)
    anchors = ("scores", "lab/pendulum-v1", "--episodes", "2", "--random", "--expert")
    run = "runs/bc/lab/moon-v1/seed-0"
    line = bad(*anchors, run)
    assert "Pendulum-v1 with arguments {'g': 1.6} (lab/moon-v1)" in line
    assert "lab/pendulum-v1 is of Pendulum-v1;" in line
    assert "needs its source: --source" in bad(*anchors, "-100")
    assert "a source is for a published return" in bad(*anchors, run, "--source", "S")
    line = bad(*anchors, "-5000", "--source", "S")
    assert "lab/pendulum-v1: the expert's return -5000 is not above the random policy's" in line
    assert "finite" in bad(*anchors, "nan", "--source", "S")
    assert "no recipe is known that has an expert" in bad(*anchors, "recipe")
    assert "there is no run.json" in bad(*anchors, "nowhere")
    assert not (home / "references").exists()
    for words in (("--random",), ("--expert", run), ("--episodes", "5")):
        ended = command("scores", "lab/pendulum-v1", *words)
        assert ended.returncode == 2
        assert "--random" in ended.stderr


def test_action_spaces_without_a_uniform_policy_and_data_without_environment_are_refused():
    def record(name, actions, values):
        return record_episodes(
            name,
            [whole_episode(np.zeros((len(values) + 1, 2), np.float32), values, end="truncation")],
            spaces.Box(-1, 1, (2,), np.float32),
            actions,
        )

    free = record("lab/free-v1", spaces.Box(-np.inf, np.inf, (1,), np.float32), np.zeros((3, 1), np.float32))
    with pytest.raises(SchemaError, match=r"lab/free-v1: no uniform policy exists"):
        measure_references(free, expert=1.0, source="S")
    whole = record("lab/whole-v1", spaces.Discrete(3), np.zeros(3, np.int64))
    with pytest.raises(NotFoundError, match=r"lab/whole-v1 names no environment"):
        measure_references(whole, expert=1.0, source="S")
    with pytest.raises(NotFoundError, match=r"names no environment"):
        keep_references(whole, orlog.references("atari/breakout"))


def test_a_discrete_environment_is_measured():
    with gymnasium.make("CartPole-v1") as env, orlog.DatasetWriter("lab/pole-v1", environment=env) as writer:
        seen, _ = env.reset(seed=0)
        after = env.step(1)[0]
        writer.add_episode(whole_episode(np.array([seen, after]), np.array([1]), np.ones(1), end="truncation"))
    found = measure_references("lab/pole-v1", expert=500, source="its limit", episodes=10)
    assert 8 < found.random.mean < 60


def one_step(name, environment, version="1.0.0"):
    """Return one recorded step in an environment."""
    with (
        make_environment(environment, {}) as env,
        orlog.DatasetWriter(name, version=version, environment=env) as writer,
    ):
        seen, _ = env.reset(seed=0)
        action = np.zeros_like(env.action_space.sample())
        writer.add_episode(whole_episode(np.array([seen, seen]), np.array([action]), end="truncation"))
    return orlog.load_dataset(f"{name}@{version}")


def test_a_benchmark_is_scored_by_what_it_publishes():
    data = one_step("d4rl/hopper-medium-v2", "Hopper-v4", "9.0.0")
    with pytest.raises(SchemaError, match=r"scored by the references that D4RL publishes"):
        measure_references(data, expert=1.0, source="S", episodes=1)
    # Own anchors of the same environment change nothing about it.
    own = one_step("lab/hopper-v1", "Hopper-v4")
    measure_references(own, expert=1e4, source="S", episodes=1, keep=True)
    assert orlog.references(data).expert.mean == pytest.approx(3234.3)
    assert orlog.references(own).expert.mean == 1e4


def test_data_of_another_environment_have_no_score_of_a_benchmark():
    """Whatever name or benchmark a version states: neither published nor own anchors hold."""
    data = one_step("d4rl/hopper-medium-v2", "Pendulum-v1", "9.0.0")
    own = pendulum("lab/pendulum-v1")
    measure_references(own, expert=0.0, source="S", episodes=1, keep=True)
    with pytest.raises(
        NotFoundError, match=r"environment Pendulum-v1 have no score of d4rl/hopper-medium-v2, which has another"
    ):
        orlog.normalized_score(data, [1.0])
    with pytest.raises(SchemaError, match=r"scored by the references that D4RL publishes"):
        measure_references(data, expert=1.0, source="S", episodes=1)
    assert orlog.references(own).expert.mean == 0
    # Other arguments give other rewards.
    known = benchmark_environment("d4rl/hopper-medium-v2")
    assert known is not None
    assert known.record is not None
    assert known.fits(known.record)
    assert not known.fits(msgspec.structs.replace(known.record, kwargs={"healthy_reward": 1e3}))
    assert known.fits(msgspec.structs.replace(known.record, id="Hopper-v5"))
    assert not known.fits(msgspec.structs.replace(known.record, id="HopperBullet-v4"))
    # D4RL's versions of mazes have other references.
    maze = benchmark_environment("d4rl/maze2d-umaze-v1")
    assert maze is not None
    assert maze.record is not None
    assert maze.fits(maze.record)
    assert not maze.fits(msgspec.structs.replace(maze.record, id="orlog/maze2d-umaze-v0"))


def test_damaged_and_foreign_files_are_named_with_what_to_do(home):
    data = pendulum("lab/pendulum-v1")
    moon = pendulum("lab/moon-v1", g=1.6)
    measure_references(data, expert=0.0, source="S", episodes=1, keep=True)
    (file,) = (home / "references").glob("*.json")
    text = file.read_text("utf-8")
    for wrong in ("", "{", text.replace('"mean": 0.0', '"mean": "x"'), text.replace("0.0", "-9e9")):
        file.write_text(wrong, "utf-8")
        with pytest.raises(ManifestError, match=r"measure again, which comes before this file") as caught:
            orlog.references(data)
        assert str(file) in str(caught.value)
        assert str(caught.value).endswith(".")
    file.write_text(text.replace('"environment_kwargs": {}', '"environment_kwargs": {"g": 1.6}'))
    with pytest.raises(ManifestError, match=r"of another environment"):
        orlog.references(data)
    with pytest.raises(NotFoundError):
        orlog.references(moon)
    file.write_text(text.replace('"policy": "', '"policy": "[/x]\\u001b[2J'))
    for words in (["scores", "lab/pendulum-v1"], ["show", "lab/pendulum-v1"]):
        shown = good(*words)
        assert "\x1b" not in shown
    file.write_text("{")
    assert command("scores", "lab/pendulum-v1", *MEASURED).returncode == 0
    assert orlog.references(data).expert.mean == 0


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit of their size there")
def test_a_full_disk_keeps_the_old_anchors(home):
    data = pendulum("lab/pendulum-v1")
    old = measure_references(data, expert=0.0, source="S", episodes=1, keep=True)
    new = msgspec.structs.replace(old, source="T" * 4096)
    with files_limited_to(1024), pytest.raises(StorageError, match=r"cannot write"):
        keep_references(data, new)
    assert orlog.references(data) == old
    assert [path.suffix for path in (home / "references").iterdir() if path.suffix != ".lock"] == [".json"]


STORE = """
import sys, msgspec, orlog
from orlog.runs.references import store_references
data = orlog.load_dataset("lab/pendulum-v1")
found = orlog.references(data)
for count in range(10_000):
    store_references(data.environment, msgspec.structs.replace(found, source=f"{sys.argv[1]} {count}"))
    print(count, flush=True)
"""


def test_two_writers_of_which_one_is_killed_leave_whole_anchors(home):
    data = pendulum("lab/pendulum-v1")
    measure_references(data, expert=0.0, source="S", episodes=1, keep=True)
    writers = [subprocess.Popen([sys.executable, "-c", STORE, name], stdout=subprocess.PIPE) for name in ("one", "two")]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for _ in range(50):
            assert orlog.references(data).expert.mean == 0
            time.sleep(0.002)
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    found = orlog.references(data)
    assert found.source.split()[0] in ("one", "two")
    store_references(environment(data), msgspec.structs.replace(found, source="after"))
    assert orlog.references(data).source == "after"
    assert len(list((home / "references").glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("d4rl/hopper-medium-v2", ["-20.272305", "3234.3", "simulator: mujoco-py and gym of 2020"]),
        ("atari/breakout", ["1.7", "30.5", "a human player", "source: google-deepmind/dqn_zoo@"]),
        ("d4rl/antmaze-umaze-v2", ["an episode that reaches the goal", "note: "]),
        ("pointmaze/umaze-v1", ["11.585", "1.1", "protocol: 1,000 episodes", "mujoco 3.3.0"]),
    ],
)
def test_what_is_known_is_shown_for_data_that_are_not_here(name, lines):
    shown = good("scores", name)
    for line in lines:
        assert line in shown
    body = json.loads(good("scores", name, "--json"))["references"]
    found = orlog.references(name)
    assert (body["random"]["return"], body["expert"]["return"]) == (found.random.mean, found.expert.mean)
    assert (body["source"], body["caveats"]) == (found.source, found.caveats)
    assert "kept" not in body


def test_what_is_not_known_is_one_line():
    assert "OGBench has no reference returns" in bad("scores", "ogbench/cube-double-play-v0")


def test_the_records_that_ship_are_found_by_environment(mini):
    file = records_folder() / "references" / "pointmaze-umaze-v1.json"
    assert orlog.references(mini) == read_references(file)


def test_an_expert_within_the_noise_of_the_random_policy_is_marked_by_a_note():
    def note(low, high):
        random, expert = (ReferenceReturn.of("p", np.array(one)) for one in (low, high))
        found = ReferenceReturns(random=random, expert=expert, protocol=PROTOCOL)
        assert score_caveats(found, PROTOCOL)[1:] == found.caveats
        return " ".join(found.caveats)

    # Standard errors of 3 and 4 make one of 5 for the difference; 4 of these are 20.
    low, spread = [-3.0, 3.0], np.array([-4.0, 4.0])
    assert "hardly above the random policy: 19.9 with a standard error of 5." in note(low, [*(19.9 + spread)])
    assert note(low, [*(20.1 + spread)]) == ""
    assert note([1.0, 1.0], [2.0, 2.0]) == ""
    assert "each policy ran one episode" in note([1.0], [2.0])


@pytest.mark.usefixtures("work")
def test_references_of_the_same_simulator_are_not_said_to_be_of_another():
    data = pendulum("lab/pendulum-v1")
    measure_references(data, expert=0.0, source="S", episodes=2, keep=True)
    run = orlog.train("bc", data, settings={"hidden": [4]}, steps=2, evaluations=0)
    caveats = " ".join(orlog.evaluate(run, episodes=2).caveats)
    assert "random policy measured with orlog, expert S." in caveats
    assert "the expert's return is a published number, which orlog did not measure" in caveats
    assert "another simulator" not in caveats
    assert "random policy measured with orlog, expert S" in good("show", "lab/pendulum-v1")


PROTOCOL = Protocol(
    environment_id="E-v1",
    environment_kwargs={},
    versions={"e": "1"},
    max_episode_steps=None,
    episodes=2,
    first_seed=0,
    environments=1,
)
