"""Runs that act in the environment of their data: what they learn from, what their files hold, and what is refused."""

import dataclasses
import importlib
import re
import shlex
import signal
from pathlib import Path

import gymnasium
import hypothesis
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from hypothesis import strategies as st
from safetensors.numpy import load_file

import orlog
from orlog.algos.algorithms import ALGORITHMS
from orlog.algos.fql import FQL
from orlog.algos.iql import IQL
from orlog.algos.qcfql import QCFQL
from orlog.algos.td3bc import TD3BC
from orlog.algos.training.online import Replay
from orlog.algos.training.runs import ONLINE_FILE, read_metrics, read_run
from orlog.base import terminal
from orlog.base.files import hash_file
from orlog.errors import CheckpointError, NotFoundError, SchemaError
from orlog.loaders.arrays import Leaf
from orlog.loaders.chunks import ChunkSampler
from orlog.loaders.transforms import scale_rewards
from orlog.loaders.transitions import TransitionSampler
from tests.command_line import orlog as command
from tests.extending.test_new_algorithm import poles as poles
from tests.loaders.test_sequences import flatten, pack, random_episode
from tests.pendulum import pendulum
from tests.training import SMALL, logged, short

EXPLORING = [name for name, kind in ALGORITHMS.items() if hasattr(kind, "explore")]


@pytest.fixture
def run(tmp_path):
    """Return a run of IQL on two episodes of Pendulum."""
    return short("iql", pendulum(episodes=2), tmp_path / "offline", steps=5)


def finetune(run, folder, **options):
    """Fine-tune without evaluations and in silence, or as is said."""
    return orlog.finetune(run, out=folder, **{"evaluations": 0, "progress": False, "steps": 1, **options})


def weights(folder):
    return load_file(folder / "checkpoint.safetensors")


def test_the_record_names_the_run_and_its_checkpoint_and_the_run_stays_as_it_was(run, tmp_path):
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    new = finetune(run, tmp_path / "new", steps=3, settings={"expectile": 0.9})
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
    record = read_run(new)
    assert record == new.record
    assert (record.online.run, record.online.step) == (str(run.folder), 5)
    assert record.online.checkpoint_sha256 == hash_file(run.folder / "checkpoint.safetensors")
    assert record.config == {**run.record.config, "expectile": 0.9, "steps": None}
    assert record.obs_mean == run.record.obs_mean
    # It goes on with the run's weights, with its own rate if one is set: after few steps they have hardly moved.
    slow = finetune(run, tmp_path / "slow", steps=3, settings={"learning_rate": 1e-9})
    old, now, slowest = (weights(one.folder) for one in (run, new, slow))
    for name in ("critic/first.0.weight", "value/0.weight", "policy/0.weight"):
        assert 0 < np.abs(old[name] - now[name]).max() < 3 * 4e-4
        assert np.abs(old[name] - slowest[name]).max() < 1e-7
    # What was done can be evaluated and fine-tuned again.
    assert orlog.evaluate(new, episodes=1).step == 3
    assert finetune(new, tmp_path / "again", steps=2).record.online.step == 3


# --- the steps and the batches


class Watched(PendulumEnv):
    """Pendulum that ends by a termination after seven steps if its seed is odd."""

    def reset(self, *, seed=None, options=None):
        self.count, self.is_short = 0, bool(seed is not None and seed % 2)
        SEEN.append(("reset", seed))
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.count += 1
        following, reward, _, truncated, info = super().step(action)
        ends = self.is_short and self.count == 7
        SEEN.append(("step", (action.copy(), float(reward), ends)))
        return following, reward, ends, truncated, info


SEEN = []


@pytest.fixture
def watch(monkeypatch):
    """Return a function that lets the id of Pendulum make an environment that is watched."""

    def watched(limit):
        spec = dataclasses.replace(gymnasium.spec("Pendulum-v1"), entry_point=Watched, max_episode_steps=limit)
        monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", spec)

    return watched


def data_rewards():
    episodes = orlog.load_dataset("lab/pendulum-v1")
    return {round(float(one), 4) for episode in episodes for one in episode.rewards}


def test_batches_hold_steps_of_the_data_and_of_the_environment_as_they_were(watch, tmp_path, monkeypatch):
    watch(10)
    run = short("td3bc", pendulum(episodes=3), tmp_path / "offline", steps=5)
    batches, usual = [], TD3BC.update

    def update(self, batch):
        batches.append(batch)
        return usual(self, batch)

    monkeypatch.setattr(TD3BC, "update", update)
    SEEN.clear()
    new = finetune(run, tmp_path / "new", steps=40, prior=0.25, random_steps=20)
    steps = [what for word, what in SEEN if word == "step"]
    resets = [what for word, what in SEEN if word == "reset"]
    assert len(steps) == 60
    assert len({*resets}) == len(resets)
    data = data_rewards()
    online = {round(reward, 4): (action, ends) for action, reward, ends in steps}
    for number, batch in enumerate(batches):
        assert len(batch.rewards) == 8
        assert all(round(float(one), 4) in data for one in batch.rewards[:2])
        so_far = {round(reward, 4) for _, reward, _ in steps[: 21 + number]}
        for row in range(2, 8):
            reward = round(float(batch.rewards[row]), 4)
            assert reward in so_far
            action, ends = online[reward]
            np.testing.assert_array_equal(batch.actions[row].numpy(), action)
            assert float(batch.terminations[row]) == ends
            assert not (batch.terminations[row] and batch.truncations[row])
    assert any(batch.terminations.any() for batch in batches)
    # Random steps are spread over the space, those of the policy are not.
    assert np.std([action for action, _, _ in steps[:20]]) > 0.8
    lines = read_metrics(new.folder)
    replay = np.fromfile(new.folder / ONLINE_FILE, np.float32).reshape(60, -1)
    assert sum(line["online/episodes"] for line in lines) == replay[:, 5:7].sum() > 3
    assert (lines[-1]["step"], lines[-1]["online/steps"]) == (40, 60)


@pytest.mark.parametrize(("prior", "share"), [(1.0, 1.0), (0.0, 0.0), (None, 15 / (15 + 20))])
def test_the_share_of_the_data_is_what_was_asked_for(prior, share, watch, tmp_path, monkeypatch):
    watch(5)
    run = short("td3bc", pendulum(episodes=3), tmp_path / "offline")  # 15 steps of data
    data, drawn = data_rewards(), []

    def update(_, batch):
        drawn.extend(round(float(one), 4) in data for one in batch.rewards)
        return {}

    monkeypatch.setattr(TD3BC, "update", update)
    finetune(run, tmp_path / "new", prior=prior, random_steps=19, settings={"batch_size": 4000})
    assert np.mean(drawn) == pytest.approx(share, abs=0.03)


def test_rewards_are_transformed_as_in_the_run_and_returns_are_not():
    replay = Replay(4, 2, 1, reward_scale=10.0, reward_shift=-5.0, discount=0.5)
    zeros = torch.zeros(1, 2)
    for reward, ended in ((1.0, False), (0.75, True), (0.25, False)):
        replay.add(zeros, np.zeros(1, np.float32), reward, zeros, terminated=ended, truncated=ended)
    batch = replay.batch(torch.arange(3))
    assert batch.rewards.tolist() == [5.0, 2.5, -2.5]
    assert replay.batch(torch.arange(3), with_returns=True).returns_to_go.tolist() == [6.25, 2.5, -torch.inf]
    assert batch.terminations.tolist() == [0, 1, 0]
    assert batch.truncations.tolist() == [0, 0, 0]
    assert (replay.returns, replay.ends, replay.finished, replay.count) == ([1.75], [2], 2, 3)


def test_steps_come_back_from_a_file_that_grows_and_what_is_not_of_the_checkpoint_is_cut_off(tmp_path):
    leaves = {
        "at": Leaf(first=0, shape=(2, 1)),
        "eye": Leaf(column="observations/eye"),
        "kind": Leaf(column="observations/kind"),
        "speed": Leaf(first=2, shape=(1,)),
    }
    others = {
        "observations/eye": torch.zeros(5, 3, 3, dtype=torch.uint8),
        "observations/kind": torch.zeros(5, dtype=torch.int64),
        "rewards": torch.zeros(5),
    }
    rng = np.random.default_rng(0)
    seen = [
        {
            "at": torch.from_numpy(rng.normal(size=(1, 2, 1)).astype(np.float32)),
            "eye": torch.from_numpy(rng.integers(0, 256, (1, 3, 3), np.uint8)),
            "kind": torch.from_numpy(rng.integers(-5, 5, 1)),
            "speed": torch.from_numpy(rng.normal(size=(1, 1)).astype(np.float32)),
        }
        for _ in range(5)
    ]

    def replay():
        return Replay(5, 3, 1, leaves=leaves, others=others)

    def add(made, step):
        action = np.array([step], np.float32)
        made.add(seen[step], action, float(step), seen[step + 1], terminated=step == 1, truncated=False)

    path, torn, made, again = tmp_path / "steps", tmp_path / "torn", replay(), replay()
    assert made.save(path)["online_steps"] == "0"
    for step in range(3):
        add(made, step)
        saved = made.save(path)
    assert path.stat().st_size == 3 * (4 * (2 * 3 + 1 + 3) + 2 * (9 + 8))
    torn.write_bytes(path.read_bytes() + b"torn")
    again.load(torn, saved)
    # A file is only read where no episode goes on: what it says of the third step is all of its episode.
    assert (again.returns, again.ends, again.finished, again.count) == ([1.0], [2], 3, 3)
    for one in (made, again):
        add(one, 3)
        batch = one.batch(torch.tensor([2, 0, 3]))
        for at, step in enumerate((2, 0, 3)):
            for key, values in seen[step].items():
                assert torch.equal(batch.observations[key][at], values[0])
                assert torch.equal(batch.next_observations[key][at], seen[step + 1][key][0])
        assert batch.actions.tolist() == [[2.0], [0.0], [3.0]]
        assert batch.observations["kind"].dtype == torch.int64
    saved = again.save(torn)
    assert saved == made.save(path)
    assert path.read_bytes() == torn.read_bytes()
    path.write_bytes(path.read_bytes()[:-1])
    for place in (path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="does not hold the 4 steps"):
            replay().load(place, saved)


# --- several steps and chunks


def experience(seed, lengths):
    """Return random episodes that ended, but for the last one, and a replay of their steps."""
    rng = np.random.default_rng(seed)
    episodes = [random_episode(length, rng) for length in lengths]
    for episode in episodes[:-1]:
        episode.terminations[-1], episode.truncations[-1] = rng.permutation([True, False])
    episodes[-1].terminations[-1] = episodes[-1].truncations[-1] = False

    def replay(**given):
        made = Replay(sum(lengths) + 3, 3, 2, reward_scale=2.0, reward_shift=0.5, discount=0.9, **given)
        for one in episodes:
            for step in range(len(one)):
                before, after = (torch.from_numpy(one.observations[at : at + 1]) for at in (step, step + 1))
                ends = {"terminated": one.terminations[step], "truncated": one.truncations[step]}
                made.add(before, one.actions[step], one.rewards[step], after, **ends)
        return made

    return episodes, replay


@hypothesis.given(
    st.integers(0, 99), st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(1, 6), st.booleans()
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_sums_and_chunks_of_steps_taken_are_those_of_a_loop_and_those_of_the_loaders(seed, lengths, span, in_chunks):
    episodes, replay = experience(seed, lengths)
    made = replay(**({"chunk_length": span} if in_chunks else {"n_steps": span}))
    batch = made.batch(torch.arange(made.count))
    starts = [(episode, step) for episode in episodes for step in range(len(episode))]
    for row, (episode, step) in enumerate(starts):
        stop = min(step + span, len(episode))  # of the running one: up to the last step taken
        rewards = [2 * reward + 0.5 for reward in episode.rewards[step:stop]]
        total = sum(0.9**k * reward for k, reward in enumerate(rewards))
        assert float(batch.rewards[row]) == pytest.approx(total, abs=1e-5)
        np.testing.assert_array_equal(batch.observations[row].numpy(), episode.observations[step])
        np.testing.assert_array_equal(batch.next_observations[row].numpy(), episode.observations[stop])
        assert batch.terminations[row] == episode.terminations[stop - 1]
        assert batch.truncations[row] == episode.truncations[stop - 1]
        if in_chunks:
            assert batch.valid[row].tolist() == [step + k < len(episode) for k in range(span)]
            chunk = np.zeros((span, 2), np.float32)
            chunk[: stop - step] = episode.actions[step:stop]
        else:
            chunk = episode.actions[step]
        np.testing.assert_array_equal(batch.actions[row].numpy(), chunk)
        if in_chunks or span > 1:
            assert float(batch.discounts[row]) == pytest.approx(0.9 ** (stop - step))
    if span <= max(lengths):
        arrays = scale_rewards(pack(episodes), scale=2.0, shift=0.5)
        sampler = ChunkSampler(arrays, span, 0.9) if in_chunks else TransitionSampler(arrays, span, 0.9)
        steps = np.arange(len(starts))
        given_steps = sampler._outcomes.items_of(steps) if in_chunks else sampler.items_of(steps)
        for field, values in flatten(sampler.gather(given_steps)).items():
            same = flatten(batch)[field]
            assert values is same is None or torch.equal(same, values), field


def test_what_follows_an_episode_that_a_run_left_is_not_of_it(tmp_path):
    _, replay = experience(0, [3, 2])
    made, again = replay(chunk_length=3), Replay(8, 3, 2, chunk_length=3)
    again.load(tmp_path / "steps", made.save(tmp_path / "steps"))
    again.add(torch.zeros(1, 3), np.zeros(2, np.float32), 7.0, torch.zeros(1, 3), terminated=True, truncated=False)
    batch = again.batch(torch.arange(6))
    assert batch.valid.sum(1).tolist() == [3, 2, 1, 2, 1, 1]
    assert batch.terminations[3:].tolist() == [0, 0, 1]
    assert (again.returns[-1], again.ends[-1]) == (7.0, 6)


@pytest.mark.parametrize("noise", [None, 0.3])
def test_a_policy_of_chunks_acts_them_out_and_learns_from_what_it_did(noise, watch, tmp_path, monkeypatch):
    watch(10)
    few = {**SMALL, "chunk_length": 3}
    run = short("qcfql", pendulum(episodes=3), tmp_path / "offline", settings=few)
    plans, batches, usual, explore = [], [], QCFQL.update, QCFQL.explore

    def update(self, batch):
        batches.append((len([word for word, _ in SEEN if word == "step"]), batch))
        return usual(self, batch)

    def watched(self, observations, generator):
        # None reaches a bound, so that each action is there once.
        plans.append(explore(self, observations, generator)[0] / 10 + torch.rand((3, 1), generator=generator) / 10)
        return plans[-1][None]

    monkeypatch.setattr(QCFQL, "update", update)
    monkeypatch.setattr(QCFQL, "explore", watched)
    SEEN.clear()
    new = finetune(run, tmp_path / "new", steps=40, warm_up_steps=20, noise=noise, settings={"batch_size": 64})
    assert (new.record.online.prior, new.record.online.warm_up_steps) == (None, 20)
    # A plan is used up, or its episode ends.
    episodes = "".join("r" if word == "reset" else "s" for word, _ in SEEN).split("r")[1:]
    lengths = [len(one) for one in episodes]
    assert set(lengths[:-1]) == {7, 10}
    steps = [what for word, what in SEEN if word == "step"]
    taken = np.split(np.array([action for action, _, _ in steps]), np.cumsum(lengths)[:-1])
    assert len(plans) == sum(-(-length // 3) for length in lengths)
    starts = [actions[at : at + 3] for actions in taken for at in range(0, len(actions), 3)]
    apart = np.concatenate([did - plan[: len(did)].numpy() for did, plan in zip(starts, plans, strict=True)])
    assert np.abs(apart).max() < 1e-6 if noise is None else 0.3 < apart.std() < 0.9
    # One update a step, after those of the warm-up.
    assert [count for count, _ in batches] == [*range(21, 61)]
    stops, online = np.repeat(np.cumsum(lengths), lengths), 0
    for count, batch in batches:
        for row in range(64):
            held, first = int(batch.valid[row].sum()), batch.actions[row, 0].numpy()
            assert batch.valid[row].tolist() == [place < held for place in range(3)]
            for at in [at for at in range(count) if np.array_equal(steps[at][0], first)]:  # not of the data
                chunk = steps[at : min(at + 3, stops[at], count)]
                actions, rewards, ended = zip(*chunk, strict=True)
                np.testing.assert_array_equal(batch.actions[row].numpy(), [*actions, *[[0]] * (3 - len(chunk))])
                assert held == len(chunk)
                assert float(batch.terminations[row]) == ended[-1]
                assert not (batch.terminations[row] and batch.truncations[row])
                discounted = sum(0.99**place * reward for place, reward in enumerate(rewards))
                assert float(batch.rewards[row]) == pytest.approx(discounted, abs=1e-4)
                online += 1
    # 30 steps are of the data, and each step is as likely as any other.
    share = sum(count / (count + 30) for count, _ in batches) / len(batches)
    assert online / (64 * len(batches)) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("name", ["fql", "ifql", "iql"])
def test_several_steps_are_summed_of_the_steps_taken_too(name, watch, tmp_path, monkeypatch):
    watch(10)
    run = short(name, pendulum(episodes=3), tmp_path / "offline", settings={**SMALL, "n_steps": 3})
    kind, batches = ALGORITHMS[name], []
    usual = kind.update
    monkeypatch.setattr(kind, "update", lambda self, batch: (batches.append(batch), usual(self, batch))[1])
    SEEN.clear()
    finetune(run, tmp_path / "new", steps=20, prior=0.0)
    rewards = [what[1] for word, what in SEEN if word == "step"]
    ends = [what[2] for word, what in SEEN if word == "step"]
    lengths = [len(one) for one in "".join(word[0] for word, _ in SEEN).split("r")[1:]]
    stops = np.repeat(np.cumsum(lengths), lengths)
    for count, batch in enumerate(batches, 1):
        spans = [range(at, min(at + 3, stops[at], count)) for at in range(count)]
        expected = [sum(0.99**k * rewards[at] for k, at in enumerate(span)) for span in spans]
        for reward, discount, ended in zip(batch.rewards, batch.discounts, batch.terminations, strict=True):
            at = int(np.abs(np.array(expected) - float(reward)).argmin())
            assert float(reward) == pytest.approx(expected[at], abs=1e-4)
            assert float(discount) == pytest.approx(0.99 ** len(spans[at]))
            assert float(ended) == ends[spans[at][-1]]


# --- what is refused


def test_what_cannot_be_fine_tuned_is_refused_in_one_line(run, poles, watch, tmp_path, monkeypatch):
    small = {"width": 8, "heads": 1, "batch_size": 8}
    nameless = pendulum("lab/nameless-v1", named=False)
    runs = {name: short(name, "lab/pendulum-v1", tmp_path / name) for name in ("bc", "rebrac")}
    runs["dt"] = short("dt", "lab/pendulum-v1", tmp_path / "dt", settings=small)
    choices = short("iql", poles, tmp_path / "choices")
    of_others = rf", and the steps .* give transitions and chunks of actions; choose one of: {', '.join(EXPLORING)}\."
    for given, options, error, word in (
        (short("iql", nameless, tmp_path / "nameless"), {}, NotFoundError, "names no environment"),
        (tmp_path / "nothing", {}, NotFoundError, "not the folder of a run"),
        *(
            (choices, {"noise": noise}, SchemaError, r"continuous actions \(a Box\), found Discr")
            for noise in (None, 0.1)
        ),
        (runs["bc"], {}, SchemaError, "bc cannot explore.*noise="),
        (runs["rebrac"], {"noise": 0.1}, SchemaError, "it learns from the next actions of the data" + of_others),
        (runs["dt"], {}, SchemaError, "it learns from SequenceBatch" + of_others),
        (run, {"settings": {"width": 1}}, ValueError, "no setting 'width'"),
        (run, {"settings": {"steps": 1}}, ValueError, "steps is that of the run"),
        *((run, {"prior": prior}, ValueError, "prior must lie in") for prior in (1.5, -0.1)),
        (run, {"noise": float("inf")}, ValueError, "noise must be finite"),
        (run, {"steps": 0}, ValueError, "steps must be >= 1"),
        (run, {"warm_up_steps": -1}, ValueError, "warm_up_steps >= 0, found 1, 0 and -1"),
        (run, {"algorithm": "bc"}, NotFoundError, "trained with iql, not with bc"),
    ):
        with pytest.raises(error, match=word):
            finetune(given, tmp_path / "x", **options)
    # With noise, any policy on single transitions can act.
    finetune(runs["bc"], tmp_path / "y", steps=2, noise=0.1)
    with monkeypatch.context() as patch:
        patch.delattr(FQL, "explore")
        chunks = short("qcfql", "lab/pendulum-v1", tmp_path / "chunks", settings={**SMALL, "chunk_length": 2})
        with pytest.raises(SchemaError, match=r"qcfql cannot explore: .*; choose one that has \([^)]*\)\.$"):
            finetune(chunks, tmp_path / "x", noise=0.1)
    with pytest.raises(FileExistsError, match="holds a run already"):
        finetune(runs["bc"], tmp_path / "y", steps=2, noise=0.1)
    with pytest.raises(FileExistsError, match=r"a run with noise 0\.1, not noise 0\.2; to continue it"):
        finetune(runs["bc"], tmp_path / "y", steps=2, noise=0.2, resume=True)
    watch(None)
    with gymnasium.make("Pendulum-v1") as env, orlog.DatasetWriter("lab/unlimited-v1", environment=env) as writer:
        writer.add_episode(orlog.load_dataset("lab/pendulum-v1")[0])
    with pytest.raises(NotFoundError, match="have no limit of steps"):
        finetune(short("iql", "lab/unlimited-v1", tmp_path / "un"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("method", "given", "error", "words"),
    [
        ("explore", torch.full((1, 1), 2.5), SchemaError, r"outside the action space.*number 0 is 2\.5.*-2 to 2"),
        (
            "explore",
            torch.zeros(1, 2, 1),
            SchemaError,
            r"shape \[1, 2, 1\] for one observation, where 1 of shape \[1\]",
        ),
        ("explore", torch.full((1, 1), torch.nan), FloatingPointError, "the policy's action.* is not at step 0"),
        ("update", {"critic/loss": torch.tensor(torch.nan)}, FloatingPointError, "diverged: critic/loss"),
    ],
)
def test_numbers_that_are_not_possible_end_the_run(method, given, error, words, run, tmp_path, monkeypatch):
    monkeypatch.setattr(IQL, method, lambda *_: given)
    with pytest.raises(error, match=words):
        finetune(run, tmp_path / "x")


# --- the command line


def test_the_command_says_what_follows_and_goes_on_after_a_signal(tmp_path, watch, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch(10)
    short("iql", pendulum(), "offline")
    words = ["finetune", "offline", "--steps", "25", "--evaluations", "0", "--prior", "even"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    folder = Path("runs/finetune/iql/lab/pendulum-v1/seed-0")
    assert f"run: orlog evaluate {folder}" in " ".join((done.stdout + done.stderr).split())
    usual, calls = IQL.update, []

    def send(self, batch):
        calls.append(1)
        if len(calls) == 8:
            signal.raise_signal(signal.SIGINT)
        return usual(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(IQL, "update", send)
        stopped = command(*words, "--out", "other")
    assert stopped.returncode == 128 + signal.SIGINT
    line = next(line for line in stopped.stderr.splitlines() if "to continue, run: " in line)
    step = re.search(r"stopped at step (\d+)", line)[1]
    resumed = command(*shlex.split(line.partition("run: ")[2])[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming from step {step} of 25" in resumed.stderr
    assert logged("other") == logged(folder)
    for name in ("checkpoint.safetensors", ONLINE_FILE):
        assert Path("other", name).read_bytes() == (folder / name).read_bytes()
    assert "takes a number from 0 to 1, or even" in command(*words[:-1], "half").stderr
    for name, share in (("iql", 0.5), ("fql", None)):
        short(name, "lab/pendulum-v1", name)
        assert command("finetune", name, "--steps", "1", "--evaluations", "0", "--out", f"{name}-on").returncode == 0
        assert read_run(f"{name}-on").online.prior == share
    words = ["finetune", "fql", "lab/pendulum-v1", "--steps", "1", "--evaluations", "0"]
    assert "train it first: orlog train fql lab/pendulum-v1" in command(*words).stderr
    short("fql", "lab/pendulum-v1", "runs/fql/lab/pendulum-v1/seed-0")
    assert command(*words).returncode == 0
    assert read_run("runs/finetune/fql/lab/pendulum-v1/seed-0").online.run


@pytest.mark.usefixtures("run")
def test_the_command_shows_a_line_and_copies_the_log(tmp_path, watch, monkeypatch):
    pytest.importorskip("tensorboard")
    reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    watch(200)
    words = ["finetune", "offline", "--steps", "5", "--evaluations", "1", "--out", "new"]
    done = command(*words, "--log", "tensorboard")
    assert done.returncode == 0, done.stderr
    assert re.search(r"IQL seed 0: 5 of 5, loss: .*, score -?\d", done.stderr)
    log = reading.EventAccumulator("new/tensorboard")
    log.Reload()
    assert [one.step for one in log.Scalars("evaluation/return")] == [0, 5]
    assert [one.step for one in log.Scalars("policy/loss")] == [1, 2, 3, 4, 5]
    assert "did you mean tensorboard" in command(*words, "--log", "tensorbord").stderr
