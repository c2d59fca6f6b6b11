"""Who may talk to the viewer: a browser that entered with a key, from the page itself, on this machine.

    /PLACE/?key=KEY     the page, for one browser, which gets a cookie
    /PLACE/...          anything, with the cookie

PLACE, each KEY and the cookie cannot be guessed. A key lets one browser in, once, so whoever sees it later, in the process
list or in a history, gets nothing. The cookie belongs to PLACE, so a browser sends it to no server on another port.

A page of another origin cannot read answers, since browsers ask the server first and it never allows
that. Three things are refused besides: a Host that is not a name of this machine, which is what a foreign
name that resolves to 127.0.0.1 sends (DNS rebinding); an Origin that is not the Host; and changing something without
an Origin. The port of the Host is free, since `ssh -L` may listen on another one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

THIS_MACHINE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
NO_NAME = (
    "The viewer answers to 127.0.0.1 and localhost only, on any port, so that no page of another name can read from it. "
    "From another machine: ssh -L 8000:127.0.0.1:PORT HOST, then its address with 127.0.0.1:8000."
)
NO_KEY = (
    "This address lets nobody in: its key was used, or it is not whole. "
    "Paste the address that orlog open printed last into the address bar."
)
OURS = "default-src 'none'; base-uri 'none'; form-action 'none'; "
PAGE_POLICY = OURS + (
    "script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; connect-src 'self'; "
    "frame-src 'self'; frame-ancestors 'none'"
)
"""What the page may do: nothing from elsewhere, and no script that is not a file of ours."""
REPORT_POLICY = OURS + ("style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox")
"""What a report may do, which is a file of the user: show itself, without any script."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the address may hold a key
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": PAGE_POLICY,
}


class Guard:
    """Lets requests through to an application that may be answered, and gives each answer headers."""

    def __init__(self, app: ASGIApp) -> None:
        """Remember the application; nobody may enter before `invite`."""
        self._app = app
        self._place = secrets.token_urlsafe(12)
        self._cookie = f"orlog={secrets.token_urlsafe(24)}"
        self._keys: dict[bytes, Callable[[], object]] = {}

    def invite(self, used: Callable[[], object]) -> str:
        """Return an address, without the host, that lets one browser in; `used` is called when it does."""
        query = f"key={secrets.token_urlsafe(16)}"
        self._keys[query.encode()] = used
        return f"/{self._place}/?{query}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 403; the application sees the path behind the place."""
        if scope["type"] != "http":
            return
        more = HEADERS
        problem = self._refusal(scope)
        if problem == NO_KEY and self._enters(scope):
            problem = ""
            cookie = f"{self._cookie}; Path=/{self._place}/; HttpOnly; SameSite=Strict"
            more = {**HEADERS, "set-cookie": cookie}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in more.items():
                    headers.setdefault(name, value)
            await send(message)

        if problem:
            refused = PlainTextResponse(f"{problem}\n", 403)
            await refused(scope, receive, send_with_headers)
            return
        path = "/" + scope["path"].split("/", 2)[2]
        await self._app({**scope, "path": path}, receive, send_with_headers)

    def _enters(self, scope: Scope) -> bool:
        """Return whether a request is for the page, with a key that was not used; it is now."""
        if scope["method"] != "GET" or scope["path"] != f"/{self._place}/":
            return False
        used = self._keys.pop(scope["query_string"], None)
        if used is not None:
            used()
        return used is not None

    def _refusal(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        host, origin = headers.getlist("host"), headers.getlist("origin")
        if len(host) != 1 or not THIS_MACHINE.fullmatch(host[0]):
            return NO_NAME
        if any(source != f"http://{host[0]}" for source in origin):
            return "Another page may not ask the viewer."
        if scope["method"] not in ("GET", "HEAD") and not origin:
            return "Only the viewer's own page may change something."
        # One of another server of this machine may stand beside ours.
        cookies = [pair for line in headers.getlist("cookie") for pair in line.split(";")]
        own = self._cookie.encode()
        has_entered = any(secrets.compare_digest(pair.strip().encode(), own) for pair in cookies)
        return "" if has_entered and scope["path"].startswith(f"/{self._place}/") else NO_KEY
