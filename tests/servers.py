"""A real HTTP server on loopback that serves a folder, and does wrong where a test wants it to."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import re
import socket
import socketserver
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping

LONGEST_STALL = 20
COMES = 120.0
"""Seconds for which a client waits for answers that come for sure: on a busy machine they come late."""
BLOCK_BYTES = 2**14


@dataclasses.dataclass(kw_only=True)
class Fault:
    """What is done to answers. A request meets the first fault that fits it and has times left.

    Attributes:
        path: End of the paths that it is for.
        times: How many requests meet it; none for all.
        status: Status instead of the file.
        headers: Headers to set, or to leave out where the value is none.
        change: What is done to the whole file before anything else.
        drop_after: Bytes of the body after which the connection is cut.
        stall_after: Bytes of the body after which nothing more comes.
        resets: Whether a cut connection is reset and not just closed.
        ignores_ranges: Whether the whole file is sent where a range was asked for.
        chunked: Whether the length is not said.
    """

    path: str = ""
    times: int | None = None
    status: int | None = None
    headers: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    change: Callable[[bytes], bytes] = lambda data: data
    drop_after: int | None = None
    stall_after: int | None = None
    resets: bool = False
    ignores_ranges: bool = False
    chunked: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One request: its path as it was sent, and its headers."""

    path: str
    headers: Mapping[str, str]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # with five, as usual, who connects while the machine is busy is not let in for seconds
    request_queue_size = 128


class LocalServer:
    """Answers on loopback, each request in a thread, until the block ends; `url` has no slash at the end."""

    def __init__(self, handler):
        bound = type("BoundHandler", (handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", 0), bound)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self.hang_up()
        self._server.server_close()
        self._thread.join()

    def hang_up(self):
        """End what requests still wait for."""


class FileServer(LocalServer):
    """Serves a folder with ranges and open connections, in threads, until the block ends.

        with FileServer(folder) as server:
            server.faults.append(Fault(path="c.0", times=1, drop_after=100))
            ... server.url ...

    Attributes:
        url: Its address, without a slash at the end.
        faults: What it does wrong; may be changed at any time.
        requests: The requests so far.
        sent_bytes: Bytes of bodies it has sent, over all requests.
        connections: Connections it has accepted.
        rate: Requests a second that it answers; others get `rate_status`. None for any number.
        rate_status: 429 or 503, without a Retry-After.
        refused: Requests that came too soon.
        allows: Whether a request may have what it asks for; others get 403.
    """

    def __init__(self, folder):
        self.folder = folder
        self.faults = []
        self.requests = []
        self.sent_bytes = 0
        self.connections = 0
        self.rate = None
        self.rate_status = 429
        self.refused = 0
        self.allows = lambda _request: True
        self._next_at = 0.0
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self.sockets = set()
        super().__init__(_Handler)

    def hang_up(self):
        self.closing.set()
        with self.lock:
            for open_socket in self.sockets:
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)

    def fault_for(self, path):
        """Return the fault that a request meets, and use it up."""
        with self.lock:
            now = time.monotonic()
            if self.rate is not None and now < self._next_at:
                self.refused += 1
                return Fault(status=self.rate_status)
            self._next_at = now + 1 / (self.rate or 1)
            for fault in self.faults:
                if path.endswith(fault.path) and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return Fault()


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: FileServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        with self.owner.lock:
            self.owner.connections += 1
            self.owner.sockets.add(self.connection)

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, ValueError):
            self.close_connection = True
        finally:
            with self.owner.lock:
                self.owner.sockets.discard(self.connection)

    def do_GET(self):
        # A client that takes this server for a proxy sends a whole URL.
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        request = Request(path=self.path, headers=dict(self.headers))
        with self.owner.lock:
            self.owner.requests.append(request)
        fault = self.owner.fault_for(path)
        if not self.owner.allows(request):
            fault = Fault(status=403)
        status, headers, body = self._answer(path, fault)
        self.send_response(status)
        for key, value in {**headers, **fault.headers}.items():
            if value is not None:
                self.send_header(key, value)
        self.end_headers()
        self._send(body, fault)

    def log_message(self, *_):
        pass

    def _answer(self, path, fault):
        file = self.owner.folder / path.lstrip("/")
        if fault.status is not None or not file.is_file():
            page = b"an error page"
            return fault.status or 404, {"Content-Length": str(len(page))}, page
        data = fault.change(file.read_bytes())
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {}
        status = 200
        if asked and not fault.ignores_ranges:
            start, total = int(asked[1]), len(data)
            if start >= total:
                return 416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"}, b""
            last = min(int(asked[2] or total), total - 1)
            status, data = 206, data[start : last + 1]
            headers["Content-Range"] = f"bytes {start}-{last}/{total}"
        if fault.chunked:
            return status, {**headers, "Transfer-Encoding": "chunked"}, data
        return status, {**headers, "Content-Length": str(len(data))}, data

    def _send(self, body, fault):
        stops = [stop for stop in (fault.drop_after, fault.stall_after) if stop is not None]
        end = min([len(body), *stops])
        for start in range(0, end, BLOCK_BYTES):
            block = body[start : min(end, start + BLOCK_BYTES)]
            # Counted first: a test may ask as soon as the last byte has arrived.
            with self.owner.lock:
                self.owner.sent_bytes += len(block)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if fault.chunked else block)
        if fault.drop_after == end:
            self._cut(fault.resets)
        elif fault.stall_after == end:
            self.owner.closing.wait(LONGEST_STALL)
            self._cut(resets=False)
        elif fault.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _cut(self, resets):
        self.close_connection = True
        if resets:
            off = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, off)
            # The file made of the socket keeps it open as well.
            self.rfile.close()
            self.connection.close()
        else:
            with contextlib.suppress(OSError):  # the client may be gone
                self.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def raw_server(answer):
    """Let a function of a socket answer each connection, in a thread of its own; give the address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                answer(self.request)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
