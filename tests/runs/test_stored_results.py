"""Results of runs under a key: what goes into it, and what is read back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import orlog.algos.iql
from orlog import OrlogError
from orlog.algos.algorithms import find_algorithm
from orlog.algos.settings import make_config
from orlog.algos.training.evaluating import evaluate_run
from orlog.algos.training.runs import TrainOptions, write_sealed
from orlog.base.code_version import run_sources, sources_digest
from orlog.errors import ManifestError
from orlog.runs.results import finished_results, key_of, read_result, result_folder, what_decides, write_result
from tests.levels import scaled
from tests.training import train_run

SMALL = {"steps": 2, "evaluations": 1, "curve_episodes": 1}
OWN = """
from orlog.algos.algorithms import find_algorithm


class OwnMethod(find_algorithm("iql")):
    @staticmethod
    def loader(config):
        return "own_sampler_of_keys:sample", {}
"""


@pytest.fixture
def folder(mini):
    """Return the folder of a result that was trained, evaluated and written."""
    decides = what_decides("bc", mini, TrainOptions(**SMALL), episodes=1)
    folder = result_folder(key_of(decides))
    train_run("bc", mini, folder, seed=0, **SMALL)
    evaluate_run(folder, dataset=mini, episodes=1)
    assert list(finished_results()) == []
    write_result(decides)
    return folder


def test_a_result_is_read_as_it_was_written_and_an_edited_job_is_refused(mini, folder):
    assert list(finished_results()) == [folder]
    body = read_result(folder.name)
    assert (body["job"]["digest"], body["job"]["seed"]) == (mini.digest, 0)
    assert read_result("0" * 64) is None

    log = folder / "metrics.jsonl"
    lines = log.read_bytes()
    log.write_bytes(b"")
    with pytest.raises(ManifestError, match="its last line is not that of step 2"):
        write_result(body["job"])
    log.write_bytes(lines)

    path = folder / "result.json"
    evaluate_run(folder, dataset=mini, episodes=2)  # as the key does not say
    with pytest.raises(ManifestError, match=r"evaluation\.json: is not what it was"):
        read_result(folder.name)
    body = json.loads(path.read_text("utf-8"))
    unsealed = {name: value for name, value in body.items() if name != "seal"}
    for edited, message in (({**body, "finished": "2026"}, "damaged or was edited"), (unsealed, "its seal is missing")):
        path.write_text(json.dumps(edited), "utf-8")
        with pytest.raises(ManifestError, match=message):
            read_result(folder.name)
    for other in ({**unsealed, "job": {**body["job"], "steps": 3}}, {"job": [1]}, {}):
        write_sealed(path, other, {})
        with pytest.raises(ManifestError, match=r"its key is not that of its job, so it was edited"):
            read_result(folder.name)


def test_a_key_depends_on_the_files_of_the_rooms_that_decide_numbers():
    kind = find_algorithm("iql")
    found = run_sources(kind, make_config(kind, {}))
    assert [*found] == ["orlog.algos", "orlog.datasets.worlds", "orlog.loaders", "orlog.normalize"]
    listed = "find . -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    rooms = Path(orlog.algos.iql.__file__).parent
    by_hand = subprocess.run(["sh", "-c", listed], cwd=rooms, capture_output=True, text=True)
    assert by_hand.stdout.split()[0] == found["orlog.algos"]


def changed_digits(path, most):
    """Change one digit of a file at a time, where that changes a value, also in hashes."""
    data = path.read_bytes()
    places = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
    for at in places[:: max(1, len(places) // most)]:
        edited = data[:at] + (b"1" if data[at : at + 1] != b"1" else b"2") + data[at + 1 :]
        # The 17th digit of a number may be another for the same number.
        if path.suffix == ".jsonl" or json.loads(edited) != json.loads(data):
            path.write_bytes(edited)
            yield
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["result.json", "evaluation.json", "metrics.jsonl", "run.json"])
def test_no_changed_digit_of_a_result_or_of_a_file_beside_it_is_read(folder, name):
    body, path = read_result(folder.name), folder / name
    for _ in changed_digits(path, scaled(200)):
        with pytest.raises(OrlogError):
            read_result(folder.name)
    assert read_result(folder.name) == body
    path.unlink()
    if name == "result.json":
        assert read_result(folder.name) is None
    else:
        with pytest.raises(OrlogError):
            read_result(folder.name)


def test_a_key_depends_on_what_an_own_algorithm_is_made_of_and_on_its_loader(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_method_of_keys.py").write_text(OWN, "utf-8")
    sampler = tmp_path / "own_sampler_of_keys.py"
    sampler.write_text("even = True\n", "utf-8")
    kind = find_algorithm(f"{tmp_path / 'own_method_of_keys.py'}:OwnMethod")
    monkeypatch.setitem(sys.modules, kind.__module__, sys.modules.pop(kind.__module__))
    before = run_sources(kind, make_config(kind, {}))
    assert {"orlog.algos", "own_method_of_keys", "own_sampler_of_keys"} <= {*before}
    sampler.write_text("odd = True\n", "utf-8")
    after = run_sources(kind, make_config(kind, {}))
    assert {name for name in after if after[name] != before[name]} == {"own_sampler_of_keys"}
    assert len(sources_digest(kind)) == 64
    assert sources_digest(type("Own", (kind,), {"__module__": "in_no_file"})) == ""
