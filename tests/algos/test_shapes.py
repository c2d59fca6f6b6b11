import sys

import pytest

from tests.programs import run_program

CHECKED = """
import beartype
import torch
from jaxtyping import install_import_hook

# An int is a float here, as it is to mypy.
beartype.beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
# A Protocol that is not runtime_checkable cannot be checked: `algorithms` and `train` are left out.
rooms = {"algos": ["awac", "bc", "calql", "cql", "critics", "edac", "flows", "fql", "ifql", "iql", "networks", "policies", "qcfql", "rebrac", "rlpd", "td3bc", "training.checkpoint"],
         "loaders": ["arrays", "batch", "chunks", "transitions"],
         "normalize": ["references", "rollouts", "statistics", "verdicts"]}
modules = [f"orlog.{room}.{name}" for room, names in rooms.items() for name in names]
with install_import_hook(modules, "beartype.beartype"):
    from orlog.algos import algorithms, bc, networks, settings
    from orlog.algos.training import runs as checkpoint
    from orlog.algos import presets as recipes
    from orlog.algos.training import loop as train
    from orlog.loaders import batch, chunks, transitions
    from orlog.loaders import arrays
    from orlog.loaders import streams as batches
    from orlog.normalize import references, rollouts, statistics, verdicts
import numpy as np

torch.set_num_threads(1)
rows = torch.zeros(9, 3 + 2 + 3)
data = arrays.Arrays(rows=rows, lengths=np.array([8]), obs_dim=3, action_dim=2)
data.observation_statistics()
stream = transitions.transitions(data, 4, seed=0, next_actions=True)
others = {"qcfql": chunks.action_chunks(data, 4, seed=0), "calql": transitions.transitions(data, 4, seed=0, returns_to_go=True)}
scaling = networks.Scaling(
    obs_mean=torch.zeros(3), obs_std=torch.ones(3),
    action_low=-torch.ones(2), action_high=torch.ones(2),
)
for name, changes in [
    ("bc", {}), ("iql", {}), ("cql", {}), ("cql", {"target_gap": 1.0}), ("cql", {"cloning_steps": 1}),
    ("awac", {}), ("edac", {"critics": 3}), ("edac", {"diversity": 0.0}), ("fql", {}), ("ifql", {}), ("qcfql", {}),
    ("calql", {}), ("rebrac", {}), ("rlpd", {"updates": 1}), ("td3bc", {}),
]:
    config = settings.make_config(name, {"hidden": [4], **changes})
    made = algorithms.make_algorithm(name, config, scaling, seed=0)
    list(train.train(made, others.get(name, stream), last_step=2, every=1))
    made.act(torch.zeros(5, 3))
try:
    bc.cloning_loss(torch.zeros(3), torch.zeros(3))
except Exception as error:
    assert "batch act" in str(error)
else:
    raise AssertionError("nothing is checked")
scores = np.random.default_rng(0).normal(size=(3, 5))
statistics.bootstrap_interval(scores, np.random.default_rng(0))
statistics.score_interval([*scores])
statistics.mean_ranks(scores)
statistics.compare_methods(
    {"a": {"one": scores, "two": scores}, "b": {"one": scores, "two": scores}}, np.random.default_rng(0), resamples=9
)
statistics.tuning_curves(scores, np.random.default_rng(0), evaluations=5, trials=3)
statistics.expected_online_performance(scores[0])
one = dict(enumerate(scores))
verdicts.compare(one, {seed: value + 1 for seed, value in one.items()})
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_the_shapes_in_annotations_hold_at_run_time():
    child = run_program([sys.executable, "-c", CHECKED])
    assert child.returncode == 0, child.stderr[-2000:]
