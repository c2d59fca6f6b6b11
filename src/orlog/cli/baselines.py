"""Shows published scores: of a dataset, or of a whole benchmark as a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.algos.algorithms import algorithm_title, known_as
from orlog.base.terminal import console, print_json, say, say_notes, show_table
from orlog.cli.options import AsJson, app

if TYPE_CHECKING:
    from orlog.normalize.published_scores import Disagreement, PublishedScore
    from orlog.normalize.references import References
    from orlog.scoring.baseline_scores import Section, SectionKey


@app.command(epilog="Example: orlog baselines d4rl/hopper-medium-v2 --algorithm iql")
def baselines(
    name: Annotated[
        str | None, typer.Argument(help="Dataset: a name such as d4rl/hopper-medium-v2, or a path.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Show the scores of this one only.")] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help="Show a benchmark as a matrix: d4rl, atari, dsrl, neorl2, ogbench."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show published scores of a dataset or a benchmark, with protocol, seeds and source.

    Scores of different protocols stand in different tables: they do not compare.
    With --benchmark instead of a name, a matrix of datasets and algorithms is shown for each protocol.
    """
    if (name is None) == (benchmark is None):
        raise typer.BadParameter("give either the name of a dataset or --benchmark.")
    if benchmark is not None:
        _show_benchmark(benchmark, algorithm, as_json=as_json)
    else:
        assert name is not None
        _show_dataset(name, algorithm, as_json=as_json)


def _show_dataset(name: str, algorithm: str | None, *, as_json: bool) -> None:
    from orlog.errors import NotFoundError
    from orlog.normalize.published_scores import disagreements_about
    from orlog.scoring.baseline_scores import baselines as find_scores
    from orlog.scoring.baseline_scores import in_sections, published_name
    from orlog.scoring.references import references

    title = published_name(name)
    disagreements = disagreements_about(title, algorithm=algorithm_title(known_as(algorithm or "")))
    problem = None
    scores = []
    try:
        scores = find_scores(name, algorithm=algorithm)
    except NotFoundError as error:
        if not disagreements:
            raise
        problem = str(error)
    try:
        known = references(name)
    except NotFoundError:
        known = None
    if as_json:
        print_json(
            {
                "dataset": title,
                "references": _references_json(known),
                "scores": [_score_json(score) for score in scores],
                "disagreements": [_disagreement_json(one) for one in disagreements],
            }
        )
        return
    if known is not None:
        _print_references(known)
    if problem is not None:
        say(problem)
    for section in in_sections(scores):
        _print_section(section)
    _print_disagreements(disagreements)


def _print_references(known: References) -> None:
    from orlog.normalize.references import simulator_of

    say(
        f"score 0 = {known.random.policy}, {known.random.mean:z.2f}; "
        f"100 = {known.expert.policy}, {known.expert.mean:z.2f}"
    )
    say(f"simulator: {known.simulator or simulator_of(known.protocol)}")
    say(f"source: {known.source}")
    say_notes(known.caveats)


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
    from orlog.scoring.baseline_scores import benchmark_sections

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


def _references_json(known: References | None) -> dict[str, Any] | None:
    if known is None:
        return None
    return {
        "random": known.random.mean,
        "random_policy": known.random.policy,
        "expert": known.expert.mean,
        "expert_policy": known.expert.policy,
        "source": known.source,
        "simulator": known.simulator,
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
