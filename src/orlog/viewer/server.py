"""The server of `orlog open`: one page on 127.0.0.1, and what it asks for. It only reads.

Who may ask is decided in `orlog.viewer.guard`. The one thing that is ever written is a view,
as a new file in the folder where orlog was started.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
from orlog.datasets.audit.findings import SEVERITIES
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.operations import operation_words
from orlog.errors import NotFoundError, OrlogError, VersionExistsError
from orlog.manifests.diff import diff_datasets
from orlog.viewer.about import about
from orlog.viewer.episode import Window, episode_answer
from orlog.viewer.episodes import EpisodeList, save_filtered
from orlog.viewer.frames import frame_png
from orlog.viewer.guard import REPORT_POLICY, Guard
from orlog.viewer.jobs import Jobs
from orlog.viewer.opened import Opened, Shown
from orlog.viewer.places import places_of
from orlog.viewer.rendering import Renderer
from orlog.viewer.statistics import coverage_of, draw_sample, statistics_of

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
ItemT = TypeVar("ItemT")


class Viewer:
    """What the routes answer from."""

    def __init__(self, opened: Opened) -> None:
        """Remember what was opened; nothing is read yet."""
        self.opened = opened
        self.lists = [EpisodeList(shown) for shown in opened.datasets]
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
        return self.list_of(request).shown

    def list_of(self, request: Request) -> EpisodeList:
        """Return the list of episodes of the dataset that a request is about.

        Raises NotFoundError if there is none of that number.
        """
        return one_of(self.lists, request.path_params["dataset"], "dataset")


def one_of(items: Sequence[ItemT], number: int, what: str) -> ItemT:
    """Return an item by its number.

    Raises NotFoundError if there is none of that number.
    """
    if not 0 <= number < len(items):
        raise NotFoundError(f"no {what} of number {number} is open.")
    return items[number]


def application(viewer: Viewer) -> Guard:
    """Return the application behind its guard."""
    routes = [
        Route("/", _page),
        Route("/page/{file}", _asset),
        Route("/api/opened", answer(_opened, viewer)),
        Route("/api/data/{dataset:int}/episodes", answer(_episodes, viewer)),
        Route("/api/data/{dataset:int}/row", answer(_row, viewer)),
        Route("/api/data/{dataset:int}/episode/{episode:int}", answer(_episode, viewer)),
        Route("/api/data/{dataset:int}/episode/{episode:int}/frame", answer(_frame, viewer)),
        Route("/api/data/{dataset:int}/episode/{episode:int}/places", answer(_places, viewer)),
        Route("/api/data/{dataset:int}/episode/{episode:int}/render", answer(_render, viewer)),
        Route("/api/data/{dataset:int}/about", answer(_about, viewer)),
        Route("/api/data/{dataset:int}/statistics", answer(_statistics, viewer)),
        Route("/api/data/{dataset:int}/coverage", answer(_coverage, viewer)),
        Route("/api/data/{dataset:int}/audit", answer(_audit, viewer)),
        Route("/api/diff", answer(_diff, viewer)),
        Route("/api/runs/{number:int}", answer(_runs, viewer)),
        Route("/api/runs/{number:int}/video/{video:int}", answer(_video, viewer)),
        Route("/api/data/{dataset:int}/view", functools.partial(_save, viewer), methods=["POST"]),
        Route("/api/report/{number:int}", answer(_report, viewer)),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    return Guard(app)


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


def answer(
    work: Callable[[Viewer, Request], Any], viewer: Viewer
) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers requests in a thread: bytes as they are, anything else as JSON.

    An error becomes its message, for the page to show in its place.
    """

    async def respond(request: Request) -> Response:
        found = functools.partial(work, viewer, request)
        return await to_thread.run_sync(answered, found, limiter=viewer.threads)

    return respond


def answered(work: Callable[[], Any]) -> Response:
    """Return the result of some work as an answer, or the message of its error."""
    try:
        found = work()
    except VersionExistsError as error:
        return _problem(409, error)
    except (LookupError, NotFoundError) as error:
        return _problem(404, error)
    except (OrlogError, OSError) as error:
        return _problem(422, error)
    except (ValueError, TypeError) as error:
        return _problem(400, error)
    except Exception as error:  # noqa: BLE001 (a defect, which must not end the page)
        tell("".join(traceback.format_exception(error)), label="error")
        return _problem(500, error)
    if isinstance(found, Response):
        return found
    if isinstance(found, bytes):
        return Response(found, media_type="application/octet-stream")
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
    return _file("index.html")


async def _asset(request: Request) -> Response:
    # Only names that are in the folder: nothing is made into a path.
    if request.path_params["file"] not in {path.name for path in PAGE.iterdir()}:
        raise HTTPException(404)
    return _file(request.path_params["file"])


def _file(name: str) -> Response:
    path = PAGE / name
    return FileResponse(path, media_type=TYPES.get(path.suffix, "text/plain"))


def _render(viewer: Viewer, request: Request) -> Response:
    episode, step = request.path_params["episode"], number(request, "step", 0)
    png, differs, equals = viewer.renderer.picture(viewer.shown(request), episode, step)
    told = {"x-differs": differs, "x-equals": equals}
    headers = {name: str(value) for name, value in told.items() if value is not None}
    return Response(png, media_type="image/png", headers=headers)


def _about(viewer: Viewer, request: Request) -> dict[str, Any]:
    shown = viewer.shown(request)
    return viewer.jobs.ask(f"about {request.path_params['dataset']}", lambda _: about(shown))


def _statistics(viewer: Viewer, request: Request) -> dict[str, Any]:
    episodes = viewer.list_of(request)
    sampled = _sample(viewer, request)
    if sampled["state"] == "running":
        return sampled
    name = f"statistics {request.path_params['dataset']}"
    return viewer.jobs.ask(name, lambda _: statistics_of(episodes, sampled["result"]))


def _sample(viewer: Viewer, request: Request) -> dict[str, Any]:
    shown = viewer.shown(request)
    name = f"sample {request.path_params['dataset']}"
    return viewer.jobs.ask(name, lambda progress: draw_sample(shown, progress))


def _coverage(viewer: Viewer, request: Request) -> dict[str, Any]:
    sampled = _sample(viewer, request)
    if sampled["state"] == "running":
        return sampled
    query = request.query_params
    found = coverage_of(sampled["result"], query.get("x", ""), query.get("y", ""))
    return {"state": "ready", "result": found}


def _audit(viewer: Viewer, request: Request) -> dict[str, Any]:
    dataset, trust = viewer.shown(request).dataset, viewer.opened.trust_environment
    name = f"audit {request.path_params['dataset']}"
    return viewer.jobs.ask(
        name,
        lambda progress: (
            audit(dataset, trust_environment=trust, progress=progress).to_json()
            | {"meanings": SEVERITIES}
        ),
    )


def _diff(viewer: Viewer, request: Request) -> dict[str, Any]:
    places = [number(request, name, default) for name, default in (("before", 0), ("after", 1))]
    shown = [one_of(viewer.lists, place, "dataset").shown for place in places]
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

    return runs_of(one_of(viewer.opened.runs, request.path_params["number"], "folder of runs"))


def _video(viewer: Viewer, request: Request) -> Response:
    from orlog.viewer.runs import videos_of

    folder = one_of(viewer.opened.runs, request.path_params["number"], "folder of runs")
    return FileResponse(one_of(videos_of(folder), request.path_params["video"], "video"))


def _report(viewer: Viewer, request: Request) -> Response:
    path = one_of(viewer.opened.reports, request.path_params["number"], "report")
    return FileResponse(
        path, media_type="text/html", headers={"content-security-policy": REPORT_POLICY}
    )


def _opened(viewer: Viewer, _: Request) -> dict[str, Any]:
    datasets = []
    for episodes in viewer.lists:
        dataset = episodes.shown.dataset
        datasets.append(
            {
                "title": episodes.shown.title,
                "name": f"{dataset.name}@{dataset.version}",
                "is_view": dataset.operation is not None,
                "digest": dataset.digest,
                "episodes": dataset.total_episodes,
                "steps": dataset.total_steps,
                "columns": episodes.names,
                "sortable": episodes.sortable,
                "texts": episodes.texts,
            }
        )
    return {
        "datasets": datasets,
        "runs": [path.name for path in viewer.opened.runs],
        "reports": [f"{path.parent.name}/{path.name}" for path in viewer.opened.reports],
        "folder": str(viewer.opened.folder),
    }


def _order(request: Request) -> dict[str, Any]:
    query = request.query_params
    return {
        "where": query.get("where", ""),
        "by": query.get("by", "episode"),
        "descending": query.get("descending") == "1",
    }


def number(request: Request, name: str, default: int) -> int:
    """Return a whole number of a request's query.

    Raises ValueError if it is none.
    """
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name} must be a whole number, found {text!r:.50}.") from error


def _episodes(viewer: Viewer, request: Request) -> dict[str, Any]:
    return viewer.list_of(request).page(
        **_order(request), first=number(request, "first", 0), count=number(request, "count", 200)
    )


def _row(viewer: Viewer, request: Request) -> dict[str, Any]:
    episode = number(request, "episode", 0)
    return {"row": viewer.list_of(request).row_of(episode, **_order(request))}


def _episode(viewer: Viewer, request: Request) -> bytes:
    window = Window(
        first=number(request, "first", 0),
        last=number(request, "last", 0) or None,
        numbers=number(request, "numbers", Window.numbers),
    )
    return episode_answer(viewer.list_of(request), request.path_params["episode"], window)


def _frame(viewer: Viewer, request: Request) -> Response:
    name = request.query_params.get("column", "")
    episode = request.path_params["episode"]
    data = frame_png(viewer.shown(request), name, episode, number(request, "step", 0))
    # A frame of an open dataset never changes, and the address is another one next time.
    headers = {"cache-control": "private, max-age=3600"}
    return Response(data, media_type="image/png", headers=headers)


def _places(viewer: Viewer, request: Request) -> dict[str, Any]:
    episode = request.path_params["episode"]
    return places_of(viewer.shown(request), episode, number(request, "step", 0))


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
        shown = viewer.shown(request)
        folder = viewer.opened.folder
        path = save_filtered(shown, where=body["where"], name=body["name"], folder=folder)
        return {"file": path.name, "command": f"orlog open {path.name}"}

    return await to_thread.run_sync(answered, save, limiter=viewer.threads)
