"""Lists datasets, and shows what is known of one: in the terminal, and in the browser."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import tempfile
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.color import Color
from rich.style import Style
from rich.text import Text

import orlog
from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import console, print_json, printable, progress_bar, say, show_facts, show_table, tell
from orlog.cli.options import AsJson, Imports, Name, TrustEnvironment, command
from orlog.cli.results import facts, in_words, show, show_rows
from orlog.errors import InvalidNameError, NotFoundError, needing
from orlog.manifests.names import counted, size_text
from orlog.manifests.roles import find_family

if TYPE_CHECKING:
    from orlog.datasets.columns.episode import Episode
    from orlog.datasets.listing import Listed, Offered
    from orlog.datasets.reading.dataset import Dataset
    from orlog.manifests.manifest import Manifest

ALARMING = ("audit", "rebuild", "not finite", "outside of their Box")
NO_CHECKSUM = "no checksum known: the first download is trusted, and kept"
HASHED = "each chunk is checked against the manifest"
NOT_HASHED = "each file is fetched whole and compared with the manifest"
NOT_EQUAL = "these places are not known to have equal bytes; the first that answers is taken"
OF_MANIFEST = (
    *("description", "container", "observation_space", "action_space", "behavior_policy"),
    *("environment", "benchmark", "license", "recipe", "non_finite", "outside_bounds"),
)
PIPE_WIDTH = 60  # of a line of characters where the output is no terminal
MOST_DIMENSIONS, FRAMES, MOST_TEXTS, LONGEST_TEXT = 16, 3, 30, 500
ENDS = {
    (True, True): "terminated: the task itself ended",
    (True, False): "terminated: the task itself ended",
    (False, True): "truncated: it was cut off",
    (False, False): "neither terminated nor truncated: the recording stops there",
}


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
        listed = {name: known for name, known in listed.items() if known.source != "catalogue"}
    problems: dict[str, str] = {}
    if remote or every:
        offered, problems = listed_elsewhere(listed)
        listed = {**offered, **listed} if every else offered
    chosen = matching(listed, pattern, benchmark, search, family)
    _tell_silent(problems)
    rows = [dataclasses.asdict(known) for known in chosen]

    def text(body: dict[str, Any]) -> None:
        columns = "name version size license state"
        if every or not remote:
            columns = "name version layer_of=layer_of steps size license source=from last_used=used state"
        spare = ("steps", "used", "license", "from", "size", "version")
        if not chosen:
            given = {"": pattern, "benchmark ": benchmark, "search ": search, "family ": family}
            asked = ", ".join(f"{name}{value}" for name, value in given.items() if value)
            tell(f"no dataset is found for {asked or 'this'}; to search all, run: orlog list --all {pattern}".rstrip())
        else:
            shown = [
                {**row, "size": _size(known), "state": _state(known)} for row, known in zip(rows, chosen, strict=True)
            ]
            show_rows(shown, columns, spare=[heading for heading in spare if heading in columns])
        sources = {known.source for known in chosen}
        if "catalogue" in sources:
            tell("\nto have one that is not here: orlog build NAME, or load_dataset(NAME, build=True)")
        if sources - {"catalogue", None}:
            tell("\nfiles and checksums: orlog show NAME; to get one: orlog download NAME")
            unknown = sum(_size(known) == "-" and not known.has_checksum for known in chosen)
            if unknown:
                tell(f"{unknown:,} without size and checksum: their first download is trusted.")
        say(f"\n{counted(len(chosen), 'dataset')}; folder: {body['folder']}")

    show({"folder": datasets_folder(), "datasets": rows, "unreachable": problems}, as_json, text)


def _tell_silent(problems: dict[str, str]) -> None:
    for registry, problem in problems.items():
        tell(f"the registry {registry} does not answer: {problem}.")


def _size(known: Listed) -> str:
    """Return a size, with a tilde in front where only a rounded one is known."""
    is_rounded = known.size_bytes is None and known.about_bytes is not None
    return f"~{size_text(known.about_bytes)}" if is_rounded else size_text(known.size_bytes)


def _state(known: Listed) -> str:
    """Return whether a dataset is here, and what else is to be known before it is used."""
    if known.problem is not None and known.source is None:
        return f"damaged: {known.problem}" if known.state == "damaged" else known.problem
    unread = {"lerobot": "by hf download", "ogbench-npz": "by the line of orlog show"}.get(
        known.format or "", "cannot be read"
    )
    audit = "published without an audit" if known.audit else ""
    return ", ".join(filter(None, (known.state, known.rebuild, audit, unread if known.problem else "")))


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
        _show_episode(name, episode, as_json=as_json)
        return
    try:
        manifest, dataset, part = _find(name)
    except (NotFoundError, InvalidNameError) as error:
        missing = str(error) if isinstance(error, NotFoundError) else ""
        known = _known_elsewhere(name)
        if not known:
            raise
        show(known, as_json, lambda body: _print_elsewhere(body, name, missing))
        return
    show(_known(manifest, dataset, part), as_json, lambda body: _print_known(body, manifest, dataset))


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
    known = {} if benchmark is None else benchmark.facts
    return {
        "name": name.partition("@")[0] if benchmark is None else benchmark.name,
        "state": "not here",
        "benchmark": None if benchmark is None else benchmark.name,
        "facts": {column: text for column, text in known.items() if text},
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
        "others": [{"version": other.version, "source": other.registry} for other in others],
    }
    if isinstance(entry, IndexEntry):
        return body | {name: getattr(entry, name) for name in ("digest", "size_bytes", "episodes", "steps", "audit")}
    files = [
        {
            "path": file.path if entry.files else file.url.rpartition("/")[2],
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "md5": file.md5,
            "urls": [file.url, *file.mirrors],
        }
        for file in (() if entry.is_folder else entry.each)
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
    lines = facts(known, "name version source=from description format license digest episodes steps size_bytes")
    lines += [("also", f"{other['version']} from {other['source']}") for other in known.get("others", [])]
    lines += [("size", f"about {size}") for _, size in facts(known, "about_bytes") if not known["size_bytes"]]
    if known.get("audit"):
        lines.append(("audit", "skipped: published without one; after the download run: orlog audit NAME"))
    show_facts([*lines, *known["facts"].items()], alarming=ALARMING)
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
    import msgspec

    from orlog.datasets.home.folders import how_much
    from orlog.datasets.home.records import known_versions
    from orlog.datasets.listing import audit_of
    from orlog.datasets.reading.facts import columns_of, versions_of
    from orlog.datasets.store.chunk_hashes import has_chunk_hashes
    from orlog.manifests.rebuilds import rebuild_text
    from orlog.runs.scores import references_of

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
        "version": manifest.version,
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
        "reference_returns": references
        and {
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
    from orlog.algos.algorithms import ALGORITHMS
    from orlog.normalize.references import read_baseline

    known = []
    for baseline in filter(None, (read_baseline(algorithm, manifest.name) for algorithm in ALGORITHMS)):
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

    lines: list[tuple[str, str | Text]] = []
    for name, text in facts_of(manifest, dataset):
        is_prose = name in ("description", "behavior policy")  # whose lines stay lines
        lines.append((name, Text(printable(text)) if is_prose else text))
    how = known["state"]
    if how == "not here":
        how += f"; {how_to_record(manifest, read_installed(manifest.name))}"
    elif how != "here" and dataset is None:
        how += f"; for the rest run: orlog download {known['name']}@{known['version']}"
    lines += [*facts(known, "folder"), ("state", how)]
    if known["audit"]:
        lines.append(("audit", f"{known['audit']}: published without one"))
    lines += facts(known, "reference_returns")
    show_facts(lines, alarming=ALARMING)
    say()
    show_rows(known["columns"], "name=column dtype=type shape=row rows")
    if len(known["versions"]) > 1 or any(version["status"] != "good" for version in known["versions"]):
        say()
        columns = "version digest episodes state rebuild changes status reason use"
        versions = [
            row
            | {
                "digest": row["digest"][:19],
                "version": row["version"] + " (shown)" * (row["version"] == known["version"]),
            }
            for row in known["versions"]
        ]
        show_rows(versions, columns)
    if known["baselines"]:
        say()
        rows = [row | {"algorithm": algorithm_title(row["algorithm"])} for row in known["baselines"]]
        columns = (
            "algorithm=recorded_baseline normalized_score=score seeds settings_tried is_of_these_data=on_these_data"
        )
        show_rows(rows, columns)


def _show_episode(name: str, number: int, *, as_json: bool) -> None:
    """Print an episode of a dataset or view; NotFoundError if there is none of this number."""
    dataset = orlog.load_dataset(name)
    count = dataset.total_episodes
    if not -count <= number < count:
        raise NotFoundError(f"{dataset.name}: there is no episode {number}; its {count:,} are numbered from 0.")
    episode = dataset[number]

    def text(body: dict[str, Any]) -> None:
        policy = dataset.manifest.behavior_policy
        show_facts(
            [
                ("dataset", f"{body['name']}@{body['version']}"),
                ("episode", f"{body['episode']} of {body['episodes']:,}"),
                *facts(body, "steps return"),
                ("end", ENDS[body["terminated"], body["truncated"]]),
                *([] if episode.seed is None else [("seed of its reset", str(episode.seed))]),
                *((name, value) for name, value in body["metadata"].items() if value),
                *([("behavior policy", policy)] if policy else []),
            ]
        )
        say()
        _show_courses(episode, dataset.dimension_names)
        _show_texts(episode)
        _show_frames(episode)

    show(_document(dataset, episode), as_json, text)


def _document(dataset: Dataset, episode: Episode) -> dict[str, Any]:
    from orlog.datasets.looking.leaves import leaves_of

    columns: dict[str, Any] = {}
    for name, column in leaves_of(episode):
        if not isinstance(column, np.ndarray):
            columns[name] = {"rows": len(column)}
            continue
        is_known = column.dtype.kind in "biuf" and np.isfinite(column).any()
        columns[name] = {
            "shape": column.shape,
            "dtype": str(column.dtype),
            "least": float(np.nanmin(column)) if is_known else None,
            "most": float(np.nanmax(column)) if is_known else None,
        }
    return {
        "name": dataset.name,
        "version": dataset.version,
        "episode": episode.index,
        "episodes": dataset.total_episodes,
        "steps": len(episode),
        "return": float(episode.rewards.sum()),
        "terminated": bool(episode.terminations[-1:].any()),
        "truncated": bool(episode.truncations[-1:].any()),
        "seed": episode.seed,
        "metadata": {key: str(value) for key, value in episode.metadata.items()},
        "columns": columns,
    }


def _show_courses(episode: Episode, names: Mapping[str, Sequence[str]]) -> None:
    from orlog.datasets.looking.leaves import dimensions_of
    from orlog.datasets.looking.sparklines import course

    shown: dict[str, list[tuple[str, np.ndarray]]] = {}
    for name, values in dimensions_of(episode, names):
        shown.setdefault(name.partition("[")[0], []).append((name, values))
    width = max(8, min(console.width - 60, 120)) if console.file.isatty() else PIPE_WIDTH
    rows = []
    for name, values in (line for several in shown.values() for line in several[:MOST_DIMENSIONS]):
        finite = values[np.isfinite(values)]
        ends = [f"{float(end(finite)):.5g}" if len(finite) else "-" for end in (np.min, np.max)]
        rows.append([name, *ends, course(values, width)])
    show_table(("column", "least", "most", "step by step"), rows, numbers=(1, 2))
    for column, several in shown.items():
        if len(several) > MOST_DIMENSIONS:
            say(f"{column}: {len(several) - MOST_DIMENSIONS} more dimensions, not shown")


def _show_texts(episode: Episode) -> None:
    """Print the texts step by step, those that repeat the one before left out; of choices the numbers too."""
    from orlog.datasets.looking.leaves import texts_of

    columns = texts_of(episode)
    actions = episode.actions
    if columns and isinstance(actions, np.ndarray) and actions.ndim == 1 and actions.dtype.kind in "iu":
        columns["actions"] = list(map(str, actions.tolist()))
    changes = [
        (step, name, text)
        for name, texts in columns.items()
        for step, text in enumerate(texts)
        if step == 0 or text != texts[step - 1]
    ]
    changes.sort(key=lambda change: (change[0], change[1] == "actions"))
    if changes:
        say("\ntexts", style="bold")
    for step, name, text in changes[:MOST_TEXTS]:
        say(f"  step {step}, {name}: {text[:LONGEST_TEXT]}")
    if len(changes) > MOST_TEXTS:
        say(f"  and {len(changes) - MOST_TEXTS} more")


def _show_frames(episode: Episode) -> None:
    """Print frames from the first step to the last, where the terminal shows colors."""
    from orlog.datasets.looking.leaves import as_picture, frames_of

    for name, rows in frames_of(episode).items():
        chosen = np.linspace(0, len(rows) - 1, min(FRAMES, len(rows))).round().astype(int)
        say(f"\n{name}, steps {', '.join(map(str, chosen))}", style="bold")
        if console.color_system is None or console.no_color or not console.file.isatty():
            say(f"  frames of {'x'.join(map(str, rows.shape[1:]))}; a terminal with colors shows them")
            continue
        columns = (console.width - 2) // len(chosen) - 1
        pictures = [_picture(as_picture(rows[row]), min(columns, 48)) for row in chosen]
        for lines in zip(*pictures, strict=True):
            console.print(Text(" ").join(lines), no_wrap=True)


def _picture(frame: np.ndarray, columns: int) -> list[Text]:
    """Return a frame as lines of half blocks, each of which is two pixels on top of each other."""
    height, width = frame.shape[:2]
    columns = min(columns, width)
    lines = max(1, round(height * columns / width / 2))
    down = np.linspace(0, height - 1, 2 * lines).round().astype(int)
    across = np.linspace(0, width - 1, columns).round().astype(int)
    colors = np.broadcast_to(frame[np.ix_(down, across)], (2 * lines, columns, 3)).tolist()
    styles = [
        [
            Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))
            for upper, lower in zip(*pair, strict=True)
        ]
        for pair in zip(colors[::2], colors[1::2], strict=True)
    ]
    return [Text.assemble(*(("▀", style) for style in line)) for line in styles]


@command("orlog open pointmaze/umaze-v1", name="open")
def open_viewer(
    names: list[str],
    port: int = 0,
    browser: bool = True,
    label: str = "",
    tags: list[str] | None = None,
    by: str = "",
    trust_environment: TrustEnvironment = False,
    imports: Imports = None,  # noqa: ARG001 (its callback imports them)
) -> None:
    """Look at episodes, datasets, runs and reports in a page that this machine serves to itself.

    The page is on 127.0.0.1 only and asks nothing from anywhere else. Its address lets one browser in; the
    next address is printed when it was used. It reads what is named here and nothing besides. Ctrl-C ends it.
    On another machine: ssh -L 8000:127.0.0.1:PORT HOST, then the address with port 8000.

    Options:
        names (NAME_OR_FILE...): Datasets by name or path, files of views, folders of runs, reports; two datasets
            stand side by side.
        port (>= 0, default: a free one): Port on 127.0.0.1.
        browser: Open the page in the browser.
        label (LAYER): Label the episodes of the first dataset by keys; each label is on the disk at once, and all are
            saved as the next version of this layer when you ask for it or end the viewer.
        tags (--tag NAME): A tag to label with, such as gripper_slips; up to ten.
        by (--by WHO, default: the user of this machine): Who labels.
    """
    with needing("the viewer needs Starlette and uvicorn", "orlog[open]"):
        from orlog.viewer.server import Viewer, application, listen, serve
    from orlog.viewer.shown import open_all

    opened = open_all(names, trust_environment=trust_environment)
    labels = None
    if label:
        from orlog.datasets.recording.labelling import Labels

        if not opened.datasets:
            raise typer.BadParameter("name a dataset to label.", param_hint="--label")
        dataset = opened.datasets[0].dataset
        base = dataset.parents[0] if "layers" in (dataset.operation or {}) else dataset
        labels = Labels(base, label, by=by or getpass.getuser(), tags=tags or ())
    elif tags or by:
        raise typer.BadParameter("it goes with --label LAYER.", param_hint="--tag" if tags else "--by")
    viewer, listening = Viewer(opened, labels), listen(port)
    guard = application(viewer)
    site = "http://{}:{}".format(*listening.getsockname()[:2])

    def print_next() -> None:
        with contextlib.suppress(OSError):  # nobody reads what is printed any more
            say(f"A browser entered. For another one:\n{site}{guard.invite(print_next)}")

    say(f"{site}{guard.invite(print_next)}")
    say(f"shows {', '.join(map(str, [*(shown.title for shown in opened.datasets), *opened.runs, *opened.reports]))}")
    say("Ctrl-C ends it.")
    with contextlib.ExitStack() as stack:
        stack.callback(viewer.close)
        if browser:
            page = _new_file()
            stack.callback(page.unlink, missing_ok=True)
            address = site + guard.invite(lambda: page.unlink(missing_ok=True))
            page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">\n', "utf-8")
            # In a thread, since a browser in the terminal would keep the server from answering it.
            threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        serve(guard, listening)
        if labels is not None:
            folder = labels.save()
            labels.close()
            say(f"saved {labels.name}@{folder.name} in {folder}" if folder else f"{labels.name}: no new labels")


def _new_file() -> Path:
    """Return a new file that only the user can read, to lead a browser to the page.

    The address of the page is not given to the browser, since all users of a machine see its command line.
    """
    home = Path.home()  # browsers that are snaps see the home, but neither /tmp nor hidden folders
    in_home = Path("/snap").is_dir() and os.access(home, os.W_OK)
    file, path = tempfile.mkstemp(".html", "orlog-open-", home if in_home else None)
    os.close(file)
    return Path(path)
