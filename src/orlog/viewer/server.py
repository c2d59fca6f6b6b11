"""The server of `orlog open`: one page on 127.0.0.1, and what it asks for. It only reads.

Who may ask is decided in `orlog.viewer.guard`. The one thing that is ever written is a view,
as a new file in the folder where orlog was started.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import socket
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from orlog.base.terminal import tell
from orlog.datasets.audit.audit import audit
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.operations import operation_words
from orlog.errors import NotFoundError, OrlogError, VersionExistsError
from orlog.manifests.diff import diff_datasets
from orlog.viewer.about import about
from orlog.viewer.episode import MOST_NUMBERS, episode_of, frame_png, places_of
from orlog.viewer.figures import coverage_of, draw_sample, figures_of
from orlog.viewer.guard import REPORT_POLICY, Guard
from orlog.viewer.opened import Opened
from orlog.viewer.rendering import Renderer
from orlog.viewer.shown import Order, Shown, save_filtered

HOST = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
LARGEST_BODY = 2**16
STOP_SECONDS = 1
THREADS = 6  # each keeps some memory of its own
WAIT_SECONDS = 0.25  # quick work is answered at once
STATUSES = (
    (VersionExistsError, 409),
    (LookupError, 404),
    (NotFoundError, 404),
    (OrlogError, 422),
    (OSError, 422),
    (ValueError, 400),
    (TypeError, 400),
)
"""Which status an error is answered with; the first that fits."""
ItemT = TypeVar("ItemT")
Progress: TypeAlias = Callable[[int, int], None]


class Jobs:
    """Work that takes longer than a request, by name. It runs once, and its result is kept.

    One job runs at a time; threads end with the process, however far they are.
    """

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._jobs: dict[str, concurrent.futures.Future[Any]] = {}
        self._progress: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def ask(self, name: str, work: Callable[[Progress], Any]) -> dict[str, Any]:
        """Start work unless it was started, and return how far it is, or its result.

        Returns:
            `state` is `running`, with `done` and `total`, or `ready`, with `result`.

        Raises what the work raised, once; the next call starts it again.
        """
        with self._lock:
            if name not in self._jobs:
                self._jobs[name] = concurrent.futures.Future()
                threading.Thread(target=self._run, args=(name, work), daemon=True).start()
            job = self._jobs[name]
        if not concurrent.futures.wait([job], WAIT_SECONDS).done:
            done, total = self._progress.get(name, (0, 0))
            return {"state": "running", "done": done, "total": total}
        if job.exception() is not None:
            self._jobs.pop(name, None)
        return {"state": "ready", "result": job.result()}

    def _run(self, name: str, work: Callable[[Progress], Any]) -> None:
        job = self._jobs[name]

        def progress(done: int, total: int) -> None:
            self._progress[name] = done, total

        try:
            with self._turn:
                job.set_result(work(progress))
        except Exception as error:  # noqa: BLE001 (it is raised where the result is asked for)
            job.set_exception(error)


class Viewer:
    """What the routes answer from."""

    def __init__(self, opened: Opened) -> None:
        """Remember what was opened; nothing is read yet."""
        self.opened = opened
        self.jobs = Jobs()
        self.renderer = Renderer(trust_environment=opened.trust_environment)
        self.threads = CapacityLimiter(THREADS)

    def close(self) -> None:
        """End the environments that rendered."""
        self.renderer.close()

    def shown(self, request: Request) -> Shown:
        """Return the dataset that a request is about.

        Raises NotFoundError if there is none of that number.
        """
        return _item(self.opened.datasets, request.path_params["dataset"], "dataset")

    def ask(self, request: Request, what: str, work: Callable[[Shown, Progress], Any]) -> Any:
        """Return the state of a job on the dataset that a request is about; errors are those of `Jobs.ask`."""
        shown = self.shown(request)
        name = f"{what} {request.path_params['dataset']}"
        return self.jobs.ask(name, functools.partial(work, shown))


def _item(items: Sequence[ItemT], number: int, what: str) -> ItemT:
    if not 0 <= number < len(items):
        raise NotFoundError(f"no {what} of number {number} is open.")
    return items[number]


def application(viewer: Viewer) -> Guard:
    """Return the application behind its guard."""
    dataset = "/api/data/{dataset:int}"
    episode = dataset + "/episode/{episode:int}"
    answers = {
        "/api/opened": _opened,
        "/api/diff": _diff,
        "/api/runs/{number:int}": _runs,
        "/api/runs/{number:int}/video/{video:int}": _video,
        "/api/report/{number:int}": _report,
        f"{dataset}/about": _about,
        f"{dataset}/statistics": _figures,
        f"{dataset}/coverage": _coverage,
        f"{dataset}/audit": _audit,
        f"{dataset}/episodes": _episodes,
        f"{dataset}/row": _row,
        episode: _episode,
        f"{episode}/frame": _frame,
        f"{episode}/places": _places,
        f"{episode}/render": _render,
    }
    routes = [Route("/", _page), Route("/page/{file}", _asset)]
    routes += [Route(path, _in_thread(work, viewer)) for path, work in answers.items()]
    routes.append(Route(f"{dataset}/view", functools.partial(_save, viewer), methods=["POST"]))
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: _http_error}))


def listen(port: int) -> socket.socket:
    """Return a socket on 127.0.0.1; port 0 takes one that is free.

    Raises OSError if the port is in use.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise OSError(
            f"port {port} of {HOST} cannot be used: {error.strerror}; choose another: port=NUMBER."
        ) from error


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="critical",
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    with contextlib.suppress(KeyboardInterrupt):  # which uvicorn passes on after it has stopped
        uvicorn.Server(config).run(sockets=[listening])


def _in_thread(
    work: Callable[[Viewer, Request], Any], viewer: Viewer
) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        found = functools.partial(work, viewer, request)
        return await to_thread.run_sync(_answer, found, limiter=viewer.threads)

    return respond


def _answer(work: Callable[[], Any]) -> Response:
    """Return the result of some work as JSON, or the message of its error, for the page to show in its place."""
    try:
        found = work()
    except Exception as error:  # noqa: BLE001 (also a defect must not end the page)
        status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
        if status == 500:
            tell("".join(traceback.format_exception(error)), label="error")
        return _problem(status, error)
    if isinstance(found, Response):
        return found
    return Response(msgspec.json.encode(found, enc_hook=_plain), media_type="application/json")


def _plain(value: Any) -> Any:
    """Return a NumPy array or number as Python's."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _problem(status: int, error: Exception) -> Response:
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    body = {"error": text or type(error).__name__, "kind": type(error).__name__}
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def _http_error(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _problem(status, NotFoundError("the viewer has nothing at this address."))


async def _page(_: Request) -> Response:
    return FileResponse(PAGE / "index.html", media_type="text/html")


async def _asset(request: Request) -> Response:
    # Only names that are in the folder: nothing is made into a path.
    for path in PAGE.iterdir():
        if path.name == request.path_params["file"]:
            return FileResponse(path, media_type=TYPES.get(path.suffix, "text/plain"))
    raise HTTPException(404)


def _opened(viewer: Viewer, _: Request) -> dict[str, Any]:
    opened = viewer.opened
    return {
        "datasets": [
            {
                "title": shown.title,
                "name": f"{shown.dataset.name}@{shown.dataset.version}",
                "is_view": shown.dataset.operation is not None,
                "digest": shown.dataset.digest,
                "episodes": shown.dataset.total_episodes,
                "steps": shown.dataset.total_steps,
                "columns": shown.names,
                "sortable": shown.sortable,
                "texts": shown.texts,
            }
            for shown in opened.datasets
        ],
        "runs": [path.name for path in opened.runs],
        "reports": [f"{path.parent.name}/{path.name}" for path in opened.reports],
        "folder": str(opened.folder),
    }


def _about(viewer: Viewer, request: Request) -> Any:
    return viewer.ask(request, "about", lambda shown, _: about(shown))


def _figures(viewer: Viewer, request: Request) -> Any:
    sample = viewer.ask(request, "sample", draw_sample)
    if sample["state"] == "running":
        return sample
    return viewer.ask(request, "statistics", lambda shown, _: figures_of(shown, sample["result"]))


def _coverage(viewer: Viewer, request: Request) -> Any:
    x, y = (request.query_params.get(axis, "") for axis in "xy")
    sample = viewer.ask(request, "sample", draw_sample)
    if sample["state"] == "ready":
        sample["result"] = coverage_of(sample["result"], x, y)
    return sample


def _audit(viewer: Viewer, request: Request) -> Any:
    trust = viewer.opened.trust_environment

    def work(shown: Shown, progress: Progress) -> dict[str, Any]:
        return audit(shown.dataset, trust_environment=trust, progress=progress).to_json()

    return viewer.ask(request, "audit", work)


def _diff(viewer: Viewer, request: Request) -> dict[str, Any]:
    places = [_number(request, "before", 0), _number(request, "after", 1)]
    shown = [_item(viewer.opened.datasets, place, "dataset") for place in places]
    for one in shown:
        if one.dataset.operation is not None:
            raise ValueError(
                f"{one.title} is a view of {one.dataset.name}@{one.dataset.version}, and versions alone are "
                f"compared; store it as one first: orlog save {one.title} NAME@VERSION"
            )
    before, after = (one.dataset for one in shown)
    return viewer.jobs.ask(f"diff {places}", lambda _: _difference(before, after))


def _difference(before: Dataset, after: Dataset) -> dict[str, Any]:
    found = diff_datasets(before, after).to_json()
    for one in found["differences"]:
        if one["name"] == "lineage":
            for side in ("before", "after"):
                one[side] = "; ".join(
                    f"{operation_words(parent['operation'])}, of {parent['digest'][:19]}"
                    for parent in one[side] or []
                )
    return found


def _runs(viewer: Viewer, request: Request) -> dict[str, Any]:
    from orlog.viewer.runs import runs_of  # imports torch, which datasets do not need

    return runs_of(_item(viewer.opened.runs, request.path_params["number"], "folder of runs"))


def _video(viewer: Viewer, request: Request) -> Response:
    from orlog.viewer.runs import videos_of

    folder = _item(viewer.opened.runs, request.path_params["number"], "folder of runs")
    return FileResponse(_item(videos_of(folder), request.path_params["video"], "video"))


def _report(viewer: Viewer, request: Request) -> Response:
    path = _item(viewer.opened.reports, request.path_params["number"], "report")
    headers = {"content-security-policy": REPORT_POLICY}
    return FileResponse(path, media_type="text/html", headers=headers)


def _order(request: Request) -> Order:
    query = request.query_params
    return {
        "where": query.get("where", "").strip(),
        "by": query.get("by", "episode"),
        "descending": query.get("descending") == "1",
    }


def _number(request: Request, name: str, default: int) -> int:
    """Return a whole number of a request's query; ValueError if it is none."""
    text = request.query_params.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise ValueError(f"{name} must be a whole number, found {text!r:.50}.") from error


def _episodes(viewer: Viewer, request: Request) -> dict[str, Any]:
    first, count = _number(request, "first", 0), _number(request, "count", 200)
    return viewer.shown(request).page(_order(request), first=first, count=count)


def _row(viewer: Viewer, request: Request) -> dict[str, Any]:
    episode = _number(request, "episode", 0)
    return {"row": viewer.shown(request).row_of(episode, _order(request))}


def _episode(viewer: Viewer, request: Request) -> dict[str, Any]:
    return episode_of(
        viewer.shown(request),
        request.path_params["episode"],
        first=max(0, _number(request, "first", 0)),
        last=_number(request, "last", 0) or None,
        numbers=_number(request, "numbers", MOST_NUMBERS),
    )


def _frame(viewer: Viewer, request: Request) -> Response:
    name, step = request.query_params.get("column", ""), _number(request, "step", 0)
    data = frame_png(viewer.shown(request), name, request.path_params["episode"], step)
    # A frame of an open dataset never changes, and the address is another one next time.
    headers = {"cache-control": "private, max-age=3600"}
    return Response(data, media_type="image/png", headers=headers)


def _places(viewer: Viewer, request: Request) -> dict[str, Any]:
    step = _number(request, "step", 0)
    return places_of(viewer.shown(request), request.path_params["episode"], step)


def _render(viewer: Viewer, request: Request) -> Response:
    episode, step = request.path_params["episode"], _number(request, "step", 0)
    png, differs, equals = viewer.renderer.picture(viewer.shown(request), episode, step)
    notes = {"x-differs": differs, "x-equals": equals}
    headers = {name: str(value) for name, value in notes.items() if value is not None}
    return Response(png, media_type="image/png", headers=headers)


async def _save(viewer: Viewer, request: Request) -> Response:
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > LARGEST_BODY:
        return _problem(413, ValueError("the request is too long."))
    if request.headers.get("content-type", "") != "application/json":
        return _problem(415, ValueError("the request is not JSON."))
    data = await request.body()

    def save() -> dict[str, str]:
        body = json.loads(data)
        if not isinstance(body, dict) or not all(
            isinstance(body.get(key), str) for key in ("name", "where")
        ):
            raise ValueError("expected a name and an expression.")
        folder = viewer.opened.folder
        path = save_filtered(
            viewer.shown(request), where=body["where"], name=body["name"], folder=folder
        )
        return {"file": path.name, "command": f"orlog open {path.name}"}

    return await to_thread.run_sync(_answer, save, limiter=viewer.threads)
