"""A metric of episodes is a function and an entry of a table: evaluations, commands, reports and baselines know it without a change.

Costs are one such metric; the area under a front is another, over runs with several weights, added by a test.
"""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.algos.training.runs import TrainOptions, read_evaluation
from orlog.normalize import references as baselines
from orlog.normalize.metrics import METRICS, Metric, Number, numbers_of
from orlog.normalize.references import read_baseline, record_baseline
from orlog.runs.comparing import find_runs, tables_of
from orlog.runs.jobs import make_jobs, run_jobs
from orlog.runs.reproducing import summarize
from orlog.runs.results_page import write_results_page
from orlog.runs.run_folders import EVALUATED
from orlog.viewer.runs import runs_of
from tests.command_line import orlog as run
from tests.pools import pool_in_this_process

NAME = "lab/costly-v1"
SMALL = {"hidden": [4]}


class Costly(gymnasium.Env[np.ndarray, np.ndarray]):
    """Five steps; each costs as much as the action is long, and has a reward for each of two objectives."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        cost = 10 * abs(float(action[0])) + 1
        info = {"energy": cost, "objectives": np.array([self.steps, float(action[0])])}
        return self._observe(), -cost, False, self.steps == 5, info

    def _observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


@pytest.fixture
def costly(tmp_path, monkeypatch):
    """Return a dataset with costs, whose environment tells them, in an empty current folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = Costly
    gymnasium.register("lab/Costly-v0", made, max_episode_steps=5)
    with orlog.record(gymnasium.make("lab/Costly-v0"), NAME, infos=["energy"], roles={"infos/energy": "cost"}) as env:
        env.action_space.seed(0)
        for seed in range(4):
            env.reset(seed=seed)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
    yield orlog.load_dataset(NAME)
    del gymnasium.registry["lab/Costly-v0"]


def test_costs_are_kept_printed_and_compared(costly):
    for seed in (0, 1):
        orlog.train("bc", costly, settings=SMALL, steps=3, evaluations=1, seed=seed)
    done = orlog.evaluate(Path("runs") / "bc" / NAME / "seed-0", episodes=6)
    assert (done.metrics["cost"] > 5).all()
    np.testing.assert_allclose(done.metrics["cost"], -done.returns)
    kept = read_evaluation(done.run.folder)
    assert kept.metrics == {"cost": done.metrics["cost"].tolist()}
    assert kept.successes is None
    assert "cost" not in (done.run.folder / "metrics.jsonl").read_text("utf-8")
    mean, *limits = done.numbers
    assert mean.value == pytest.approx(done.metrics["cost"].mean())
    assert [one.name for one in limits] == [f"normalized cost at {one}" for one in (10, 20, 40)]
    assert f"cost {mean.value:.1f}" in repr(done)

    shown = run("evaluate", "runs", "--episodes", "6")
    assert shown.returncode == 0, shown.stderr
    assert f", cost {mean.value:.1f}, 6 episodes" in shown.stdout
    assert str(limits[0]) in shown.stdout
    asked = ("--episodes", "6", "--json", "--out", "seed-0.json")
    body = json.loads(run("evaluate", str(done.run.folder), *asked).stdout)
    assert body["metrics"] == {"cost": done.metrics["cost"].tolist()}
    assert body["numbers"] == [one.to_json() for one in done.numbers]
    (again,) = find_runs(["seed-0.json"])
    assert again.scored.seeds[0].metrics["cost"] == done.metrics["cost"].tolist()

    (((both,), _),) = tables_of(find_runs(["runs"]))
    (first, *_) = both.numbers
    for words in (("runs",), ("compare", "runs")):
        assert "cost" in run(*words).stdout
    found = json.loads(run("compare", "runs", "--json").stdout)["numbers"]["bc"][NAME]
    assert found[0] == first.to_json()
    (group,) = runs_of(Path("runs"))["groups"]
    (measured,) = (one for one in group["scores"] if one["source"] == EVALUATED)
    assert measured["counted"][0] == str(first)


def test_a_baseline_keeps_costs_and_a_reproduction_stands_beside_them(costly, tmp_path, monkeypatch):
    monkeypatch.setattr("orlog.base.jobs.ProcessPool", pool_in_this_process)
    monkeypatch.setattr(baselines, "recorded_folder", lambda name: tmp_path / "records" / name)
    jobs = make_jobs("bc", costly, "jobs", seeds=(0, 1), episodes=3, options=TrainOptions(steps=2, evaluations=1))
    run_jobs(jobs, workers=1)
    result = summarize(jobs)
    record_baseline(result.as_baseline())
    baseline = read_baseline("bc", NAME)
    assert baseline is not None
    assert {*baseline.metrics["cost"]} == {"0", "1"}
    again = summarize(jobs)
    assert again.recorded_numbers["cost"] == again.numbers[0]
    page = tmp_path / "page.html"
    write_results_page(page, [again], [costly], title="Costs")
    assert "normalized cost at 20" in page.read_text("utf-8")
    ended = run("reproduce", "bc", NAME, "--seeds", "2", "--steps", "2", "--episodes", "3")
    assert ended.returncode == 0, ended.stderr
    assert f"{NAME}: what metrics counted, over the seeds" in ended.stdout
    (row,) = (one for one in ended.stdout.splitlines() if " cost " in one and "normalized" not in one)
    assert row.split().count(f"{result.numbers[0].value:.1f}") == 2  # here, and as recorded


def area(runs):
    """Return the area that the mean objectives of runs with several weights dominate, from the origin."""
    points = sorted((tuple(run.metrics["area"].mean(0)) for run in runs), reverse=True)
    area = height = 0.0
    for width, level in points:
        if level > height:
            area, height = area + width * (level - height), level
    weights = len({str(run.settings.get("hidden")) for run in runs})
    return [Number(metric="area", name="area", value=area, note=f"{weights} weights")]


def test_a_metric_may_be_over_all_objectives_of_runs_with_several_weights(costly, monkeypatch):
    added = Metric(summarize=area, combine="sum", infos=("objectives",))
    monkeypatch.setitem(METRICS, "area", added)
    results = []
    for width in (4, 5):
        made = orlog.train("bc", costly, settings={"hidden": [width]}, steps=3, evaluations=0, out=f"runs/{width}")
        results.append(orlog.evaluate(made, episodes=3))
    assert results[0].metrics["area"].shape == (3, 2)
    assert (results[0].metrics["area"][:, 0] == 15).all()
    assert read_evaluation(results[0].run.folder).metrics["area"][0] == [15.0, float(results[0].metrics["area"][0, 1])]
    found = numbers_of([one.outcomes for one in results])
    (one,) = (one for one in found if one.metric == "area")
    means = [result.metrics["area"].mean(0)[1] for result in results]
    assert one.value == pytest.approx(15 * max(0.0, *means))
    assert one.note == "2 weights"
    assert "area" in run("evaluate", "runs/4", "--episodes", "3").stdout
