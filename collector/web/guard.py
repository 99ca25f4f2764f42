"""The guard: checks the rights of each request before its content is read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import cast
from urllib.parse import parse_qsl, urlsplit

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, Scope, Send
from litestar.utils import normalize_path

from stepscope.collector import page
from stepscope.collector.audit import Audit
from stepscope.collector.problems import ProblemError, send_problem
from stepscope.collector.settings import host_name
from stepscope.collector.web.tokens import Scope as TokenScope
from stepscope.collector.web.tokens import Tickets, Token, Tokens
from stepscope.exporters.stream.address import is_local

OPEN_PATHS = frozenset({*page.PATHS, "/healthz", "/openapi.json"})
"""Paths without data of any run, which need no token: the page asks for it."""

MOST_ADDRESS_BYTES, MOST_PARAMETERS = 16 << 10, 32
"""Limits of a request's address. Litestar caches the addresses and parameters of a thousand requests: these bound the caches."""
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin-allow-popups"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
"""Headers of every response, which restrict browsers."""
TICKET = "ticket"
"""The parameter that has a ticket."""
ORDERS = "/v1/windows"
"""The path at which a `POST` orders windows."""

_DOWNLOAD = re.compile("/v1/streams/[^/]+/(journal|windows/[^/]+/[^/]+)|/v1/windows/[^/]+/[^/]+")
"""Paths whose answers are made on demand, for which a process is started or a file is read from its beginning."""
WITHDRAWN = "its token was removed from the collector's file"
_ALLOWS: dict[TokenScope, str] = {"ingest": "send streams", "read": "read", "control": "order windows"}


class Guard:
    """Checks host, origin and token of each request, and adds the headers that restrict browsers to each answer.

    - The host must be a name of the collector: a name of somebody else that leads to its address would make a page of theirs one
      of the collector's.
    - A browser says where a page comes from; only the collector's own may open a WebSocket or ask for more than to read. One
      of another site may lead to the collector's page, and ask nothing else: it could read no answer, but have many made. A page
      of another port of the same host can have no download made.
    - A token, if one is required, must have the scope that the request needs. If it is removed, the request is ended.

    Args:
        hosts: names and addresses of the collector beside those of loopback, in lower case; `*.` at the beginning stands for one
            label. `None`: any.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None, tokens: Tokens, tickets: Tickets, audit: Audit
    ) -> None:
        self._app, self._hosts, self._tokens, self._tickets, self._audit = app, hosts, tokens, tickets, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks one request, and passes it on."""
        scope = scope.copy()
        # Litestar takes `/v1//windows/` for `/v1/windows`: what is checked must be what is asked for.
        scope["path"] = normalize_path(scope["path"])
        # Litestar keeps the headers in it, and with them the token; the server may log what it has of a request.
        scope["state"] = {}
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                started = True
                start = cast(HTTPResponseStartEvent, message)
                start["headers"] = [*start["headers"], *_HEADERS]
            await send(message)

        try:
            token = scope["auth"] = self._admit(scope)
        except ProblemError as error:
            await self._refuse(scope, sent, error)
            return
        if scope["type"] == ScopeType.WEBSOCKET:  # the connection ends itself, and says why
            await self._app(scope, receive, sent)
            return
        if scope["method"] == "HEAD":  # the server leaves the body out
            scope["method"] = "GET"
        limit = asyncio.timeout(None)
        try:
            async with limit:
                with self._tokens.using(token, _needed(scope), lambda: limit.reschedule(0)):
                    await self._app(scope, receive, sent)
        except TimeoutError:
            if not limit.expired():
                raise
            await self._refuse(scope, None if started else sent, ProblemError(401, WITHDRAWN, _authenticate()))

    async def _refuse(self, scope: Scope, send: Send | None, error: ProblemError) -> None:
        """Answers, unless the answer has begun: the server ends the connection then."""
        client = scope["client"]
        method = scope["method"] if scope["type"] == ScopeType.HTTP else ""
        self._audit.refuse(error.detail, client[0] if client else "", scope["path"], method)
        if send is not None:
            if scope["type"] == ScopeType.HTTP:
                error.headers["Connection"] = "close"  # else it could go on with a body that nobody wants
            await send_problem(scope, send, error)

    def _admit(self, scope: Scope) -> Token | None:
        """The token of a request, or `None` if it needs none. Raises `ProblemError` if it is refused."""
        query = scope["query_string"]
        if len(scope["path"]) + len(query) > MOST_ADDRESS_BYTES or query.count(b"&") >= MOST_PARAMETERS:
            raise ProblemError(
                414, f"an address has at most {MOST_ADDRESS_BYTES} bytes here, and {MOST_PARAMETERS} parameters"
            )
        headers = Headers.from_scope(scope)
        host, path = headers.get("host", ""), scope["path"]
        if not self._is_own(_hostname(host)):
            raise ProblemError(421, "the request is for another host than this collector (--allowed-host)")
        origin = headers.get("origin")
        reads = scope["type"] == ScopeType.HTTP and scope["method"] in ("GET", "HEAD")
        if origin is not None and not reads and origin.partition("://")[2] != host:
            raise ProblemError(403, "a page of another origin may not do this")
        site = headers.get("sec-fetch-site")
        if site == "cross-site" and path not in OPEN_PATHS:
            raise ProblemError(403, "a page of another site may not ask for this")
        if site not in (None, "same-origin", "none") and _DOWNLOAD.fullmatch(path):
            raise ProblemError(403, "a page of another origin may not start a download")
        if not self._tokens.required or path in OPEN_PATHS:
            return None
        token = self._token(scope, headers, reads)
        if token is None:
            raise ProblemError(401, "show the collector's token: Authorization: Bearer ...", _authenticate())
        needed = _needed(scope)
        if not self._tokens.allows(token, needed):
            raise ProblemError(
                403,
                f"this token does not allow to {_ALLOWS[needed]}: it lacks the scope {needed!r} (--{needed}-token-file)",
                _authenticate(f'Bearer error="insufficient_scope", scope="{needed}"'),
            )
        return token

    def _token(self, scope: Scope, headers: Headers, reads: bool) -> Token | None:
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (token := self._tokens.find(text.strip())) is not None:
            return token
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        ticket = next((value for name, value in query if name == TICKET), None)
        if not reads or ticket is None:
            return None
        return self._tickets.use(ticket, scope["path"], [pair for pair in query if pair[0] != TICKET])

    def _is_own(self, name: str) -> bool:
        if self._hosts is None or is_local(name):
            return True
        name = host_name(name)
        return bool(name) and (name in self._hosts or f"*.{name.partition('.')[2]}" in self._hosts)


def _authenticate(how: str = "Bearer") -> dict[str, str]:
    return {"WWW-Authenticate": how}


def _needed(scope: Scope) -> TokenScope:
    """The scope that a request needs."""
    if scope["type"] == ScopeType.WEBSOCKET:
        return "ingest"
    return "control" if scope["method"] == "POST" and scope["path"] == ORDERS else "read"


def _hostname(host: str) -> str:
    """The name in a `Host` header, without the port; empty if it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
