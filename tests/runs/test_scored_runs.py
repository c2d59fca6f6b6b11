"""Files of scored runs: written, compared, run again; and what is refused of files from anybody."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orlog.algos.training.runs import Evaluation, write_evaluation
from orlog.errors import FormatVersionError, ManifestError
from orlog.manifests.documents import canonical_json, convert_json
from orlog.runs.comparing import find_runs, scored_runs, scores_of, tables_of, with_missing
from orlog.runs.reproducing import reproduce_file
from orlog.runs.scored_runs import read_scored_runs
from tests.command_line import orlog
from tests.training import train_run

MINI = "pointmaze/umaze-mini-v1"
here = pytest.mark.usefixtures("jobs_run_here")


def edited(file, to, change):
    """Write a file with a change, and the digest that fits."""
    body = json.loads(file.read_bytes())
    change(body)
    del body["digest"]
    body["digest"] = f"sha256:{hashlib.sha256(canonical_json(body)).hexdigest()}"
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(body), "utf-8")
    return to


def setting(path, value):
    """Return a change of one field, named with dots."""
    *parts, last = path.split(".")

    def change(body):
        for part in parts:
            body = body[int(part)] if isinstance(body, list) else body[part]
        body[last] = value

    return change


def add_to_returns(more):
    def change(body):
        for one in body["seeds"]:
            one["returns"] = [value + more for value in one["returns"]]

    return change


def tables(*places):
    return tables_of(find_runs(places))


def names(table):
    return list(dict.fromkeys(row.name for row in table[0]))


def seeds(table):
    return [seed.seed for row in table[0] for seed in row.scored.seeds]


def test_from_runs_to_a_file_that_another_home_confirms(runs, tmp_path, home, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    words = ("--episodes", "3", "--tried", "2", "--out", "made/bc.json")
    written = orlog("evaluate", f"{runs}/bc/seed-0", f"{runs}/bc/seed-1", *words)
    assert written.returncode == 0, written.stderr
    scored = read_scored_runs(tmp_path / "made" / "bc.json")
    assert (scored.dataset.name, scored.method.tried) == (MINI, 2)
    assert [one.seed for one in scored.seeds] == [0, 1]
    assert scored.code.files
    second = tmp_path / "second"
    shutil.copytree(home / "datasets", second / "datasets")
    monkeypatch.setenv("ORLOG_HOME", str(second))
    again = orlog("reproduce", "made/bc.json", "--seeds", "0-1", "--out", "again")
    assert (again.returncode, again.stdout.count("\n")) == (0, 1), again
    assert again.stdout.startswith("confirms: identical: ")
    request.getfixturevalue("jobs_run_here")
    body = json.loads(orlog("reproduce", "made/bc.json", "--out", "again", "--json").stdout)
    assert (body["outcome"], body["verdict"]["word"]) == ("confirms", "identical")
    compared = orlog("compare", "made", "own=runs", "--resamples", "100")
    assert compared.returncode == 0, compared.stderr
    assert "bc: not ranked, with 2 of at least 3 seeds" in compared.stdout


def test_several_methods_go_into_a_folder(runs, built_mini, tmp_path):
    train_run("iql", built_mini, runs / "iql", seed=0, steps=4, evaluations=1, curve_episodes=1)
    words = ("evaluate", str(runs), "--episodes", "2", "--out")
    refused = orlog(*words, str(tmp_path / "all.json"))
    assert refused.returncode == 1
    assert f"--out {tmp_path / 'all'}" in refused.stderr
    orlog(*words, str(tmp_path / "all"))
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("all/**/*.json")}
    assert made == {f"all/{MINI}/bc.json", f"all/{MINI}/iql.json"}


def test_a_folder_of_runs_and_of_files_is_one_place(file, runs, tmp_path):
    shutil.copytree(runs, tmp_path / "results" / "runs")
    (tmp_path / "results" / "package.json").write_text("{}", "utf-8")
    theirs = edited(file, tmp_path / "results" / "deep" / "theirs.json", add_to_returns(1.0))
    (table,) = tables(tmp_path / "results")
    own = tmp_path / "results" / "runs" / "bc"
    assert names(table) == [f"bc {file}", f"bc {theirs}", f"bc {own}"]
    assert scores_of(table[0])[f"bc {own}"][MINI].shape == (3, 3)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("dataset.digest", f"sha256:{'1' * 64}", "data"),
        ("protocol.environment_id", "Other-v0", "environment"),
        ("protocol.environment_kwargs", {"reset_target": True}, "its arguments"),
        ("protocol.max_episode_steps", 7, "time limit"),
        ("protocol.versions", {"gymnasium": "9.9.0"}, "packages"),
        ("policy", "best of all evaluations", "policy"),
        ("method.online", True, "training"),
        ("dataset.name", "lab/arm-v1", "other rows"),
    ],
)
def test_what_does_not_compare_shares_no_table(file, tmp_path, field, value, what):
    other = edited(file, tmp_path / "other.json", setting(field, value))
    shared, apart = tables(file, f"mine={file}", f"theirs={other}")
    assert (names(shared), shared[1]) == (["bc", "mine"], "")
    assert names(apart) == ["theirs"]
    assert what in apart[1]
    assert "\n" not in apart[1]


def test_a_seed_that_is_there_twice_is_of_another_row(runs):
    shutil.copytree(runs / "bc" / "seed-1", runs / "reproduce" / "seed-1")
    (table,) = tables(runs)
    assert names(table) == [f"bc {runs / 'bc'}", f"bc {runs / 'reproduce' / 'seed-1'}"]


def test_seeds_that_are_not_evaluated_are_said_in_the_row_of_the_others(runs):
    shutil.copytree(runs / "bc" / "seed-1", runs / "again" / "seed-1")
    for name in ("bc/seed-2", "again/seed-1"):
        (runs / name / "evaluation.json").unlink()
    kept = with_missing(find_runs([runs]))
    rows = [(row.places[0].parent.name, row.seeds, row.missing) for row in kept]
    assert rows == [("again", [1], []), ("bc", [0], [2]), ("bc", [1], [2])]  # another seed 1 is a row of its own
    shutil.rmtree(runs / "again")
    shown = orlog("compare", str(runs), "--resamples", "100").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith(MINI)]
    assert line.split()[1:6] == ["BC", "2", "of", "3", "3"]
    assert f"bc on {MINI}: seed 2 left out, not evaluated yet; run: orlog evaluate {runs / 'bc'}" in shown
    for seed in range(2):
        (runs / "bc" / f"seed-{seed}" / "evaluation.json").unlink()
    assert [row.missing for row in with_missing(find_runs([runs]))] == [[], [], []]


def test_rows_on_several_datasets_share_a_table(file, tmp_path):
    elsewhere = edited(file, tmp_path / "large.json", setting("dataset.name", "pointmaze/umaze-v1"))
    (table,) = tables(f"a={file}", f"a={elsewhere}", f"b={file}", f"b={elsewhere}")
    assert {row.task for row in table[0]} == {MINI, "pointmaze/umaze-v1"}
    alone = tables(f"a={file}", f"a={elsewhere}", f"b={file}")
    assert [names(one) for one in alone] == [["a", "b"], ["a"]]


def test_an_offline_seed_and_a_fine_tuned_one_are_not_seeds_of_one_row(runs):
    tuned = runs / "bc" / "seed-1"
    (tuned / "checkpoint.safetensors").unlink()  # it names its run.json
    record = json.loads((tuned / "run.json").read_bytes())
    record["online"] = {"run": "runs/bc/seed-0", "checkpoint_sha256": "0" * 64, "step": 2}
    (tuned / "run.json").write_text(json.dumps(record), "utf-8")
    evaluation = json.loads((tuned / "evaluation.json").read_bytes())
    del evaluation["seal"]
    write_evaluation(tuned, convert_json(evaluation, Evaluation))
    shared, apart = tables(runs)
    assert (seeds(shared), seeds(apart)) == ([0, 2], [1])
    assert "training: on data alone; here also in the environment" in apart[1]
    del record["online"]
    for setting, value, other in (("precision", "bf16", "float32"), ("reward_scale", 2.0, 1.0)):
        (tuned / "run.json").write_text(json.dumps({**record, setting: value}), "utf-8")
        write_evaluation(tuned, convert_json(evaluation, Evaluation))
        (table,) = tables(runs)
        assert names(table) == [f"bc {setting}={other}", f"bc {setting}={value}"]


def test_the_same_runs_under_two_names_are_two_rows(runs, file):
    for place in (runs, file):
        (table,) = tables(f"a={place}", f"b={place}", place)
        assert names(table) == ["a", "b", "bc"]
        scores = scores_of(table[0])
        assert scores["a"][MINI].tolist() == scores["b"][MINI].tolist()


HOSTILE = {
    "a seed twice": (lambda body: body["seeds"].append(body["seeds"][0]), "a seed is there twice"),
    "no seeds": (setting("seeds", []), "seeds"),
    "too few returns": (lambda body: body["seeds"][0]["returns"].pop(), "seeds[0].returns"),
    "a text for a return": (setting("seeds.1.returns", ["1"] * 3), "seeds[1].returns"),
    "other episodes": (setting("seeds.0.metrics", {"success": [True]}), "metrics.success"),
    "a path as dataset": (setting("dataset.name", "../../etc/passwd"), "dataset.name"),
    "an address as dataset": (setting("dataset.name", "http://127.0.0.1/x"), "dataset.name"),
    "control characters": (setting("method.name", "\x1b[2J"), "method.name"),
    "a long name": (setting("method.name", "x" * 201), "method.name"),
    "an unknown field": (setting("extra", 1), "extra"),
    "more steps than it has": (setting("step", 10**6), "step"),
    "references without a scale": (setting("references.expert.mean", -1e9), "references"),
    "no hash of code": (setting("code.files", {"orlog": "x"}), "code.files"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_says_what_cannot_be_is_refused(file, tmp_path, what):
    change, field = HOSTILE[what]
    hostile = edited(file, tmp_path / "hostile.json", change)
    with pytest.raises(ManifestError, match=re.escape(str(hostile))) as raised:
        read_scored_runs(hostile)
    assert field in str(raised.value)


def test_damaged_newer_and_huge_files_are_refused(file, tmp_path):
    text = file.read_text("utf-8")
    bad = tmp_path / "bad" / "bad.json"
    bad.parent.mkdir()
    careless = text.replace('"tried": 2', '"tried": 1')
    for broken in (
        careless,
        text[:-40],
        text.replace('"seed": 0', '"seed": 0, "seed": 0'),
        text.replace('"step": 4', '"step": NaN'),
        '{"scored_runs": 1, "a": ' + "[" * 10**5 + "]" * 10**5 + "}",
        '{"scored_runs": 1, "a": [' + "[]," * 2_000_000 + "[]]}",
        "{}",
    ):
        bad.write_text(broken, "utf-8")
        with pytest.raises(ManifestError, match=re.escape(str(bad))):
            read_scored_runs(bad)
    bad.write_text(careless, "utf-8")
    refused = orlog("compare", str(bad.parent))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (3, "", 1)
    with bad.open("wb") as huge:
        huge.truncate(2**24 + 1)
    with pytest.raises(ManifestError, match="too large"):
        read_scored_runs(bad)
    bad.write_text(text.replace('"scored_runs": 1', '"scored_runs": 2'), "utf-8")
    with pytest.raises(FormatVersionError, match="pip install"):
        read_scored_runs(bad)
    with pytest.raises(ManifestError, match="seed 0: a return of"):
        find_runs([edited(file, bad, add_to_returns(1000.0))])


def reproduced(path, *words):
    return orlog("reproduce", str(path), "--out", str(path.parent / "again"), *words)


@here
def test_returns_that_no_seed_gives_are_contradicted(file, tmp_path):
    raised = edited(file, tmp_path / "raised.json", add_to_returns(50.0))
    said = reproduced(raised, "--seeds", "1-2")
    assert (said.returncode, said.stdout.count("\n")) == (1, 1), said
    assert said.stdout.startswith("contradicts: contradicted: -")
    # What states no code can be contradicted by its numbers alone, which one of three seeds cannot do.
    few = edited(raised, tmp_path / "few.json", setting("code.files", {}))
    said = reproduced(few)
    assert (said.returncode, said.stdout.partition(":")[0]) == (4, "unsettled")


@here
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("method.options", None, "method.options"),
        ("method.options", {"trust": 1}, "method.options"),
        ("method.options", {"steps": -1}, "method.options"),
        ("method.options.steps", 5, "method.options.steps"),
        ("method.settings.learning_rate", 7.0, "method.settings.learning_rate: says 7.0"),
        ("method.algorithm", "mine:Mine", "--algorithm"),
        ("method.algorithm", "/tmp/mine.py:Mine", "--algorithm"),
        ("protocol.max_episode_steps", 5, "protocol.max_episode_steps"),
        ("compute.steps", 9, "step"),
        ("dataset.digest", f"sha256:{'1' * 64}", MINI),
    ],
)
def test_what_cannot_be_run_again_says_why(file, tmp_path, field, value, says):
    refused = reproduced(edited(file, tmp_path / "one.json", setting(field, value)))
    assert (refused.returncode, refused.stdout) == (2, ""), refused
    assert says in refused.stderr


def test_options_of_other_reproductions_are_refused(file):
    for words in (["--episodes", "3"], ["--record"], ["--sequential"]):
        refused = reproduced(file, *words)
        assert (refused.returncode, words[0] in refused.stderr) == (2, True), refused
    assert orlog("reproduce", str(file), MINI).returncode == 2


@here
def test_an_algorithm_of_ones_own_is_run_again_from_its_file_alone(mini_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mini_folder.is_dir()
    page = (Path(__file__).parents[2] / "docs" / "algorithm-in-30-lines.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    name = re.findall(r"class (\w+)", code)[-1]
    own = f"shared_method.py:{name}"
    (tmp_path / "shared_method.py").write_text(code)
    git = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@lab.example")
    address = "https://ada:secret@host.example/lab/methods?token=1"
    for command in (
        ("init", "--quiet"),
        ("remote", "add", "origin", address),
        ("add", "shared_method.py"),
        ("commit", "--quiet", "-m", "A method"),
    ):
        subprocess.run([*git, *command], check=True)
    words = ("--steps", "3", "--evaluations", "1", "--curve-episodes", "1", "--out", "runs/mine")
    assert orlog("train", own, MINI, *words).returncode == 0
    asked = ("--algorithm", own, "--episodes", "2", "--out", "mine.json")
    made = orlog("evaluate", "runs/mine", *asked)
    assert made.returncode == 0, made.stderr
    scored = read_scored_runs(tmp_path / "mine.json")
    assert "shared_method" in scored.code.files
    assert scored.code.repository == "https://host.example/lab/methods"
    assert "--algorithm" in reproduced(Path("mine.json")).stderr
    again = reproduced(Path("mine.json"), "--algorithm", own)
    assert again.stdout.startswith("confirms: identical"), again
    (tmp_path / "shared_method.py").write_text(code + "\nMORE = 1\n")
    changed = reproduced(Path("mine.json"), "--algorithm", own)
    assert changed.returncode == 3
    assert "code.files.shared_method" in changed.stderr
    (unknown,) = scored_runs([Path("runs/mine")], algorithm=own)
    assert (unknown.code.files, unknown.code.repository) == ({}, "")


@here
def test_a_dataset_that_is_not_here_is_built(file, tmp_path, monkeypatch):
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "empty"))
    assert reproduce_file(file, tmp_path / "again").word == "identical"
