"""The wheel: what it holds, and that it installs and gives the same bytes where no compiler is."""

import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from orlog.loaders.gathering import is_compiled
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
ROOMS = ("algos", "datasets", "loaders", "manifests", "normalize")
BUILD = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
RECORD_AND_SAMPLE = """
import hashlib, sys
from pathlib import Path
import gymnasium, numpy as np, orlog
from orlog.loaders.gathering import is_compiled

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


def run(*command, **environment):
    given = {key: text for key, text in os.environ.items() if key not in ("CC", "PYTHONPATH")}
    done = run_program(command, env=given | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(source, folder, **environment):
    """Build a wheel of a checkout into a folder."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(*PIP, "wheel", *options, "--wheel-dir", folder, source, **environment)
    (wheel,) = folder.glob("orlog-*.whl")
    return wheel


def assert_holds(wheel, files, *, compiled):
    """Compare the files of a wheel, which is for Python 3.11 and all later ones, with those of a checkout."""
    assert "-cp311-abi3-" in wheel.name
    links = {Path("src/orlog") / room for room in ROOMS}
    inside = {path for path in files - links if path.parts[0] in {*ROOMS, "src"}}
    paths = {Path("orlog", *path.parts[2 if path.parts[0] == "src" else 0 :]) for path in inside}
    parts = {path for path in paths if path.suffix == ".c"}
    expected = paths - parts | {path.with_suffix(".abi3.so") for path in parts if compiled}
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


@pytest.mark.thorough
@pytest.mark.skipif(not is_compiled(), reason="there are no compiled parts to compare with")
def test_the_wheel_holds_what_is_in_the_checkout_and_gives_the_same_bytes_without_a_compiler(tmp_path):
    source, user = tmp_path / "source", tmp_path / "user"
    listed = run("git", "-C", ROOT, "ls-files", "-z", *ROOMS, "src", *BUILD).split("\0")
    files = {Path(line) for line in listed if line}
    for path in files:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path, follow_symlinks=False)
    removed = source / "datasets/removed.py"
    removed.touch()
    first = built(source, tmp_path / "first")
    assert_holds(first, {*files, removed.relative_to(source)}, compiled=True)
    # The second one is built over what the first one left there, and without a compiler.
    removed.unlink()
    empty = tmp_path / "no-programs"
    empty.mkdir()
    wheel = built(source, tmp_path / "second", PATH=str(empty))
    assert_holds(wheel, files, compiled=False)
    venv.create(user, symlinks=True)
    python = user / "bin" / "python"
    run(*PIP, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # numpy, torch and the rest; not the editable orlog, whose .pth is not read
    ours = sysconfig.get_path("purelib")
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(user)}))
    (theirs / "others.pth").write_text(f"{ours}\n", "utf-8")
    (tmp_path / "program.py").write_text(RECORD_AND_SAMPLE, "utf-8")
    told = [
        run(python, tmp_path / "program.py", user, ORLOG_HOME=str(tmp_path / "one"), PATH=str(empty)),
        run(
            *(sys.executable, tmp_path / "program.py"), ORLOG_HOME=str(tmp_path / "other"), PYTHONPATH=str(ROOT / "src")
        ),
    ]
    assert told[0] == told[1]
