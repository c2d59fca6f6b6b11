"""Shows what scores mean on a dataset and what is published, scores returns, and measures references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from orlog.algos.algorithms import algorithm_title, known_as
from orlog.base.terminal import progress_bar, say, show_table
from orlog.cli.options import AsJson, Imports, OptionalName, TrustEnvironment, command
from orlog.cli.results import facts, say_caveats, score_text, show, show_rows
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.normalize.published_scores import PublishedScore
    from orlog.normalize.references import References
    from orlog.runs.scores import Section

COLUMNS = 8
"""Algorithms that a terminal has room for side by side."""


@command(
    "orlog scores d4rl/hopper-medium-v2, or orlog scores d4rl/hopper-medium-v2 2000",
    context_settings={"ignore_unknown_options": True},  # a return may be negative
)
def scores(
    name: OptionalName = None,
    returns: list[float] | None = None,
    costs: list[float] | None = None,
    cost_limit: float | None = None,
    algorithm: str | None = None,
    benchmark: str | None = None,
    random: bool = False,
    expert: str | None = None,
    source: str = "",
    episodes: int | None = None,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Show what scores 0 and 100 mean on a dataset and what is published, or score returns.

    The dataset need not be here: the name of a benchmark's is enough. Of several returns it prints each score, and
    the score of their mean. Published scores of different protocols stand in different tables: they do not compare.

    With --random and --expert it measures the two references and keeps them in $ORLOG_HOME/references, for all
    datasets of that environment. With --benchmark in place of a name, it shows a matrix for each protocol.

    Options:
        returns ([RETURN..]): Undiscounted returns of episodes to score.
        costs (--cost): Cost of an episode, once for each return.
        cost_limit (>= 0): The cost that an episode may have on average.
        algorithm: Show the scores of this one only.
        benchmark: Show a benchmark as a matrix: d4rl, atari, dsrl, neorl2, ogbench.
        random: Measure the random policy: score 0.
        expert (RUN|recipe|NUMBER): Measure the expert, score 100: the folder of a trained run, or the controller of
            the dataset's recipe. Or take a published return, with its --source.
        source: Where the number was published.
        episodes (>= 1, default: 1000): Episodes per policy.
    """
    if (name is None) == (benchmark is None):
        raise typer.BadParameter("give either the name of a dataset or --benchmark.")
    measured = {"--source": source, "--episodes": episodes}
    unused = [option for option, value in measured.items() if value]
    if unused and not random and expert is None:
        raise typer.BadParameter(f"{unused[0]} is for measuring; add --random --expert RUN.")
    if random != (expert is not None):
        raise typer.BadParameter("a score needs both anchors: --random, and --expert with a run, recipe or a number.")
    if (costs or cost_limit is not None) and not returns:
        raise typer.BadParameter("--cost and --cost-limit go with returns.")
    from orlog.normalize.published_scores import whole_name

    name = name and whole_name(name)
    if name is None:
        _show_benchmark(str(benchmark), algorithm, as_json)
    elif expert is not None:
        with progress_bar("episodes") as update:
            body = _measured(name, expert, source, episodes, trust_environment, update)
        show(body, as_json, lambda body: _print_references(body["references"]))
    elif returns:
        costing = {"costs": costs or None, "cost_limit": cost_limit}
        _show_scores(name, returns, costing if costs or cost_limit is not None else {}, as_json)
    else:
        _show_dataset(name, algorithm, as_json)


def _show_scores(name: str, returns: list[float], costing: dict[str, Any], as_json: bool) -> None:
    from orlog.errors import NotFoundError
    from orlog.runs.scores import normalized_score, references

    body: dict[str, Any] = {"dataset": name, "returns": returns, "scores": normalized_score(name, returns).tolist()}
    if costing:
        safe: Any = normalized_score(name, returns, **costing)
        body |= {"normalized_cost": safe.normalized_cost, "safe": safe.safe}
    anchors: dict[str, dict[str, Any]] = {}
    caveats: list[str] = []
    try:
        known = references(name)
        for at, end in (("0", known.random), ("100", known.expert)):
            anchors[at] = {"return": end.mean, "policy": end.policy}
        source, caveats = known.source, known.caveats
    except NotFoundError as error:  # of benchmarks that count successes
        source = str(error)

    def text(body: dict[str, Any]) -> None:
        values = body["scores"]
        say(", ".join(f"{value:z.1f}" for value in values))
        if len(values) > 1:
            say(f"mean {sum(values) / len(values):z.1f}")
        if costing:
            verdict = "safe" if body["safe"] else "not safe"
            say(f"normalized cost {body['normalized_cost']:z.2f} at the limit {costing['cost_limit']:g}: {verdict}")
        for at, anchor in anchors.items():
            say(f"{at:>3} = {anchor['return']:z.2f}: {anchor['policy']}")
        say(f"source: {source}")
        say_caveats(caveats)

    show(body | {"references": anchors, "source": source, "caveats": caveats}, as_json, text)


def _measured(
    name: str,
    expert: str,
    source: str,
    episodes: int | None,
    trust_environment: bool,
    update: Callable[[int, int], None],
) -> dict[str, Any]:
    """Measure both references and keep them; return them."""
    from orlog.datasets.loading import load_dataset
    from orlog.runs.evaluating import REFERENCE_EPISODES, keep_references, measure_references

    dataset, count, finished = load_dataset(name), episodes or REFERENCE_EPISODES, 0

    def progress(done: int) -> None:
        nonlocal finished
        finished = done if done >= finished else count + done
        update(finished, 2 * count)

    try:
        known_expert: str | float = float(expert)
    except ValueError:
        known_expert = expert
    measured = measure_references(
        dataset,
        expert=known_expert,
        source=source,
        episodes=count,
        trust_environment=trust_environment,
        progress=progress,
    )
    kept = str(keep_references(dataset, measured))
    return {"dataset": dataset.name, "references": {**_described(measured), "kept": kept}}


def _show_dataset(name: str, algorithm: str | None, as_json: bool) -> None:
    import msgspec

    from orlog.errors import NotFoundError
    from orlog.normalize.published_scores import disagreements_about, tasks_on
    from orlog.runs.scores import baselines, in_sections, published_name, references

    title = published_name(name)
    disagreements = disagreements_about(title, algorithm=algorithm_title(known_as(algorithm or "")))
    tasks = [task for task in tasks_on(title) if algorithm is None]
    anchors, problem = None, None
    published: list[PublishedScore] = []
    try:
        published = baselines(name, algorithm=algorithm)
    except NotFoundError as error:
        problem = error
    try:
        anchors = _described(references(name))
    except NotFoundError:
        if problem is not None and not disagreements and not tasks:
            raise
    body: dict[str, Any] = {
        "dataset": title,
        "references": anchors,
        "scores": list(map(_score, published)),
        "tasks": tasks,
        "disagreements": [msgspec.structs.asdict(place) for place in disagreements],
    }

    def text(_: dict[str, Any]) -> None:
        if anchors is not None:
            _print_references(anchors)
            say(f"to score returns: orlog scores {name} RETURN..")
        if problem is not None:
            say(problem)
        courses: dict[tuple[str, str, str], list[Section]] = {}
        for section in in_sections(published):
            if section.rows[0].step is not None:
                courses.setdefault((section.publication, section.benchmark, section.metric), []).append(section)
                continue
            say()
            _print_heading(section)
            rows = [
                _score(score) | {"algorithm": algorithm_title(score.algorithm), "caveats": "; ".join(score.caveats)}
                for score in sorted(section.rows, key=lambda score: -score.score)
            ]
            show_rows(rows, "algorithm score spread spread_kind=spread_is seeds caveats")
            _print_sources(section.rows)
        for sections in courses.values():
            _print_course(sections)
        others = [task for task in tasks if task not in {score.dataset for score in published}]
        if others:
            say(f"\npolicies that learned from {title} also have published scores on: {', '.join(others)}")
        if disagreements:
            say("\nSources disagree", style="bold")
            show_rows(body["disagreements"], "item value_a=says source_a=source value_b=or source_b=of note")

    show(body, as_json, text)


def _print_course(sections: Sequence[Section]) -> None:
    """Print a publication's scores at all its checkpoints side by side."""
    last = sections[-1].rows
    where = ", learned from ".join(filter(None, (last[0].dataset, last[0].data)))
    say()
    what = f"{sections[0].benchmark}, {sections[0].metric}, 95 % intervals over seeds"
    say(f"{where} ({what})", label=sections[0].publication)
    cells: dict[str, dict[str, PublishedScore]] = {}
    for score in sorted(last, key=lambda score: -score.score) + [one for each in sections for one in each.rows]:
        cells.setdefault(score.algorithm, {})[score.checkpoint] = score
    checkpoints = list(dict.fromkeys(score.checkpoint for section in sections for score in section.rows))
    rows = [
        [
            algorithm,
            *(score_text(one.score, one.interval) if (one := there.get(at)) else "" for at in checkpoints),
            ", ".join(dict.fromkeys(str(one.seeds) for one in there.values())),
        ]
        for algorithm, there in cells.items()
    ]
    show_table(["algorithm", *checkpoints, "seeds"], rows, numbers=range(1, len(checkpoints) + 2))
    if caveats := dict.fromkeys(caveat for score in last for caveat in score.caveats):
        say_caveats([f"{'; '.join(caveats)}."])
    _print_sources(last)


def _described(known: References) -> dict[str, Any]:
    from orlog.normalize.references import PublishedProtocol, simulator_of

    protocol = known.protocol
    if isinstance(protocol, PublishedProtocol):
        how = protocol.description
    else:
        how = f"{counted(protocol.episodes, 'episode')} of each policy, seeds from {protocol.first_seed}"
    ends = {
        kind: {
            "return": end.mean,
            "policy": end.policy,
            "standard_error": getattr(end, "standard_error", None),
            "returns": getattr(end, "returns", None),
        }
        for kind, end in (("random", known.random), ("expert", known.expert))
    }
    return {
        **ends,
        "source": known.source,
        "protocol": how,
        "environment": protocol.environment_id,
        "versions": protocol.versions,
        "episodes": protocol.episodes,
        "simulator": known.simulator or simulator_of(protocol),
        "caveats": known.caveats,
    }


def _print_references(known: dict[str, Any]) -> None:
    for at, kind in ((0, "random"), (100, "expert")):
        end = known[kind]
        error = "unknown" if end["standard_error"] is None else f"{end['standard_error']:.4g}"
        say(f"{at:>3} = {end['return']:.8g} (standard error {error}): {end['policy']}")
    for heading, text in facts(known, "source protocol simulator"):
        say(f"{heading}: {text}")
    if "kept" in known:
        say(f"kept in {known['kept']}")
    say_caveats(known["caveats"])


def _print_heading(section: Section) -> None:
    mark = ", secondary: someone else's copy of it" if section.rows[0].secondary else ""
    where = f"{section.benchmark} {section.version}".strip()
    say(f"{section.protocol or 'protocol not stated'} ({where}, {section.metric}{mark})", label=section.publication)


def _print_sources(scores: Sequence[PublishedScore]) -> None:
    for text, kind, year in dict.fromkeys((score.source, score.source_kind, score.year) for score in scores):
        say(f"source: {text} ({kind}{f', {year}' if year else ''})")


def _show_benchmark(key: str, algorithm: str | None, as_json: bool) -> None:
    import msgspec

    from orlog.runs.scores import benchmark_sections

    sections = benchmark_sections(key, algorithm=algorithm)
    bodies = msgspec.to_builtins(sections)
    for section, body in zip(sections, bodies, strict=True):
        body["scores"] = {
            name: {title: _score(score) for title, score in row.items()} for name, row in section.scores.items()
        }

    def text(_: dict[str, Any]) -> None:
        for section in sections:
            say()
            _print_heading(section)
            digits = 1 if max(abs(score.score) for score in section.rows) >= 10 else 2  # of a share of one
            rows = {name: {title: score.score for title, score in row.items()} for name, row in section.scores.items()}
            rows |= {f"average of {len(one.datasets)}: {one.group}": one.means for one in section.averages}
            for first in range(0, len(section.algorithms), COLUMNS):
                titles = section.algorithms[first : first + COLUMNS]
                cells = [
                    [name, *(f"{values[title]:z.{digits}f}" if title in values else "" for title in titles)]
                    for name, values in rows.items()
                ]
                show_table(["dataset", *titles], cells, numbers=range(1, len(titles) + 1))
            _print_sources(section.rows)

    show({"benchmark": key, "sections": bodies}, as_json, text)


def _score(score: PublishedScore) -> dict[str, Any]:
    import msgspec

    return {**msgspec.structs.asdict(score), "statistic": score.statistic, "interval": score.interval}
