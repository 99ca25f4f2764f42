"""Answers with the reason why a request failed, as RFC 9457 specifies them."""

from __future__ import annotations

import http
from typing import Any

import msgspec
from litestar import Response
from litestar.enums import ScopeType
from litestar.types import Scope, Send

MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason why a request failed (RFC 9457)."""

    title: str
    status: int
    detail: str = ""
    type: str = "about:blank"


class ProblemError(Exception):
    """A request cannot be answered."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        """Args: the HTTP status; what is wrong, and what to do, as a sentence; further headers of the answer."""
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response[Problem]:
    """The answer of an operation."""
    return Response(_problem(status, detail), status_code=status, headers=headers, media_type=MEDIA_TYPE)


async def send_problem(scope: Scope, send: Send, error: ProblemError) -> None:
    """Answers a request, or one for a WebSocket that is not accepted, outside of the operations."""
    kind = "websocket.http.response" if scope["type"] == ScopeType.WEBSOCKET else "http.response"
    body = msgspec.json.encode(_problem(error.status, error.detail))
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **error.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    messages: list[Any] = [
        {"type": f"{kind}.start", "status": error.status, "headers": raw},
        {"type": f"{kind}.body", "body": body, "more_body": False},
    ]
    for message in messages:
        await send(message)


def _problem(status: int, detail: str) -> Problem:
    return Problem(title=http.HTTPStatus(status).phrase, status=status, detail=detail)
