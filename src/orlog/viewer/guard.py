"""Who may talk to the viewer: this machine's browser, with the token, from the page itself.

A page of another origin cannot read answers, since browsers ask the server first and it never allows
that. Three things are refused besides: a Host that is not ours, which is what a foreign name that
resolves to 127.0.0.1 sends (DNS rebinding); an Origin that is not ours; and a path without the token.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_BYTES = 24
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
    "referrer-policy": "no-referrer",  # the address holds the token
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": PAGE_POLICY,
}


def new_token() -> str:
    """Return a token that cannot be guessed, for a path."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class Guard:
    """Lets requests through to an application that may be answered, and gives each answer headers."""

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str]) -> None:
        """Remember the application, the token, and the values of `Host` that are ours."""
        self._app = app
        self._token = token.encode()
        self._hosts = {host.encode() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 403; the application sees the path behind the token."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in more if pair[0] not in given),
                ]
            await send(message)

        problem = self._refusal(scope)
        if problem:
            refused = PlainTextResponse(f"{problem}\n", 403)
            await refused(scope, receive, send_with_headers)
            return
        path = "/" + scope["path"].split("/", 2)[2]
        await self._app({**scope, "path": path}, receive, send_with_headers)

    def _refusal(self, scope: dict[str, Any] | Scope) -> str:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        host, origin = headers.get(b"host", []), headers.get(b"origin", [])
        if len(host) != 1 or host[0] not in self._hosts:
            return "The viewer answers on 127.0.0.1 only."
        if any(one.removeprefix(b"http://") not in self._hosts for one in origin):
            return "Another page may not ask the viewer."
        if scope["method"] not in ("GET", "HEAD") and not origin:
            return "Only the viewer's own page may change something."
        parts = scope["path"].split("/", 2)
        given = parts[1].encode() if len(parts) == 3 else b""
        if not secrets.compare_digest(given, self._token):
            return "This is not the whole address: copy it from where orlog open printed it."
        return ""
