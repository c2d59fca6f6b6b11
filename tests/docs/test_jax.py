"""Batches of arrays in JAX, in processes of their own: one that has imported it is no longer to be forked."""

import os
import sys
from pathlib import Path

from tests.programs import run_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "agents_in_jax.py"
# What the example uses of the authors' `agents/fql.py` and `agents/gciql.py`, with a linear policy in place of theirs.
AGENT = """
import types
import jax, jax.numpy as jnp

KEYS = {"observations", "actions", "rewards", "masks", "next_observations", *GOALS}

class Agent:
    def __init__(self, weights):
        self.weights = weights

    @classmethod
    def create(cls, seed, observations, actions, config):
        assert bool(GOALS) != hasattr(config, "normalize_q_loss")
        return cls(jnp.zeros((observations.shape[1], actions.shape[1])))

    def update(self, batch):
        assert set(batch) == KEYS
        loss, slope = loss_and_slope(self.weights, batch)
        return Agent(self.weights - 0.01 * slope), {"critic/critic_loss": loss, "q_mean": loss, "actor/bc_loss": loss}

    def sample_actions(self, observations, goals=(), seed=None, temperature=1.0):
        assert (len(goals), temperature) == ((3, 0.0) if GOALS else (0, 1.0))
        return jnp.clip(observations @ self.weights, -1, 1)

@jax.jit
@jax.value_and_grad
def loss_and_slope(weights, batch):
    return jnp.square(batch["observations"] @ weights - batch["actions"]).mean()

get_config = types.SimpleNamespace
FQLAgent = GCIQLAgent = Agent
"""
GOALS = {"fql": (), "gciql": ("value_goals", "actor_goals")}
# One process for both, since it takes seconds to start.
PROGRAM = """
import jax, numpy as np, orlog, runpy, sys
ds = orlog.load_dataset(sys.argv.pop(1))
arrays, tensors = (next(iter(orlog.transitions(ds, 256, seed=0, to=to))) for to in ("numpy", "torch"))
means = jax.jit(lambda values: values.mean(axis=0))(arrays.observations)
np.testing.assert_allclose(means, tensors.observations.mean(0), rtol=1e-5)
sys.argv.pop(0)
for agent in ("fql", "gciql"):
    sys.argv[1] = agent
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_arrays_go_through_jit_and_the_example_trains_agents_of_a_clone_and_scores_them(mini_folder, tmp_path):
    (tmp_path / "agents").mkdir()
    for agent, goals in GOALS.items():
        (tmp_path / "agents" / f"{agent}.py").write_text(f"GOALS = {goals}\n{AGENT}", "utf-8")
    words = ("-c", PROGRAM, mini_folder, EXAMPLE, "agent", tmp_path, "--steps", "50")
    done = run_program([sys.executable, *map(str, words)], env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step ")]
    assert len(losses) == 10
    assert losses[4] < losses[0]
    assert losses[9] < losses[5]
    assert [line.split()[-3] for line in lines if line.startswith("mean return")] == ["normalized", "normalized"]


def test_the_example_says_what_to_install_and_to_clone(tmp_path):
    done = run_program([sys.executable, str(EXAMPLE), "gciql", str(tmp_path)])
    assert done.returncode == 1
    assert done.stderr.startswith("No module named 'agents'. What to install")
    assert "git clone https://github.com/seohongpark/ogbench" in done.stderr
