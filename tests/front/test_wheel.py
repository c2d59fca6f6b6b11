"""The wheel: what it holds, and that it installs and gives the same bytes where no compiler is."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from orlog.loaders.arrays.gathering import is_compiled
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
FOLDERS = ("algos", "datasets", "loaders", "manifests", "normalize", "src")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
RECORD_AND_SAMPLE = """
import hashlib, sys
from pathlib import Path
import gymnasium, numpy as np, orlog
from orlog.loaders.arrays.gathering import is_compiled

if len(sys.argv) > 1:
    assert not is_compiled()
    assert Path(orlog.__file__).is_relative_to(sys.argv[1]), orlog.__file__
    assert not [*Path(sys.argv[1]).rglob("orlog/**/*.so")]
with orlog.record(gymnasium.make("CartPole-v1"), "lab/cart-v1") as env:
    for seed in range(5):
        env.action_space.seed(seed)
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, ended, cut, _ = env.step(env.action_space.sample())
            done = ended or cut
ds = orlog.load_dataset("lab/cart-v1")
assert orlog.verify_store(ds.folder)[1] == []
batch = next(iter(orlog.transitions(ds, 64, seed=0)))
print(ds.digest, hashlib.sha256(batch.observations.numpy().tobytes()).hexdigest())
"""


def run(*command: str | Path, **environment: str) -> str:
    given = {key: text for key, text in os.environ.items() if key not in ("CC", "PYTHONPATH")}
    done = run_program(command, env=given | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(source: Path, folder: Path, **environment: str) -> Path:
    """Build a wheel of a checkout into a folder."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(*PIP, "wheel", *options, "--wheel-dir", folder, source, **environment)
    (wheel,) = folder.glob("orlog-*.whl")
    return wheel


def assert_holds(wheel: Path, source: Path, *, compiled: bool) -> None:
    """Compare the files of a wheel, which is for Python 3.11 and all later ones, with those of a checkout."""
    assert "-cp311-abi3-" in wheel.name
    listed = run("find", "-L", source / "src/orlog", "-type", "f").splitlines()
    paths = {Path(line).relative_to(source / "src") for line in listed}
    parts = {path for path in paths if path.suffix == ".c"}
    expected = paths - parts | {path.with_suffix(".abi3.so") for path in parts if compiled}
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


@pytest.mark.thorough
@pytest.mark.skipif(not is_compiled(), reason="there are no compiled parts to compare with")
def test_the_wheel_holds_what_is_in_the_checkout_and_gives_the_same_bytes_without_a_compiler(
    tmp_path: Path,
) -> None:
    source, user = tmp_path / "source", tmp_path / "user"
    for name in FOLDERS:
        skipped = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    removed = source / "datasets/removed.py"
    removed.touch()
    assert_holds(built(source, tmp_path / "first"), source, compiled=True)
    # The second one is built over what the first one left there, and without a compiler.
    removed.unlink()
    empty = tmp_path / "no-programs"
    empty.mkdir()
    wheel = built(source, tmp_path / "second", PATH=str(empty))
    assert_holds(wheel, source, compiled=False)
    venv.create(user, symlinks=True)
    python = user / "bin" / "python"
    run(*PIP, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # numpy, torch and the rest; not the editable orlog, whose .pth is not read
    ours = sysconfig.get_path("purelib")
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(user)}))
    (theirs / "others.pth").write_text(f"{ours}\n", "utf-8")
    (tmp_path / "program.py").write_text(RECORD_AND_SAMPLE, "utf-8")
    told = [
        run(
            python, tmp_path / "program.py", user, ORLOG_HOME=str(tmp_path / "one"), PATH=str(empty)
        ),
        run(
            *(sys.executable, tmp_path / "program.py"),
            ORLOG_HOME=str(tmp_path / "other"),
            PYTHONPATH=str(ROOT / "src"),
        ),
    ]
    assert told[0] == told[1]
