# %% [markdown]
# # Sample batches
#
# You draw batches of several kinds, compare each with a slow loop over the episodes, and train a network on them.
#
# `pip install "orlog[quickstart]"`

# %%
import itertools
import os
import tempfile

import numpy as np
import torch

import orlog

ds = orlog.load_dataset("pointmaze/umaze-mini-v1", build=True)
arrays = orlog.load_arrays(ds)  # in memory once, for several streams
ds

# %% [markdown]
# ## Transitions
#
# A *transition* is one step with the observation that follows. A stream of batches has no end; equal seeds give equal batches.
# Observations of several parts are one vector, in sorted order of their names.

# %%
stream = orlog.transitions(arrays, 256, seed=0)
batch = next(iter(stream))
batch.observations.shape, batch.actions.shape, batch.next_observations.shape

# %% [markdown]
# Are these really steps of the data? The slow way collects them with a loop, and finds each item of the batch by its
# observation:


# %%
def vectors(episode):
    """The observations of an episode, as vectors."""
    parts = [episode.observations[name] for name in sorted(episode.observations)]
    return np.concatenate(parts, axis=1).astype(np.float32)


episodes = [(vectors(one), one) for one in ds]
places = {
    row.tobytes(): (index, step) for index, (rows, _) in enumerate(episodes) for step, row in enumerate(rows[:-1])
}
print(len(places), "different observations")

for item in range(256):
    index, step = places[batch.observations[item].numpy().tobytes()]
    rows, episode = episodes[index]
    assert (batch.actions[item].numpy() == episode.actions[step].astype(np.float32)).all()
    assert batch.rewards[item] == episode.rewards[step]
    assert (batch.next_observations[item].numpy() == rows[step + 1]).all()
    assert batch.terminations[item] == episode.terminations[step]
    assert batch.truncations[item] == episode.truncations[step]

# %% [markdown]
# Any batch can be had by its number, so a training that stopped goes on where it was:

# %%
later = next(iter(orlog.transitions(arrays, 256, seed=0, start=1000)))
assert (later.actions == stream.batch(1000).actions).all()

# %% [markdown]
# ## Several steps
#
# With `n_steps`, an item spans several steps, or as many as the episode has left. Its value is
# `rewards + discounts * (1 - terminations) * V(next_observations)`.

# %%
n, discount = 5, 0.99
batch = next(iter(orlog.transitions(arrays, 256, seed=1, n_steps=n, discount=discount)))
for item in range(256):
    index, step = places[batch.observations[item].numpy().tobytes()]
    rows, episode = episodes[index]
    end = min(step + n, len(episode))
    total = sum(discount**k * episode.rewards[step + k] for k in range(end - step))
    assert np.isclose(batch.rewards[item], total, atol=1e-5)
    assert np.isclose(batch.discounts[item], discount ** (end - step))
    assert (batch.next_observations[item].numpy() == rows[end]).all()

# %% [markdown]
# ## Sequences
#
# A window of consecutive steps never leaves its episode. Slots behind the end hold zeros and are False in `mask`. The
# *return-to-go* is the sum of the rewards from a step to the end of the episode, also of those behind the window.

# %%
batch = next(iter(orlog.sequences(arrays, 64, length=20, seed=0)))
for item in range(64):
    index, step = places[batch.observations[item, 0].numpy().tobytes()]
    rows, episode = episodes[index]
    filled = min(20, len(episode) - step)
    assert batch.mask[item].sum() == filled
    assert (batch.observations[item, :filled].numpy() == rows[step : step + filled]).all()
    assert (batch.observations[item, filled:] == 0).all()
    assert np.isclose(batch.returns_to_go[item, 0], episode.rewards[step:].sum())
batch.observations.shape, batch.returns_to_go.shape, batch.mask.float().mean()

# %% [markdown]
# ## Stacks of frames
#
# Images are stored once and stacked when they are drawn. In these small episodes every pixel of a frame is its number, so the
# stacks can be read. Before the beginning of an episode, its first frame is repeated.

# %%
from gymnasium import spaces

os.environ["ORLOG_HOME"] = tempfile.mkdtemp()  # so that nothing stays in your own home
with orlog.DatasetWriter(
    "notebook/frames-v1", observation_space=spaces.Box(0, 255, (8, 8, 1), np.uint8), action_space=spaces.Discrete(2)
) as writer:
    for first in (0, 100):
        numbers = np.arange(first, first + 11, dtype=np.uint8)
        writer.add_steps(
            observations=np.broadcast_to(numbers[:, None, None, None], (11, 8, 8, 1)),
            actions=np.zeros(10, np.int64),
            rewards=np.ones(10),
            terminations=np.arange(10) == 9,
            truncations=np.zeros(10, bool),
        )
        writer.end_episode()
    frames = orlog.load_dataset(writer.finish())

batch = next(iter(orlog.transitions(frames, 8, stacks=4, seed=0)))
print(tuple(batch.observations.shape), batch.observations.dtype)
for now, following in zip(
    batch.observations[:, :, 0, 0, 0].tolist(), batch.next_observations[:, :, 0, 0, 0].tolist(), strict=True
):
    print(now, "then", following)
    newest = now[-1]
    first = newest - newest % 100
    assert now == [max(newest - back, first) for back in (3, 2, 1, 0)]
    assert following[-1] == newest + 1

# %% [markdown]
# ## Feed a training
#
# Ten lines of PyTorch learn to predict the action that the data took:

# %%
torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
for step, batch in enumerate(itertools.islice(orlog.transitions(arrays, 256, seed=0), 1001)):
    loss = (policy(batch.observations) - batch.actions).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

# %% [markdown]
# On a GPU, `batch.to("cuda")` moves a batch, and `orlog.load_arrays(ds, "gpu")` keeps all data there. More kinds of batches,
# weights, workers and ranks: [sampling](../docs/sampling.md).
