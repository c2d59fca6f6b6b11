"""Label and weigh data that nobody rewrites, and train by it: layers over a pinned version.

python examples/layers.py
"""

import numpy as np

import orlog

ds = orlog.load_dataset("pointmaze/umaze-mini-v1", build=True)


def to_go(episode: orlog.Episode) -> np.ndarray:
    """Return the rewards that are still to come, at each step."""
    return np.cumsum(episode.rewards[::-1])[::-1].astype("f4")


returns = np.array([episode.rewards.sum() for episode in ds])
good = returns > np.median(returns)
ds.with_columns({"episodes/success": good}, roles={"episodes/success": "success"}).save_layer("lab/labels-v1")
ds.with_columns("infos/value", to_go, role="value").save_layer("lab/values-v1")
ds.with_columns("episodes/weight", 1.0 + 3 * good, role="weight").save_layer("lab/weights-v1")

both = ds.with_layers("lab/values-v1", "lab/labels-v1", "lab/weights-v1")
batch = next(iter(orlog.transitions(both, 256, seed=0, infos=("value",), weights="episodes/weight")))
print(f"{batch.infos['value'].mean():.2f} still to come on average, where good episodes are drawn four times as often")
print(both.filter_episodes("success and lengths > 50"))

run = orlog.train("bc", both, steps=200, evaluations=0, weights="episodes/weight", out="runs/weighted")
print(f"trained on {run.record.dataset} by {run.record.weights}: {run.folder}")
