"""Reference returns: published, measured, kept beside the data or with orlog, and found by every later score."""

import json
import os

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import ManifestError, NotFoundError, SchemaError
from orlog.manifests.benchmarks import BENCHMARKS, benchmark_datasets
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.shipped import recorded_manifest, records_folder
from orlog.normalize.references import Protocol, ReferenceReturn, ReferenceReturns, read_references, score_caveats
from orlog.runs.evaluating import keep_references, measure_references
from orlog.runs.scores import references_of
from tests.command_line import orlog as command
from tests.episodes import record_episodes, whole_episode
from tests.pendulum import pendulum, swing_up

HOPPER = Protocol(
    environment_id="Hopper-v4",
    environment_kwargs={},
    versions={"gymnasium": "1.2.0", "mujoco": "3.3.2"},
    max_episode_steps=1000,
    episodes=100,
    first_seed=0,
    environments=10,
)
RUN = "runs/iql/lab/pendulum-expert/seed-0"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Make an empty folder the current one."""
    monkeypatch.chdir(tmp_path)


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
    return line


def kept(data, expert=0.0, episodes=1):
    return measure_references(data, expert=expert, source="S", episodes=episodes, keep=True)


# Published ones.


def test_references_of_a_benchmark_say_values_source_protocol_simulator_and_caveats():
    found = orlog.references("d4rl/hopper-medium-v2")
    assert (found.random.mean, found.expert.mean) == (-20.272305, 3234.3)
    assert found.source.startswith("Farama-Foundation/D4RL@89141a689b:d4rl/infos.py")
    assert found.simulator == "mujoco-py and gym of 2020 (gym's Hopper-v2 on mujoco-py)"
    assert "infos.py and registration agree" in found.protocol.description
    assert found.caveats == []
    assert "100 episodes" in " ".join(orlog.references("d4rl/antmaze-umaze-v2").caveats)
    caveats = orlog.references("d4rl/bullet-ant-medium-v0").caveats
    assert any("no policy can be scored here: it runs in PyBullet" in caveat for caveat in caveats)


def test_every_dataset_of_a_benchmark_has_its_references_or_one_clear_line():
    known = 0
    for dataset in (dataset for key in BENCHMARKS for dataset in benchmark_datasets(key)):
        if dataset.anchors is None:
            with pytest.raises(NotFoundError, match=f"^{dataset.name}: {dataset.benchmark.title} .*$"):
                orlog.references(dataset.name)
        else:
            found = orlog.references(dataset.name)
            assert (found.random.mean, found.expert.mean) == dataset.anchors
            assert found.source == dataset.source
            known += 1
    assert known == 182 + 57 + 38 + 8


def test_an_open_dataset_its_name_and_the_command_have_the_same_references(mini_folder, tmp_path):
    found = orlog.references(mini_folder)
    assert found == orlog.references(orlog.load_dataset(mini_folder)) == orlog.references("pointmaze/umaze-v1")
    assert found == read_references(records_folder() / "references" / "pointmaze-umaze-v1.json")
    assert found.source == "measured with orlog"
    assert "protocol: 1,000 episodes" in good("scores", "pointmaze/umaze-v1")
    body = json.loads(good("scores", "pointmaze/umaze-v1", "--json"))["references"]
    assert (body["random"]["return"], body["expert"]["return"]) == (found.random.mean, found.expert.mean)
    assert (body["source"], body["caveats"]) == (found.source, found.caveats)
    for wrong, message in (
        ("lab/hopper-v1", r"lab/hopper-v1: no dataset of this name is here or in"),
        ("hopper-medium-v2", r"Did you mean d4rl/hopper-medium-v2\?"),
        (tmp_path / "none", r"none"),
    ):
        with pytest.raises(NotFoundError, match=message):
            orlog.references(wrong)


def test_references_of_the_benchmark_come_before_those_of_the_environment():
    manifest = recorded_manifest("pointmaze/umaze-v1")
    known = benchmark_environment("d4rl/maze2d-umaze-v1")
    for changes in ({"benchmark": "d4rl/maze2d-umaze-v1"}, {"name": "d4rl/maze2d-umaze-v1"}):
        of_d4rl = msgspec.structs.replace(manifest, environment=known.record, **changes)
        assert references_of(of_d4rl) == orlog.references("d4rl/maze2d-umaze-v1")
        # Returns of another environment are no scores of D4RL, whatever a manifest claims.
        assert references_of(msgspec.structs.replace(manifest, **changes)) is None
    without = msgspec.structs.replace(manifest, benchmark="minari/D4RL/pointmaze/umaze")
    assert references_of(without) == orlog.references("pointmaze/umaze-v1")
    bare = msgspec.structs.replace(manifest, environment=None)
    assert references_of(bare) is None
    own = msgspec.structs.replace(bare, name="lab/hop-v1", benchmark="d4rl/hopper-medium-v2")
    assert references_of(own) == orlog.references("d4rl/hopper-medium-v2")


def test_a_score_names_its_simulator_and_how_that_of_the_references_differs():
    notes = score_caveats(orlog.references("d4rl/hopper-medium-v2"), HOPPER)
    assert notes[0] == "returns were measured in Hopper-v4 (gymnasium 1.2.0, mujoco 3.3.2)."
    assert "measured in mujoco-py and gym of 2020" in notes[1]
    differences = benchmark_environment("d4rl/hopper-medium-v2").differences
    assert notes[2 : 2 + len(differences)] == differences != []
    assert not any("not a D4RL score" in note for note in notes)
    fifth = msgspec.structs.replace(HOPPER, environment_id="Hopper-v5")
    notes = score_caveats(orlog.references("d4rl/hopper-medium-v2"), fifth)
    assert any("score is not a D4RL score" in note for note in notes)
    found = orlog.references("pointmaze/umaze-v1")
    same = found.protocol
    assert len(score_caveats(found, same)) == 1
    other = msgspec.structs.replace(same, versions={**same.versions, "mujoco": "2.0"})
    assert score_caveats(found, other)[1:] == [
        f"the references were measured with mujoco {same.versions['mujoco']}, the returns with 2.0."
    ]


@pytest.mark.filterwarnings("ignore:.*The environment CartPole-v0 is out of date")
def test_a_view_of_parts_with_other_references_has_none():
    """Returns of two environments have no common score."""
    episode = whole_episode(np.zeros((2, 4), np.float32), np.zeros(1, np.int64), np.ones(1))
    parts = [
        record_episodes(f"lab/part-{index}-v1", [episode], environment=gymnasium.make(f"CartPole-v{version}"))
        for index, version in enumerate((0, 1, 1))
    ]
    found = kept(parts[1], 500.0)
    assert orlog.references(orlog.combine_datasets(parts[1:])) == found
    with pytest.raises(NotFoundError, match="this view also holds lab/part-0-v1, whose references"):
        orlog.normalized_score(orlog.combine_datasets([parts[1], parts[0]]), [1.0])


def test_a_minari_dataset_is_scored_by_the_references_in_its_metadata(tmp_path):
    with orlog.record(gymnasium.make("MountainCar-v0"), "lab/car-v1") as env:
        env.reset(seed=0)
        for _ in range(200):
            env.step(0)
    orlog.export_dataset("lab/car-v1", tmp_path / "out", to="minari")
    (tmp_path / "out" / "SHA256SUMS").unlink()  # what is changed below would be refused
    (metadata,) = (tmp_path / "out").rglob("data/metadata.json")
    body = json.loads(metadata.read_text())
    for number, (low, high) in enumerate((("low", 1), (3.0, 1.0), (-200.0, -103.5))):
        metadata.write_text(json.dumps(body | {"ref_min_score": low, "ref_max_score": high}))
        orlog.import_dataset(metadata.parents[1], f"lab/minari-v{number}")
    for number in (0, 1):
        with pytest.raises(NotFoundError, match="no reference returns are known"):
            orlog.references(f"lab/minari-v{number}")
    found = orlog.references("lab/minari-v2")
    assert (found.random.mean, found.expert.mean) == (-200.0, -103.5)
    assert found.protocol.environment_id == "MountainCar-v0"
    assert found.caveats == ["Minari's own scores are these divided by 100."]
    assert orlog.normalized_score("lab/minari-v2", [-200.0, -103.5]).tolist() == [0.0, 100.0]


# Measured ones.


@pytest.mark.usefixtures("work")
def test_own_data_get_anchors_and_a_score(home, monkeypatch):
    """Record, train an expert, measure both anchors, and score a run, where none ship."""
    monkeypatch.setattr("orlog.runs.scores.records_folder", lambda: home / "nothing")
    pendulum("lab/pendulum-expert-v1", choose=swing_up, episodes=10)
    pendulum("lab/pendulum-v1")
    quick = {"hidden": [32, 32], "learning_rate": 3e-3, "batch_size": 64}
    orlog.train("iql", "lab/pendulum-expert-v1", settings=quick, steps=1000, evaluations=0, out=RUN)
    orlog.train("iql", "lab/pendulum-v1", settings=quick, steps=5, evaluations=0)
    assert "no reference returns are known" in bad("scores", "lab/pendulum-v1")
    shown = good("scores", "lab/pendulum-v1", "--random", "--expert", RUN, "--episodes", "20")
    (file,) = (home / "references").glob("*.json")
    assert f"kept in {file}" in shown
    found = read_references(file)

    # The random policy by hand: uniform torques of PCG64, ten environments side by side.
    rng = np.random.Generator(np.random.PCG64(0))
    returns = np.zeros(10)
    envs = [gymnasium.make("Pendulum-v1") for _ in range(10)]
    for index, env in enumerate(envs):
        env.reset(seed=1_000_000 + index)
    for _ in range(200):
        torques = rng.uniform(-2, 2, (10, 1)).astype(np.float32)
        returns += [float(env.step(torque)[1]) for env, torque in zip(envs, torques, strict=True)]
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
    shown = good("scores", "lab/pendulum-v1")
    for words in (f"{high:.8g}", "source: measured with orlog", "20 episodes of each policy, seeds from 1000000"):
        assert words in shown


@pytest.mark.usefixtures("work")
def test_anchors_stay_in_the_home_and_a_number_comes_with_its_source(home, tmp_path, monkeypatch):
    data = pendulum("lab/pendulum-v1")
    words = ("--random", "--expert", "-150", "--source", "Handbook, table 2", "--episodes", "5")
    body = json.loads(good("scores", "lab/pendulum-v1", *words, "--json"))["references"]
    (file,) = (home / "references").glob("*.json")
    assert body["kept"] == str(file)
    assert (body["expert"]["return"], body["expert"]["policy"]) == (-150.0, "as published: Handbook, table 2")
    found = orlog.references(data)
    assert found.expert.mean == -150
    assert found.simulator.startswith("Pendulum-v1 (gymnasium ")
    assert found.random.mean == body["random"]["return"] < -800
    assert body["caveats"] == found.caveats != []
    # They are of the same simulator, which a score says.
    run = orlog.train("bc", data, settings={"hidden": [4]}, steps=2, evaluations=0)
    assert "another simulator" not in " ".join(orlog.evaluate(run, episodes=2).caveats)
    assert "random policy measured with orlog, expert Handbook" in good("show", "lab/pendulum-v1")
    # Measured again, the new ones take their place.
    good("scores", "lab/pendulum-v1", *words[:2], "-100", *words[3:])
    assert orlog.references(data).expert.mean == -100
    assert list((home / "references").glob("*.json")) == [file]
    # A shared home gives its anchors too; with an environment of other arguments it is another one.
    monkeypatch.setenv("ORLOG_SHARED", os.environ["ORLOG_HOME"])
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "mine"))
    assert orlog.references(data).expert.mean == -100
    with pytest.raises(NotFoundError, match="no reference returns are known"):
        orlog.references(pendulum("lab/moon-v1", g=1.6))


@pytest.mark.usefixtures("work")
def test_what_cannot_be_measured_is_refused_with_one_line(home):
    pendulum("lab/pendulum-v1")
    pendulum("lab/moon-v1", g=1.6)
    orlog.train("bc", "lab/moon-v1", settings={"hidden": [4]}, steps=2, evaluations=0)
    run = "runs/bc/lab/moon-v1/seed-0"
    for given, message in (
        ((run,), "(lab/moon-v1), but lab/pendulum-v1 is of ('Pendulum-v1', {}"),
        (("-100",), "needs its source: --source"),
        ((run, "--source", "S"), "a source is for a published return"),
        (("-5000", "--source", "S"), "the expert's return -5000 is not above the random policy's"),
        (("nan", "--source", "S"), "finite"),
        (("recipe",), "no recipe is known that has an expert"),
        (("nowhere",), "there is no run.json"),
    ):
        assert message in bad("scores", "lab/pendulum-v1", "--episodes", "2", "--random", "--expert", *given)
    assert not (home / "references").exists()
    for words in (("--random",), ("--expert", run), ("--episodes", "5")):
        ended = command("scores", "lab/pendulum-v1", *words)
        assert (ended.returncode, "--random" in ended.stderr) == (2, True)


def test_action_spaces_without_a_uniform_policy_and_data_without_environment_are_refused():
    def recorded(name, actions, values):
        episode = whole_episode(np.zeros((len(values) + 1, 2), np.float32), values, end="truncation")
        return record_episodes(name, [episode], spaces.Box(-1, 1, (2,), np.float32), actions)

    env = gymnasium.make("CartPole-v1")
    episode = whole_episode(np.zeros((2, 4), np.float32), np.array([1]), np.ones(1), end="truncation")
    record_episodes("lab/pole-v1", [episode], environment=env)
    found = measure_references("lab/pole-v1", expert=500, source="its limit", episodes=10)
    assert 8 < found.random.mean < 60  # discrete actions have one
    free = recorded("lab/free-v1", spaces.Box(-np.inf, np.inf, (1,), np.float32), np.zeros((3, 1), np.float32))
    with pytest.raises(SchemaError, match=r"lab/free-v1: no uniform policy exists"):
        measure_references(free, expert=1.0, source="S")
    whole = recorded("lab/whole-v1", spaces.Discrete(3), np.zeros(3, np.int64))
    with pytest.raises(NotFoundError, match=r"lab/whole-v1 names no environment"):
        measure_references(whole, expert=1.0, source="S")
    with pytest.raises(NotFoundError, match=r"names no environment"):
        keep_references(whole, orlog.references("atari/breakout"))


def one_step(name, environment, version="1.0.0"):
    """Return one recorded step in an environment."""
    with make_environment(environment, {}) as env:
        seen, _ = env.reset(seed=0)
        episode = whole_episode(
            np.array([seen, seen]), np.zeros_like(env.action_space.sample())[None], end="truncation"
        )
        record_episodes(name, [episode], version=version, environment=env)
    return orlog.load_dataset(f"{name}@{version}")


def test_a_benchmark_is_scored_by_what_it_publishes_and_in_its_own_environment_alone():
    data, own = one_step("d4rl/hopper-medium-v2", "Hopper-v4", "9.0.0"), one_step("lab/hopper-v1", "Hopper-v4")
    kept(own, 1e4)
    assert orlog.references(data).expert.mean == pytest.approx(3234.3)
    assert orlog.references(own).expert.mean == 1e4
    foreign = one_step("d4rl/walker2d-medium-v2", "Pendulum-v1", "9.0.0")
    kept(pendulum("lab/pendulum-v1"))
    with pytest.raises(NotFoundError, match=r"Pendulum-v1 have no score of d4rl/walker2d-medium-v2, which has another"):
        orlog.normalized_score(foreign, [1.0])
    for dataset in (data, foreign):
        with pytest.raises(SchemaError, match=r"scored by the references that D4RL publishes"):
            measure_references(dataset, expert=1.0, source="S", episodes=1)
    # Other arguments give other rewards, and D4RL's versions of mazes have other references.
    for name, changes, fits in (
        ("d4rl/hopper-medium-v2", {}, True),
        ("d4rl/hopper-medium-v2", {"kwargs": {"healthy_reward": 1e3}}, False),
        ("d4rl/hopper-medium-v2", {"id": "Hopper-v5"}, True),
        ("d4rl/hopper-medium-v2", {"id": "HopperBullet-v4"}, False),
        ("d4rl/maze2d-umaze-v1", {}, True),
        ("d4rl/maze2d-umaze-v1", {"id": "orlog/maze2d-umaze-v0"}, False),
    ):
        known = benchmark_environment(name)
        assert known.fits(msgspec.structs.replace(known.record, **changes)) is fits


def test_damaged_and_foreign_files_are_named_with_what_to_do(home):
    data, moon = pendulum("lab/pendulum-v1"), pendulum("lab/moon-v1", g=1.6)
    kept(data)
    (file,) = (home / "references").glob("*.json")
    text = file.read_text("utf-8")
    other = text.replace('"environment_kwargs": {}', '"environment_kwargs": {"g": 1.6}')
    for wrong in ("", "{", text.replace('"mean": 0.0', '"mean": "x"'), text.replace("0.0", "-9e9"), other):
        file.write_text(wrong, "utf-8")
        with pytest.raises(ManifestError, match=r"measure again, which comes before this file") as caught:
            orlog.references(data)
        assert str(file) in str(caught.value)
    with pytest.raises(NotFoundError):
        orlog.references(moon)
    file.write_text(text.replace('"policy": "', '"policy": "[/x]\\u001b[2J'))
    for word in ("scores", "show"):
        assert "\x1b" not in good(word, "lab/pendulum-v1")
    file.write_text("{")
    again = ("--random", "--expert", "0", "--source", "S", "--episodes", "1")
    good("scores", "lab/pendulum-v1", *again)
    assert orlog.references(data).expert.mean == 0


def test_an_expert_within_the_noise_of_the_random_policy_is_marked_by_a_note():
    def note(low, high):
        random, expert = (ReferenceReturn.of("p", np.array(returns)) for returns in (low, high))
        found = ReferenceReturns(random=random, expert=expert, protocol=HOPPER)
        assert score_caveats(found, HOPPER)[1:] == found.caveats
        return " ".join(found.caveats)

    # Standard errors of 3 and 4 make one of 5 for the difference; 4 of these are 20.
    low, spread = [-3.0, 3.0], np.array([-4.0, 4.0])
    assert "hardly above the random policy: 19.9 with a standard error of 5." in note(low, [*(19.9 + spread)])
    assert note(low, [*(20.1 + spread)]) == ""
    assert note([1.0, 1.0], [2.0, 2.0]) == ""
    assert "each policy ran one episode" in note([1.0], [2.0])
