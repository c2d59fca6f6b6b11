"""Shows all that is known about one dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.text import Text

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import print_json, printable, say, show_facts, show_table, tell
from orlog.cli.cards import show_croissant, write_card
from orlog.cli.episodes import show_episode
from orlog.cli.options import AsJson, Name, app
from orlog.errors import InvalidNameError, NotFoundError
from orlog.manifests.names import size_text

if TYPE_CHECKING:
    from orlog.datasets.listing import Offered
    from orlog.datasets.reading.dataset import Dataset
    from orlog.manifests.manifest import Manifest

AUDIT_SKIPPED = "skipped: published without one; after the download run: orlog audit NAME"
ALARMING = ("audit", "rebuild", "not finite", "outside of their Box")
NO_CHECKSUM = "no checksum known: the first download is trusted, and kept"
HASHED = "each chunk is checked against the manifest"
NOT_HASHED = "each file is fetched whole and compared with the manifest"
NOT_EQUAL = "these places are not known to have equal bytes; the first that answers is taken"


@app.command(epilog="Example: orlog show pointmaze/umaze-v1 --episode 7")
def show(
    name: Name,
    episode: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Show one episode: the course of each column, texts and frames."
        ),
    ] = None,
    as_json: AsJson = False,
    as_croissant: Annotated[
        bool,
        typer.Option("--croissant", help="Print Croissant, which catalogues of datasets ask for."),
    ] = False,
    card: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a dataset card there, as publish does on the Hugging Face Hub, and its picture beside it.",
        ),
    ] = None,
) -> None:
    """Show what is known about a dataset: totals, columns, versions, origin, baselines.

    Of one that is not here, it shows the files that would be downloaded, with their sizes and
    checksums, and what its benchmark publishes.
    """
    from orlog.manifests.benchmarks import as_listed

    if as_croissant:
        show_croissant(name)
        return
    if card is not None:
        write_card(name, card)
        return
    name = as_listed(name)
    if episode is not None:
        show_episode(name, episode, as_json=as_json)
        return
    try:
        _show(name, as_json=as_json)
    except (NotFoundError, InvalidNameError) as error:
        missing = str(error) if isinstance(error, NotFoundError) else ""
        if not _show_elsewhere(name, missing, as_json=as_json):
            raise


def _show_elsewhere(name: str, missing: str, *, as_json: bool) -> bool:
    """Show what registries and benchmarks know of a dataset that is not here; return whether there is anything."""
    from orlog.datasets.listing import offers_of
    from orlog.manifests.benchmarks import find_benchmark_dataset
    from orlog.manifests.names import is_name, parse_name

    offers, problems = offers_of(parse_name(name)) if is_name(name) else ([], {})
    benchmark = find_benchmark_dataset(name)
    if not offers and benchmark is None:
        return False
    for registry, problem in problems.items():
        tell(f"the registry {registry} does not answer: {problem}.")
    known: dict[str, str] = {}
    if benchmark is not None:
        known = {column: text for column, text in benchmark.facts.items() if text}
    if as_json:
        body = {
            "name": name.partition("@")[0] if benchmark is None else benchmark.name,
            "state": "not here",
            "benchmark": None if benchmark is None else benchmark.name,
            "facts": known,
        }
        print_json(body | (_offers_as_json(offers) if offers else {}))
        return True
    lines = [("name", benchmark.name if benchmark is not None and not offers else name)]
    files: list[dict[str, Any]] = []
    if offers:
        offer = _offers_as_json(offers)
        files = offer.get("files", [])
        lines += _offer_as_lines(offer)
    if benchmark is not None:
        lines += [("benchmark", benchmark.benchmark.title), *known.items()]
    show_facts(lines, alarming=ALARMING)
    for file in files:
        _print_file(file)
    unknown = f"{name}: orlog knows no version to download."
    say(f"\n{missing or unknown}")
    return True


def _offers_as_json(offers: list[Offered]) -> dict[str, Any]:
    """Return the facts about the version that a download would take, and which others there are."""
    from orlog.manifests.index import IndexEntry

    offer, *others = offers
    entry = offer.entry
    body: dict[str, Any] = {
        "version": offer.version,
        "source": offer.registry,
        "others": [{"version": one.version, "source": one.registry} for one in others],
    }
    if isinstance(entry, IndexEntry):
        return body | {
            "digest": entry.digest,
            "size_bytes": entry.size_bytes,
            "episodes": entry.episodes,
            "steps": entry.steps,
            "audit": entry.audit,
        }
    files = [
        {
            "path": file.path if entry.files else file.url.rpartition("/")[2],
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "md5": file.md5,
            "urls": [file.url, *file.mirrors],
        }
        for file in (() if entry.hub_folder else entry.each)
    ]
    return body | {
        "description": entry.description,
        "format": entry.format,
        "license": entry.license,
        "size_bytes": entry.total_bytes,
        "about_bytes": entry.about_bytes,
        "files": files,
    }


def _offer_as_lines(offer: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [("version", offer["version"]), ("from", offer["source"])]
    lines += [("also", f"{one['version']} from {one['source']}") for one in offer["others"]]
    rounded = offer.get("about_bytes") if offer["size_bytes"] is None else None
    size = ("size", f"about {size_text(rounded)}" if rounded else size_text(offer["size_bytes"]))
    if "digest" not in offer:
        return [
            *lines,
            ("description", offer["description"] or "-"),
            ("format", offer["format"]),
            ("license", offer["license"] or "not known"),
            size,
        ]
    lines += [("digest", offer["digest"]), ("episodes", f"{offer['episodes']:,}")]
    lines += [("steps", f"{offer['steps']:,}"), size]
    return [*lines, ("audit", AUDIT_SKIPPED)] if offer["audit"] else lines


def _print_file(file: dict[str, Any]) -> None:
    """Print a third-party file on lines that can be copied, however long they are."""
    size = f"  {size_text(file['size_bytes'])}" if file["size_bytes"] is not None else ""
    sums = [f"{kind} {file[kind]}" for kind in ("sha256", "md5") if file[kind]]
    for text in (f"\n{file['path']}{size}", *(f"  {one}" for one in sums or [NO_CHECKSUM])):
        say(text)
    for url in file["urls"]:
        say(f"  {url}")
    if len(file["urls"]) > 1 and not sums:
        say(f"  {NOT_EQUAL}")


def _show(name: str, *, as_json: bool) -> None:
    """Show a version that is here or that ships with orlog."""
    from orlog.datasets.loading import load_dataset
    from orlog.datasets.reading.finding import as_folder
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
    from orlog.manifests.names import is_url, parse_name
    from orlog.manifests.shipped import recorded_manifest

    recorded = None
    if as_folder(name) is None and not is_url(name):
        wanted = parse_name(name)
        recorded = recorded_manifest(wanted.name, wanted.version)
    dataset = part = None
    try:
        dataset = load_dataset(name)
        manifest = dataset.manifest
    except NotFoundError:
        part = find_part(name)
        if part is not None:
            recorded = read_manifest(part / MANIFEST_FILE)
        elif recorded is None or not recorded.digest.startswith(parse_name(name).digest):
            raise
        manifest = recorded
    facts = _facts(manifest, dataset, part)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts, manifest, dataset)


def find_part(name: str) -> Path | None:
    """Return the folder that holds only a part of the version that a name or path means."""
    from orlog.datasets.home.presence import is_partial
    from orlog.datasets.reading.finding import folders_to_verify

    try:
        (folder,) = folders_to_verify(name)
    except (NotFoundError, ValueError):  # none, or a view of several
        return None
    return folder if is_partial(folder) else None


def _facts(manifest: Manifest, dataset: Dataset | None, part: Path | None) -> dict[str, Any]:
    """Return all that is known about a dataset, as JSON.

    `dataset` is None if it is not here; then `part` is the folder with a part of it, if any is here.
    """
    import msgspec

    from orlog.algos.algorithms import ALGORITHMS
    from orlog.datasets.facts import columns_of, versions_of
    from orlog.datasets.home.history import known_versions
    from orlog.datasets.home.presence import how_much
    from orlog.datasets.listing import audit_of
    from orlog.datasets.store.chunk_hashes import has_chunk_hashes
    from orlog.manifests.rebuilds import rebuild_text, version_of
    from orlog.normalize.baselines import read_baseline
    from orlog.runs.references import references_of

    shown = dataset or manifest
    is_view = dataset is not None and dataset.operation is not None
    folder = part if dataset is None else dataset.folder
    state = "here" if part is None else how_much(part, manifest)
    if dataset is not None and dataset.in_place:
        by = HASHED if has_chunk_hashes(manifest) else NOT_HASHED
        state = f"read in place: {by}"
    references = references_of(manifest)
    baselines = []
    # Recorded baselines are for the whole version, not for views.
    for algorithm in ALGORITHMS if references is not None and not is_view else ():
        baseline = read_baseline(algorithm, manifest.name)
        if baseline is not None and references is not None:
            means = [float(scores.mean()) for scores in baseline.scores(references).values()]
            score = sum(means) / len(means)
            baselines.append(
                {
                    "algorithm": algorithm,
                    "normalized_score": score,
                    "seeds": len(means),
                    "settings_tried": baseline.settings_tried or None,
                    "is_of_these_data": baseline.digest == manifest.digest,
                }
            )
    environment, recipe = manifest.environment, manifest.recipe
    return {
        "name": manifest.name,
        "version": version_of(manifest),
        "rebuild": rebuild_text(manifest) or None,
        "digest": shown.digest,
        "folder": None if folder is None else str(folder),
        "state": "not here" if folder is None else state,
        "is_view": is_view,
        "description": manifest.description,
        "episodes": shown.total_episodes,
        "steps": shown.total_steps,
        "size_bytes": manifest.size_bytes,
        "objects": len(manifest.objects),
        "container": manifest.container,
        "observation_space": manifest.observation_space,
        "action_space": manifest.action_space,
        "behavior_policy": manifest.behavior_policy,
        "environment": msgspec.to_builtins(environment),
        "benchmark": manifest.benchmark,
        "license": manifest.license,
        "recipe": msgspec.to_builtins(recipe),
        "lineage": msgspec.to_builtins(shown.lineage),
        "non_finite": manifest.non_finite,
        "outside_bounds": msgspec.to_builtins(manifest.outside_bounds),
        "dimension_names": shown.dimension_names,
        "roles": manifest.known_roles if dataset is None else dataset.roles,
        "reference_returns": None
        if references is None
        else {
            "random": references.random.mean,
            "expert": references.expert.mean,
            "episodes": references.protocol.episodes,
            "source": references.source,
        },
        "columns": columns_of(manifest, dataset),
        "versions": versions_of(manifest.name, known_versions(manifest.name)),
        "audit": None if folder is None else audit_of(folder),
        "baselines": baselines,
    }


def _print_facts(facts: dict[str, Any], manifest: Manifest, dataset: Dataset | None) -> None:
    from orlog.datasets.facts import facts_of
    from orlog.datasets.reading.finding import read_installed
    from orlog.manifests.rebuilds import how_to_record

    again = how_to_record(manifest, read_installed(manifest.name))
    where = facts["folder"] or f"not on this machine; {again}"
    if facts["state"] not in ("here", "not here"):
        rest = f"; for the rest run: orlog download {facts['name']}@{facts['version']}"
        where = f"{where} ({facts['state']}{'' if dataset and dataset.in_place else rest})"
    lines: list[tuple[str, str | Text]] = []
    for name, text in facts_of(manifest, dataset):
        if name == "description":
            lines.append(("folder", where))
        is_prose = name in ("description", "behavior policy")  # whose lines stay lines
        lines.append((name, Text(printable(text)) if is_prose else text))
        if name == "steps":
            lines += _spreads(dataset)
        if name == "license" and facts["audit"]:
            lines.append(("audit", f"{facts['audit']}: published without one"))
    references = facts["reference_returns"]
    if references is not None:
        kind = "published"
        text = f"random {references['random']:z.2f}, expert {references['expert']:z.2f}"
        if references["episodes"] is not None:
            kind = f"{references['episodes']} episodes"
            from orlog.normalize.references import MEASURED

            if references["source"] != MEASURED:
                text += f"; {references['source']}"
        lines.append((f"reference returns ({kind})", text))
    show_facts(lines, alarming=ALARMING)
    say()
    rows = [
        (
            column["name"],
            column["dtype"],
            str(tuple(column["shape"])),
            "-" if column["rows"] is None else f"{column['rows']:,}",
        )
        for column in facts["columns"]
    ]
    show_table(("column", "type", "row", "rows"), rows, numbers=(3,))
    _print_versions(facts["versions"], facts["version"])
    if facts["baselines"]:
        baselines = [
            (
                algorithm_title(one["algorithm"]),
                f"{score:z.1f}",
                str(one["seeds"]),
                str(one["settings_tried"] or "not noted"),
            )
            for one in facts["baselines"]
            for score in [one["normalized_score"]]
        ]
        say()
        columns = ("recorded baseline", "score", "seeds", "settings tried")
        show_table(columns, baselines, numbers=(1, 2, 3))
        others = sum(not one["is_of_these_data"] for one in facts["baselines"])
        if others and not facts["is_view"]:
            which = "all were" if others == len(baselines) else f"{others} of them were"
            say(f"{which} trained on other data than these: the digests differ.")


def _spreads(dataset: Dataset | None) -> list[tuple[str, str]]:
    """Return how returns and lengths of episodes are spread, from the least to the most."""
    from orlog.datasets.looking.sparklines import spread

    if dataset is None or not dataset.total_episodes:
        return []
    returns, lengths = dataset.column("episodes/returns"), dataset.episode_lengths
    found = []
    for name, values in (("returns", returns), ("lengths", lengths)):
        finite = values[np.isfinite(values)].astype(np.float64)
        if len(finite):
            ends = f"{finite.min():,.6g} {spread(values, 24)} {finite.max():,.6g}"
            found.append((name, f"{ends}, mean {finite.mean():,.6g}"))
    return found


def _print_versions(versions: list[dict[str, Any]], shown: str) -> None:
    if len(versions) < 2 and all(one["status"] == "good" for one in versions):
        return
    rows = []
    for one in versions:
        note = "; ".join(filter(None, (one["rebuild"], one["changes"])))
        if one["status"] != "good":
            use = f"; use {one['use']}" if one["use"] else ""
            note = f"{one['status']}: {one['reason']}{use}" + (f" ({note})" if note else "")
        rows.append(
            (
                f"{one['version']} (shown)" if one["version"] == shown else one["version"],
                one["digest"][:19],
                f"{one['episodes']:,}",
                one["state"],
                note,
            )
        )
    say()
    show_table(("version", "digest", "episodes", "state", "changes"), rows, numbers=(2,))
