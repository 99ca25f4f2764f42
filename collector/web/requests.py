"""Checks of requests, the messages of refusals, and answers that are made while they are sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.constants import RESERVED_KWARGS
from litestar.datastructures import State
from litestar.dto import MsgspecDTO
from litestar.exceptions import ClientException, HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send

from stepscope.collector.problems import Problem, ProblemError, problem, send_problem
from stepscope.collector.web.guard import TICKET
from stepscope.collector.web.tokens import Token
from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.errors import ControlError
from stepscope.runtime.settings.arguments import got, shown
from stepscope.runtime.settings.validation import did_you_mean, expected_value

T = TypeVar("T", bound=msgspec.Struct)

AnyRequest = Request[None, Token | None, State]
"""A request that the guard admitted."""
MOST_BODY = 1 << 17
"""Bytes of a request's body."""
MOST_DETAIL = 1000
"""Most characters of the message about a wrong parameter, which may be as long as an address."""
ANY_PARAMETERS = {"any_parameters": True}
"""Option of operations that ignore parameters: probes and scrapers add some of their own, and orders have theirs in the body."""


class Exact(MsgspecDTO[T]):
    """A body of JSON, read as strictly as a control file: Litestar takes a text for a number."""

    def decode_bytes(self, value: bytes) -> Any:
        """Decodes a body. Raises `ClientException` if it cannot be read; says where."""
        try:
            return decode_json(value, self.model_type)
        except ControlError as error:
            raise ClientException(f"what was sent cannot be read: {error}") from error

    @classmethod
    def create_openapi_schema(cls, field_definition: Any, handler_id: str, schema_creator: Any) -> Any:
        """The type's schema, by its own name."""
        return schema_creator.for_field_definition(field_definition)


async def check_parameters(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuses parameters that an operation does not have, and those that come twice: Litestar passes over both.

    Raises:
        ProblemError: 400, naming the parameter.
    """
    if handler.opt.get("any_parameters"):
        return
    dependencies = handler.resolve_dependencies()
    signatures = [handler.parsed_fn_signature, *(one.parsed_fn_signature for one in dependencies.values())]
    names = {name for one in signatures for name in one.parameters}
    names -= RESERVED_KWARGS | dependencies.keys() | connection.path_params.keys()
    seen = set[str]()
    for name, _ in connection.query_params.multi_items():
        why = ""
        if name not in names and name != TICKET:
            why = f"unknown field {name!r}{did_you_mean(name, names)}"
        elif name in seen:
            why = f"{name} is there twice"
        if why:
            raise ProblemError(400, f"a parameter is wrong: {why}"[:MOST_DETAIL])
        seen.add(name)


def refused(request: AnyRequest, error: HTTPException) -> Response[Problem]:
    """The reason why the framework refuses a request: a parameter or a body."""
    if error.status_code == 413:
        detail = f"more than {MOST_BODY} bytes were sent"
    elif isinstance(error, ValidationException) and isinstance(error.extra, list):
        detail = "; ".join(_invalid(request, **one) for one in error.extra)
    else:
        detail = error.detail
    return problem(error.status_code, detail[:MOST_DETAIL])


def _invalid(request: AnyRequest, message: str, key: str = "", source: str = "") -> str:
    if source == "body":  # else `Exact` has read it
        return "what was sent cannot be read: it is empty: expected a JSON object"
    value = {**request.query_params, **request.path_params}[key]
    expected = expected_value(message)
    why = f"{key} must be {expected}, {got(value)}" if expected else f"{key} is {shown(value)}: {message}"
    return f"a parameter is wrong: {why}"


class Streamed(Response[Any]):
    """Sends chunks as they come. The generator is closed in any case, also before its first chunk if the client disconnects.

    Litestar's `Stream` begins the answer before the first chunk, so an error instead of it would have no status.
    """

    def __init__(self, chunks: AsyncGenerator[bytes], headers: dict[str, str] | None = None) -> None:
        """Args: the content; further headers."""
        super().__init__(chunks, headers=headers)

    def to_asgi_response(
        self, app: Any, request: Request[Any, Any, Any], *, media_type: str | None = None, **_: Any
    ) -> ASGIStreamingResponse:
        """Args: as Litestar gives them; the media type is that of the operation."""
        return _Sending(self.content, self.headers, media_type)


class _Sending(ASGIStreamingResponse):
    def __init__(self, chunks: AsyncGenerator[bytes], headers: dict[str, str], media_type: str | None) -> None:
        super().__init__(iterator=chunks, headers=headers, media_type=media_type)  # pyright: ignore[reportUnknownMemberType]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends one answer."""
        async with contextlib.aclosing(self._chunks):
            parts = [asyncio.ensure_future(one) for one in (self._sent(scope, send), _wait_disconnected(receive))]
            try:
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for part in done:
                    part.result()
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.wait(parts)

    async def _sent(self, scope: Scope, send: Send) -> None:
        try:
            first = await anext(self._chunks, b"")
        except ProblemError as error:  # nothing was sent yet, so it can be the answer
            await send_problem(scope, send, error)
            return
        await self.start_response(send)
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
