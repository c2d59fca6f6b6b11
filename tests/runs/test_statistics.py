"""`orlog compare` and its `--tuning`, from runs that were really trained and evaluated."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from orlog import references
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import Evaluation, write_evaluation
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.documents import canonical_json, convert_json
from orlog.normalize.statistics import interquartile_mean, method_digest
from orlog.runs.comparing import find_runs, notes_on, scored_runs, scores_of, tables_of, tune_curves
from orlog.runs.run_folders import find_run_folders
from orlog.runs.scored_runs import Method, write_scored_runs
from tests.command_line import orlog
from tests.training import train_run

MINI = "pointmaze/umaze-mini-v1"
HOPPER, WALKER = "d4rl/hopper-medium-v2", "d4rl/walker2d-medium-v2"
PAGE = Path(__file__).parents[2] / "docs" / "json.md"


@pytest.fixture(scope="module")
def trained(built_mini, tmp_path_factory):
    """Return the folder of a run, whose settings, seed and returns the tests change."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train_run("iql", built_mini, folder, seed=0, steps=4, evaluations=2)
    evaluate_run(folder, dataset=built_mini, episodes=4)
    return folder


def write_run(trained, folder, returns, *, seed=0, dataset="", config=None, protocol=None, **changes):
    """Write a run that is another in some ways; returns are those of its evaluation."""
    shutil.copytree(trained, folder)
    (folder / "checkpoint.safetensors").unlink()  # it names its run.json
    record = json.loads((folder / "run.json").read_text("utf-8"))
    record |= {"seed": seed, "dataset": dataset or record["dataset"], **changes}
    record["config"] |= config or {}
    (folder / "run.json").write_text(json.dumps(record), "utf-8")
    evaluation = json.loads((folder / "evaluation.json").read_text("utf-8"))
    evaluation["returns"] = [float(one) for one in returns]
    evaluation["protocol"] |= {"episodes": len(returns), **(protocol or {})}
    del evaluation["seal"]
    write_evaluation(folder, convert_json(evaluation, Evaluation))
    return folder


def write_method(trained, folder, mean, dataset, seeds=3):
    """Write evaluated seeds of a method, with the mean return of its dataset's expert times `mean`."""
    rng = np.random.default_rng(0)
    anchors = references(dataset)
    low, high = anchors.random.mean, anchors.expert.mean
    known = benchmark_environment(dataset)
    protocol = {"environment_id": known.counterpart.id, "environment_kwargs": {}}
    for seed in range(seeds):
        scores = rng.normal(rng.normal(mean, 3), 10, 8)
        write_run(
            trained,
            folder / dataset / f"seed-{seed}",
            low + scores * (high - low) / 100,
            seed=seed,
            dataset=dataset,
            protocol=protocol,
        )


def table(*places):
    """Return the rows of the one table of some places."""
    ((rows, _),) = tables_of(find_runs(places))
    return rows


def keys_of(command):
    (row,) = re.findall(rf"^\| `{command}` \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return set(re.findall("`([a-z_]+)`", row))


def test_methods_over_tasks_are_compared_by_normalized_scores(trained, tmp_path):
    for method, mean in (("mine", 70.0), ("theirs", 40.0)):
        for dataset in (HOPPER, WALKER):
            write_method(trained, tmp_path / method, mean, dataset)
    places = [f"mine={tmp_path / 'mine'}", f"theirs={tmp_path / 'theirs'}"]
    found = orlog("compare", *places, "--resamples", "200", "--plot", str(tmp_path / "plots"))
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].split()[:7] == [*["dataset", "method", "seeds", "episodes", "score", "mean", "rank"]]
    assert [line.split()[:2] for line in lines[1:5]] == [
        [task, method] for task in (HOPPER, WALKER) for method in ("mine", "theirs")
    ]
    assert re.fullmatch(r"all 2 +mine +3 +\d\d\.\d \(.*\) +1\.00", lines[5])
    assert len(lines) == 8
    assert lines[7].startswith("note: ")
    assert "mujoco-py" in lines[7]  # of which D4RL's references are
    written = {path.stem for path in (tmp_path / "plots").iterdir()}
    names = {"aggregates", "profiles", "improvement", "ranks", "variance"}
    assert written == {"curves", *names}

    body = json.loads(orlog("compare", *places, "--resamples", "200", "--json").stdout)
    assert set(body) <= keys_of("compare")
    assert body["normalized"] is True
    assert body["tasks"] == [HOPPER, WALKER]
    assert any("mujoco-py" in caveat for caveat in body["caveats"])
    scores = scores_of(table(*places))
    assert list(scores) == ["mine", "theirs"]
    expected = np.stack([scores["mine"][task].mean(1) for task in body["tasks"]], 1)
    mine = body["methods"][0]
    assert mine["scores"][WALKER] == expected[:, 1].tolist()
    assert mine["aggregates"]["IQM"]["value"] == interquartile_mean(expected)
    assert mine["variance"][HOPPER]["checkpoints"] is not None  # from the learning curve


def test_few_seeds_and_copies_are_not_ranked_and_impossible_returns_are_refused(trained, tmp_path):
    write_method(trained, tmp_path / "mine", 40.0, HOPPER)
    write_method(trained, tmp_path / "few", 90.0, HOPPER, seeds=2)
    places = [f"{name}={tmp_path / name}" for name in ("mine", "few")]
    places.append(f"copy={shutil.copytree(tmp_path / 'mine', tmp_path / 'copy')}")
    body = json.loads(orlog("compare", *places, "--resamples", "100", "--json").stdout)
    ranked = {method["method"] for method in body["methods"] if method["mean_rank"] is not None}
    assert ranked == {"copy", "mine"}
    assert "few: not ranked, with 2 of at least 3 seeds" in body["notes"]
    assert any("copy: has returns of mine to the bit" in note for note in body["notes"])
    above = write_run(trained, tmp_path / "above", [1.0, 2.0, 301.0])
    assert "seed 0: a return of 301 is more than 300, the most of an episode in PointMaze" in (
        refused("compare", str(above))
    )


def test_a_sequential_comparison_says_which_seeds_are_missing(trained, tmp_path):
    pytest.importorskip("adastop")
    for method, mean in (("mine", 90.0), ("theirs", 20.0)):
        write_method(trained, tmp_path / method, mean, HOPPER, seeds=5)
    write_method(trained, tmp_path / "near", 22.0, HOPPER, seeds=5)
    places = [f"{name}={tmp_path / name}" for name in ("mine", "theirs", "near")]
    found = orlog("compare", *places, "--resamples", "100", "--sequential")
    assert found.returncode == 0, found.stderr
    assert "mine is above theirs" in found.stdout
    assert "theirs and near: needs seeds" in found.stdout
    assert "compare again: 5 of theirs, 5 of near" in found.stdout


@pytest.fixture
def sweep(trained, tmp_path):
    """Return the folder of a sweep: two expectiles by two temperatures, two seeds each."""
    rng = np.random.default_rng(0)
    for expectile, mean in ((0.7, 40.0), (0.9, 80.0)):
        for temperature in (3.0, 10.0):
            for seed in range(2):
                write_run(
                    trained,
                    tmp_path / "sweep" / f"{expectile}-{temperature}-{seed}",
                    rng.normal(mean + temperature, 20, 30),
                    seed=seed,
                    config={"expectile": expectile, "inverse_temperature": temperature},
                )
    return tmp_path / "sweep"


def test_the_tune_curve_of_a_sweep(sweep, tmp_path):
    found = orlog("compare", str(sweep), "--tuning", "--plot", str(tmp_path / "c.png"))
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    heading = f"IQL on {MINI}: 8 policies, 4 settings (expectile in 0.7, 0.9; "
    assert heading + "inverse_temperature in 3.0, 10.0)" in found.stdout

    body = json.loads(orlog("compare", str(sweep), "--tuning", "--json").stdout)
    (curve,) = body["curves"]
    assert {"curves", *curve} <= keys_of("compare --tuning")
    assert "UCB with exploration 2 over 8 of 8 policies, 1,000 trials" in curve["protocol"]
    assert "30 episodes of each policy with reset seeds from 1000000" in curve["protocol"]
    rows = find_runs([sweep])  # in the order of paths: 0.9-10.0 before 0.9-3.0
    by_setting = {}
    for row in rows:
        settings = canonical_json(row.scored.method.settings)
        by_setting.setdefault(settings, []).append(float(row.scores.mean()))
    means = {text: np.mean(scores) for text, scores in by_setting.items()}
    assert [list(each.values()) for each in curve["settings"]] == [[0.7, 3.0], [0.7, 10.0], [0.9, 3.0], [0.9, 10.0]]
    assert sorted(curve["setting_scores"]) == pytest.approx(sorted(means.values()))
    fourth = means[canonical_json(rows[4].scored.method.settings)]
    assert curve["setting_scores"][3] == pytest.approx(fourth)
    assert curve["expected_best"][0] == pytest.approx(np.mean(list(means.values())))
    best = float(max(row.scores.mean() for row in rows))
    assert curve["means"][0] < curve["means"][-1] <= best
    assert curve["means"][-1] == pytest.approx(best, abs=abs(best) * 0.1)
    assert len(curve["means"]) == 200
    code = [rows[0].scored.code.versions["orlog"]]
    settings_of = [row.scored.method.settings for row in rows]
    assert curve["digest"] == method_digest("iql", settings_of, code=code)


def test_another_range_is_another_method(sweep):
    whole, again = (tune_curves(find_runs([sweep]), trials=20)[0] for _ in range(2))
    assert whole["digest"] == again["digest"]
    assert whole["means"] == again["means"]
    part = tune_curves(find_runs(sorted(sweep.glob("0.9*"))), trials=20)[0]
    assert part["digest"] != whole["digest"]
    assert list(part["varied"]) == ["inverse_temperature"]
    (one,) = tune_curves(find_runs(sorted(sweep.glob("0.9-3*"))), trials=20)
    assert one["varied"] == {}
    assert one["notes"] == [f"iql has one setting on {MINI}, so only seeds differ"]
    # Two methods, or two datasets, have a curve each.
    narrow = [f"narrow={path}" for path in sorted(sweep.glob("0.7*"))]
    several = tune_curves(find_runs([*sorted(sweep.glob("0.9*")), *narrow]), trials=20)
    assert [curve["method"] for curve in several] == ["iql", "narrow"]
    assert several[0]["digest"] != several[1]["digest"]


def refused(*arguments):
    """Return the one line with which a command ends."""
    found = orlog(*arguments)
    assert (found.returncode, found.stdout) in ((1, ""), (3, "")), found
    assert found.stderr.count("\n") == 1, found.stderr
    return found.stderr


def test_bad_input_is_one_line(trained, tmp_path, sweep):
    empty = tmp_path / "empty"
    empty.mkdir()
    for place in (empty, tmp_path / "nothing"):
        assert "no run is in this folder or below" in refused("compare", str(place))
    (twice,) = (write_run(trained, tmp_path / name, [1.0, 2.0, 3.0, 4.0]) for name in ("twice",))
    fewer = write_run(trained, tmp_path / "fewer", [1.0, 2.0], seed=1)
    rows = table(*sorted(sweep.glob("0.9*")), trained, twice)
    named = {row.name for row in rows}
    assert f"iql {twice}" in {row.name for row in table(trained, twice)}
    assert [row.name for row in table(trained, fewer)] == ["iql episodes=4", "iql episodes=2"]
    assert any("inverse_temperature=10.0" in name for name in named)
    words = ("compare", str(trained), str(fewer))
    assert "differ in episodes: 4; here 2" in refused(*words, "--tuning")
    digest = "sha256:" + "0" * 64
    other_data = write_run(trained, tmp_path / "data", [1.0] * 4, seed=1, digest=digest)
    assert "differ in data: " in refused("compare", str(trained), str(other_data), "--tuning")

    text = (trained / "evaluation.json").read_text("utf-8")
    not_a_number = tmp_path / "nan"
    shutil.copytree(trained, not_a_number)
    returns = json.loads(text)["returns"]
    for bad in ("NaN", "1e999", "null"):
        changed = text.replace(json.dumps(returns[0]), bad, 1)
        assert changed != text
        (not_a_number / "evaluation.json").write_text(changed, "utf-8")
        refused("compare", str(not_a_number))

    page = tmp_path / "page.json"
    for body in ("{}", "[", '{"algorithm": "iql"}'):
        page.write_text(body, "utf-8")
        assert "not a file of scored runs" in refused("compare", str(page))
    assert "the name of a plot must end in one of .pdf, .png, .svg" in refused(
        "compare", str(sweep), "--tuning", "--plot", str(tmp_path / "curve.txt")
    )
    (tmp_path / "file").write_text("")
    assert "curve.svg: cannot write" in refused("compare", str(trained), "--plot", str(tmp_path / "file" / "curve.svg"))


def document(trained, path, **changes):
    """Write a file of scored runs, with changes of its fields."""
    (scored,) = scored_runs([trained])
    write_scored_runs(path, msgspec.structs.replace(scored, **changes))
    return path


def test_names_and_settings_of_files_are_plain_text(trained, tmp_path):
    """A file of anyone may hold markup, and characters that control a terminal."""
    settings = [{"rate": "[/y]\x1b"}, {"rate": 1}]
    one, other = (
        document(trained, tmp_path / f"{index}.json", method=Method(name="[/x]", algorithm="x:[/x]", settings=of))
        for index, of in enumerate(settings)
    )
    for words in ([str(one), f"[/z]={other}", "--resamples", "100"], [str(one), "--tuning"]):
        found = orlog("compare", *words)
        assert found.returncode == 0, found.stderr
        assert "[/x]" in found.stdout
        assert "\x1b" not in found.stdout


def test_scores_are_by_references_of_the_environment_that_was_measured(trained, tmp_path):
    """Whatever dataset a file names, returns of another environment get no score of it."""
    (scored,) = scored_runs([trained])
    pole = msgspec.structs.replace(scored.protocol, environment_id="MountainCar-v0", environment_kwargs={})
    for name, environment, is_known in (
        (MINI, "MountainCar-v0", False),
        (HOPPER, "MountainCar-v0", False),
        (HOPPER, "Hopper-v4", True),
    ):
        protocol = msgspec.structs.replace(pole, environment_id=environment)
        dataset = msgspec.structs.replace(scored.dataset, name=name)
        path = document(trained, tmp_path / "one.json", dataset=dataset, protocol=protocol, references=None)
        (row,) = table(path)
        assert (row.anchors is not None) == is_known
        note = f"{name} has no reference returns in {environment}: scores are returns"
        assert (note in notes_on([row])) != is_known
        run = write_run(
            trained,
            tmp_path / f"{name}-{environment}",
            [0.0],
            dataset=name,
            protocol={"environment_id": environment, "environment_kwargs": {}},
        )
        (listed,), (row,) = find_run_folders(run), table(run)
        assert listed.anchors == row.anchors
        assert (row.anchors is not None) == is_known


def test_paths_and_addresses_in_records_are_not_opened(trained, tmp_path):
    for dataset in ("http://127.0.0.1:9/x", "/etc/passwd", "../x", ""):
        run = write_run(trained, tmp_path / "run", [1.0])
        record = json.loads((run / "run.json").read_text("utf-8"))
        (run / "run.json").write_text(json.dumps({**record, "dataset": dataset}), "utf-8")
        assert "is not the name of a dataset" in refused("compare", str(run))
        shutil.rmtree(run)
