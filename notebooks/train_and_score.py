# %% [markdown]
# # Train and score
#
# You train three methods on the same data, one of them your own, run their policies, and compare the scores with intervals.
# The data come from policies that swing a pendulum up, some well and some badly. Each training has 400 steps only.
#
# `pip install "orlog[plots]"`

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import msgspec
import numpy as np
import torch

import orlog
from orlog.algos.networks import make_generator, make_network
from orlog.algos.settings import Count, Positive, Widths
from orlog.normalize.statistics import compare_methods

ds = orlog.load_dataset("classic/pendulum-mixed-v1", build=True)
ds

# %% [markdown]
# ## Two methods of orlog
#
# BC imitates the data. IQL learns from the rewards which actions are better than others. Both run with the settings of their
# preset, except for the number of steps and the learning rate. A run is a folder with settings, versions, metrics and a checkpoint.

# %%
SEEDS, STEPS, EPISODES = (0, 1, 2), 400, 10
folder = Path(tempfile.mkdtemp())


def train(name, method, **settings):
    """Train one run of a method for each seed."""
    return [
        orlog.train(
            method, ds, seed=seed, steps=STEPS, evaluations=0, settings=settings, out=folder / name / f"seed-{seed}"
        )
        for seed in SEEDS
    ]


FAST = 3e-3  # a higher learning rate than the preset's, since there are few steps
runs = {"bc": train("bc", "bc", learning_rate=FAST), "iql": train("iql", "iql", learning_rate=FAST)}
sorted(path.name for path in runs["iql"][0].folder.iterdir())

# %% [markdown]
# ## One score
#
# A score of 0 is what random actions reach, 100 what an expert reaches. The interval is over the episodes of this one run, and
# says nothing about other seeds. The caveats say what to know before the score is compared with others.

# %%
result = orlog.evaluate(runs["bc"][0], episodes=EPISODES)
print(result)
print("interval:", result.interval)
for caveat in result.caveats:
    print("-", caveat)

# %% [markdown]
# ## A method of your own
#
# A method is a class. This one imitates the data too, but steps with a high reward count more.


# %%
class MineConfig(msgspec.Struct, frozen=True, kw_only=True):
    hidden: Widths = (64, 64)
    learning_rate: Positive = 1e-3
    batch_size: Count = 256
    temperature: Positive = 4.0  # a reward that is higher by as much counts 2.7 times as much


class Mine:
    CONFIG = MineConfig
    OBSERVATIONS, ACTIONS = ("vector",), ("continuous",)

    @staticmethod
    def loader(config):
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size}

    def __init__(self, config, scaling, *, seed, device="cpu"):
        self.config, self.scaling = config, scaling.to(device)
        sizes = len(scaling.obs_mean), len(scaling.action_low)
        self.policy = make_network(*sizes, config.hidden, generator=make_generator(seed, 0, device))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), config.learning_rate)

    def update(self, batch):
        actions = torch.tanh(self.policy(self.scaling.observations(batch.observations)))
        errors = (actions - self.scaling.actions_to_unit(batch.actions)).square().mean(-1)
        loss = (torch.exp(batch.rewards / self.config.temperature) * errors).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"policy/loss": loss.detach()}

    @torch.no_grad()
    def act(self, observations):
        unit = torch.tanh(self.policy(self.scaling.observations(observations)))
        return self.scaling.actions_from_unit(unit)


# %% [markdown]
# It trains, resumes and is evaluated like the others:

# %%
runs["mine"] = train("mine", Mine, learning_rate=FAST, temperature=8.0)

# %% [markdown]
# ## Compare
#
# Every policy runs the same number of episodes. Scores are kept as seeds by episodes: three seeds with ten episodes are not
# thirty independent runs.

# %%
scores = {}
for method, trained in runs.items():
    own = Mine if method == "mine" else None
    results = [orlog.evaluate(run, algorithm=own, episodes=EPISODES) for run in trained]
    scores[method] = {ds.name: np.stack([one.scores for one in results])}

found = compare_methods(scores, np.random.default_rng(0))
for method in found.methods:
    print(f"{method:5} mean {found.aggregates[method]['mean']}")
print("IQL above BC with probability", found.improvement["iql", "bc"])

# %% [markdown]
# The intervals are 95 % intervals of a bootstrap that draws seeds, and then episodes of each. With three seeds they are too narrow:
# use [more](../docs/scores.md) before you call one method better.

# %%
figure, axes = plt.subplots(figsize=(6, 2))
for row, method in enumerate(found.methods):
    estimate = found.aggregates[method]["mean"]
    if estimate.interval is not None:
        axes.plot(estimate.interval, (row, row), color="C0")
    axes.plot(estimate.value, row, "o", color="C0")
    axes.plot(found.runs[method][:, 0], np.full(len(SEEDS), row), "|", color="C1")
axes.set(yticks=range(3), yticklabels=found.methods, xlabel="score: mean, interval, and seeds")
plt.show()

# %% [markdown]
# ## All runs of the folder

# %%
orlog.load_runs(folder)

# %% [markdown]
# With `evaluations=5`, a training also measures a learning curve, which `orlog.load_runs(folder).plot()` draws. For real numbers
# take the steps of the preset and more seeds: `orlog train iql classic/pendulum-mixed-v1 --seeds 0-9`.
#
# More: [methods](../docs/algorithms.md), [your own algorithm](../docs/your-own-algorithm.md),
# [scores](../docs/scores.md).
