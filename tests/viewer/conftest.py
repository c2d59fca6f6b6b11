"""A real server on loopback, and one browser for all tests that need one."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import threading
import urllib.parse

import pytest
import uvicorn

from orlog.datasets.recording.labelling import Labels
from orlog.viewer.server import Viewer, application, listen
from orlog.viewer.shown import open_all

LONGEST_S = 300  # whatever hangs is not waited for; a busy machine may do nothing for a while


@dataclasses.dataclass(frozen=True)
class Served:
    """An open viewer, which tests ask as a browser would that has entered.

    Attributes:
        address: What lets one browser in.
        cookie: What a browser is given that enters.
    """

    address: str
    cookie: str

    @property
    def page(self):
        return self.address.partition("?")[0]

    @property
    def port(self):
        return urllib.parse.urlsplit(self.address).port or 80

    def ask(self, path, *, method="GET", body=None, headers=None, raw_path=None, cookie=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        with contextlib.closing(connection):
            whole = urllib.parse.urlsplit(self.page).path + path if raw_path is None else raw_path
            connection.putrequest(method, whole, skip_host=bool(headers and "Host" in headers))
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            if cookie or cookie is None:
                connection.putheader("Cookie", cookie or self.cookie)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()

    def get(self, path):
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def problem(self, path):
        status, _, body = self.ask(path)
        return status, json.loads(body)["error"]


def enter(address):
    """Ask for the page as a browser does that was given an address; return the status and its cookie."""
    query = "?" + urllib.parse.urlsplit(address).query
    status, headers, _ = Served(address, "").ask(query, cookie="")
    return status, headers.get("set-cookie", "").partition(";")[0]


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Return a function that opens datasets, runs and reports as `orlog open` does, in an empty folder."""
    folder = tmp_path / "started"
    folder.mkdir()
    monkeypatch.chdir(folder)
    running, closing = [], contextlib.ExitStack()

    def start(*names, label=None, tags=()):
        opened = open_all([str(name) for name in names])
        labels = label and Labels(opened.datasets[0].dataset, label, by="ann", tags=tags)
        if labels:
            closing.callback(labels.close)
        guard, listening = application(Viewer(opened, labels)), listen(0)
        site = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(guard, http="h11", ws="none", lifespan="off", log_level="critical"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        running.append((server, thread))
        cookie = enter(site + guard.invite(lambda: None))[1]
        return Served(site + guard.invite(lambda: None), cookie)

    yield start
    for server, thread in running:
        server.should_exit = server.force_exit = True
        thread.join(10)
    closing.close()


@pytest.fixture
def browse(chromium):
    """Return a function that opens a page of the viewer; errors of its scripts fail the test."""
    pages = []
    wrong = []

    def visit(address, **options):
        page = chromium.new_context(**options).new_page()
        page.set_default_timeout(1000 * LONGEST_S)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.extend([said.text] if "Content Security" in said.text else []))
        pages.append(page)
        page.goto(address)
        return page

    yield visit
    for page in pages:
        page.context.close()
    assert wrong == []


def names_of(rows):
    return [row["name"] for row in rows]
