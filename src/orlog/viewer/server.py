"""The server of `orlog open`: one page on 127.0.0.1, and what it asks for. It only reads.

Who may ask is decided in `orlog.viewer.guard`. What is ever written is a view, as a new file in the folder where orlog
was started, and labels, where `--label` asked for them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
import json
import os
import re
import socket
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
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
from orlog.datasets.recording.labelling import Label, Labels
from orlog.errors import NotFoundError, OrlogError, VersionExistsError
from orlog.manifests.diff import diff_datasets
from orlog.viewer.about import about
from orlog.viewer.episode import MOST_NUMBERS, episode_of, film_of, frame_png
from orlog.viewer.figures import draw_sample, figures_of
from orlog.viewer.guard import REPORT_POLICY, Guard
from orlog.viewer.rendering import Renderer
from orlog.viewer.shown import Opened, Shown, save_filtered

HOST = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
LARGEST_BODY = 2**16
LARGEST_PIECE = 2**20  # of a video, which browsers ask for again and again
STOP_SECONDS = 1
THREADS = 6  # each keeps some memory of its own
WAIT_SECONDS = 0.25  # quick work is answered at once
_KEPT = {"cache-control": "private, max-age=3600"}
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
    """What was opened, and what the page is answered of it.

    Each answer is a method: its arguments come from the path and the query, as their annotations say.
    """

    def __init__(self, opened: Opened, labels: Labels | None = None) -> None:
        """Remember what was opened; nothing is read yet. `labels` are those of the first dataset that may be made."""
        self._opened, self._labels = opened, labels
        self._labelling = threading.Lock()
        self._jobs = Jobs()
        self._renderer = Renderer(trust_environment=opened.trust_environment)

    def close(self) -> None:
        """End the environments that rendered."""
        self._renderer.close()

    def _shown(self, dataset: int) -> Shown:
        return _item(self._opened.datasets, dataset, "dataset")

    def opened(self) -> dict[str, Any]:
        """Return what there is to see."""
        opened = self._opened
        return {
            "datasets": [shown.to_json() for shown in opened.datasets],
            "runs": [path.name for path in opened.runs],
            "reports": [f"{path.parent.name}/{path.name}" for path in opened.reports],
            "folder": str(opened.folder),
            "labels": None if self._labels is None else {"name": self._labels.name, "tags": self._labels.tags},
        }

    def labels(self, episode: int) -> dict[str, Any]:
        """Return what is said of an episode of the first dataset."""
        if self._labels is None:
            raise NotFoundError("no labels are made here; start again with: orlog open NAME --label LAYER")
        return self._labels.of(episode)

    def label(self, body: bytes) -> dict[str, Any]:
        """Make a label; it is on the disk when this is answered. `{"kind": "save"}` stores all as a version."""
        if self._labels is None:
            raise NotFoundError("no labels are made here; start again with: orlog open NAME --label LAYER")
        with self._labelling:
            if json.loads(body) == {"kind": "save"}:
                folder = self._labels.save()
                return {"saved": None if folder is None else f"{self._labels.name}@{folder.name}"}
            return self._labels.of(self._labels.add(msgspec.json.decode(body, type=Label)))

    def about(self, dataset: int) -> dict[str, Any]:
        """Return what is known of a dataset."""
        shown = self._shown(dataset)
        return self._jobs.ask(f"about {dataset}", lambda _: about(shown))

    def _sample(self, dataset: int) -> dict[str, Any]:
        shown = self._shown(dataset)
        return self._jobs.ask(f"sample {dataset}", lambda progress: draw_sample(shown, progress))

    def statistics(self, dataset: int) -> dict[str, Any]:
        """Return figures of a dataset."""
        shown, sample = self._shown(dataset), self._sample(dataset)
        if sample["state"] == "running":
            return sample
        return self._jobs.ask(f"statistics {dataset}", lambda _: figures_of(shown, sample["result"]))

    def audit(self, dataset: int) -> dict[str, Any]:
        """Return the findings of an audit."""
        shown, trust = self._shown(dataset), self._opened.trust_environment

        def work(progress: Progress) -> dict[str, Any]:
            return audit(shown.dataset, trust_environment=trust, progress=progress).to_json()

        return self._jobs.ask(f"audit {dataset}", work)

    def diff(self, before: int = 0, after: int = 1) -> dict[str, Any]:
        """Return what differs between two versions; ValueError if one is a view."""
        shown = [self._shown(before), self._shown(after)]
        for pane in shown:
            if pane.dataset.operation is not None:
                raise ValueError(
                    f"{pane.title} is a view of {pane.dataset.name}@{pane.dataset.version}, and versions alone are "
                    f"compared; store it as one first: orlog save {pane.title} NAME@VERSION"
                )
        first, second = (pane.dataset for pane in shown)
        return self._jobs.ask(f"diff {before} {after}", lambda _: diff_datasets(first, second).to_json())

    def episodes(
        self,
        dataset: int,
        where: str = "",
        by: str = "episode",
        descending: bool = False,
        first: int = 0,
        count: int = 200,
    ) -> dict[str, Any]:
        """Return a page of the list of episodes."""
        shown = self._shown(dataset)
        return shown.page(shown.order(where.strip(), by, descending), first, count)

    def row(
        self, dataset: int, episode: int, where: str = "", by: str = "episode", descending: bool = False
    ) -> dict[str, Any]:
        """Return the row of an episode in the list; None if it is not in it."""
        order = self._shown(dataset).order(where.strip(), by, descending)
        return {"row": next(iter(np.flatnonzero(order == episode).tolist()), None)}

    def episode(
        self, dataset: int, episode: int, first: int = 0, last: int = 0, numbers: int = MOST_NUMBERS
    ) -> dict[str, Any]:
        """Return an episode, or a range of its steps."""
        steps = slice(max(0, first), last or None)
        return episode_of(self._shown(dataset), episode, steps, numbers)

    def frame(self, dataset: int, episode: int, column: str = "", step: int = 0) -> Response:
        """Return a frame; of an open dataset it never changes, and the address is another one next time."""
        png = frame_png(self._shown(dataset), column, episode, step)
        return Response(png, headers=_KEPT, media_type="image/png")

    def film(self, dataset: int, episode: int, column: str = "", byte_range: str = "") -> Response:
        """Return some bytes of the stored video that shows an episode, which were compared with their hashes."""
        stored, path, _ = film_of(self._shown(dataset), column, episode)
        file = stored.videos.open(path)
        size = file.seek(0, os.SEEK_END)
        match = re.fullmatch(r"bytes=(?:([0-9]{1,15})-([0-9]{0,15})|-([0-9]{1,15}))", byte_range)
        first, last, end = match.groups() if match else (None, None, None)
        start = int(first) if first else max(0, size - int(end)) if end else size
        stop = min(size, start + LARGEST_PIECE, int(last) + 1 if last else size)
        if start >= stop:
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        headers = {**_KEPT, "accept-ranges": "bytes", "content-range": f"bytes {start}-{stop - 1}/{size}"}
        with file.checked():
            file.seek(start)
            return Response(file.read(stop - start), 206, headers, "video/mp4")

    def render(self, dataset: int, episode: int, step: int = 0) -> Response:
        """Return a picture that the environment draws here."""
        png, compared = self._renderer.picture(self._shown(dataset), episode, step)
        headers = {f"x-{name}": str(value) for name, value in compared.items()}
        return Response(png, headers=headers, media_type="image/png")

    def runs(self, number: int) -> dict[str, Any]:
        """Return the runs of a folder."""
        from orlog.viewer.runs import runs_of  # imports torch, which datasets do not need

        return runs_of(_item(self._opened.runs, number, "folder of runs"))

    def video(self, number: int, video: int) -> Response:
        """Return a video of a folder of runs."""
        from orlog.viewer.runs import videos_of

        folder = _item(self._opened.runs, number, "folder of runs")
        return FileResponse(_item(videos_of(folder), video, "video"))

    def report(self, number: int) -> Response:
        """Return a report, which may do nothing but show itself."""
        path = _item(self._opened.reports, number, "report")
        headers = {"content-security-policy": REPORT_POLICY}
        return FileResponse(path, media_type="text/html", headers=headers)

    def save(self, dataset: int, body: bytes) -> dict[str, str]:
        """Save the episodes that meet an expression as a view."""
        asked = json.loads(body)
        if not isinstance(asked, dict) or not all(isinstance(asked.get(key), str) for key in ("name", "where")):
            raise ValueError("expected a name and an expression.")
        path = save_filtered(self._shown(dataset), asked["where"], asked["name"], self._opened.folder)
        return {"file": path.name, "command": f"orlog open {path.name}"}


def _item(items: Sequence[ItemT], number: int, what: str) -> ItemT:
    if not 0 <= number < len(items):
        raise NotFoundError(f"no {what} of number {number} is open.")
    return items[number]


def application(viewer: Viewer) -> Guard:
    """Return the application behind its guard."""
    dataset = "/api/data/{dataset:int}"
    episode = dataset + "/episode/{episode:int}"
    works: dict[str, Callable[..., Any]] = {
        "/api/opened": viewer.opened,
        "/api/diff": viewer.diff,
        "/api/labels/{episode:int}": viewer.labels,
        "/api/runs/{number:int}": viewer.runs,
        "/api/runs/{number:int}/video/{video:int}": viewer.video,
        "/api/report/{number:int}": viewer.report,
        f"{dataset}/about": viewer.about,
        f"{dataset}/statistics": viewer.statistics,
        f"{dataset}/audit": viewer.audit,
        f"{dataset}/episodes": viewer.episodes,
        f"{dataset}/row": viewer.row,
        episode: viewer.episode,
        f"{episode}/frame": viewer.frame,
        f"{episode}/film": viewer.film,
        f"{episode}/render": viewer.render,
    }
    threads = CapacityLimiter(THREADS)

    def respond(work: Callable[..., Any]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            query = {**request.query_params, "byte_range": request.headers.get("range", "")}
            asked = functools.partial(_ask, work, request.path_params, query)
            return await to_thread.run_sync(_answer, asked, limiter=threads)

        return answer

    def change(work: Callable[..., Any]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            length = request.headers.get("content-length", "")
            if not length.isdecimal() or int(length) > LARGEST_BODY:
                return _problem(413, ValueError("the request is too long."))
            if request.headers.get("content-type", "") != "application/json":
                return _problem(415, ValueError("the request is not JSON."))
            asked = functools.partial(work, **request.path_params, body=await request.body())
            return await to_thread.run_sync(_answer, asked, limiter=threads)

        return answer

    routes = [Route("/", _page), Route("/page/{file}", _page)]
    routes += [Route(path, respond(work)) for path, work in works.items()]
    routes.append(Route(f"{dataset}/view", change(viewer.save), methods=["POST"]))
    routes.append(Route("/api/label", change(viewer.label), methods=["POST"]))
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


def _ask(work: Callable[..., Any], path: Mapping[str, Any], query: Mapping[str, str]) -> Any:
    """Call what answers a request, with arguments from its path and query.

    Raises ValueError if a number is none.
    """
    arguments = dict(path)
    for name, parameter in inspect.signature(work).parameters.items():
        text = query.get(name, "")
        if not text or name in path:
            continue
        if parameter.annotation == "int":
            try:
                arguments[name] = int(text)
            except ValueError as error:
                raise ValueError(f"{name} must be a whole number, found {text!r:.50}.") from error
        else:
            arguments[name] = text == "1" if parameter.annotation == "bool" else text
    return work(**arguments)


def _answer(work: Callable[[], Any]) -> Response:
    """Return the result of some work as JSON, or the message of its error, for the page to show in its place."""
    try:
        answer = work()
    except Exception as error:  # noqa: BLE001 (also a defect must not end the page)
        status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
        if status == 500:
            tell("".join(traceback.format_exception(error)), label="error")
        return _problem(status, error)
    if isinstance(answer, Response):
        return answer
    return Response(msgspec.json.encode(answer, enc_hook=_plain), media_type="application/json")


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


async def _page(request: Request) -> Response:
    # Only names that are in the folder: nothing is made into a path.
    wanted = request.path_params.get("file", "index.html")
    for path in PAGE.iterdir():
        if path.name == wanted:
            return FileResponse(path, media_type=TYPES.get(path.suffix, "text/plain"))
    raise HTTPException(404)
