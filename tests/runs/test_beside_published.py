"""`orlog compare --published`: runs beside scores that authors released, at their checkpoints and nowhere else."""

import json
import shutil

import msgspec
import numpy as np
import pytest

from orlog.algos.training.evaluating import evaluate_run
from orlog.errors import NotFoundError, SchemaError
from orlog.normalize.statistics import share_interval
from orlog.normalize.verdicts import compare
from orlog.runs.beside_published import beside_published, curves_beside
from orlog.runs.comparing import find_runs, scored_runs, tables_of, write_all
from orlog.runs.scored_runs import read_scored_runs, write_scored_runs
from tests.command_line import orlog
from tests.training import train_run

pytestmark = pytest.mark.usefixtures("home")
CUBES = "ogbench/cube-quadruple-play-100m-v0"
# Of the authors' file (exp_data/dqc-exp-data.pkl): cube-quadruple, HIQL after 1 M steps, in percent.
HIQL = [24.0, 24.0, 16.0, 32.0, 14.6667, 29.3333, 21.3333, 30.6667, 29.3333, 22.6667]


@pytest.fixture(scope="module")
def template(built_mini, tmp_path_factory):
    """Return the folder of a run that was really trained and evaluated, to be written as another one."""
    folder = tmp_path_factory.mktemp("template") / "run"
    train_run("bc", built_mini, folder, seed=0, steps=4, evaluations=2, curve_episodes=2)
    evaluate_run(folder, dataset=built_mini, episodes=4)
    return folder


def write_run(template, folder, successes, *, seed=0, dataset=CUBES, **changes):
    """Write a run with a learning curve: of each step the number of its 50 episodes that succeeded."""
    shutil.copytree(template, folder)
    for name in ("checkpoint.safetensors", "evaluation.json"):
        (folder / name).unlink()
    record = json.loads((folder / "run.json").read_text("utf-8"))
    record |= {"seed": seed, "dataset": dataset, "steps": 1_000_000, "curve_episodes": 50, **changes}
    (folder / "run.json").write_text(json.dumps(record), "utf-8")
    lines = []
    for step, count in successes.items():
        won = [place < count for place in range(50)]
        lines.append({"step": step, "seconds": 1.0, "returns": list(map(float, won)), "successes": won})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def beside(folder, publication="dqc"):
    return beside_published([row for table, _ in tables_of(find_runs([folder])) for row in table], publication)


@pytest.fixture
def runs(template, tmp_path):
    """Return three seeds at two of the four checkpoints, and at steps beside the others."""
    for seed, last in enumerate((10, 13, 12)):
        points = {249_000: 50, 500_000: 0, 751_000: 50, 1_000_000: last}
        write_run(template, tmp_path / "runs" / f"seed-{seed}", points, seed=seed)
    return tmp_path / "runs"


def test_only_evaluations_at_the_checkpoints_count_and_the_others_are_named(runs):
    pairs, notes = beside(f"HIQL={runs}")
    assert [(pair.published.algorithm, pair.published.step) for pair in pairs] == [
        ("HIQL", 500_000),
        ("HIQL", 1_000_000),
    ]
    assert pairs[1].shares == [20.0, 26.0, 24.0]
    low, high = share_interval([0.2, 0.26, 0.24], 150)
    assert pairs[1].interval == (100 * low, 100 * high)
    assert "HIQL on ogbench/cube-quadruple-play-100m-v0: not evaluated after 250 k steps, 750 k steps" in notes[0]
    assert pairs[1].published.per_seed == pytest.approx(HIQL, abs=1e-4)


def test_verdicts_are_those_of_reproductions_and_share_their_error_over_checkpoints(runs):
    pairs, _ = beside(f"HIQL={runs}")
    theirs = {100 + place: np.array([score]) for place, score in enumerate(pairs[1].published.per_seed)}
    ours = {seed: np.array([share]) for seed, share in enumerate((20.0, 26.0, 24.0))}
    assert pairs[1].verdict == compare(ours, theirs, same_run=False, numbers=2)
    assert [pair.verdict.word for pair in pairs] == ["not consistent", "consistent"]
    assert pairs[1].verdict.pairs == 0  # seed 0 of ours is no pair of their first one
    alone = compare(ours, theirs, same_run=False)
    assert alone.prediction[0] > pairs[1].verdict.prediction[0]


def test_a_method_without_a_namesake_stands_beside_all(runs):
    pairs, _ = beside(runs)  # bc
    assert len(pairs) == 2 * 17
    assert not any(pair.is_named for pair in pairs)
    named, _ = beside(f"dqc={runs}")
    assert {pair.published.algorithm for pair in named} == {"DQC h=25 h_a=1", "DQC h=25 h_a=5", "DQC h=5 h_a=1"}


@pytest.mark.parametrize(
    ("algorithm", "settings", "name"),
    [
        ("dqc", {"horizon": 25, "policy_chunk": 5, "chunk_critic": True}, "DQC h=25 h_a=5"),
        ("dqc", {"horizon": 25, "policy_chunk": 5, "chunk_critic": False}, "QC-NS n=25 h_a=5"),
        ("dqc", {"horizon": 5, "policy_chunk": 5, "chunk_critic": False}, "QC h=5"),
        ("dqc", {"horizon": 5, "policy_chunk": 1, "chunk_critic": False}, "NS n=5"),
        ("dqc", {"horizon": 1, "policy_chunk": 1, "chunk_critic": False}, "OS"),
        ("dqc", {"horizon": 10, "policy_chunk": 1, "chunk_critic": True}, None),
        ("qam", {"edit_scale": 0.1, "distillation_weight": None}, "QAM-E"),
        ("qam", {"edit_scale": None, "distillation_weight": 300.0}, "QAM-F"),
        ("qam", {"edit_scale": None, "distillation_weight": None}, "QAM"),
    ],
)
def test_settings_say_which_of_the_authors_methods_a_run_is(template, tmp_path, algorithm, settings, name):
    task = {"dqc": CUBES, "qam": "ogbench/cube-triple-play-singletask-task2-v0"}[algorithm]
    folder = tmp_path / "seed-0"
    write_run(template, folder, {1_000_000: 12}, dataset=task, algorithm=algorithm, config=settings)
    pairs, _ = beside(folder, algorithm)
    assert [pair.published.algorithm for pair in pairs if pair.is_named] == ([name] if name else [])


def test_the_task_goes_by_the_name_of_the_dataset_or_is_told(template, tmp_path):
    write_run(template, tmp_path / "own" / "seed-0", {1_000_000: 12}, dataset="lab/cube-quadruple-play-100m-v1")
    pairs, notes = beside(f"HIQL={tmp_path / 'own'}")
    assert pairs[0].published.dataset == "ogbench/cube-quadruple-play-oraclerep-v0"
    assert f"lab/cube-quadruple-play-100m-v1 is taken for {CUBES}, by name" in notes
    write_run(template, tmp_path / "other" / "seed-0", {1_000_000: 12}, dataset="lab/cubes-v1")
    with pytest.raises(
        NotFoundError, match=r"lab/cubes-v1: is none of the tasks of dqc; name one: --published dqc:TASK"
    ):
        beside(tmp_path / "other")
    pairs, notes = beside(f"HIQL={tmp_path / 'other'}", "dqc:cube-triple-play-oraclerep")
    assert pairs[0].published.dataset == "ogbench/cube-triple-play-oraclerep-v0"
    assert any("lab/cubes-v1 is taken for" in note and note.endswith("as told") for note in notes)
    for name in ("cube-triple-play-100m", "ogbench/cube-triple-play-100m-v0", "Cube-Triple-play-oraclerep-v0"):
        again, same_notes = beside(f"HIQL={tmp_path / 'other'}", f"dqc:{name}")
        assert [pair.published for pair in again] == [pair.published for pair in pairs]
        assert same_notes == notes
    with pytest.raises(
        NotFoundError, match=r"its tasks are ogbench/cube-double-play-singletask-task1-v0, [^.]*task5-v0\."
    ):
        beside(tmp_path / "other", "qam:cube-double-play")
    with pytest.raises(NotFoundError, match="dqc has no task 'cubes'; its tasks are ogbench/cube-octuple"):
        beside(tmp_path / "other", "dqc:cubes")
    with pytest.raises(NotFoundError, match="no scores at checkpoints are known of 'corl'; there are qam, dqc"):
        beside(tmp_path / "other", "corl")


def test_steps_in_the_environment_are_told_from_steps_on_data(template, tmp_path):
    task = "ogbench/cube-triple-play-singletask-task2-v0"
    write_run(template, tmp_path / "off" / "seed-0", {1_000_000: 3}, dataset=task)
    online = {"run": "x", "checkpoint_sha256": "0" * 64, "step": 1_000_000}
    points = {1_000_000: 3, 1_500_000: 40}
    write_run(template, tmp_path / "on" / "seed-0", points, dataset=task, online=online, steps=1_500_000)
    pairs, notes = beside(f"QAM={tmp_path / 'off'}", "qam")
    assert [(pair.published.step, pair.published.online_steps) for pair in pairs] == [(1_000_000, 0)]
    assert "not evaluated after 0.5 M online steps" in notes[0]
    pairs, _ = beside(f"QAM={tmp_path / 'on'}", "qam")
    assert [pair.published.online_steps for pair in pairs] == [0, 500_000]
    assert pairs[1].shares == [80.0]
    # The authors of RLPD learn from the first step in the environment: 0.5 M steps are all of it.
    with pytest.raises(NotFoundError, match=r"not evaluated after 0\.5 M online steps"):
        beside(f"RLPD={tmp_path / 'on'}", "qam")


def test_what_cannot_stand_there_is_refused(template, tmp_path):
    folder = write_run(template, tmp_path / "near" / "seed-0", {999_000: 12})
    with pytest.raises(
        NotFoundError, match=r"nothing stands beside dqc: .*train with: --steps 1000000 --evaluations 4"
    ):
        beside(folder)
    folder = write_run(template, tmp_path / "silent" / "seed-0", {1_000_000: 12})
    line = json.loads((folder / "metrics.jsonl").read_text("utf-8"))
    del line["successes"]
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    with pytest.raises(SchemaError, match="does not tell whether episodes succeed"):
        beside(folder)


def test_a_file_of_scored_runs_stands_there_at_its_own_step(template, tmp_path):
    (path,) = write_all(tmp_path / "bc.json", scored_runs([template]))
    with pytest.raises(NotFoundError, match="not evaluated after 250 k steps, 500 k steps, 750 k steps, 1 M steps"):
        beside(path, "dqc:cube-quadruple-play-oraclerep")  # at step 4
    short = read_scored_runs(path)
    changes = {"step": 750_000, "compute": msgspec.structs.replace(short.compute, steps=750_000)}
    write_scored_runs(path, msgspec.structs.replace(short, **changes))
    pairs, _ = beside(f"FBC={path}", "dqc:cube-quadruple-play-oraclerep")
    assert [pair.published.step for pair in pairs] == [750_000]
    assert pairs[0].shares == [100 * np.mean(short.seeds[0].metrics["success"])]


def test_curves_are_drawn_with_the_published_points(runs):
    pairs, _ = beside(f"HIQL={runs}")
    ours, theirs = curves_beside(pairs, "dqc")
    assert ours.steps.tolist() == [249_000, 500_000, 751_000, 1_000_000]
    np.testing.assert_allclose(ours.means, [1, 0, 1, 70 / 300])
    assert theirs.steps.tolist() == [250_000, 500_000, 750_000, 1_000_000]
    assert theirs.means[3] == pytest.approx(np.mean(HIQL) / 100, abs=1e-6)
    assert (theirs.band[0] < theirs.means).all()
    assert theirs.title == "HIQL, DQC (10 seeds)"


def test_the_command_prints_a_table_verdicts_and_json_and_draws(runs, tmp_path):
    said = orlog("compare", f"HIQL={runs}", "--published", "dqc", "--plot", str(tmp_path / "p.png"))
    (line,) = (line for line in said.stdout.splitlines() if " 1 M steps " in line)
    assert line.split("  ")[-1].strip() == "consistent"
    assert "HIQL after 1 M steps: consistent: 23.3 lies inside" in said.stdout
    assert "not evaluated after 250 k steps, 750 k steps; the nearest are not taken" in said.stdout
    assert "source: ColinQiyangLi/dqc@df89825" in said.stdout
    assert (tmp_path / "p.png").stat().st_size > 10_000
    body = json.loads(orlog("compare", str(runs), "--published", "dqc", "--json").stdout)
    assert len(body["pairs"]) == 34
    assert body["pairs"][0]["verdict"]["word"] in ("same", "consistent", "unsettled", "not consistent")
    wrong = orlog("compare", str(runs), "--published", "dqc", "--tuning")
    assert wrong.returncode == 2
    assert "--published is a comparison of its own" in wrong.stderr
