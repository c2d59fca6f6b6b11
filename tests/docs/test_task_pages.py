"""Commands of the first ten minutes and of the pages of tasks, as they are written, on small data of the same names.

`docs/folders.md` has a test of its own.
"""

import re
import shlex
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.worlds.environments import make_environment
from tests.docs.test_d4rl import run, with_goal
from tests.docs.test_d4rl import upstream as upstream
from tests.episodes import record_episodes, whole_episode
from tests.servers import FileServer

FEW = ("--steps", "5", "--evaluations", "0")  # a million steps take hours
DOCS = Path(__file__).parents[2] / "docs"
SMALLER = {
    "train": FEW,
    "reproduce": ("--steps", "5", "--seeds", "1", "--episodes", "2", "--evaluations", "1"),
    "evaluate": ("--episodes", "2"),
    "delete": ("--yes",),
}
"""Options that make of hours seconds, and answer questions."""


def commands(page):
    """Yield the words of each command in the plain blocks of a page, without `orlog` and comments."""
    text = (DOCS / page).read_text("utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for line in "".join(block for kind, block in blocks if not kind).splitlines():
        if line.startswith("orlog "):
            yield shlex.split(line.partition(" # ")[0])[1:]


def follow(words, places=None):
    """Run a command with other words where the page says an address, and return what it printed."""
    given = [(places or {}).get(word, word) for word in words]
    return run(*given, *SMALLER.get(given[0], ()))


def maze(name, environment_id):
    """Record two short episodes of random actions in a maze."""
    with (
        make_environment(environment_id, {}) as env,
        orlog.DatasetWriter(name, version="2.0.0", environment=env) as writer,
    ):
        env.action_space.seed(0)
        for seed in range(2):
            seen = [env.reset(seed=seed)[0]]
            actions = [env.action_space.sample() for _ in range(20)]
            seen += [env.step(action)[0] for action in actions]
            writer.add_episode(
                whole_episode(
                    {key: np.stack([one[key] for one in seen]) for key in seen[0]},
                    np.stack(actions),
                    np.arange(20) % 2.0,
                    end="truncation",
                )
            )
    return orlog.load_dataset(name)


@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_run_here", "mini_folder")
def test_the_first_ten_minutes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    maze("pointmaze/umaze-v1", "PointMaze_UMaze-v3")
    said = [follow(words) for words in commands("first-ten-minutes.md")]
    assert len(said) == 2
    assert said[0].count("finished") == 3
    assert "not compared" in said[1]  # other data and steps than recorded
    inline = re.findall(r"`orlog (show [^`]*)`", (DOCS / "first-ten-minutes.md").read_text("utf-8"))
    assert "steps" in follow(shlex.split(inline[0]))


@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_run_here")
def test_iql_on_antmaze(upstream):
    name = "d4rl/antmaze-medium-play-v2"
    upstream.has(name, with_goal(name))
    said = {" ".join(words): follow(words) for words in commands("iql-on-antmaze.md")}
    assert len(said) == 6
    table = re.findall(r"^\| \w+.* \| ([\d.]+) \|", (DOCS / "iql-on-antmaze.md").read_text("utf-8"), re.MULTILINE)
    assert all(score in said[f"scores {name}"] for score in table)
    assert "preset corl" in next(text for line, text in said.items() if "--preset" in line)


@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_run_here")
def test_an_algorithm_in_30_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "algorithm-in-30-lines.md").read_text("utf-8")
    (tmp_path / "mine.py").write_text(page.partition("```python\n")[2].partition("```")[0], "utf-8")
    maze("pointmaze/umaze-v1", "PointMaze_UMaze-v3")
    follow(["train", "iql", "pointmaze/umaze-v1", "--seeds", "0-2"])
    for seed in range(3):
        follow(["evaluate", f"runs/iql/pointmaze/umaze-v1/seed-{seed}"])
    said = [follow(words) for words in commands("algorithm-in-30-lines.md")]
    assert len(said) == 3
    assert said[0].count("finished") == 3


@pytest.fixture
def arm(tmp_path, monkeypatch):
    """Record lab/arm-v1; return what goes to the home of another person."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    parts = gymnasium.spaces.Dict({"state": box, "camera": box})
    record_episodes(
        "lab/arm-v1",
        (
            whole_episode(
                {part: rng.uniform(-1, 1, (4, 2)).astype("f4") for part in ("state", "camera")},
                rng.uniform(-1, 1, (3, 2)).astype("f4"),
                rng.random(3),
                end="truncation",
                infos={"phase": rng.random(3), "extra": rng.random(3)},
            )
            for _ in range(120)
        ),
        parts,
        box,
    )
    return lambda name: monkeypatch.setenv("ORLOG_HOME", str(tmp_path / name))


@pytest.mark.thorough
def test_publishing_for_a_lab(arm, tmp_path):
    (tmp_path / "registry").mkdir()
    places = {"/data/shared/registry": "registry"}
    followed = 0
    with FileServer(tmp_path / "registry") as server:
        for words in commands("sharing.md"):
            line = " ".join(words)
            if "s3://" in line:
                continue  # a bucket
            if words[:2] == ["registry", "add"]:
                arm("colleague")
                places["https://data.lab.example/registry"] = server.url
            elif "--episodes" in words:
                arm("another")
                follow(["registry", "add", "lab", server.url, "--key", places["ed25519:..."]])
            elif words[0] == "delete":
                (tmp_path / "orlog.lock").unlink()  # another way to pin, from an earlier block
            said = follow(words, places)
            if words[:2] == ["registry", "key"]:
                places["ed25519:..."] = re.findall(r"ed25519:\S+", said)[0]
            followed += 1
    assert followed >= 11
    assert not orlog.list_datasets("lab/arm-v1")
