import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import typer

from orlog import cli
from orlog.algos.algorithms import ALGORITHMS
from orlog.algos.training.runs import read_run
from orlog.base import terminal
from orlog.cli.commands import app
from orlog.manifests.shipped import recorded_folder
from tests.command_line import orlog
from tests.programs import run_program

FOLDER = Path(cli.__file__).parent
MINI = "pointmaze/umaze-mini-v1"
GROUPS = [one.typer_instance for one in app.registered_groups if one.typer_instance]
COMMANDS = [
    f"{name} {command.name or getattr(command.callback, '__name__', '')}".strip()
    for group, name in [(app, ""), *((one, str(one.info.name)) for one in GROUPS)]
    for command in group.registered_commands
]


def started(*arguments, cwd=None):
    """Run a command in a process of its own; most tests run it in this one, which is faster."""
    return run_program(
        [sys.executable, "-m", "orlog.cli", *arguments], cwd=cwd, env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    )


@pytest.mark.parametrize("command", ["", "registry", "cache", "runs", *COMMANDS])
def test_the_help_of_every_command_has_an_example(command):
    found = orlog(*command.split(), "--help")
    assert found.returncode == 0
    assert " ".join(["Example: orlog", *command.split()]) in found.stdout


def test_there_are_few_commands_and_each_option_is_explained_once():
    assert len(COMMANDS) <= 34
    texts = {}
    root = typer.main.get_command(app)
    for name in COMMANDS:
        command = root
        for word in name.split():
            command = command.commands[word]
        for parameter in command.params:
            assert parameter.name == "help" or parameter.help, (name, parameter.name)
            texts.setdefault(parameter.help, set()).add(parameter.opts[0])
    del texts["Dataset, version or path."]  # both sides of a comparison
    assert {text for text, names in texts.items() if len(names) > 1} == set()


def test_a_wrong_option_is_a_usage_error():
    found = orlog("verify", "--nothing")
    assert (found.returncode, found.stdout) == (2, "")
    assert "Usage: orlog verify [OPTIONS]" in found.stderr
    assert found.stderr.endswith("error: No such option: --nothing.\n")


@pytest.mark.parametrize(
    "arguments", [("--version",), ("show", "--help"), ("verify", MINI), ("--debug", "verify", MINI)], ids=" ".join
)
def test_a_process_of_its_own_does_the_same(arguments):
    found, expected = started(*arguments), orlog(*arguments)
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert found.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "umaze"), "'umaze' is not a dataset name"),
        (("show", "pointmaze/umase-v1"), "did you mean pointmaze/umaze-v1"),
        (("verify", MINI), f"run: orlog build {MINI}"),
        (("verify", f"{MINI}@9.0.0"), "builds version 1.0.0"),
        (("build", "d4rl/hopper-medium-v2"), "no recipe"),
        (("build", f"{MINI}@2.0.0"), "builds version 1.0.0"),
        (("verify", "./nowhere"), "no dataset"),
        (("show", "./nowhere"), "no dataset"),
        (("evaluate", "nowhere"), "nowhere is not the folder of a run"),
        (("reproduce", "sac", MINI), f"choose one of: {', '.join(ALGORITHMS)}"),
    ],
)
def test_bad_input_gives_one_clear_line(arguments, message):
    found = orlog(*arguments)
    assert found.returncode in ((2,) if arguments[0] == "reproduce" else (1, 3))
    assert message in found.stderr
    assert "Traceback" not in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_download_of_what_is_here_does_not_call_it_right_unseen(mini_folder):
    assert orlog("download", f"{MINI}@1.0.0").returncode == 0
    shard = mini_folder / "rewards" / "c.0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    damaged = orlog("download", f"{MINI}@1.0.0")
    assert damaged.returncode == 3
    assert "rewards/c.0 is damaged; run: orlog verify" in damaged.stderr


def test_verify_names_a_flipped_bit_a_cut_file_and_a_missing_file(mini_folder):
    assert orlog("verify", MINI).returncode == 0
    values = orlog("verify", MINI, "--values")
    assert values.returncode == 0
    assert "11 columns, 1,965,896 bytes of values, all as stated" in values.stdout
    shard = mini_folder / "rewards" / "c.0"
    good = shard.read_bytes()
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 1
    for content, word in ((bytes(damaged), "damaged"), (good[:-1], "wrong size"), (None, "missing")):
        shard.unlink(missing_ok=True)
        if content is not None:
            shard.write_bytes(content)
        found = orlog("verify", MINI)
        assert found.returncode == 3
        assert f"rewards/c.0: {word}" in found.stderr
        assert f"orlog build {MINI} --replace" in found.stderr


def test_verify_names_column_and_episodes_and_prints_no_control_characters(mini_folder):
    (mini_folder / "rewards" / "c.0").unlink()
    (mini_folder / "\x1b[1m").write_text("x")
    found = orlog("verify", MINI)
    assert found.returncode == 3
    assert "it holds column rewards, episodes 0 to " in found.stderr
    assert "\x1b" not in found.stderr


def test_a_damaged_copy_in_a_folder_is_not_said_to_be_repaired_by_building(mini_folder, tmp_path):
    shutil.copytree(mini_folder, tmp_path / "copy")
    (tmp_path / "copy" / "zarr.json").write_text("{}", "utf-8")
    found = orlog("verify", "./copy", cwd=tmp_path)
    assert found.returncode == 3
    assert "zarr.json: wrong size" in found.stderr
    assert "orlog verify ./copy --repair --mirror URL" in found.stderr


def test_a_name_pinned_to_the_recorded_digest_is_built(home):
    digest = json.loads((recorded_folder(MINI) / "1.0.0.json").read_text("utf-8"))["digest"]
    assert f"run: orlog build {MINI}@{digest[:20]}" in orlog("verify", f"{MINI}@{digest[:20]}").stderr
    assert not home.exists()
    assert orlog("build", f"{MINI}@sha256:000000").returncode == 1
    built = orlog("build", f"{MINI}@{digest[:20]}", "--workers", "1")
    # Another processor may give other bytes, which must not pass for the ones that were asked for.
    assert built.returncode == (0 if digest in orlog("show", MINI).stdout.replace("\n", "") else 3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("expectil=0.8", "did you mean expectile?"),
        ("expectile=2", "expectile must be a number > 0 and < 1, found 2."),
        ("expectile=high", "expectile must be a number > 0 and < 1, found high."),
        ("expectile", "--set takes name=value"),
    ],
)
def test_a_wrong_setting_is_refused(mini_folder, setting, message):
    found = orlog("train", "iql", str(mini_folder), "--set", setting)
    assert found.returncode == 1
    assert message in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("start", [orlog, pytest.param(started, marks=pytest.mark.thorough)])
def test_a_smoke_run_of_the_quickstart_works_from_an_empty_folder(start, tmp_path, home, request, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    if start is orlog:
        request.getfixturevalue("jobs_run_here")
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    found = start("quickstart", "--smoke", cwd=empty)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) <= 30
    page = (empty / "orlog-quickstart" / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 5  # a path in the maze, scores, curves, returns and lengths
    assert "its path in the maze" in page[: page.index("<table")]
    for algorithm in ("BC", "CQL", "IQL"):
        assert algorithm in found.stdout
        assert f">{algorithm}</td>" in page
    assert "http" not in page
    assert str(home) not in page
    if start is orlog:
        shown = re.findall(r"^training, percent done: (\d+) of 100", found.stderr, re.MULTILINE)
        assert shown[-1] == "100"
        # it goes on in a folder that is named: here nothing is left to train
        again = start("quickstart", "--smoke", "--out", "orlog-quickstart", cwd=empty)
        assert again.returncode == 0, again.stderr
        scores = [line for line in found.stdout.splitlines() if "IQL" in line]
        assert [line for line in again.stdout.splitlines() if "IQL" in line] == scores


@pytest.mark.parametrize(
    "command",
    [
        ("show", "NAME"),
        ("download", "NAME"),
        ("build", "NAME"),
        ("verify", "NAME"),
        ("verify", "NAME", "--repair"),
        ("lock", "NAME"),
        ("audit", "NAME"),
        ("scores", "NAME"),
        ("scores", "NAME", "2000"),
        ("train", "iql", "NAME"),
        ("reproduce", "iql", "NAME"),
        ("export", "NAME", "npz", "out"),
        ("save", "NAME", "best.json", "--top", "10"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_answers_a_bare_name_with_the_nearest(command):
    found = orlog(*(word.replace("NAME", "hopper-medium-v2") for word in command))
    assert found.returncode == (2 if command[0] == "reproduce" else 1)
    assert "d4rl/hopper-medium-v2" in found.stderr


@pytest.mark.parametrize(
    ("words", "code"), [((), 2), (("lerobot",), 2), (("lerobt", "out"), 1), (("out", "lerobot"), 1)]
)
def test_an_export_that_lacks_a_word_or_a_format_lists_the_formats(mini_folder, tmp_path, words, code):
    said = orlog("export", str(mini_folder), *words, cwd=tmp_path)
    assert said.returncode == code
    assert "aloha, d3rlpy, d4rl, lerobot, minari" in said.stderr
    assert not [*tmp_path.glob("out*")]


@pytest.mark.usefixtures("jobs_run_here")
def test_settings_are_options_and_recorded_as_settings(mini_folder, tmp_path):
    given = ("--hidden", "4,4", "--expectile=0.8", "--batch-size", "8")
    words = ("train", "iql", str(mini_folder), "--evaluations", "0", "--steps", "2", *given)
    one = orlog(*words, "--out", str(tmp_path / "run"), cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    record = read_run(tmp_path / "run")
    assert record.settings == {"hidden": [4, 4], "expectile": 0.8, "batch_size": 8}
    shown = orlog("runs", str(tmp_path / "run"), "--command").stdout
    assert "--set batch_size=8" in shown
    several = orlog(*words, "--seeds", "2", "--out", str(tmp_path / "two"), cwd=tmp_path)
    assert several.returncode == 0, several.stderr
    for seed in (0, 1):
        assert read_run(tmp_path / "two" / f"seed-{seed}").config["batch_size"] == 8
    first = orlog("train", "--batch-size", "8", "iql", str(mini_folder), "--set", "expectil=1")
    assert first.returncode == 1  # the setting is known, the other one is not
    assert "did you mean expectile?" in first.stderr


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("--batch-sice", "64"), "did you mean --batch-size?"),
        (("--expectil", "64"), "did you mean --expectile?"),
        (("--stepps", "64"), "did you mean --steps"),
        (("--resum",), "did you mean --resume?"),
        (("--cost-limit", "20"), "No such option: --cost-limit; settings of the algorithm are"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest_option_or_setting(words, near):
    found = orlog("train", "iql", MINI, *words)
    assert found.returncode == 2
    assert near in found.stderr
    assert "--set" not in orlog("show", MINI, "--batch-size", "64").stderr
    assert "--batch-size takes a value" in orlog("train", "iql", MINI, "--batch-size").stderr


@pytest.mark.parametrize(("name", "text"), [("notes.txt", "hello"), ("notes.json", "{}")])
def test_a_file_that_is_no_view_is_a_wrong_use(tmp_path, name, text):
    (tmp_path / name).write_text(text, "utf-8")
    found = orlog("show", name, cwd=tmp_path)
    assert found.returncode == 2
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert "neither a dataset nor a saved view" in line
