"""Lists datasets: those here, those the catalogue builds, those to download; and shows what is known of one."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.text import Text

import orlog
from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import print_json, printable, progress_bar, say, show_facts, tell
from orlog.cli.episodes import show_episode
from orlog.cli.options import AsJson, Name, command
from orlog.cli.results import facts, in_words, show, show_rows
from orlog.errors import InvalidNameError, NotFoundError, OrlogError
from orlog.manifests.names import counted, size_text
from orlog.manifests.roles import find_family

if TYPE_CHECKING:
    from orlog.datasets.listing import Listed, Offered
    from orlog.datasets.reading.dataset import Dataset
    from orlog.manifests.manifest import Manifest

AUDIT_SKIPPED = "skipped: published without one; after the download run: orlog audit NAME"
ALARMING = ("audit", "rebuild", "not finite", "outside of their Box")
NO_CHECKSUM = "no checksum known: the first download is trusted, and kept"
HASHED = "each chunk is checked against the manifest"
NOT_HASHED = "each file is fetched whole and compared with the manifest"
NOT_EQUAL = "these places are not known to have equal bytes; the first that answers is taken"
OF_MANIFEST = (
    *("description", "container", "observation_space", "action_space", "behavior_policy"),
    *("environment", "benchmark", "license", "recipe", "non_finite", "outside_bounds"),
)


@command("orlog list --remote --benchmark minari --search hopper", name="list")
def list_datasets(
    pattern: str = "",
    remote: bool = False,
    benchmark: str = "",
    search: str = "",
    family: str = "",
    here: bool = False,
    every: bool = False,
    as_json: AsJson = False,
) -> None:
    """List the datasets of the catalogue and on this machine, or with --remote those to download.

    What known benchmarks publish (d4rl, minari, ogbench, ..) is listed without a network. A
    registry of yours that does not answer is named on stderr.

    Options:
        pattern ([PATTERN], default: all): Only names that contain this text, or match it if it has *, ? or [ in it.
        remote: List what can be downloaded, and what of it is here.
        benchmark (NAME, default: all): Only datasets of this benchmark: the first part of their names.
        search (TEXT, default: all): Only datasets with this text in name or description, in any case.
        family (NAME, default: all): Only datasets of this family, such as safety or goals (docs/families.md).
        here: List only what is on this machine.
        every (--all): List what is here and what can be downloaded together.
    """
    from orlog.datasets.home.folders import datasets_folder
    from orlog.datasets.listing import listed_elsewhere, listed_here, matching

    if family:
        find_family(family)  # what is wrong is said before anything is looked for
    if here and (remote or every):
        raise typer.BadParameter("--here lists this machine alone; leave out --remote and --all.")
    listed = listed_here()
    if here:  # without what the catalogue could build
        listed = {name: one for name, one in listed.items() if one.source != "catalogue"}
    problems: dict[str, str] = {}
    if remote or every:
        offered, problems = listed_elsewhere(listed)
        listed = {**offered, **listed} if every else offered
    chosen = matching(listed, pattern, benchmark, search, family)
    _tell_silent(problems)
    rows = [dataclasses.asdict(one) for one in chosen]

    def text(body: dict[str, Any]) -> None:
        benchmarks = {name.partition("/")[0] for name in listed}
        if benchmark and benchmark.lower() not in benchmarks:
            tell(f"no dataset is of {benchmark}; there are {', '.join(sorted(benchmarks))}.")
        elif not chosen:
            given = {"": pattern, "benchmark ": benchmark, "search ": search, "family ": family}
            asked = ", ".join(f"{name}{value}" for name, value in given.items() if value)
            more = f"; to search what can be downloaded, run: orlog list --all {pattern}".rstrip()
            tell(f"no dataset is found for {asked or 'this'}{'' if remote or every else more}")
        columns = "name version steps size license source=from returns last_used=used state"
        if remote and not every:
            columns = "name version size license state"
        spare = ("steps", "used", "license", "from", "size", "returns", "version")
        shown = [
            {**row, "size": _size(one), "returns": _returns(one), "state": _state(one)}
            for row, one in zip(rows, chosen, strict=True)
        ]
        if shown:
            show_rows(shown, columns, spare=[one for one in spare if one in columns])
        sources = {one.source for one in chosen}
        if "catalogue" in sources:
            tell("\nto have one that is not here: orlog build NAME, or load_dataset(NAME, build=True)")
        if sources - {"catalogue", None}:
            tell("\nfiles and checksums: orlog show NAME; to get one: orlog download NAME")
            unknown = sum(_size(one) == "-" and not one.has_checksum for one in chosen)
            if unknown:
                tell(f"{unknown:,} without size and checksum: their first download is trusted.")
        say(f"\n{counted(len(chosen), 'dataset')}; folder: {body['folder']}")

    show({"folder": datasets_folder(), "datasets": rows, "unreachable": problems}, as_json, text)


def _tell_silent(problems: dict[str, str]) -> None:
    for registry, problem in problems.items():
        tell(f"the registry {registry} does not answer: {problem}.")


def _returns(one: Listed) -> str:
    """Return how the returns of a dataset that is here are spread; nothing where they cannot be read."""
    from orlog.datasets.looking.sparklines import spread
    from orlog.datasets.reading.dataset import Dataset
    from orlog.datasets.reading.finding import find_stored

    if one.state != "here" or one.problem is not None:
        return ""
    with contextlib.suppress(OrlogError, OSError):
        # Not opened as a user would, which marks it as used.
        dataset = Dataset(*find_stored(f"{one.name}@{one.version}"))
        return spread(dataset.column("episodes/returns"), 10)
    return ""


def _size(one: Listed) -> str:
    """Return a size, with a tilde in front where only a rounded one is known."""
    is_rounded = one.size_bytes is None and one.about_bytes is not None
    return f"~{size_text(one.about_bytes)}" if is_rounded else size_text(one.size_bytes)


def _state(one: Listed) -> str:
    """Return whether a dataset is here, and what else is to be known before it is used."""
    if one.problem is not None and one.source is None:
        return f"damaged: {one.problem}" if one.state == "damaged" else one.problem
    unread = "by hf download" if one.format == "lerobot" else "cannot be read"
    audit = "published without an audit" if one.audit else ""
    return ", ".join(filter(None, (one.state, one.rebuild, audit, unread if one.problem else "")))


@command("orlog show pointmaze/umaze-v1 --episode 7", name="show")
def show_dataset(
    name: Name,
    episode: int | None = None,
    as_json: AsJson = False,
    as_croissant: bool = False,
    card: Path | None = None,
) -> None:
    """Show what is known about a dataset: totals, columns, versions, origin, baselines.

    Of one that is not here, it shows the files that would be downloaded, with their sizes and
    checksums, and what its benchmark publishes.

    Options:
        episode (N): Show one episode: the course of each column, texts and frames.
        as_croissant (--croissant): Print Croissant, which catalogues of datasets ask for.
        card (FILE): Write a dataset card there, as publish does on the Hugging Face Hub, and its picture beside it.
    """
    from orlog.manifests.benchmarks import as_listed

    if as_croissant:
        from orlog.manifests.croissant import UNKNOWN, croissant

        print_json(croissant(_whole_version(name).manifest))
        tell(f"to be added by you, since no manifest knows it: {', '.join(UNKNOWN)}")
        return
    if card is not None:
        _write_card(name, card)
        return
    name = as_listed(name)
    if episode is not None:
        show_episode(name, episode, as_json=as_json)
        return
    try:
        manifest, dataset, part = _find(name)
    except (NotFoundError, InvalidNameError) as error:
        missing = str(error) if isinstance(error, NotFoundError) else ""
        known = _known_elsewhere(name)
        if not known:
            raise
        show(known, as_json, lambda _: _print_elsewhere(known, name, missing))
        return
    known = _known(manifest, dataset, part)
    show(known, as_json, lambda _: _print_known(known, manifest, dataset))


def _whole_version(name: str) -> Dataset:
    dataset = orlog.load_dataset(name)
    if dataset.operation is not None:
        raise ValueError(f"{name}: a view has no files of its own; store it first: orlog save.")
    return dataset


def _write_card(name: str, path: Path) -> None:
    """Write the dataset card and its picture; a file that orlog did not write is not replaced."""
    from orlog.base.files import replace_files, storage_errors
    from orlog.datasets.publish.card import dataset_card, is_own_card

    dataset, picture = _whole_version(name), path.with_suffix(".svg")
    with storage_errors(path):
        before = path.read_text("utf-8", errors="replace") if path.exists() else ""
        if before and not is_own_card(before):
            raise ValueError(f"{path}: orlog did not write this file, so it is not replaced; choose another one.")
    with progress_bar("audit") as update:
        audited = orlog.audit(dataset, progress=update)
    card = dataset_card(dataset, audited, f"{dataset.name}@{dataset.version}")
    with storage_errors(path):
        replace_files({picture: card.picture.encode(), path: card.text(picture.name).encode()})
    say(f"written: {path} and {picture}")


def _known_elsewhere(name: str) -> dict[str, Any]:
    """Return what registries and benchmarks know of a dataset that is not here; nothing if none knows it."""
    from orlog.datasets.listing import offers_of
    from orlog.manifests.benchmarks import find_benchmark_dataset
    from orlog.manifests.names import is_name, parse_name

    offers, problems = offers_of(parse_name(name)) if is_name(name) else ([], {})
    benchmark = find_benchmark_dataset(name)
    if not offers and benchmark is None:
        return {}
    _tell_silent(problems)
    facts = {} if benchmark is None else benchmark.facts
    return {
        "name": name.partition("@")[0] if benchmark is None else benchmark.name,
        "state": "not here",
        "benchmark": None if benchmark is None else benchmark.name,
        "facts": {column: text for column, text in facts.items() if text},
        **(_offered(offers) if offers else {}),
    }


def _offered(offers: list[Offered]) -> dict[str, Any]:
    """Return the facts about the version that a download would take, and which others there are."""
    from orlog.manifests.index import IndexEntry

    offer, *others = offers
    entry = offer.entry
    body = {
        "version": offer.version,
        "source": offer.registry,
        "others": [{"version": one.version, "source": one.registry} for one in others],
    }
    if isinstance(entry, IndexEntry):
        names = ("digest", "size_bytes", "episodes", "steps", "audit")
        return body | {name: getattr(entry, name) for name in names}
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


def _print_elsewhere(known: dict[str, Any], name: str, missing: str) -> None:
    from orlog.manifests.benchmarks import find_benchmark_dataset

    benchmark = find_benchmark_dataset(name)
    lines = [("name", name if "version" in known else known["name"])]
    lines += facts(known, "version source=from")
    lines += [("also", f"{one['version']} from {one['source']}") for one in known.get("others", [])]
    lines += facts(known, "description format")
    lines += [("license", known["license"] or "not known")] if "license" in known else []
    lines += facts(known, "digest episodes steps size_bytes=size")
    if known.get("size_bytes") is None:
        lines += [("size", f"about {size}") for _, size in facts(known, "about_bytes")]
    lines += [("audit", AUDIT_SKIPPED)] if known.get("audit") else []
    if benchmark is not None:
        lines += [("benchmark", benchmark.benchmark.title), *known["facts"].items()]
    show_facts(lines, alarming=ALARMING)
    for file in known.get("files", []):  # on lines that can be copied, however long they are
        sums = [f"{kind} {file[kind]}" for kind in ("sha256", "md5") if file[kind]]
        doubt = [NOT_EQUAL] if len(file["urls"]) > 1 and not sums else []
        say(f"\n{file['path']}  {in_words('size_bytes', file['size_bytes'])}".rstrip())
        for text in (*(sums or [NO_CHECKSUM]), *file["urls"], *doubt):
            say(f"  {text}")
    say(f"\n{missing or f'{name}: orlog knows no version to download.'}")


def _find(name: str) -> tuple[Manifest, Dataset | None, Path | None]:
    """Return manifest and dataset of a version that is here; of others the folder of a part of it, if any is here.

    Raises NotFoundError if it neither is here nor ships with orlog.
    """
    from orlog.datasets.home.folders import is_partial
    from orlog.datasets.reading.finding import as_folder, folders_to_verify
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
    from orlog.manifests.names import is_url, parse_name
    from orlog.manifests.shipped import recorded_manifest

    wanted = None if as_folder(name) is not None or is_url(name) else parse_name(name)
    try:
        dataset = orlog.load_dataset(name)
    except NotFoundError:
        with contextlib.suppress(NotFoundError, ValueError):  # none, or a view of several
            (folder,) = folders_to_verify(name)
            if is_partial(folder):
                return read_manifest(folder / MANIFEST_FILE), None, folder
        recorded = None if wanted is None else recorded_manifest(wanted.name, wanted.version)
        if wanted is None or recorded is None or not recorded.digest.startswith(wanted.digest):
            raise
        return recorded, None, None
    return dataset.manifest, dataset, None


def _known(manifest: Manifest, dataset: Dataset | None, part: Path | None) -> dict[str, Any]:
    """Return all that is known about a dataset.

    `dataset` is None if it is not here; then `part` is the folder with a part of it, if any is here.
    """
    import msgspec

    from orlog.datasets.home.folders import how_much
    from orlog.datasets.home.records import known_versions
    from orlog.datasets.listing import audit_of
    from orlog.datasets.reading.facts import columns_of, versions_of
    from orlog.datasets.store.chunk_hashes import has_chunk_hashes
    from orlog.manifests.rebuilds import rebuild_text, version_of
    from orlog.runs.references import references_of

    shown = dataset or manifest
    is_view = dataset is not None and dataset.operation is not None
    folder = part if dataset is None else dataset.folder
    state = "not here" if folder is None else "here"
    if part is not None:
        state = how_much(part, manifest)
    elif dataset is not None and dataset.in_place:
        state = f"read in place: {HASHED if has_chunk_hashes(manifest) else NOT_HASHED}"
    references = references_of(manifest)
    return {
        "name": manifest.name,
        "version": version_of(manifest),
        "rebuild": rebuild_text(manifest) or None,
        "digest": shown.digest,
        "folder": folder,
        "state": state,
        "is_view": is_view,
        "episodes": shown.total_episodes,
        "steps": shown.total_steps,
        "size_bytes": manifest.size_bytes,
        "objects": len(manifest.objects),
        **{name: msgspec.to_builtins(getattr(manifest, name)) for name in OF_MANIFEST},
        "lineage": msgspec.to_builtins(shown.lineage),
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
        # Recorded baselines are for the whole version, not for views.
        "baselines": [] if references is None or is_view else _baselines(manifest, references),
    }


def _baselines(manifest: Manifest, references: Any) -> list[dict[str, Any]]:
    """Return the recorded baselines of a dataset, by algorithm."""
    from orlog.algos.algorithms import ALGORITHMS
    from orlog.normalize.baselines import read_baseline

    recorded = (read_baseline(algorithm, manifest.name) for algorithm in ALGORITHMS)
    known = []
    for baseline in filter(None, recorded):
        means = [float(scores.mean()) for scores in baseline.scores(references).values()]
        known.append(
            {
                "algorithm": baseline.algorithm,
                "normalized_score": sum(means) / len(means),
                "seeds": len(means),
                "settings_tried": baseline.settings_tried or None,
                "is_of_these_data": baseline.digest == manifest.digest,
            }
        )
    return known


def _print_known(known: dict[str, Any], manifest: Manifest, dataset: Dataset | None) -> None:
    from orlog.datasets.reading.facts import facts_of
    from orlog.datasets.reading.finding import read_installed
    from orlog.manifests.rebuilds import how_to_record

    again = how_to_record(manifest, read_installed(manifest.name))
    where = f"{known['folder'] or f'not on this machine; {again}'}"
    if known["state"] not in ("here", "not here"):
        rest = f"; for the rest run: orlog download {known['name']}@{known['version']}"
        where += f" ({known['state']}{'' if dataset and dataset.in_place else rest})"
    lines: list[tuple[str, str | Text]] = []
    for name, text in facts_of(manifest, dataset):
        if name == "description":
            lines.append(("folder", where))
        is_prose = name in ("description", "behavior policy")  # whose lines stay lines
        lines.append((name, Text(printable(text)) if is_prose else text))
        if name == "steps":
            lines += _spreads(dataset)
        if name == "license" and known["audit"]:
            lines.append(("audit", f"{known['audit']}: published without one"))
    references = known["reference_returns"]
    if references is not None:
        is_measured = references["episodes"] is not None
        kind = f"{references['episodes']} episodes" if is_measured else "published"
        text = f"random {references['random']:z.2f}, expert {references['expert']:z.2f}"
        lines.append((f"reference returns ({kind})", f"{text}; {references['source']}"))
    show_facts(lines, alarming=ALARMING)
    say()
    rows = [{**column, "shape": str(tuple(column["shape"]))} for column in known["columns"]]
    show_rows(rows, "name=column dtype=type shape=row rows")
    _print_versions(known["versions"], known["version"])
    baselines = known["baselines"]
    if baselines:
        rows = [
            {
                **one,
                "algorithm": algorithm_title(one["algorithm"]),
                "normalized_score": f"{one['normalized_score']:z.1f}",
                "settings_tried": one["settings_tried"] or "not noted",
            }
            for one in baselines
        ]
        say()
        show_rows(rows, "algorithm=recorded_baseline normalized_score=score seeds settings_tried")
        others = sum(not one["is_of_these_data"] for one in baselines)
        if others:
            which = "all were" if others == len(rows) else f"{others} of them were"
            say(f"{which} trained on other data than these: the digests differ.")


def _spreads(dataset: Dataset | None) -> list[tuple[str, str]]:
    """Return how returns and lengths of episodes are spread, from the least to the most."""
    from orlog.datasets.looking.sparklines import spread

    if dataset is None or not dataset.total_episodes:
        return []
    columns = {"returns": dataset.column("episodes/returns"), "lengths": dataset.episode_lengths}
    lines = []
    for name, values in columns.items():
        finite = values[np.isfinite(values)].astype(np.float64)
        if len(finite):
            ends = f"{finite.min():,.6g} {spread(values, 24)} {finite.max():,.6g}"
            lines.append((name, f"{ends}, mean {finite.mean():,.6g}"))
    return lines


def _print_versions(versions: list[dict[str, Any]], shown: str) -> None:
    if len(versions) < 2 and all(one["status"] == "good" for one in versions):
        return
    rows = []
    for one in versions:
        note = "; ".join(filter(None, (one["rebuild"], one["changes"])))
        if one["status"] != "good":
            use = f"; use {one['use']}" if one["use"] else ""
            note = f"{one['status']}: {one['reason']}{use}" + (f" ({note})" if note else "")
        name = f"{one['version']} (shown)" if one["version"] == shown else one["version"]
        rows.append({**one, "version": name, "digest": one["digest"][:19], "changes": note})
    say()
    show_rows(rows, "version digest episodes state changes")
