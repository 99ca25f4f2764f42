"""Answers that say why a request failed, as RFC 9457 has them."""

from __future__ import annotations

import http

import msgspec
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was not answered (RFC 9457)."""

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


def problem(status: int, detail: str = "", headers: dict[str, str] | None = None) -> Response:
    """The answer."""
    body = Problem(title=http.HTTPStatus(status).phrase, status=status, detail=detail)
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)
