"""The exit codes of `orlog reproduce`: each outcome has its own, so that scripts need no text."""

import json

import msgspec
import numpy as np
import pytest

from orlog.base.files import replace_file
from orlog.normalize import references as baselines
from orlog.normalize.references import read_baseline, record_baseline
from orlog.runs.scores import references_of
from tests.command_line import orlog

pytestmark = pytest.mark.usefixtures("jobs_run_here")

SHORT = ("--steps", "2", "--episodes", "2", "--evaluations", "1")


@pytest.fixture
def ran(mini, tmp_path):
    """Return a function that reproduces BC in a folder, whose runs are trained once."""
    words = ["reproduce", "bc", mini.name, *SHORT, "--seeds", "2", "--out", str(tmp_path / "runs")]
    return lambda *more: orlog(*words, "--resume", *more)


@pytest.fixture
def recorded(mini, tmp_path, monkeypatch):
    """Return a function that records other scores as the baseline of BC, a seed each."""
    monkeypatch.setattr(baselines, "recorded_folder", lambda name: tmp_path / "records" / name)
    references = references_of(mini.manifest)
    assert references is not None
    low, high = references.random.mean, references.expert.mean

    def record(*scores, first=90):
        found = read_baseline("bc", mini.name)
        assert found is not None
        returns = {
            str(seed): [low + score / 100 * (high - low)] * 2 for seed, score in enumerate(map(float, scores), first)
        }
        record_baseline(msgspec.structs.replace(found, returns=returns, metrics={}))

    return record


def test_each_verdict_has_an_exit_code(ran, recorded, mini, tmp_path):
    first = ran("--record", "--json")
    assert first.returncode == 0, first.stderr  # nothing was recorded, so nothing is wrong
    assert ran("--require-same").returncode == 0
    mean = json.loads(first.stdout)["normalized_score"]
    spread = 10 * np.array([-1.5, -1, -0.5, 0, 0, 0.5, 1, 1.5])
    recorded(*(mean + spread))
    for words, code in (((), 0), (("--require-same",), 4)):
        found = ran(*words)
        assert found.returncode == code
        assert "BC is consistent" in found.stdout
        assert "up to 78 % of seeds may fail unseen" in found.stdout
    recorded(*(mean + 300 + spread))
    for words in ((), ("--require-same",)):
        found = ran(*words)
        assert found.returncode == 1
        assert "BC is not consistent" in found.stdout
    recorded(mean + 300)
    found = ran()
    assert found.returncode == 4
    assert "BC is unsettled" in found.stdout

    sweep = ["sweep", "--datasets", mini.name, "--algorithms", "bc", *SHORT, "--steps", "3"]
    sweep += ["--seeds", "2", "--out", str(tmp_path / "report")]
    swept = orlog(*sweep)
    assert swept.returncode == 0, swept.stderr
    assert "BC is not compared: steps=3, recorded with 2." in swept.stdout
    assert "BC is not compared: steps=3" in (tmp_path / "report" / "report.html").read_text("utf-8")
    again = orlog(*sweep, "--require-same", "--json")
    assert again.returncode == 4
    (result,) = json.loads(again.stdout)["results"]
    assert (result["verdict"], result["not_compared"]) == (None, "steps=3, recorded with 2")
    assert result["notes"] == []


def _with_a_defect(*_, **__):
    raise KeyError("a defect")


def test_errors_and_damage_are_no_verdicts(ran, mini, monkeypatch):
    unknown = orlog("reproduce", "bc", "pointmaze/umaze-nini-v1")
    assert unknown.returncode == 2
    assert f"did you mean {mini.name}" in unknown.stderr
    assert orlog("reproduce", "no-algorithm", mini.name).returncode == 2
    monkeypatch.setattr("orlog.runs.reproducing.reproduce", _with_a_defect)
    defect = ran()
    assert defect.returncode == 2
    assert "KeyError: 'a defect'" in defect.stderr
    manifest = mini.folder / "manifest.json"
    replace_file(manifest, manifest.read_bytes().replace(b'"total_steps"', b'"total_stepz"'))
    assert ran().returncode == 3
    swept = orlog("sweep", "--datasets", mini.name, "--algorithms", "bc", *SHORT)
    assert swept.returncode == 3, swept.stderr


def test_a_dataset_that_is_not_here_is_built_as_in_sweeps(home, tmp_path):
    words = ["reproduce", "bc", "pointmaze/umaze-mini-v1", *SHORT, "--seeds", "1"]
    found = orlog(*words, "--out", str(tmp_path / "runs"))
    assert found.returncode == 0, found.stderr
    assert (home / "datasets" / "pointmaze" / "umaze-mini-v1").is_dir()
