"""An operation of the HTTP interface: what is asked, what is answered, in words and types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stepscope.collector.problems import ProblemError
from stepscope.runtime.control.decoding import decode_json
from stepscope.runtime.errors import ControlError
from stepscope.runtime.misfit import find_misfit

T = TypeVar("T", bound=msgspec.Struct)

Handler = Callable[[Request], Awaitable[Response]]


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing can be said."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    path: str
    """With parameters in braces."""
    handler: Handler
    summary: str
    name: str
    """Of the operation in clients that are generated."""
    query: type[msgspec.Struct] = NoParameters
    """What may follow the question mark."""
    body: type[msgspec.Struct] | None = None
    answer: Any = None
    """The type of the answer in JSON; `None` for others."""
    media_type: str = "application/json"
    problems: tuple[int, ...] = ()
    """Statuses that it may be answered with beside 200, 400 and 401."""

    @property
    def method(self) -> str:
        """GET, or POST where there is something to read."""
        return "GET" if self.body is None else "POST"


def parameters(request: Request, kind: type[T]) -> T:
    """What follows the question mark, checked.

    Raises:
        ProblemError: 400, naming the parameter, its value and the nearest that would do.
    """
    given = {name: value for name, value in request.query_params.items() if name != "ticket"}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        misfit = find_misfit(given, kind, strict=False)
        raise ProblemError(400, f"a parameter is wrong: {misfit.in_file() if misfit else error}") from error


async def body(request: Request, kind: type[T], most: int = 4096) -> T:
    """What was sent, checked; it is read no further than `most` bytes.

    Raises:
        ProblemError: 400 or 413.
    """
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            raise ProblemError(413, f"more than {most} bytes were sent")
    try:
        return decode_json(bytes(found), kind)
    except ControlError as error:
        raise ProblemError(400, f"what was sent cannot be read: {error}") from error


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
