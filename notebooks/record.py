# %% [markdown]
# # Record and share
#
# You record an environment, look at what was stored, and give it to a colleague, who checks every byte.
#
# `pip install "orlog[plots]"`

# %%
import os
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

import orlog

folder = Path(tempfile.mkdtemp())
os.environ["ORLOG_HOME"] = str(folder / "mine")  # so that nothing stays in your own home

# %% [markdown]
# ## An environment with infos
#
# Any Gymnasium environment can be recorded. This one is CartPole, which also tells the angle of the pole in degrees:


# %%
class WithDegrees(gymnasium.Wrapper):
    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        info["degrees"] = float(np.degrees(observation[2]))
        return observation, reward, terminated, truncated, info


# %% [markdown]
# ## Record
#
# `orlog.record` wraps the environment, and you step it as usual. Values of `info` are recorded on request. So is the
# probability with which the policy chose its action, which off-policy estimates need. The policy pushes the cart below the
# pole, and in one of four steps takes a random action instead.

# %%
rng = np.random.default_rng(0)
environment = WithDegrees(gymnasium.make("CartPole-v1", max_episode_steps=200))
with orlog.record(
    environment,
    "lab/cartpole-v1",
    description="A policy that leans against the fall, with random actions in between.",
    license="CC0-1.0",
    behavior_policy="against the fall with probability 7/8, else the other action",
    infos=["degrees"],
    action_log_probs=True,
) as env:
    for seed in range(50):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            lean = int(observation[2] + observation[3] > 0)
            action = int(rng.integers(2)) if rng.random() < 0.25 else lean
            probability = 0.875 if action == lean else 0.125
            observation, _, terminated, truncated, _ = env.step(action, action_log_prob=np.log(probability))
            ended = terminated or truncated

# %% [markdown]
# The end of the `with` block made a version of the dataset. Until then it has no name, and no other process sees half of it.

# %%
ds = orlog.load_dataset("lab/cartpole-v1")
ds

# %%
ds[0].plot()

# %% [markdown]
# ## What was stored
#
# Every episode has its final observation, its seed, and how it ended. A pole that falls is a *termination*; the limit of 200
# steps is a *truncation*. In the last step that the limit allows, an episode can have both.

# %%
ends = [(bool(one.terminations[-1]), bool(one.truncations[-1])) for one in ds]
print("terminated:", sum(terminated for terminated, _ in ends))
print("truncated:", sum(truncated for _, truncated in ends))

episode = ds[0]
print("seed", episode.seed, "with", len(episode), "steps")
print("observations", episode.observations.shape, "degrees", episode.infos["degrees"].shape)
assert np.allclose(episode.infos["degrees"], np.degrees(episode.observations[1:, 2]), atol=1e-3)

# %% [markdown]
# The same seed and actions give the same episode again:

# %%
fresh = gymnasium.make("CartPole-v1")
observation, _ = fresh.reset(seed=episode.seed)
for step, action in enumerate(episode.actions):
    assert (observation == episode.observations[step]).all()
    observation, *_ = fresh.step(action)
assert (observation == episode.observations[-1]).all()

# %% [markdown]
# ## More episodes
#
# A version never changes. What you append becomes the next one, and copies nothing:

# %%
more = orlog.record(
    WithDegrees(gymnasium.make("CartPole-v1", max_episode_steps=200)),
    "lab/cartpole-v1",
    append=True,
    changes="5 episodes without random actions",
    infos=["degrees"],
    action_log_probs=True,
)
for seed in range(50, 55):
    observation, _ = more.reset(seed=seed)
    ended = False
    while not ended:
        lean = int(observation[2] + observation[3] > 0)
        observation, _, terminated, truncated, _ = more.step(lean, action_log_prob=0.0)
        ended = terminated or truncated
more.close()

newest = orlog.load_dataset("lab/cartpole-v1")
print(f"{ds.version} has {len(ds)} episodes, {newest.version} has {len(newest)}")

# %% [markdown]
# ## Share
#
# A *registry* is a folder: on a shared disk, behind a web server, or in a bucket. Publishing audits the data and checks
# every file.

# %%
registry = folder / "registry"
orlog.publish_dataset(newest, registry)
sorted(path.relative_to(registry).as_posix() for path in registry.rglob("manifest.json"))

# %% [markdown]
# A colleague adds the registry and downloads by name. Here another home stands for the other machine:

# %%
from orlog.datasets.home.registries import add_registry

os.environ["ORLOG_HOME"] = str(folder / "colleague")
add_registry("lab", str(registry))
theirs = orlog.load_dataset("lab/cartpole-v1", download=True)
assert theirs.digest == newest.digest
manifest, problems = orlog.verify_store(theirs)
print(len(manifest.objects), "files,", len(problems), "damaged")

# %% [markdown]
# One changed bit is found and named, and only that file is downloaded again:

# %%
file = theirs.folder / next(one.path for one in manifest.objects if "actions" in one.path)
content = bytearray(file.read_bytes())
content[len(content) // 2] ^= 1
file.unlink()  # a new file, since links may share the bytes of the old one
file.write_bytes(content)

for problem in orlog.verify_store(theirs)[1]:
    print(f"{problem.file} is {problem.kind}: {problem.column}")
orlog.repair_dataset(theirs)
assert orlog.verify_store(theirs)[1] == []

# %% [markdown]
# More: [recording](../docs/datasets.md#record) of vector environments and several agents,
# [sharing](../docs/sharing.md), [versions and locks](../docs/versions.md).
