"""Whether a few episodes of every dataset of the suites replay, where they are built and replayed with these packages.

    python -m benchmarks.replay_of_suites                        # all of them: hours, most of it builds
    python -m benchmarks.replay_of_suites classic pixels         # those that begin so

Datasets that are not in ORLOG_HOME are built there. Results are printed and kept in `benchmarks/results/replay_of_suites.txt`, after each dataset, beside those of
earlier runs. It exits with 1 if an episode leaves what was recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.audit_of_suites import built
from benchmarks.recording import machine
from orlog.datasets.audit.replay import Certificate, replay
from orlog.datasets.worlds.recipe import catalogue
from orlog.errors import OrlogError

EPISODES = 20
RESULTS = Path(__file__).resolve().parent / "results" / "replay_of_suites.txt"


def main(prefixes: list[str]) -> int:
    """Replay some episodes of the datasets whose names begin so; return how many episodes leave the recording."""
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    kept = {line.split("@")[0].split(": ")[0]: line for line in lines}
    left = 0
    for name in catalogue():
        if name.startswith(tuple(prefixes) or ""):
            try:
                replayed = replay(built(name), episodes=EPISODES)
            except OrlogError as error:
                kept[name] = f"{name}: {error}"
            else:
                kept[name] = _line(replayed)
                left += len(replayed.of("left"))
            print(kept[name], flush=True)
            text = [kept.get(name, f"{name}: not run") for name in catalogue()]
            RESULTS.write_text("\n".join([*text, "", machine()]) + "\n", "utf-8")
    return left


def _line(replayed: Certificate) -> str:
    packages = ", ".join(f"{package} {version}" for package, version in replayed.versions.items())
    steps = sum(each.steps for each in replayed.replays)
    leaves = [f"; episode {each.episode} at {each.column}, step {each.step}" for each in replayed.of("left")[:1]]
    return (
        f"{replayed.name}@{replayed.version}: {len(replayed.replays)} of {replayed.episodes:,} episodes, {steps:,} "
        f"steps: {replayed.summary()}{''.join(leaves)}; {replayed.environment}, {packages}"
    )


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
