"""Shows what scores mean on a dataset and what is published, scores returns, and measures references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from orlog.algos.algorithms import algorithm_title, known_as
from orlog.base.terminal import console, print_json, progress_bar, say, show_table, tell
from orlog.cli.options import AsJson, Imports, OptionalName, TrustEnvironment, command
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.normalize.published_scores import Disagreement, PublishedScore
    from orlog.normalize.references import References
    from orlog.runs.baseline_scores import Section


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
    if name is None:
        assert benchmark is not None
        _show_benchmark(benchmark, algorithm, as_json=as_json)
    elif expert is not None:
        with progress_bar("episodes") as update:
            body, before = _measured(name, expert, source, episodes, trust_environment, update)
        if as_json:
            print_json(body)
            return
        _print_references(body["references"])
        say(before + f"kept in {body['references']['kept']}")
    elif returns:
        costing = {"costs": costs or None, "cost_limit": cost_limit}
        _show_scores(name, returns, costing if costs or cost_limit is not None else {}, as_json)
    else:
        _show_dataset(name, algorithm, as_json=as_json)


def _show_scores(name: str, returns: list[float], costing: dict[str, Any], as_json: bool) -> None:
    """Print the score of each return, with the two references that anchor it."""
    from orlog.errors import NotFoundError
    from orlog.runs.normalized_scores import normalized_score
    from orlog.runs.references import references

    values = normalized_score(name, returns).tolist()
    body: dict[str, Any] = {"dataset": name, "returns": returns, "scores": values}
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
    body |= {"references": anchors, "source": source, "caveats": caveats}
    if as_json:
        print_json(body)
        return
    say(", ".join(f"{value:z.1f}" for value in values))
    if len(values) > 1:
        say(f"mean {sum(values) / len(values):z.1f}")
    if costing:
        verdict = "safe" if body["safe"] else "not safe"
        cost, limit = body["normalized_cost"], costing["cost_limit"]
        say(f"normalized cost {cost:z.2f} at the limit {limit:g}: {verdict}")
    for at, anchor in anchors.items():
        say(f"{at:>3} = {anchor['return']:z.2f}: {anchor['policy']}")
    say(f"source: {source}")
    say_caveats(caveats)


def _measured(
    name: str,
    expert: str,
    source: str,
    episodes: int | None,
    trust_environment: bool,
    update: Callable[[int, int], None],
) -> tuple[dict[str, Any], str]:
    """Measure both references and keep them; return them, and what those before were."""
    from orlog.datasets.loading import load_dataset
    from orlog.errors import ManifestError
    from orlog.runs.measuring import EPISODES, keep_references, measure_references
    from orlog.runs.references import references_of

    dataset, before = load_dataset(name), ""
    try:
        if known := references_of(dataset.manifest):
            before = f"before: 0 = {known.random.mean:.8g}, 100 = {known.expert.mean:.8g}\n"
    except ManifestError as error:  # new ones come before a damaged file
        tell(error, label="warning")
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
    kept = str(keep_references(dataset, measured))
    return {"dataset": dataset.name, "references": {**_described(measured), "kept": kept}}, before


def _number(text: str) -> str | float:
    """Return a number if the text is one."""
    try:
        return float(text)
    except ValueError:
        return text


def _show_dataset(name: str, algorithm: str | None, *, as_json: bool) -> None:
    """Show the references of a dataset, its published scores, and what sources disagree on."""
    import msgspec

    from orlog.errors import NotFoundError
    from orlog.normalize.published_scores import disagreements_about
    from orlog.runs.baseline_scores import baselines, in_sections, published_name
    from orlog.runs.references import references

    title = published_name(name)
    disagreements = disagreements_about(title, algorithm=algorithm_title(known_as(algorithm or "")))
    anchors, problem = None, None
    published: list[PublishedScore] = []
    try:
        published = baselines(name, algorithm=algorithm)
    except NotFoundError as error:
        problem = error
    try:
        anchors = _described(references(name))
    except NotFoundError:
        if problem is not None and not disagreements:
            raise
    if as_json:
        scores = [_score(score) for score in published]
        places = [msgspec.structs.asdict(place) for place in disagreements]
        body = {"dataset": title, "references": anchors, "scores": scores}
        print_json({**body, "disagreements": places})
        return
    if anchors is not None:
        _print_references(anchors)
        say(f"to score returns: orlog scores {name} RETURN..")
    if problem is not None:
        say(str(problem))
    for section in in_sections(published):
        _print_section(section)
    _print_disagreements(disagreements)


def _described(known: References) -> dict[str, Any]:
    """Return references as they are shown and written."""
    from orlog.normalize.references import PublishedProtocol, simulator_of

    protocol = known.protocol
    if isinstance(protocol, PublishedProtocol):
        how = protocol.description
    else:
        episodes = counted(protocol.episodes, "episode")
        how = f"{episodes} of each policy, seeds from {protocol.first_seed}"
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
        error = end["standard_error"]
        shown = "unknown" if error is None else f"{error:.4g}"
        say(f"{at:>3} = {end['return']:.8g} (standard error {shown}): {end['policy']}")
    for key in ("source", "protocol", "simulator"):
        say(f"{key}: {known[key]}")
    say_caveats(known["caveats"])


def say_caveats(caveats: Iterable[str], page: str = "docs/scores.md") -> None:
    """Print what to know before comparing numbers as one line, with the page that says more."""
    if text := " ".join(caveats):
        say(f"note: {text} More: {page}")


def _print_section(section: Section) -> None:
    """Print the scores on one dataset that share a protocol and a publication."""
    say()
    _print_heading(section)
    scores = sorted(section.rows, key=lambda score: -score.score)
    digits = _digits(score.score for score in scores)
    spreads = [score.spread for score in scores if score.spread is not None]
    spread_digits = _digits(spreads)
    rows = [
        [
            algorithm_title(score.algorithm),
            f"{score.score:z.{digits}f}",
            "unknown" if score.spread is None else f"{score.spread:z.{spread_digits}f}",
            str(score.seeds or "unknown"),
            "; ".join(score.caveats),
        ]
        for score in scores
    ]
    show_table(["algorithm", "score", "spread", "seeds", "caveats"], rows, numbers=(1, 2, 3))
    if spreads:
        kinds = {score.spread_kind for score in scores if score.spread is not None}
        say(f"spread: {', '.join(sorted(kinds))}")
    _print_sources(scores)


def _print_heading(section: Section) -> None:
    mark = ", secondary: someone else's copy of it" if section.rows[0].secondary else ""
    where = f"{section.benchmark} {section.version}".strip()
    metric = _METRICS.get(section.metric, section.metric)
    protocol = section.protocol or "protocol not stated"
    say(f"{protocol} ({where}, {metric}{mark})", label=section.publication)


def _print_sources(scores: Sequence[PublishedScore]) -> None:
    sources = dict.fromkeys((score.source, score.source_kind, score.year) for score in scores)
    for text, kind, year in sources:
        say(f"source: {text} ({kind}{f', {year}' if year else ''})")


def _print_disagreements(disagreements: Sequence[Disagreement]) -> None:
    if disagreements:
        say("\nSources disagree", style="bold")
    for place in disagreements:
        values = (
            f"{value} ({source})" if source else value
            for value, source in ((place.value_a, place.source_a), (place.value_b, place.source_b))
        )
        note = f" Note: {place.note}." if place.note else ""
        say(f"{place.item}: {' or '.join(values)}.{note}")


_METRICS = {
    "d4rl_normalized_score_x100": "D4RL normalized score",
    "neorl2_normalized_score_x100": "NeoRL-2 normalized score",
    "success_rate_percent": "success rate in percent",
    "dsrl_normalized_reward": "DSRL normalized reward, a hundredth of orlog's score",
    "dsrl_normalized_cost (cost/limit; safe if <= 1)": "DSRL normalized cost, safe if at most 1",
}


def _digits(values: Iterable[float]) -> int:
    """Return how many digits after the point the numbers have, up to two."""
    rounded = [f"{value:z.2f}".rstrip("0").partition(".")[2] for value in values]
    return max(map(len, rounded), default=0)


def _show_benchmark(key: str, algorithm: str | None, *, as_json: bool) -> None:
    """Show all published scores of a benchmark, a matrix for each protocol."""
    import msgspec

    from orlog.runs.baseline_scores import benchmark_sections

    sections = benchmark_sections(key, algorithm=algorithm)
    if as_json:
        bodies = msgspec.to_builtins(sections)
        for section, body in zip(sections, bodies, strict=True):
            body["scores"] = {
                name: {title: _score(score) for title, score in row.items()} for name, row in section.scores.items()
            }
        print_json({"benchmark": key, "sections": bodies})
        return
    for index, section in enumerate(sections):
        if index:
            say()
        _print_heading(section)
        for algorithms in _columns(section):
            numbers = range(1, len(algorithms) + 1)
            show_table(["dataset", *algorithms], _matrix(section, algorithms), numbers=numbers)
        _print_sources(section.rows)


def _score(score: PublishedScore) -> dict[str, Any]:
    import msgspec

    return {**msgspec.structs.asdict(score), "statistic": score.statistic}


def _matrix(section: Section, algorithms: Sequence[str]) -> list[list[str]]:
    """Return the scores of some algorithms by dataset, then their averages."""
    # A share of one needs the second digit.
    digits = 1 if max(abs(score.score) for score in section.rows) >= 10 else 2
    rows = {name: {title: score.score for title, score in row.items()} for name, row in section.scores.items()}
    for average in section.averages:
        rows[f"average of {len(average.datasets)}: {average.group}"] = average.means
    return [
        [name, *(f"{values[title]:z.{digits}f}" if title in values else "" for title in algorithms)]
        for name, values in rows.items()
    ]


def _columns(section: Section) -> Iterator[Sequence[str]]:
    """Yield the algorithms of a section in parts that fit the width of a terminal."""
    room = max(console.size.width - max(map(len, section.scores)), 20)
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
