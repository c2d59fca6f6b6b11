# %% [markdown]
# # Look at a dataset
#
# You build a small dataset, look at it, take a part of it, save that part, and check whether the data make sense.
# It takes a few seconds.
#
# `pip install "orlog[quickstart]"`

# %%
import orlog

ds = orlog.load_dataset("pointmaze/umaze-mini-v1", build=True)
ds

# %% [markdown]
# A notebook shows the totals, and how returns and lengths are spread. In a maze, `plot` also draws the trajectories over it:

# %%
ds.plot()

# %% [markdown]
# ## One episode
#
# An *episode* runs from a reset of the environment to its end. It has one observation more than actions: the last one is
# what followed the last action.

# %%
episode = ds[0]
print(len(episode), "steps, return", episode.rewards.sum())
for name, values in episode.observations.items():
    print(f"observations/{name}: {values.shape} {values.dtype}")
print(f"actions: {episode.actions.shape} {episode.actions.dtype}")

# %%
episode.plot()

# %% [markdown]
# An episode ends by a *termination*, where the task itself ends and no reward can follow, or by a *truncation*, where it is
# cut off, here by a time limit. They are never mixed: after a truncation, values go on behind the end.

# %%
print("terminated:", bool(episode.terminations[-1]))
print("truncated:", bool(episode.truncations[-1]))

# %% [markdown]
# ## A whole column
#
# Columns can also be read across episodes, as arrays:

# %%
print(", ".join(ds.columns))
returns = ds.column("episodes/returns")
print(f"{len(returns)} returns, from {returns.min():.0f} to {returns.max():.0f}")

# %% [markdown]
# ## A view
#
# A *view* is a choice of episodes. It copies nothing, has a digest of its own, and works wherever a dataset does.

# %%
good = ds.filter_episodes("returns > 20 and lengths >= 100")
best = ds.top_episodes(10)
train, test = orlog.split_dataset(good, [0.8, 0.2], seed=0)
for view in (good, best, train, test):
    print(f"{len(view):3} episodes, mean return {view.column('episodes/returns').mean():.1f}")

# %% [markdown]
# Saved, it is a small file that names the episodes and the digest of their dataset. Whoever opens it gets the same data, or an error.

# %%
path = train.save("train.json", replace=True)
again = orlog.load_dataset(path)
assert again.digest == train.digest
print(path.stat().st_size, "bytes,", again.digest)

# %% [markdown]
# ## Do the data make sense?
#
# `orlog.verify_store` compares every byte with the checksums of the manifest:

# %%
manifest, problems = orlog.verify_store(ds)
print(manifest.total_steps, "steps,", len(problems), "damaged files")

# %% [markdown]
# An audit reads the values: NaN, jumps, wrong flags, duplicates and more. Only an *error* means that the data are wrong; a
# *note* is true and worth knowing.

# %%
audit = orlog.audit(ds)
for finding in audit.findings:
    print(f"{finding.severity}: {finding.column}: {finding.text}")
print("good:", audit.is_good)

# %% [markdown]
# Training and test episodes should share nothing:

# %%
print(orlog.audit(train, against=[test]).summary())

# %% [markdown]
# More: [datasets and views](../docs/datasets.md), and [the viewer](../docs/viewer.md), which shows all episodes in your
# browser: `orlog open pointmaze/umaze-mini-v1`.
