"""Runs by published presets: rewards and observations that reach the update, and their record."""

import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.algos.cql import CQL
from orlog.algos.iql import IQL
from orlog.algos.presets import Recipe, Rewards, recipe_for
from orlog.algos.training.data import LoadedData, with_rewards
from orlog.algos.training.policy import reward_numbers
from orlog.algos.training.runs import read_run
from orlog.errors import SchemaError
from orlog.loaders.arrays import read_arrays
from tests.command_line import orlog as command
from tests.episodes import whole_episode
from tests.pendulum import pendulum
from tests.training import short

LENGTHS = (7, 3, 5)


def record(name, *, rewards=None):
    """Return recorded episodes under a D4RL name, with numbers of this test."""
    rng = np.random.default_rng(3)
    with orlog.DatasetWriter(
        name,
        version="9.0.0",
        observation_space=spaces.Box(-np.inf, np.inf, (3,), np.float32),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
        reward_dtype=np.float32,
    ) as writer:
        for length in LENGTHS:
            made = rng.normal(size=length) if rewards is None else rewards(length)
            writer.add_episode(
                whole_episode(
                    rng.normal(2, 3, (length + 1, 3)).astype(np.float32),
                    rng.uniform(-1, 1, (length, 2)).astype(np.float32),
                    made.astype(np.float32),
                )
            )
    return orlog.load_dataset(f"{name}@9.0.0")


def seen_batches(kind, monkeypatch):
    """Return the list that fills with each update's batch and what the networks see of it."""
    seen = []
    update = kind.update

    def look(self, batch):
        seen.append((batch, self.scaling.observations(batch.observations)))
        return update(self, batch)

    monkeypatch.setattr(kind, "update", look)
    return seen


def range_of_returns(dataset):
    """Return best minus worst return, summed episode by episode in float64."""
    returns = [float(np.sum(dataset[i].rewards, dtype=np.float64)) for i in range(len(LENGTHS))]
    return max(returns) - min(returns)


@pytest.mark.parametrize(
    ("kind", "name", "preset", "formula"),
    [
        (IQL, "d4rl/hopper-medium-v2", "", lambda r, spread: r * (1000 / spread)),
        (IQL, "d4rl/antmaze-umaze-v2", "", lambda r, _: r - 1),
        (IQL, "d4rl/antmaze-umaze-v2", "corl", lambda r, _: r - 1),
        (CQL, "d4rl/antmaze-umaze-v2", "", lambda r, _: (r - 0.5) * 4),
        (CQL, "d4rl/antmaze-umaze-v2", "corl", lambda r, _: 10 * r - 5),
        (IQL, "d4rl/antmaze-umaze-v2", "none", lambda r, _: r),
    ],
)
def test_updates_see_the_published_rewards_of_the_same_stream(kind, name, preset, formula, tmp_path, monkeypatch):
    dataset = record(name)
    seen = seen_batches(kind, monkeypatch)
    found = short(kind.__name__.lower(), dataset, tmp_path / "run", seed=5, steps=4, preset=preset).record
    plain = orlog.transitions(dataset, 8, seed=5)
    for (batch, observations), raw in zip(seen, plain, strict=False):
        rewards = formula(raw.rewards.numpy().astype(np.float64), range_of_returns(dataset))
        np.testing.assert_allclose(batch.rewards.numpy(), rewards, rtol=1e-6, atol=1e-6)
        assert torch.equal(batch.observations, raw.observations)
        assert torch.equal(batch.next_observations, raw.next_observations)
        assert torch.equal(batch.actions, raw.actions)
        assert torch.equal(batch.terminations, raw.terminations)
        is_plain = torch.equal(observations, raw.observations)
        assert is_plain != found.standardize_observations
    assert len(seen) == 4
    # Observations are standardized as by hand, over all steps without final observations.
    steps = np.concatenate([dataset[i].observations[:-1] for i in range(len(LENGTHS))])
    mean, std = np.zeros(3), np.ones(3)
    if found.standardize_observations:
        mean, std = steps.mean(0, dtype=np.float64), steps.std(0, dtype=np.float64) + 1e-3
    np.testing.assert_allclose(found.obs_mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.obs_std, std, rtol=1e-6)


def test_a_run_records_its_preset_and_transforms_and_resumes_with_them_only(tmp_path):
    dataset = record("d4rl/hopper-medium-v2")

    found = short("iql", dataset, tmp_path).record
    assert found.preset == "authors"
    assert found.source.startswith("IQL, official: ikostrikov/implicit_q_learning@")
    assert found.reward_scale == pytest.approx(1000 / range_of_returns(dataset), rel=1e-12)
    assert (found.reward_shift, found.standardize_observations) == (0.0, False)
    assert short("iql", dataset, tmp_path, resume=True).record == found
    with pytest.raises(FileExistsError, match="to continue it, give"):
        short("iql", dataset, tmp_path, preset="none", resume=True)


def test_an_evaluation_counts_raw_rewards(tmp_path, monkeypatch):
    recipe = Recipe(steps=2, settings={}, source="this test", rewards=Rewards(scale=0.0, shift=7.0))
    monkeypatch.setattr("orlog.algos.training.train.recipe_for", lambda *_, **__: recipe)
    run = short("iql", pendulum(), tmp_path / "run")
    assert (run.record.reward_scale, run.record.reward_shift) == (0.0, 7.0)
    assert all(-2000 < one < -100 for one in orlog.evaluate(run, episodes=2).returns)


def test_a_file_of_ones_own_is_trained_by_the_settings_of_the_dataset_that_it_is_like(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "mine.hdf5", "w") as file:
        file["observations"] = rng.normal(size=(30, 29)).astype("float32")
        file["actions"] = rng.uniform(-1, 1, (30, 8)).astype("float32")
        file["rewards"] = (np.arange(30) % 10 == 5).astype("float32")
        file["terminals"] = np.zeros(30, bool)
        file["timeouts"] = np.arange(30) % 10 == 9
    like = "d4rl/antmaze-medium-play-v2"
    orlog.import_dataset(tmp_path / "mine.hdf5", "lab/ant-v1", format="d4rl", like=like)
    assert recipe_for("iql", orlog.load_dataset("lab/ant-v1")) == recipe_for("iql", like)
    ended = command(
        *("train", "iql", "lab/ant-v1", "--steps", "2", "--set", "hidden=4,4"),
        *("--evaluations", "0", "--out", str(tmp_path / "run")),
    )
    assert ended.returncode == 0, ended.stderr
    for line in (
        "preset authors: IQL, official: ikostrikov/implicit_q_learning@09d7002481:configs/",
        "expectile=0.9, inverse_temperature=10.0; 2 steps (the preset has 1,000,000)\n",
        "rewards: reward - 1; observations: as they are",
        "differs from what was published: this version of the dataset, published: -v0 in the README",
        "published evaluation, not used here: eval_every=100000, eval_episodes=100",
        "changed with --set: hidden=4,4\n",
        "other presets: corl, none, which is the algorithm's defaults (--preset)",
    ):
        assert line in ended.stderr
    found = read_run(tmp_path / "run")
    assert (found.preset, found.reward_shift, found.reward_scale) == ("authors", -1.0, 1.0)
    assert found.config["expectile"] == 0.9
    assert found.config["hidden"] == [4, 4]


def test_rewards_change_in_place_and_final_rows_stay_zero():
    dataset = record("lab/arm-v1")
    packed = read_arrays(dataset)
    before = packed.rows.clone()
    changed = with_rewards(packed, 2.0, -1.0)
    assert changed.rows.data_ptr() == packed.rows.data_ptr()
    assert changed.digest == packed.digest == dataset.digest
    place = packed.columns["rewards"].start
    raw = np.concatenate([dataset[i].rewards for i in range(len(LENGTHS))])
    np.testing.assert_array_equal(changed.rows[torch.from_numpy(packed.step_rows()), place].numpy(), 2 * raw - 1)
    finals = torch.from_numpy(packed.final_rows)
    assert (changed.rows[finals, place] == 0).all()
    before[:, place] = changed.rows[:, place]
    assert torch.equal(before, changed.rows)
    assert with_rewards(packed, 1.0, 0.0) is packed


def test_equal_returns_cannot_be_scaled_and_the_message_says_what_can_be_done():
    packed = read_arrays(record("d4rl/hopper-medium-v2", rewards=np.zeros))
    with pytest.raises(SchemaError, match=r"all 3 episodes have the return 0; .*preset='none'"):
        reward_numbers(Rewards(return_range=1000.0), LoadedData(packed))
    assert reward_numbers(Rewards(scale=4.0, shift=-2.0), LoadedData(packed)) == (4.0, -2.0)
