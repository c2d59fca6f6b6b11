"""The oldest packages that orlog says to work with do: `constraints-oldest.txt` names them, and a first hour runs there."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from tests.programs import run_program
from tests.tool_environments import tool_python

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / "constraints-oldest.txt"
LINES = """
list
build classic/pendulum-mixed-v1
verify classic/pendulum-mixed-v1
show classic/pendulum-mixed-v1 --episode 0
audit classic/pendulum-mixed-v1
save classic/pendulum-mixed-v1 good.json --where "returns > -800"
train iql good.json --steps 50 --evaluations 0 --seeds 0-1 --out runs
evaluate runs --episodes 2
runs runs
export good.json npz npz --lossy
export good.json d4rl hdf5 --lossy
export good.json parquet parquet --lossy
export good.json zarr zarr --lossy
import npz/pendulum-mixed-v1.npz lab/npz-v1
import hdf5/pendulum-mixed-v1.hdf5 lab/hdf5-v1
import parquet/pendulum-mixed-v1.parquet lab/parquet-v1
import zarr/pendulum-mixed-v1.zarr lab/zarr-v1
save lab/npz-v1 ./converted --container hdf5
"""


def pins():
    lines = OLDEST.read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_each_lower_bound_is_that_of_the_file():
    """What is a whole service or simulator (Ray, MuJoCo, S3) is left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["formats"], *extras["plots"], *extras["open"]]
    bounds = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", one).groups() for one in asked)
    found = pins()
    assert sorted(found) == sorted(bounds)
    for name, bound in bounds.items():
        assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", found[name]), name


@pytest.mark.thorough
def test_a_first_hour_works_with_the_oldest_packages(tmp_path):
    requirements = [f"{name}=={version}" for name, version in pins().items()]
    python = tool_python(*requirements, alone=True)
    environment = {**os.environ, "ORLOG_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT / "src")}
    script = "set -e\n" + "\n".join(f'"$0" -m orlog.cli {line}' for line in LINES.split("\n") if line)
    done = run_program(["bash", "-c", script, str(python)], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "identical: the same digest as the recorded build" in done.stdout
