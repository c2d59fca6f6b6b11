"""Shows what scores mean on a dataset and what is published, scores returns, and measures references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.algos.algorithms import algorithm_title, known_as
from orlog.base.terminal import console, print_json, progress_bar, say, say_notes, show_table, tell
from orlog.cli.options import AsJson, Imports, OptionalName, TrustEnvironment, app
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.normalize.published_scores import Disagreement, PublishedScore
    from orlog.normalize.references import References
    from orlog.runs.baseline_scores import Section, SectionKey


@app.command(
    epilog="Example: orlog scores d4rl/hopper-medium-v2, or orlog scores d4rl/hopper-medium-v2 2000",
    context_settings={"ignore_unknown_options": True},  # a return may be negative
)
def scores(
    name: OptionalName = None,
    returns: Annotated[
        list[float] | None,
        typer.Argument(metavar="[RETURN..]", help="Undiscounted returns of episodes to score."),
    ] = None,
    costs: Annotated[
        list[float] | None, typer.Option("--cost", help="Cost of an episode, once for each return.")
    ] = None,
    cost_limit: Annotated[
        float | None, typer.Option(min=0, help="The cost that an episode may have on average.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Show the scores of this one only.")] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help="Show a benchmark as a matrix: d4rl, atari, dsrl, neorl2, ogbench."),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Measure the random policy: score 0.")
    ] = False,
    expert: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|recipe|NUMBER",
            help="Measure the expert, score 100: the folder of a trained run, or the controller of "
            "the dataset's recipe. Or take a published return, with its --source.",
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="Where the number was published.")] = "",
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes per policy.", show_default="1000")
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Keep them among those that ship, in a checkout of orlog."),
    ] = False,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Show what scores 0 and 100 mean on a dataset and what is published, or score returns.

    The dataset need not be here: the name of a benchmark's is enough. Of several returns it prints each score, and
    the score of their mean. Published scores of different protocols stand in different tables: they do not compare.

    With --random and --expert it measures the two references and keeps them in $ORLOG_HOME/references, for all
    datasets of that environment. With --benchmark in place of a name, it shows a matrix for each protocol.
    """
    if (name is None) == (benchmark is None):
        raise typer.BadParameter("give either the name of a dataset or --benchmark.")
    measured = {"--source": source, "--episodes": episodes, "--record": record}
    unused = [option for option, value in measured.items() if value]
    if unused and not random and expert is None:
        raise typer.BadParameter(f"{unused[0]} is for measuring; add --random --expert RUN.")
    if random != (expert is not None):
        raise typer.BadParameter(
            "a score needs both anchors: --random, and --expert with a run, recipe or a number."
        )
    if (costs or cost_limit is not None) and not returns:
        raise typer.BadParameter("--cost and --cost-limit go with returns.")
    if name is None:
        assert benchmark is not None
        _show_benchmark(benchmark, algorithm, as_json=as_json)
    elif expert is not None:
        with progress_bar("episodes") as update:
            kept = _measure(
                name,
                expert,
                source,
                episodes,
                record=record,
                trust_environment=trust_environment,
                update=update,
            )
        _show_measured(*kept, as_json=as_json)
    elif returns:
        _show_scores(name, returns, costs, cost_limit, as_json=as_json)
    else:
        _show_dataset(name, algorithm, as_json=as_json)


def _show_scores(
    name: str,
    returns: list[float],
    costs: list[float] | None,
    cost_limit: float | None,
    *,
    as_json: bool,
) -> None:
    """Print the score of each return, with the two references that anchor it."""
    import numpy as np

    from orlog.errors import NotFoundError
    from orlog.runs.normalized_scores import normalized_score
    from orlog.runs.references import references as find_references

    values = normalized_score(name, returns)
    safe: Any = None
    if costs or cost_limit is not None:
        asked: dict[str, Any] = {"costs": costs or None, "cost_limit": cost_limit}
        safe = normalized_score(name, returns, **asked)
    known, source = None, ""
    try:
        known = find_references(name)
        source = known.source
    except NotFoundError as error:  # of benchmarks that count successes
        source = str(error)
    ends = {} if known is None else {"0": known.random, "100": known.expert}
    caveats = [] if known is None else known.caveats
    if as_json:
        anchors = {at: {"return": end.mean, "policy": end.policy} for at, end in ends.items()}
        costing = (
            {} if safe is None else {"normalized_cost": safe.normalized_cost, "safe": safe.safe}
        )
        body = {"dataset": name, "returns": returns, "scores": values.tolist(), **costing}
        print_json({**body, "references": anchors, "source": source, "caveats": caveats})
        return
    say(", ".join(f"{value:z.1f}" for value in values))
    if len(returns) > 1:
        say(f"mean {np.mean(values):z.1f}")
    if safe is not None:
        verdict = "safe" if safe.safe else "not safe"
        say(f"normalized cost {safe.normalized_cost:z.2f} at the limit {cost_limit:g}: {verdict}")
    for at, end in ends.items():
        say(f"{at:>3} = {end.mean:z.2f}: {end.policy}")
    say(f"source: {source}")
    say_notes(caveats)


def _measure(
    name: str,
    expert: str,
    source: str,
    episodes: int | None,
    *,
    record: bool,
    trust_environment: bool,
    update: Callable[[int, int], None],
) -> tuple[str, References, Path, References | None]:
    """Measure both references and keep them; return the dataset's name, them, their file, and those before."""
    from orlog.datasets.loading import load_dataset
    from orlog.errors import ManifestError
    from orlog.runs.measuring import EPISODES, keep_references, measure_references
    from orlog.runs.references import references_of

    dataset = load_dataset(name)
    try:
        before = references_of(dataset.manifest)
    except ManifestError as error:  # new ones come before a damaged file
        tell(error, label="warning")
        before = None
    count, finished = episodes or EPISODES, 0

    def show(done: int) -> None:
        nonlocal finished
        finished = done if done >= finished else count + done
        update(finished, 2 * count)

    measured = measure_references(
        dataset,
        expert=_number(expert),
        source=source,
        episodes=count,
        trust_environment=trust_environment,
        progress=show,
    )
    path = keep_references(dataset, measured, shipped=record)
    return dataset.name, measured, path, before


def _number(text: str) -> str | float:
    """Return a number if the text is one."""
    try:
        return float(text)
    except ValueError:
        return text


def _show_measured(
    name: str, measured: References, path: Path, before: References | None, *, as_json: bool
) -> None:
    if as_json:
        references = {**_references_json(measured), "kept": str(path)}
        print_json({"dataset": name, "references": references})
        return
    _print_references(measured)
    if before is not None:
        say(f"before: 0 = {before.random.mean:.8g}, 100 = {before.expert.mean:.8g}")
    say(f"kept in {path}")


def _show_dataset(name: str, algorithm: str | None, *, as_json: bool) -> None:
    """Show the references of a dataset, its published scores, and what sources disagree on."""
    from orlog.errors import NotFoundError
    from orlog.normalize.published_scores import disagreements_about
    from orlog.runs.baseline_scores import baselines as find_scores
    from orlog.runs.baseline_scores import in_sections, published_name
    from orlog.runs.references import references

    title = published_name(name)
    disagreements = disagreements_about(title, algorithm=algorithm_title(known_as(algorithm or "")))
    problem = None
    published: list[PublishedScore] = []
    try:
        published = find_scores(name, algorithm=algorithm)
    except NotFoundError as error:
        problem = error
    try:
        known = references(name)
    except NotFoundError as error:
        known = None
        if problem is not None and not disagreements:
            raise error from None
    if as_json:
        print_json(
            {
                "dataset": title,
                "references": None if known is None else _references_json(known),
                "scores": [_score_json(score) for score in published],
                "disagreements": [_disagreement_json(one) for one in disagreements],
            }
        )
        return
    if known is not None:
        _print_references(known)
    if problem is not None:
        say(str(problem))
    for section in in_sections(published):
        _print_section(section)
    _print_disagreements(disagreements)


def _print_references(known: References) -> None:
    from orlog.normalize.references import simulator_of

    for at, end in ((0, known.random), (100, known.expert)):
        error = getattr(end, "standard_error", None)
        spread = "" if error is None else f", standard error {error:.4g}"
        say(f"{at:>3} = {end.mean:.8g}: {end.policy}{spread}")
    say(f"source: {known.source}")
    say(f"protocol: {_protocol(known)}")
    say(f"simulator: {known.simulator or simulator_of(known.protocol)}")
    say_notes(known.caveats)


def _protocol(known: References) -> str:
    """Say how references were measured."""
    from orlog.normalize.references import PublishedProtocol

    protocol = known.protocol
    if isinstance(protocol, PublishedProtocol):
        return protocol.description
    return (
        f"{counted(protocol.episodes, 'episode')} of each policy, seeds from {protocol.first_seed}"
    )


def _print_section(section: Section) -> None:
    """Print the scores on one dataset that share a protocol and a publication."""
    scores = [one for row in section.scores.values() for one in row.values()]
    say()
    _print_heading(section.key, scores)
    kinds = sorted({one.spread_kind for one in scores if one.spread is not None})
    caveats = any(one.caveats for one in scores)
    headings = ["algorithm", "score", "spread", "seeds", *(["caveats"] if caveats else [])]
    digits = _digits(one.score for one in scores)
    spread_digits = _digits(one.spread for one in scores if one.spread is not None)
    rows = [
        [
            algorithm_title(one.algorithm),
            f"{one.score:z.{digits}f}",
            "unknown" if one.spread is None else f"{one.spread:z.{spread_digits}f}",
            str(one.seeds or "unknown"),
            *(["; ".join(one.caveats)] if caveats else []),
        ]
        for one in sorted(scores, key=lambda one: -one.score)
    ]
    show_table(headings, rows, numbers=(1, 2, 3))
    if kinds:
        say(f"spread: {', '.join(kinds)}")
    _print_sources(scores)


def _print_heading(key: SectionKey, scores: Sequence[PublishedScore]) -> None:
    mark = "" if not scores[0].secondary else ", secondary: someone else's copy of it"
    where = f"{key.benchmark} {key.version}".strip()
    protocol = key.protocol or "protocol not stated"
    say(f"{protocol} ({where}, {_metric(key.metric)}{mark})", label=key.publication)


def _print_sources(scores: Sequence[PublishedScore]) -> None:
    for source in dict.fromkeys((one.source, one.source_kind, one.year) for one in scores):
        text, kind, year = source
        say(f"source: {text} ({kind}{f', {year}' if year else ''})")


def _print_disagreements(disagreements: Sequence[Disagreement]) -> None:
    if disagreements:
        say("\nSources disagree", style="bold")
    for one in disagreements:
        values = (
            f"{value} ({source})" if source else value
            for value, source in ((one.value_a, one.source_a), (one.value_b, one.source_b))
        )
        note = f" Note: {one.note}." if one.note else ""
        say(f"{one.item}: {' or '.join(values)}.{note}")


_METRICS = {
    "d4rl_normalized_score_x100": "D4RL normalized score",
    "neorl2_normalized_score_x100": "NeoRL-2 normalized score",
    "success_rate_percent": "success rate in percent",
    "dsrl_normalized_reward": "DSRL normalized reward, a hundredth of orlog's score",
    "dsrl_normalized_cost (cost/limit; safe if <= 1)": "DSRL normalized cost, safe if at most 1",
}


def _metric(metric: str) -> str:
    return _METRICS.get(metric, metric)


def _digits(values: Iterable[float]) -> int:
    """Return how many digits after the point the numbers have, up to two."""
    rounded = [f"{value:z.2f}".rstrip("0").partition(".")[2] for value in values]
    return max(map(len, rounded), default=0)


def _show_benchmark(key: str, algorithm: str | None, *, as_json: bool) -> None:
    from orlog.runs.baseline_scores import benchmark_sections

    sections = benchmark_sections(key, algorithm=algorithm)
    if as_json:
        print_json({"benchmark": key, "sections": [_section_json(one) for one in sections]})
        return
    for index, section in enumerate(sections):
        if index:
            say()
        scores = [one for row in section.scores.values() for one in row.values()]
        _print_heading(section.key, scores)
        for algorithms in _columns(section):
            numbers = range(1, len(algorithms) + 1)
            rows = list(_rows(section, algorithms))
            show_table(["dataset", *algorithms], rows, numbers=numbers)
        _print_sources(scores)


def _rows(section: Section, algorithms: Sequence[str]) -> Iterator[list[str]]:
    scores = section.scores
    largest = max(abs(one.score) for row in scores.values() for one in row.values())
    digits = 1 if largest >= 10 else 2  # a share of one needs the second

    def cells(values: Iterable[float | None]) -> list[str]:
        return ["" if one is None else f"{one:z.{digits}f}" for one in values]

    for name, row in scores.items():
        found = (row.get(algorithm) for algorithm in algorithms)
        yield [name, *cells(None if one is None else one.score for one in found)]
    for average in section.averages:
        title = f"average of {len(average.datasets)}: {average.group}"
        yield [title, *cells(average.means.get(algorithm) for algorithm in algorithms)]


def _columns(section: Section) -> Iterator[Sequence[str]]:
    """Yield the algorithms of a section in parts that fit the width of a terminal."""
    first = max(len(name) for name in section.scores)
    room = max(console.size.width - first, 20)
    part: list[str] = []
    used = 0
    for algorithm in section.algorithms:
        width = max(len(algorithm), 7) + 1
        if part and used + width > room:
            yield part
            part, used = [], 0
        part.append(algorithm)
        used += width
    yield part


def _references_json(known: References) -> dict[str, Any]:
    from orlog.normalize.references import simulator_of

    ends = {
        kind: {
            "return": end.mean,
            "policy": end.policy,
            "standard_error": getattr(end, "standard_error", None),
            "returns": getattr(end, "returns", None),
        }
        for kind, end in (("random", known.random), ("expert", known.expert))
    }
    protocol = known.protocol
    return {
        **ends,
        "source": known.source,
        "protocol": _protocol(known),
        "environment": protocol.environment_id,
        "versions": protocol.versions,
        "episodes": protocol.episodes,
        "simulator": known.simulator or simulator_of(protocol),
        "caveats": known.caveats,
    }


def _score_json(score: PublishedScore) -> dict[str, Any]:
    import msgspec

    return {**msgspec.structs.asdict(score), "statistic": score.statistic}


def _disagreement_json(one: Disagreement) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(one)


def _section_json(section: Section) -> dict[str, Any]:
    import dataclasses

    return {
        **dataclasses.asdict(section.key),
        "algorithms": section.algorithms,
        "scores": {
            name: {algorithm: _score_json(score) for algorithm, score in row.items()}
            for name, row in section.scores.items()
        },
        "averages": [dataclasses.asdict(average) for average in section.averages],
    }
