"""The guard: who may ask what, before any of it is read."""

from __future__ import annotations

import secrets
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepscope.collector import page
from stepscope.collector.audit import Audit
from stepscope.collector.problems import problem
from stepscope.collector.settings import CollectorSettings, is_loopback
from stepscope.collector.web.tickets import Tickets

OPEN_PATHS = frozenset({*page.PATHS, "/healthz", "/openapi.json"})
"""What has no data of any run, and needs no token: the page asks for it."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TICKET = "ticket"
"""The parameter that has a ticket."""


class Guard:
    """Checks the host, the origin and the token of each request, and puts the headers that keep browsers in bounds on each answer.

    - On loopback the host must be this machine's name for itself: a page of somebody else whose name leads to 127.0.0.1 is not.
    - A browser says where a page comes from; only the collector's own may open a WebSocket or ask for more than to read. One
      of another site may lead to the collector's page, and ask nothing else: it could read no answer, but have many made.
    - A token, if one is wanted, is compared in constant time.
    """

    def __init__(self, app: ASGIApp, settings: CollectorSettings, tickets: Tickets, audit: Audit) -> None:
        """Args: what is guarded; whom to let in; the tickets that are out; where refusals are noted."""
        self._app, self._settings, self._tickets, self._audit = app, settings, tickets, audit
        self._token = settings.token.encode()
        self._loopback = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)

        async def sent(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                answer = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        if refusal is None:
            await self._app(scope, receive, sent)
            return
        status, why = refusal
        client = scope.get("client")
        self._audit.refuse(why, client[0] if client else "", scope["path"], scope.get("method", ""))
        more = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        if scope["type"] == "http":
            more["Connection"] = "close"  # else it could go on with a body that nobody wants
        await problem(status, why, more)(scope, receive, sent)

    def _refusal(self, scope: MutableMapping[str, Any], headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self._loopback and not is_loopback(_hostname(host)):
            return 421, "the request is for another host than this collector"
        origin = headers.get("origin")
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if origin is not None and not reads and origin.partition("://")[2] != host:
            return 403, "a page of another origin may not do this"
        if headers.get("sec-fetch-site") == "cross-site" and scope["path"] not in OPEN_PATHS:
            return 403, "a page of another site may not ask for this"
        if self._token and scope["path"] not in OPEN_PATHS and not self._allowed(scope, headers, reads):
            return 401, "show the collector's token: Authorization: Bearer ..."
        return None

    def _allowed(self, scope: MutableMapping[str, Any], headers: Headers, reads: bool) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and secrets.compare_digest(given.strip().encode(), self._token):
            return True
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        ticket = next((value for name, value in query if name == TICKET), None)
        if not reads or ticket is None:
            return False
        return self._tickets.use(ticket, scope["path"], [pair for pair in query if pair[0] != TICKET])


def _hostname(host: str) -> str:
    """The name in a `Host` header, without the port; empty if it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
