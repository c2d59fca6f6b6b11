"""The runs in a folder: listed, verified and drawn, whatever state they are in."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from orlog import finetune, load_runs, references
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import read_evaluation, read_metrics, read_sealed, write_sealed
from orlog.base.files import hold_folder
from orlog.datasets.looking.figures import new_figure
from orlog.errors import ManifestError, StoppedError
from orlog.normalize.statistics import mean_interval, share_interval
from orlog.runs.run_folders import find_run_folders, group_runs, mean_curve, scores_measured_alike
from tests.command_line import orlog
from tests.training import train_run

SMALL = {"hidden": [4], "batch_size": 8}


def train(dataset, folder, seed=0, **options):
    settings = {**SMALL, **options.pop("settings", {})}
    options = {"steps": 10, "evaluations": 2, "curve_episodes": 2, **options}
    train_run("bc", dataset, folder, seed=seed, settings=settings, **options)


def put_returns(folder, returns):
    """Replace the returns on a learning curve; those above 20 are of successful episodes."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in lines:
        line.pop("returns", None)
        line.pop("successes", None)
        if line["step"] in returns:
            line["returns"] = returns[line["step"]]
            line["successes"] = [one > 20 for one in line["returns"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


@pytest.fixture(scope="module")
def template(built_mini, tmp_path_factory):
    """Return a folder with runs in every state, to be copied."""
    root = tmp_path_factory.mktemp("template")
    for seed in (0, 1, 2, 10):
        train(built_mini, root / "bc" / f"seed-{seed}", seed)
        low = float(seed)
        put_returns(root / "bc" / f"seed-{seed}", {5: [low, low + 2], 10: [low + 10, low + 30]})
    train(built_mini, root / "slow" / "seed-0", settings={"learning_rate": 1e-4})
    put_returns(root / "slow" / "seed-0", {10: [1.0, 1.0]})
    with pytest.raises(StoppedError):
        train(built_mini, root / "stopped", 3, evaluations=0, stop=lambda: True)
    with pytest.raises(StoppedError):
        train(built_mini, root / "running", 4, evaluations=0, stop=lambda: True)
    with pytest.raises(StoppedError):
        train(built_mini, root / "diverged", 5, evaluations=0, stop=lambda: True)
    with (root / "diverged" / "metrics.jsonl").open("a") as log:
        log.write('{"step": 7, "seconds": 1, "diverged": "policy/loss"}\n')
    (root / "foreign").mkdir()
    (root / "foreign" / "run.json").write_text('{"lr": [red]1}', "utf-8")
    train(built_mini, root / "lost", 6, evaluations=0)
    (root / "lost" / "run.json").unlink()
    train(built_mini, root / "cut", 7, evaluations=0)
    data = (root / "cut" / "checkpoint.safetensors").read_bytes()
    (root / "cut" / "checkpoint.safetensors").write_bytes(data[: len(data) // 2])
    return root


@pytest.fixture
def some(template, mini, tmp_path):
    """Yield a folder with runs in every state; one is running as long as the test does."""
    assert mini.folder.is_dir()
    root = tmp_path / "runs"
    shutil.copytree(template, root)
    with hold_folder(root / "running", busy=""):
        yield root


def test_runs_in_every_state_are_listed_and_compared(some, mini):
    found = orlog("runs", str(some))
    assert found.returncode == 0, found.stderr
    rows = {line.split()[0].removeprefix(f"{some}/"): line.split() for line in found.stdout.splitlines()[1:]}
    states = {name: row[-1] for name, row in rows.items()}
    assert states == {
        **{f"bc/seed-{seed}": "finished" for seed in (0, 1, 2, 10)},
        "cut": "unreadable",
        "diverged": "diverged",
        "foreign": "unreadable",
        "lost": "unreadable",
        "running": "running",
        "slow/seed-0": "finished",
        "stopped": "stopped",
    }
    assert list(rows)[:4] == [f"bc/seed-{seed}" for seed in (0, 1, 2, 10)]
    assert "10/10" in rows["bc/seed-0"]
    assert "1/10" in rows["stopped"]
    assert "learning_rate=0.0001" in found.stdout
    assert "hidden" not in found.stdout  # the same in all
    for folder, reason in (
        ("foreign", "run.json"),
        ("lost", "there is no run.json in it"),
        ("cut", "not a readable checkpoint"),
    ):
        (note,) = (line for line in found.stderr.splitlines() if f"{some / folder}: " in line)
        assert reason in note
    assert "Traceback" not in found.stderr
    compared = orlog("compare", str(some))
    assert compared.returncode == 0, compared.stderr
    for name in ("cut", "foreign"):
        assert f"{some / name}: left out: " in compared.stdout

    body = json.loads(orlog("runs", str(some), "--json").stdout)
    by_folder = {Path(one["folder"]).relative_to(some).as_posix(): one for one in body["runs"]}
    known = references(mini)
    scores = known.normalize(np.array([11.0, 31.0]))
    one = by_folder["bc/seed-1"]
    assert one["score"] == pytest.approx(scores.mean())
    assert one["score_interval"] == pytest.approx(mean_interval(scores))
    assert (one["step"], one["steps"], one["scored_step"], one["episodes"]) == (10, 10, 10, 2)
    assert one["success_rate"] == 0.5
    assert rows["bc/seed-1"][-3:-1] == ["50.0", "%"]
    assert one["differing_settings"]["learning_rate"] == 0.001
    assert by_folder["foreign"]["score"] is None
    assert "run.json" in by_folder["foreign"]["problem"]

    assert by_folder["stopped"]["command"].endswith(f"--out {some / 'stopped'}")
    groups = group_runs(find_run_folders(some))
    assert [[run.record and run.record.seed for run in group] for group in groups.values()] == [
        [0, 1, 2, 3, 4, 5, 10],
        [0],
    ]
    (scored,) = scores_measured_alike(next(iter(groups.values())))
    means = known.normalize(np.array([20.0, 21.0, 22.0, 30.0]))
    assert (scored["seeds"], scored["source"]) == ([0, 1, 2, 10], "last point of the curve")
    assert scored["score"] == pytest.approx(means.mean())
    assert scored["score_interval"] == pytest.approx(mean_interval(means))
    assert scored["counted"][0].startswith("success rate 50.0 %")


def test_scores_that_were_measured_in_other_ways_share_no_mean(mini, tmp_path):
    root = tmp_path / "runs"
    for seed in (0, 1, 2):
        train(mini, root / f"seed-{seed}", seed)
        put_returns(root / f"seed-{seed}", {10: [float(seed), seed + 20.0]})
    score = json.loads(orlog("evaluate", str(root / "seed-1"), "--episodes", "2", "--json").stdout)["normalized_score"]
    body = json.loads(orlog("compare", str(root), "--json").stdout)
    (evaluated,) = body["methods"]
    assert (evaluated["seeds"], body["apart"]) == (1, [])
    assert evaluated["scores"][mini.name] == pytest.approx([score])
    assert any("seeds 0, 2 left out, not evaluated yet" in note for note in body["notes"])


def test_a_seed_counts_once_and_only_what_differs_is_shown(mini, tmp_path):
    root = tmp_path / "runs"
    for seed in (0, 1):
        train(mini, root / f"seed-{seed}", seed)
    points = [line for line in read_metrics(root / "seed-0") if "returns" in line]
    assert [[one > 0 for one in line["returns"]] for line in points] == [line["successes"] for line in points]
    shutil.copytree(root / "seed-0", root / "copy")
    train(mini, root / "more", 2, steps=20)
    common = {"steps": 4, "evaluations": 0, "noise": 0.1}
    for prior in (None, 0.25):
        finetune(root / "seed-1", out=root / f"prior-{prior}", prior=prior, **common)
    groups = {
        label: [run.record and run.record.seed for run in group]
        for (_, label), group in group_runs(find_run_folders(root)).items()
    }
    assert groups["BC steps=10"] == [0, 1]
    assert groups[f"BC steps=10 {root / 'seed-0'}"] == [0]  # the copy has this seed
    listed = orlog("runs", str(root)).stdout
    assert "from_step=10, prior=even" in listed
    assert "from_step=10, prior=0.25" in listed
    for word in ("steps=", "noise", "precision", "online"):
        assert word not in listed
    (root / "seed-1" / "run.json").write_text("{", "utf-8")
    (line,) = (one for one in orlog("runs", str(root)).stderr.splitlines() if "run.json" in one)
    assert line.count(str(root)) == 1


def test_a_later_evaluation_counts_and_curves_are_means_over_seeds(some, mini):
    _, evaluation = evaluate_run(some / "bc" / "seed-0", episodes=3)
    runs = find_run_folders(some / "bc")
    assert runs[0].scores is not None
    known = references(mini)
    np.testing.assert_allclose(runs[0].scores, known.normalize(np.array(evaluation.returns)))
    (group,) = group_runs(runs).values()
    steps, means, low, high = mean_curve(group)
    assert steps.tolist() == [5, 10]
    assert re.fullmatch(r"Runs\('.*bc': \d+ BC\)", repr(load_runs(some / "bc")))
    assert runs[0].evaluation is not None
    assert runs[1].evaluation is None
    first = known.normalize(np.array([1.0, 2.0, 3.0, 11.0]))
    assert means[0] == pytest.approx(first.mean())
    assert (low[0], high[0]) == pytest.approx(mean_interval(first))


@pytest.fixture
def evaluated(mini, tmp_path):
    folder = tmp_path / "runs" / "seed-0"
    train(mini, folder, keep_checkpoints=True)
    evaluate_run(folder, dataset=mini, episodes=2)
    return folder


FILES = ["evaluation.json", "metrics.jsonl", "run.json", "checkpoint.safetensors"]
KEPT = "checkpoints/step-000000005.safetensors"


@pytest.mark.parametrize("name", [*FILES, KEPT])
def test_a_changed_digit_in_a_run_is_damage(evaluated, name):
    whole = orlog("runs", str(evaluated.parent), "--verify")
    assert whole.returncode == 0, whole.stdout
    assert "1 run, none is damaged" in whole.stdout
    path = evaluated / name
    data = path.read_bytes()
    at = data.rindex(b"1") if path.suffix != ".safetensors" else len(data) - 1
    path.write_bytes(data[:at] + b"2" + data[at + 1 :])
    found = orlog("runs", str(evaluated.parent), "--verify", "--json")
    assert found.returncode == 3
    (run,) = json.loads(found.stdout)["runs"]
    assert any(name in one for one in run["problems"])
    (listed,) = find_run_folders(evaluated)
    assert (listed.state == "unreadable") == (path.suffix != ".safetensors")
    if path.suffix != ".safetensors":
        assert orlog("compare", str(evaluated), str(evaluated)).returncode == 3


def test_an_evaluation_holds_after_its_run_went_on(mini, tmp_path):
    folder = tmp_path / "run"
    calls = iter([False] * 6 + [True] * 9)
    with pytest.raises(StoppedError):
        train(mini, folder, stop=lambda: next(calls))
    evaluate_run(folder, dataset=mini, episodes=2)
    train(mini, folder, resume=True)
    assert read_evaluation(folder).step < 10
    assert orlog("runs", str(folder), "--verify").returncode == 0
    (evaluated,) = find_run_folders(folder)
    assert evaluated.state == "finished"


def test_curves_are_drawn(some, tmp_path):
    pytest.importorskip("matplotlib")
    for name, start in (("curves.png", b"\x89PNG"), ("curves.svg", b"<?xml")):
        found = orlog("compare", str(some / "bc"), "--plot", str(tmp_path / name))
        assert found.returncode == 0, found.stderr
        assert (tmp_path / name).read_bytes().startswith(start)
    assert load_runs(some).plot(success=True).axes
    steps, means, low, high = mean_curve(find_run_folders(some / "bc"), success=True)
    assert (steps.tolist(), means.tolist()) == ([5, 10], [0, 0.5])
    assert (low[0], high[0]) == share_interval([0.0] * 4, 8)  # a width where seeds do not differ
    figure = load_runs(some).plot()
    figure.canvas.draw()
    for axes in figure.axes:
        legend, drawn = axes.get_legend(), axes.get_window_extent()
        assert legend.get_window_extent().y1 <= drawn.y0  # below, where no curve is
    panels, _ = new_figure(7, width=6.5, height=4, in_row=3)
    assert panels.get_size_inches().tolist() == [19.5, 12]
    assert len(panels.axes) == 7
    wrong = orlog("compare", str(some / "bc"), "--plot", str(tmp_path / "curves.gif"))
    assert wrong.returncode == 1
    assert "must end in one of" in wrong.stderr


def test_a_folder_without_runs_or_curves_says_so(mini, tmp_path):
    (tmp_path / "empty").mkdir()
    for words in (["runs"], ["runs", "--verify"], ["compare"]):
        found = orlog(*words, str(tmp_path / "empty"))
        assert found.returncode == 1
        assert "no run is in this folder or below" in found.stderr
    train(mini, tmp_path / "run", evaluations=0)
    found = orlog("compare", str(tmp_path / "run"))
    assert found.returncode == 1
    assert f"no run in this folder has a score; run: orlog evaluate {tmp_path / 'run'}" in (found.stderr)
    for success in (False, True):
        with pytest.raises(ValueError, match="no run has a learning curve"):
            load_runs(tmp_path / "run").plot(success=success)


def test_a_seal_that_names_files_elsewhere_is_refused(tmp_path):
    write_sealed(tmp_path / "a.json", {"step": 1}, {"../b.json": "00"})
    with pytest.raises(ManifestError, match=r"\.\./b\.json"):
        read_sealed(tmp_path / "a.json", dict[str, int], version=("a", 1), repair="write it again")
