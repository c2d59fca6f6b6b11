"""The page about a format of one's own: its commands run, and broken files are explained."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import orlog
from orlog.errors import NotFoundError, SchemaError
from tests.command_line import orlog as run

ROOT = Path(__file__).parents[2]
LOGS = [
    {"run": "a", "seed": 3},
    {"position": [0.0, 0.1], "force": 0.4, "reward": 1.0},
    {"position": [0.1, 0.1], "end": "goal"},
    {"run": "b"},
    {"position": [0.5, 0.5], "force": -0.4, "reward": 0.0},
    {"position": [0.5, 0.4], "force": -0.2, "reward": 0.5},
    {"position": [0.5, 0.3], "end": "stop"},
]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """Make a folder current that holds the example and logs, and nothing else."""
    shutil.copy(ROOT / "examples" / "jsonl_logs.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("logs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LOGS), "utf-8")


def test_the_commands_of_the_page_run_and_give_the_logs_back():
    page = (ROOT / "docs" / "your-own-format.md").read_text("utf-8")
    (block,) = re.findall(r"```\n(cp .*?)```", page, re.DOTALL)
    commands = [line.split()[1:] for line in block.splitlines() if line.startswith("orlog")]
    outputs = [run(*words) for words in commands]
    assert [done.returncode for done in outputs] == [0, 0, 0]
    assert "1 episodes are unfinished: the logs do not say why they end." in outputs[0].stdout
    dataset = orlog.load_dataset("lab/robot-v1")
    assert (dataset[0].seed, dataset[0].metadata["run"]) == (3, "a")
    np.testing.assert_array_equal(dataset[1].observations[-1], [0.5, 0.3])
    lines = [
        json.loads(line) for number in (0, 1) for line in Path(f"out/{number}.jsonl").read_text("utf-8").splitlines()
    ]
    assert lines == [line if line != {"run": "b"} else {"run": "b", "seed": None} for line in LOGS]


def test_what_is_wrong_with_logs_or_format_is_one_line():
    Path("logs.jsonl").write_text('{"run": "a"}\n{"position": [0, 0], "end": "x"', "utf-8")
    with pytest.raises(SchemaError, match=r"logs\.jsonl, line 2: expected JSON"):
        orlog.import_dataset("logs.jsonl", "lab/x-v1", format="./jsonl_logs.py")
    with pytest.raises(NotFoundError, match="there is no such file"):
        orlog.import_dataset("logs.jsonl", "lab/x-v1", format="./gone.py")
    for text, message in (("import gone", "ModuleNotFoundError"), ("x = 1", "declares no FORMAT")):
        Path("broken.py").write_text(text, "utf-8")
        with pytest.raises(ValueError, match=message):
            orlog.import_dataset("logs.jsonl", "lab/x-v1", format="./broken.py")
