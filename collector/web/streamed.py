"""An answer that is made while it is sent, and given up when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepscope.collector.problems import ProblemError, problem


class Streamed(Response):
    """Sends chunks as they come. The generator is closed in any case, also before its first chunk if the client has gone."""

    def __init__(self, chunks: AsyncGenerator[bytes], media_type: str, headers: dict[str, str] | None = None) -> None:
        """Args: the content; what it is; further headers."""
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]  # nobody knows
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One answer."""
        async with contextlib.aclosing(self._chunks):
            parts = [asyncio.ensure_future(one) for one in (self._sent(scope, receive, send), _gone(receive))]
            try:
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for part in done:
                    part.result()
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.wait(parts)

    async def _sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._chunks, b"")
        except ProblemError as error:  # nothing was sent yet: it can be told
            await problem(error.status, error.detail, error.headers)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
