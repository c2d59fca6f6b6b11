"""Writes a page for each benchmark from the lists and tables that ship, when the site is built."""

from __future__ import annotations

import dataclasses
import itertools
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from orlog.datasets.publish.card import escaped
from orlog.manifests.benchmarks import BENCHMARKS, benchmark_datasets, find_benchmark_dataset
from orlog.manifests.index import ForeignEntry, ForeignFile
from orlog.manifests.names import newest_first, size_text
from orlog.manifests.shipped import SHIPPED, shipped_index
from orlog.normalize.published_scores import PublishedScore, published_scores
from orlog.runs.scores import Section, benchmark_sections

OVERVIEW = """# Benchmarks

What others published, with the names under which orlog finds it. These pages are made from the lists and tables that
ship with orlog. The [catalogue](../catalogue.md) says how to search them, and [suites](../suites.md) what builds on your machine.
"""
table: Callable[[Sequence[str], Sequence[Sequence[str]]], str] = runpy.run_path(
    str(Path(__file__).with_name("write_datasets.py"))
)["table"]
METRICS = {
    "d4rl_normalized_score_x100": "normalized score",
    "neorl2_normalized_score_x100": "normalized score",
    "success_rate_percent": "success in %",
    "dsrl_normalized_reward": "normalized reward",
    "dsrl_normalized_cost (cost/limit; safe if <= 1)": "normalized cost, safe if at most 1",
}


@dataclasses.dataclass(frozen=True)
class About:
    """What a page says that no list holds.

    Attributes:
        title: What people call the benchmark.
        what: What the data are, in a sentence or two.
        paper: Where it was published.
        commands: What downloads and trains, as it is typed.
        more: What else one must know to use it.
    """

    title: str
    what: str
    paper: str
    commands: str
    more: str = ""


def _commands(extras: str, name: str, method: str = "") -> str:
    lines = [f'pip install "orlog[{extras}]"', f"orlog show {name}", f"orlog download {name}"]
    return "\n".join([*lines, f"orlog train {method} {name}"] if method else lines)


_OWN_BOUNDS = (
    "The files say no bounds of actions, and no method trains without: fetch the files (`orlog show NAME` has their "
    "addresses) and import them with the bounds, as `orlog import {file} lab/{name} --bounds action=-1:1`. "
    "Then methods train on them, and policies are scored with your own code."
)
ABOUT = {
    "atari": About(
        "Atari",
        "Logs of DQN agents that learned 57 games. Their frames are too large to be downloaded by name: fetch the folder of a "
        "game yourself, and import it.",
        "Agarwal and others, 2020: An Optimistic Perspective on Offline Reinforcement Learning, arXiv:1907.04543",
        "orlog scores atari/breakout\norlog import Breakout/1/replay_logs lab/breakout-v1 --format dqn_replay",
    ),
    "d4rl": About(
        "D4RL",
        "Robots that run, mazes, hands and a kitchen: the benchmark in which most methods were published. "
        "[Its own page](../d4rl.md) says which environments it is scored in today.",
        "Fu and others, 2020: D4RL: Datasets for Deep Data-Driven Reinforcement Learning, arXiv:2004.07219",
        _commands("formats,mujoco", "d4rl/hopper-medium-v2", "iql"),
    ),
    "dsrl": About(
        "DSRL",
        "Tasks with a reward and a cost that must stay low: robots and vehicles of Bullet-Safety-Gym, Safety-Gymnasium and "
        "MetaDrive. The cost of each step is `infos/cost`; the methods here do not look at it.",
        "Liu and others, 2023: Datasets and Benchmarks for Offline Safe Reinforcement Learning, arXiv:2306.09303",
        _commands("formats", "dsrl/offlinecarcircle-v0"),
        _OWN_BOUNDS.format(file="SafetyCarCircle-v0-100-1450.hdf5", name="carcircle-v0"),
    ),
    "lerobot": About(
        "LeRobot",
        "Demonstrations of robots on the Hugging Face Hub, as LeRobotDatasets with frames or videos. Each is a folder of the "
        "Hub, which its own tool fetches. [Coming from LeRobot](../coming-from/lerobot.md) has its lines beside ours.",
        "Cadene and others, 2024: LeRobot, https://github.com/huggingface/lerobot",
        'pip install "orlog[formats,remote]"\norlog show lerobot/pusht-v0\n'
        "hf download --repo-type dataset lerobot/pusht --local-dir pusht\norlog import pusht lab/pusht-v1",
    ),
    "libero": About(
        "LIBERO",
        "Demonstrations by people of 130 tasks for one robot arm, told in words, for learning one task after another.",
        "Liu and others, 2023: LIBERO: Benchmarking Knowledge Transfer for Lifelong Robot Learning, arXiv:2306.03310",
        _commands("formats", "libero/libero_10/kitchen_scene3_turn_on_the_stove_and_put_the_moka_pot_on_it-v0", "bc"),
        "The files name robosuite environments, which orlog does not run: training works, and policies are scored with your own code.",
    ),
    "mimicgen": About(
        "MimicGen",
        "Demonstrations of robot arms in robosuite, which a program made from a few of people by fitting them to new places.",
        "Mandlekar and others, 2023: MimicGen: A Data Generation System for Scalable Robot Learning, arXiv:2310.17596",
        _commands("formats", "mimicgen/core/coffee_d0-v0", "bc"),
        "The files name robosuite environments, which orlog does not run: training works, and policies are scored with your own code.",
    ),
    "minari": About(
        "Minari",
        "Farama's successor of D4RL: its tasks in environments that install today, with actions, observations and spaces as "
        "Gymnasium has them. [Coming from Minari](../coming-from/minari.md) has its lines beside ours.",
        "Younis and others, 2024: Minari, https://github.com/Farama-Foundation/Minari",
        _commands("formats,mujoco", "minari/mujoco/hopper/medium-v0", "iql"),
    ),
    "neorl2": About(
        "NeoRL-2",
        "Tasks as industry has them: delays, outside influences, safety limits, and few data from the controllers in use.",
        "Gao and others, 2025: NeoRL-2: Near Real-World Benchmarks for Offline Reinforcement Learning, arXiv:2503.19267",
        _commands("formats", "neorl2/pipeline-v0"),
        _OWN_BOUNDS.format(file="Pipeline-train.npz Pipeline-val.npz", name="pipeline-v0"),
    ),
    "ogbench": About(
        "OGBench",
        "Reaching goals from data without rewards: mazes, arms and puzzles, seen as states or frames. Names with `singletask` "
        "have the rewards of one task, for methods that learn from rewards.",
        "Park and others, 2025: OGBench: Benchmarking Offline Goal-Conditioned RL, arXiv:2410.20092",
        _commands("ogbench", "ogbench/cube-single-play-v0", "gciql"),
    ),
    "ogmarl": About(
        "OG-MARL",
        "Several agents that share a reward: StarCraft, MuJoCo in parts, warehouses and others, collected from earlier work too.",
        "Formanek and others, 2023: Off-the-Grid MARL, arXiv:2302.00521",
        _commands("formats", "ogmarl/og_marl/smac_v1/3m/good-v0"),
        "Episodes are read and loaders sample the joint actions; no method for several agents is in orlog.",
    ),
    "rlds": About(
        "TensorFlow Datasets (RLDS)",
        "Robots that run, recorded from SAC. orlog lists these archives with their checksums and does not read them: build them "
        "with `tfds build`, and import what it writes.",
        "Ramos and others, 2021: RLDS: an Ecosystem to Generate, Share and Use Datasets in Reinforcement Learning, arXiv:2111.02767",
        "orlog show rlds/locomotion/hopper_sac_1m_single_policy_stochastic-v0\n"
        "orlog import ~/tensorflow_datasets/locomotion/hopper_sac_1M_single_policy_stochastic/1.0.0 lab/hopper-sac-v1",
    ),
    "robomimic": About(
        "robomimic",
        "Demonstrations of robot arms by one skilled person (`ph`), by several (`mh`) and by agents (`mg`), as states "
        "(`low_dim`) or frames (`image`).",
        "Mandlekar and others, 2021: What Matters in Learning from Offline Human Demonstrations for Robot Manipulation, "
        "arXiv:2108.03298",
        _commands("formats", "robomimic/can/ph/low_dim-v0", "bc"),
        "The files name robosuite environments, which orlog does not run: training works, and policies are scored with your own code.",
    ),
}


def benchmark_pages() -> dict[str, str]:
    """Return the text of each page by its path below `benchmarks/`, the overview first."""
    rows = [
        (f"[{about.title}]({key}.md)", f"{len(_names(key))}", _first_sentence(about.what))
        for key, about in ABOUT.items()
    ]
    overview = f"{OVERVIEW}\n{table(('benchmark', 'names', 'what it is'), rows)}\n"
    return {"index.md": overview} | {f"{key}.md": benchmark_page(key) for key in ABOUT}


def benchmark_page(key: str) -> str:
    """Return the page of a benchmark: what it is, how to use it, its names, and published scores."""
    about = ABOUT[key]
    parts = [
        f"# {about.title}",
        about.what,
        f"```\n{about.commands}\n```",
        about.more,
        "## Names",
        *_names_of(key),
        *_scores(key),
        "## Sources",
        "\n".join(f"- {one}" for one in [f"{about.paper}.", *_sources(key)]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _first_sentence(text: str) -> str:
    return f"{text.split('. ')[0].removesuffix('.')}."


def _names(key: str) -> list[str]:
    if key in SHIPPED:
        return sorted(shipped_index(key).foreign)
    return [one.name for one in benchmark_datasets(key)]


def _names_of(key: str) -> Iterator[str]:
    if key not in SHIPPED:
        yield "No file can be downloaded by name; references and published scores are known."
        yield table(("name", "score 0", "score 100"), [(f"`{one}`", *_anchors(one)) for one in _names(key)])
        return
    index = shipped_index(key).foreign
    known = sum(one.has_checksum for one in _files(key))
    first = (
        ""
        if known == len(_files(key))
        else (" Of the others the first download is trusted, and a file that differs later is refused.")
    )
    yield (
        f"{len(index)} names. Of {len(_files(key))} files, {known or 'none'} have a published checksum.{first} "
        "What is not known is left empty."
    )
    headings = ("name", "version", "size", "license", "checksum", "score 0", "score 100")
    rows = [
        (f"`{name}`", version, *_facts(versions[version]), *_anchors(name))
        for name, versions in sorted(index.items())
        for version in newest_first(versions)
    ]
    used = [at for at in range(len(headings)) if any(row[at] for row in rows)]
    chosen = [[row[at] for at in used] for row in rows]
    yield folded(f"All {len(rows)} versions", table([headings[at] for at in used], chosen))


def _files(key: str) -> list[ForeignFile]:
    if key not in SHIPPED:
        return []
    index = shipped_index(key).foreign
    return [file for versions in index.values() for entry in versions.values() for file in entry.each]


def folded(summary: str, text: str) -> str:
    """Return Markdown that is shown after a click."""
    return f'<details markdown="1"><summary>{escaped(summary)}</summary>\n\n{text}\n\n</details>'


def _facts(entry: ForeignEntry) -> tuple[str, str, str]:
    sums = ["SHA-256" if one.sha256 else "MD5" if one.md5 else "" for one in entry.each]
    size = "" if entry.total_bytes is None else size_text(entry.total_bytes)
    return size, escaped(entry.license or ""), ", ".join(dict.fromkeys(filter(None, sums)))


def _anchors(name: str) -> tuple[str, str]:
    found = find_benchmark_dataset(name)
    anchors = None if found is None else found.anchors
    return ("", "") if anchors is None else (f"{anchors[0]:,.6g}", f"{anchors[1]:,.6g}")


def _scores(key: str) -> Iterator[str]:
    if key not in BENCHMARKS or not published_scores(key):
        return
    yield "## Published scores"
    yield (
        "Each table is one protocol of one publication: numbers of two tables do not compare. `orlog scores NAME` has "
        "spreads, seeds and caveats of each number, and [scores](../scores.md) says what they mean."
    )
    for section in benchmark_sections(key):
        one = section
        where = " ".join(filter(None, (one.publication, one.version)))
        metric = METRICS.get(one.metric, one.metric)
        title = f"{where}: {one.protocol or 'protocol not stated'} ({metric})"
        yield folded(title, _matrix(section))


def _matrix(section: Section) -> str:
    rows = [
        (f"`{name}`", *(_number(row, algorithm) for algorithm in section.algorithms))
        for name, row in section.scores.items()
    ]
    made = table(("dataset", *map(escaped, section.algorithms)), rows)
    first = next(one for row in section.scores.values() for one in row.values())
    copied = ", someone else's copy of it" if first.secondary else ""
    return f"{made}\n\nSource: {escaped(first.source)}{copied}"


def _number(row: Mapping[str, PublishedScore], algorithm: str) -> str:
    found = row.get(algorithm)
    return "" if found is None else f"{found.score:.4g}"


def _sources(key: str) -> list[str]:
    """Return where the facts of the tables were read: repositories with their commits."""
    rows = benchmark_datasets(key) if key in BENCHMARKS else ()
    places = itertools.chain.from_iterable(one.source.split("; ") for one in rows)
    found = [f"`{one}`" for one in dict.fromkeys(place.partition(":")[0] for place in places)]
    hosts = dict.fromkeys(one.url.split("/")[2] for one in _files(key) if "//" in one.url)
    if hosts:
        found.append(f"files: {', '.join(f'`{host}`' for host in hosts)}")
    return found
