"""Good data, the same data with defects planted in them, and which of these `orlog audit` and other linters find.

    python -m benchmarks.audit_corpus OUT                               # makes the corpus in OUT and audits it
    python -m benchmarks.audit_corpus OUT "trajlens lint" "robovet doctor"     # and runs other linters beside it

OUT is a new folder, an ORLOG_HOME of its own: `corpus/arm-good-v1` is what `corpus/arm-actions-a-step-late-few-v1` was made of.
Seeds are fixed, so the data are the same each time. `good-2`, `good-3` have other seeds. The commands of other linters are
given the LeRobotDataset of each that is an arm's, with videos.

A defect is **found** if a warning or an error of a check that names its kind is there that is not there in the good data, **noted**
if it is a note alone, `other` if only other warnings tell that something is wrong, `refused` if the data cannot even be written.
Another linter is given more: anything that it prints with a defect and not without, apart from figures, is a find.
The table goes to `benchmarks/results/audit_corpus.txt`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import orlog
from benchmarks.planted_defects import DEFECTS, FLAGS, STATE, TASKS, Draft, plant
from benchmarks.recording import machine
from orlog.datasets.audit.findings import Audit
from orlog.datasets.formats.mapped_arrays import unbounded_space
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import OrlogError
from orlog.manifests.names import counted
from tests.datasets.audit.robots import arm, picture, turning

RESULTS = Path(__file__).resolve().parent / "results" / "audit_corpus.txt"
STATISTICS = "statistics of another version"


def maze(_seed: int) -> tuple[list[Draft], Any]:
    """Return 67 episodes of 300 steps in a maze, which follow way-points: `pointmaze/umaze-mini-v1`, whatever the seed."""
    dataset = orlog.load_dataset("pointmaze/umaze-mini-v1", build=True)
    record, drafts = dataset.environment, []
    assert record is not None
    for episode in dataset:
        seen = dict(episode.observations)
        columns = {name: getattr(episode, name) for name in ("actions", "rewards", *FLAGS)}
        drafts.append({"state": seen.pop("observation"), **seen, **columns, "seed": episode.seed})
    return drafts, make_environment(record.id, record.kwargs, max_episode_steps=record.max_episode_steps)


def robot(seed: int) -> tuple[list[Draft], Any]:
    """Return 24 episodes of 120 steps of an arm that follows targets with a lag, seen by two cameras."""

    def more(rng: np.random.Generator, real: np.ndarray) -> dict[str, np.ndarray]:
        wrist = picture(real[:, 2:6], rng)[:, ::-1] // 2 + 60
        return {**turning(rng, real), "wrist": wrist.astype(np.uint8)}

    rng, drafts = np.random.default_rng(seed), []
    for number, made in enumerate(arm(seed, episodes=24, action="target", images=True, extra=more)):
        steps, draft = len(made["actions"]), {**made["observations"], "actions": made["actions"]}
        place = ((-0.7, 0.4, 0.1), (0.6, 0.7, -0.3))[number % 2] + rng.normal(0, 0.03, 3)
        draft["cup"] = np.repeat(place[None].astype(np.float32), steps + 1, axis=0)
        for camera, left in (("image", 3), ("wrist", 20)):  # a lamp that stands beside the arm
            draft[camera][:, 4:12, left : left + 6] = (240, 230, 200)
        draft["rewards"] = -(((draft["pose"][:, :3] - draft["cup"]) ** 2).sum(axis=1)[1:])
        is_last, is_done = np.arange(steps) == steps - 1, bool(rng.random() < 0.7)
        draft |= {"terminations": is_last & is_done, "truncations": is_last & (not is_done), "success": is_done}
        draft |= {"timestamp": np.arange(steps) / 20, "step": np.arange(steps)}
        drafts.append(draft | {"task": TASKS[number % 2], "length": steps})
    return drafts, None


def runner(seed: int) -> tuple[list[Draft], Any]:
    """Return 60 episodes of 100 steps of HalfCheetah, whose actions change slowly."""
    env, rng = gymnasium.make("HalfCheetah-v5", max_episode_steps=100), np.random.default_rng(seed)

    def act(_observation: np.ndarray, before: Any) -> np.ndarray:
        return np.asarray(np.tanh(0.6 * np.arctanh(before) + rng.normal(0, 0.6, 6)), np.float32)

    drafts = [_play(env, 1000 * seed + number, act, np.zeros(6, np.float32)) for number in range(60)]
    for number, draft in enumerate(drafts):
        draft |= {"length": 100, "return": float(draft["rewards"].sum()), "split": "train" if number < 48 else "test"}
    return drafts, env


def lander(seed: int) -> tuple[list[Draft], Any]:
    """Return 60 landings of LunarLander by Gymnasium's heuristic, with 20 % random actions."""
    from gymnasium.envs.box2d.lunar_lander import heuristic

    env, rng = gymnasium.make("LunarLander-v3"), np.random.default_rng(seed)

    def act(observation: np.ndarray, _before: Any) -> np.int64:
        return np.int64(rng.integers(4) if rng.random() < 0.2 else heuristic(env.unwrapped, observation))  # type: ignore[no-untyped-call]

    return [_play(env, 1000 * seed + number, act, np.int64(0)) for number in range(60)], env


def _play(env: Any, seed: int, act: Callable[[Any, Any], Any], action: Any) -> Draft:
    """Return an episode of a policy, which is given the observation and its last action."""
    steps: list[tuple[Any, ...]] = []
    observation, _ = env.reset(seed=seed)
    seen = [observation]
    while not steps or not any(steps[-1][2:]):
        action = act(observation, action)
        observation, reward, *flags, _ = env.step(action)
        seen.append(observation)
        steps.append((action, float(reward), *flags))
    columns = map(np.array, zip(*steps, strict=True))
    draft = dict(zip(("actions", "rewards", *FLAGS), columns, strict=True))
    return {"state": np.array(seen), **draft, "timestamp": np.arange(len(steps)) / 20, "seed": seed}


SETS = {"maze": maze, "arm": robot, "runner": runner, "lander": lander}


def write(name: str, drafts: list[Draft], environment: Any) -> orlog.Dataset:
    """Write drafts as `corpus/NAME-v1`. Raises OrlogError if they are no episodes."""
    facts = {"environment": environment}
    if environment is None:
        kinds = {name: drafts[0][name] for name in STATE if name in drafts[0]}
        boxes = {name: unbounded_space(rows.dtype, rows.shape[1:]) for name, rows in kinds.items()}
        actions = spaces.Box(-2, 2, drafts[0]["actions"].shape[1:])
        facts = {"observation_space": spaces.Dict(boxes), "action_space": actions}
    name = re.sub(r"\W+", "-", name).lower()
    with orlog.DatasetWriter(f"corpus/{name}-v1", **facts) as writer:
        for draft in drafts:
            seen: Any = {name: rows for name, rows in draft.items() if name in STATE}
            if "achieved_goal" in seen:
                seen["observation"] = seen.pop("state")
            columns: Any = {name: draft[name] for name in ("actions", "rewards", *FLAGS)}
            infos: Any = {name: draft[name] for name in ("timestamp", "step") if name in draft}
            more = {name: draft[name] for name in ("length", "return", "split", "task", "success") if name in draft}
            facts = columns | {"infos": infos, "metadata": more, "seed": draft.get("seed")}
            writer.add_episode(orlog.Episode(observations=seen if len(seen) > 1 else seen["state"], **facts))
    return orlog.load_dataset(writer.folder)


def audited(dataset: orlog.Dataset) -> Audit:
    """Return the audit of a dataset of the corpus, whose environments are Gymnasium's."""
    return orlog.audit(dataset, trust_environment=True)


def verdict(audit: Audit, good: Audit, checks: str) -> str:
    """Return how an audit that is compared with that of the good data judges a defect that some checks name."""
    known = {(finding.severity, finding.check, finding.column) for finding in good.findings}
    new = [each for each in audit.findings if (each.severity, each.check, each.column) not in known]
    loud = [each.check for each in new if each.severity != "note"]
    if set(loud) & set(checks.split(",")):
        return "found"
    return "other" if loud else "noted" if {each.check for each in new} & set(checks.split(",")) else "missed"


def printed(linters: dict[str, str], dataset: orlog.Dataset, *, other_statistics: bool = False) -> dict[str, set[str]]:
    """Return the lines that other linters print about the LeRobotDataset of a dataset, without figures, and exit codes."""
    with tempfile.TemporaryDirectory() as place:
        folder = orlog.export_dataset(dataset, Path(place) / "data", to="lerobot", lossy=True, video=True)
        if other_statistics:
            with_other_statistics(folder)
        said = {
            "files": {
                hashlib.sha256(path.read_bytes()).hexdigest()
                for path in folder.rglob("*")
                if path.is_file() and path.name != "SHA256SUMS"
            }
        }
        for name, command in linters.items():
            run = subprocess.run([*shlex.split(command), folder], capture_output=True, text=True, check=False)  # noqa: S603 (as given)
            text = re.sub(r"tmp\w+|\w*\d[^\s:)]*", "#", run.stdout + run.stderr)
            said[name] = {" ".join(line.split()) for line in text.splitlines()} | {f"exit code {run.returncode}"}
    return said


def with_other_statistics(folder: Path) -> None:
    """Let the statistics of a LeRobotDataset be those of other actions."""
    path = folder / "meta" / "stats.json"
    statistics = json.loads(path.read_text("utf-8"))
    statistics["action"] |= {
        name: [value + 0.5 for value in statistics["action"][name]] for name in ("min", "max", "mean")
    }
    path.write_text(json.dumps(statistics), "utf-8")
    (folder / "SHA256SUMS").unlink()


def main(out: str, *commands: str) -> None:
    """Make the corpus, judge it and write the table."""
    os.environ["ORLOG_HOME"] = str(Path(out).absolute())
    table: dict[str, dict[str, str]] = {name: {} for name in [*DEFECTS, STATISTICS]}
    alarms: dict[str, list[str]] = {}
    linters = {Path(shlex.split(command)[0]).name: command for command in commands}
    for label, make in SETS.items():
        drafts, environment = make(0)
        dataset = write(f"{label} good", drafts, environment)
        others = [write(f"{label} good {seed}", *make(seed)) for seed in (1, 2) if label != "maze"]
        good, *_ = audits = [audited(each) for each in (dataset, *others)]
        for audit in audits:
            loud = [each for each in audit.findings if each.severity != "note"]
            alarms[audit.name] = [f"{each.check}, {each.column}: {each.text}" for each in loud]
        known = printed(linters, dataset) if label == "arm" else {}
        for name in [name for name, defect in DEFECTS.items() if label[0] in defect.sets]:
            planted, row = copy.deepcopy(drafts), table[name]
            plant(name, planted)
            try:
                written = write(f"{label} {name}", planted, environment)
            except OrlogError:
                row[label] = "refused"
                continue
            row[label] = verdict(audited(written), good, DEFECTS[name].checks)
            row |= compared(printed(linters, written), known) if known else {}
            print(f"{label}, {name}: {row}", flush=True)
        if label == "arm":
            folder = orlog.export_dataset(dataset, Path(out) / "statistics", to="lerobot", lossy=True)
            with_other_statistics(folder)
            imported = orlog.load_dataset(orlog.import_dataset(folder, "corpus/arm-statistics-v1", format="lerobot"))
            table[STATISTICS] = {label: verdict(audited(imported), good, "statistics")}
            table[STATISTICS] |= compared(printed(linters, dataset, other_statistics=True), known)
    text = "\n".join([*lines(table, alarms, [*SETS, *linters]), "", machine()])
    RESULTS.write_text(f"{text}\n", "utf-8")
    print(text)


def compared(said: dict[str, set[str]], known: dict[str, set[str]]) -> dict[str, str]:
    """Return what each linter tells; nothing if the files are the same, which have no place for final observations."""
    is_same = said["files"] == known["files"]
    return {name: "found" if said[name] - known[name] else "missed" for name in said if name != "files" and not is_same}


def lines(table: dict[str, dict[str, str]], alarms: dict[str, list[str]], columns: list[str]) -> list[str]:
    """Return the lines of the table: a defect each, their numbers, and what was found in good data."""
    width, wide = max(map(len, table)), 2 + max(map(len, columns))
    words = ("found", "refused", "noted", "other", "missed")
    counts = {word: [sum(row.get(column) == word for row in table.values()) for column in columns] for word in words}
    rows = [["", *columns], *([name, *(row.get(column, "-") for column in columns)] for name, row in table.items())]
    rows += [[""], *([word, *map(str, numbers)] for word, numbers in counts.items())]
    named, every = (sum(sum(counts[word][: len(SETS)]) for word in some) for some in (words[:3], words))
    return [
        *(f"{row[0]:{width}}  {''.join(f'{cell:{wide}}' for cell in row[1:])}".rstrip() for row in rows),
        "",
        f"{len(table)} kinds in {every} datasets: orlog names {named} of them ({named / every:.1%}), with notes and refusals",
        f"{counted(sum(map(len, alarms.values())), 'false alarm')} in {len(alarms)} good datasets",
        *(f"    {name}: {text}" for name, texts in alarms.items() for text in texts),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
