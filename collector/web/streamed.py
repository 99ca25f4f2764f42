"""An answer that is made while it is sent, and given up when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from litestar import Request, Response
from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send

from stepscope.collector.problems import ProblemError, send_problem


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
        """One answer."""
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
        except ProblemError as error:  # nothing was sent yet: it can be told
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
