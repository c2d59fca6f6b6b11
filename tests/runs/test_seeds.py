"""Several seeds at once: folders, processes, failures, and stopping all of them."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orlog.algos.bc import BC
from orlog.algos.training.runs import TrainOptions
from orlog.base import terminal
from orlog.runs.running import Status, Watcher, parse_seeds, status_lines, train_seeds
from tests.command_line import orlog
from tests.training import train_run

SMALL = {"hidden": [4], "batch_size": 8}
WORDS = ["--set", "hidden=[4]", "--set", "batch_size=8", "--evaluations", "0"]
CHECKPOINT = "checkpoint.safetensors"


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0-3", [0, 1, 2, 3]), ("0,2,5", [0, 2, 5]), ("3", [0, 1, 2]), ("7-7", [7]), ("0-1, 4 ,8-9", [0, 1, 4, 8, 9])],
)
def test_seeds_are_ranges_and_lists(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "a", "3-0", "0--1", "-1", "0,0", "0-2,1", "0-99999", "1.5"])
def test_other_texts_are_no_seeds(text):
    with pytest.raises(ValueError, match=r"^seeds="):
        parse_seeds(text)


@pytest.mark.usefixtures("jobs_run_here")
def test_a_seed_that_fails_does_not_stop_the_others_and_resuming_skips_the_finished(mini, tmp_path):
    words = ["train", "bc", mini.name, "--seeds", "0-2", "--steps", "20", *WORDS]
    words += ["--out", str(tmp_path / "runs")]
    broken = tmp_path / "runs" / "seed-1"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{}", "utf-8")
    refused = orlog(*words)
    assert refused.returncode == 1
    assert f"{broken} holds a run already" in refused.stderr
    assert not (tmp_path / "runs" / "seed-0").exists()  # nothing was begun

    more = ["--cache", "5G", "--import", "json", "--resume"]
    found = orlog(*words, *more)
    assert found.returncode == 1
    (line,) = (one for one in found.stderr.splitlines() if one.startswith("error: "))
    assert line.startswith(f"error: seed 1: {broken / 'run.json'}: ")
    states = [line.split()[1:3] for line in found.stdout.splitlines()[1:]]
    assert states == [["finished", "20"], ["failed", "0"], ["finished", "20"]]
    again = shlex.join(["orlog", *words, *more])
    assert f"1 of 3 seeds are not finished; to continue them, run: {again}\n" in found.stderr

    (broken / "run.json").unlink()
    before = (tmp_path / "runs" / "seed-0" / CHECKPOINT).stat()
    resumed = orlog(*words, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert (tmp_path / "runs" / "seed-0" / CHECKPOINT).stat().st_mtime_ns == before.st_mtime_ns
    train_run("bc", mini, tmp_path / "alone", seed=1, steps=20, settings=SMALL, evaluations=0)
    assert (broken / CHECKPOINT).read_bytes() == (tmp_path / "alone" / CHECKPOINT).read_bytes()


@pytest.mark.usefixtures("jobs_run_here")
def test_an_error_that_is_nobodys_fault_is_shown_with_its_place(mini, tmp_path, monkeypatch):
    def broken(*_):
        raise KeyError("surprise")

    monkeypatch.setattr(BC, "update", broken)
    only = train_seeds("bc", mini, {3: tmp_path}, TrainOptions(evaluations=0), processes=1)[3]
    assert only.state == "failed"
    assert only.message == "KeyError: 'surprise'"
    assert "in broken" in only.details


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("to_group", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["group", "parent"])
def test_a_signal_stops_all_seeds_with_checkpoints_and_one_command_continues_them(to_group, mini, tmp_path):
    words = ["train", "bc", mini.name, "--seeds", "0-1", "--processes", "2", "--steps", "1000000"]
    words += WORDS
    with subprocess.Popen(
        [sys.executable, "-m", "orlog.cli", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=tmp_path,
        start_new_session=True,
    ) as running:
        folders = [tmp_path / "runs" / "bc" / mini.name / f"seed-{seed}" for seed in (0, 1)]
        limit = time.monotonic() + 600
        while not all((one / "run.json").exists() for one in folders):
            assert running.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        time.sleep(0.5)
        if to_group:  # as a terminal does
            os.killpg(running.pid, signal.SIGINT)
        else:
            running.terminate()
        out, err = running.communicate(timeout=600)
    assert running.returncode == 128 + (signal.SIGINT if to_group else signal.SIGTERM)
    assert out.count("stopped") == 2
    assert all((one / CHECKPOINT).is_file() for one in folders)
    command = next(line for line in err.splitlines() if "to continue them, run: " in line)
    again = shlex.split(command.partition("run: ")[2])
    assert again == ["orlog", *words, "--resume"]
    assert "Traceback" not in err


# --- what is shown


def test_a_watcher_counts_the_time_of_updates_only(mini, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    seen = []
    watcher = Watcher(mini, seen.append)
    watcher.progress(0, 1000)
    now = 1.0
    watcher.progress(100, 1000)
    now = 2.0
    watcher.progress(200, 1000)
    assert seen[-1].speed == pytest.approx(100)
    watcher.log({"step": 200, "critic/loss": 0.25, "critic/mean": 3.0, "returns": [0.0, 10.0]})
    without = ", ".join(seen[-1].words())
    watcher.log({"step": 200, "returns": [0.0, 10.0], "successes": [False, True]})
    now = 50.0  # the evaluation took long
    watcher.progress(200, 1000)
    now = 51.0
    watcher.progress(300, 1000)
    known = seen[-1]
    assert known.speed == pytest.approx(100)
    words = ", ".join(known.words())
    score = f"loss: critic 0.25, score {known.score:.1f}, "
    assert words == f"{score}success rate 50.0 %, 100 updates/s, 0:00:07 left"
    assert without.startswith(f"{score}100 updates/s")


@contextlib.contextmanager
def a_terminal(width):
    from rich.console import Console

    with open(os.devnull, "w", encoding="utf-8") as nothing:  # noqa: PTH123 (a device)
        yield Console(force_terminal=True, width=width, record=True, file=nothing)


def test_a_terminal_shows_one_line_for_each_run(monkeypatch):
    status = Status(step=40, steps=100, losses={"critic/loss": 0.5, "policy/loss": -1.25})
    with a_terminal(60) as console:
        monkeypatch.setattr(terminal, "errors", console)
        with status_lines() as update:
            update("IQL seed 0", status)
            update("IQL seed 1", Status(state="waiting"))
            console.export_text()
            update("IQL seed 1", Status(step=3, steps=100, speed=1.0, score=7.0))
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.export_text()).splitlines()
    shown = [line for line in lines if line.strip()][:2]
    assert len(shown) == 2
    assert shown[0].startswith("IQL seed 0")
    assert "40 of 100, loss: critic" in shown[0]
    assert "3 of 100, score 7.0" in shown[1]
    assert len(shown[0]) <= 60  # the next one ends where the lines are drawn again
