"""An operation of the HTTP interface: what is asked, what is answered, in words and types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stepscope.collector.problems import ProblemError
from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.errors import ControlError
from stepscope.runtime.settings.validation import find_invalid_value

MOST_DETAIL = 1000
"""Characters of what is said of a parameter that is wrong: it may be as long as an address."""

A = TypeVar("A")
T = TypeVar("T", bound=msgspec.Struct)

Handler = Callable[[A, Request, T], Awaitable[object]]
"""A method that answers a request, whose parameters are checked: with a response, or with what is to be told in JSON."""


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing can be said."""


class AnyParameters(msgspec.Struct, frozen=True):
    """Whatever is said, nobody heeds it: probes and scrapers add things of their own."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    path: str
    """With parameters in braces."""
    handler: Handler[Any, Any]
    summary: str
    name: str
    """Of the operation in clients that are generated."""
    query: type[msgspec.Struct]
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

    async def serve(self, of: object, request: Request) -> Response:
        """Checks what follows the question mark, and answers; what is no response yet goes out as JSON.

        Raises:
            ProblemError: if it cannot be answered.
        """
        found = await self.handler(of, request, parameters(request, self.query))
        return found if isinstance(found, Response) else answer(found)


class Operations(Generic[A]):
    """The operations that a class answers, in the order in which it declares them."""

    def __init__(self) -> None:
        self.all: list[Operation] = []

    def add(
        self,
        path: str,
        query: type[T],
        summary: str,
        *,
        body: type[msgspec.Struct] | None = None,
        answer: Any = None,
        media_type: str = "application/json",
        problems: tuple[int, ...] = (),
    ) -> Callable[[Handler[A, T]], Handler[A, T]]:
        """Declares the method below; its name is the operation's. The arguments are those of `Operation`."""

        def declared(handler: Handler[A, T]) -> Handler[A, T]:
            self.all.append(
                Operation(
                    path=path,
                    handler=handler,
                    summary=summary,
                    name=handler.__name__.strip("_"),
                    query=query,
                    body=body,
                    answer=answer,
                    media_type=media_type,
                    problems=problems,
                )
            )
            return handler

        return declared


def parameters(request: Request, kind: type[T]) -> T:
    """What follows the question mark, checked.

    Raises:
        ProblemError: 400, naming the parameter and its value.
    """
    given = {name: value for name, value in request.query_params.items() if name != "ticket"}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        invalid = find_invalid_value(given, kind, strict=False)
        raise ProblemError(400, f"a parameter is wrong: {invalid.text if invalid else error}"[:MOST_DETAIL]) from error


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


def answer(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
