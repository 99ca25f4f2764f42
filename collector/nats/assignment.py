"""A stream in NATS on which this collector has the lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError

from stepscope.collector.errors import FullError
from stepscope.collector.nats.coordination import Session
from stepscope.collector.nats.ingest import Ingest
from stepscope.collector.server_clock import ServerClock
from stepscope.exporters.nats import layout
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError
from stepscope.runtime.loop_threads.ending_tasks import end_tasks, finish

log = logging.getLogger("stepscope.collector")

RELEASE_SECONDS = 2.0
"""Time limit for the release of a lease."""


class Assignment:
    """Ingests a stream while this collector has its lease, answers its exporter's clock requests, and releases the lease at the end.

    Args:
        session: where the stream is.
        stream: id of the stream, whose lease was acquired.
        identity: identity of the directory to which it is written.
        clock: the collector's clock.
        make_ingest: makes what writes the stream, from its `Hello`.
    """

    def __init__(
        self,
        session: Session,
        stream: str,
        identity: str,
        clock: ServerClock,
        make_ingest: Callable[[protocol.Hello], Ingest],
    ) -> None:
        self._session, self._stream, self._identity = session, stream, identity
        self._clock, self._make_ingest = clock, make_ingest
        self._ingest: Ingest | None = None
        self._is_ending = False
        self.is_released = False
        """Whether it is left to another collector."""
        self.has_ended = False
        """Whether all of the stream is written, by this collector or another one."""
        self.task = asyncio.create_task(self._run(), name="stepscope NATS stream")

    @property
    def has_fetched(self) -> bool:
        """Whether messages could be fetched."""
        return self._ingest is not None and self._ingest.has_fetched

    @property
    def is_idle(self) -> bool:
        """Whether no message is in memory, and the last request got none."""
        return self._ingest is not None and self._ingest.is_idle

    @property
    def size(self) -> int:
        """Bytes of the stream's files, as far as is known."""
        return 0 if self._ingest is None else self._ingest.size

    def release(self) -> None:
        """Leaves the stream to another collector, as soon as the current write has ended.

        To be called again until the task has ended, as libraries may swallow a cancellation.
        """
        self.is_released = True
        if not self._is_ending:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            self.has_ended = await self._is_marked_ended()
            if not self.has_ended:
                await self._ingest_under_lease()
            if self.has_ended:
                await layout.forget(self._session.jetstream, layout.HELLOS, self._stream)
        finally:
            self._is_ending = True
            with contextlib.suppress(TimeoutError):  # the lease expires
                await finish(self._session.leases.release(self._stream), RELEASE_SECONDS)

    async def _is_marked_ended(self) -> bool:
        try:
            await self._session.ended.get(self._stream)
        except KeyNotFoundError:
            return False
        return True

    async def _ingest_under_lease(self) -> None:
        clock = await layout.answer(self._session.client, f"{layout.CLOCKS}.{self._stream}", self._answer_clock)
        try:
            encoded, hello = await self._hello()
            self._ingest = self._make_ingest(hello)
            ingesting = asyncio.create_task(self._ingest.run())
            renewing = asyncio.create_task(self._session.leases.renew(self._stream))
            try:
                await asyncio.wait({ingesting, renewing}, return_when=asyncio.FIRST_COMPLETED)
                if ingesting.cancelled():
                    raise FullError("its exporter sends it to this collector by WebSocket")
                if ingesting.done():
                    ingesting.result()
                    await self._session.ended.put(self._stream + layout.OF_HELLO, encoded)
                    await self._session.ended.put(self._stream, self._identity.encode())
                    self.has_ended = True
                else:
                    renewing.result()
                    log.warning("stream %s is ingested by another collector now", self._stream)
            finally:
                self._is_ending = True
                await end_tasks(ingesting, renewing)
        finally:
            with contextlib.suppress(NatsError, TimeoutError):  # the connection may be lost
                await clock.unsubscribe()

    async def _hello(self) -> tuple[bytes, protocol.Hello]:
        encoded = await self._encoded_hello()
        hello, _ = protocol.decode(encoded)
        if not isinstance(hello, protocol.Hello) or hello.stream != self._stream:
            raise FormatError(f"its value in the bucket {layout.HELLOS} is not the Hello of this stream")
        return encoded, msgspec.structs.replace(hello, run=protocol.short(hello.run))  # its names stay in memory

    async def _encoded_hello(self) -> bytes:
        with contextlib.suppress(KeyNotFoundError):
            return (await self._session.hellos.get(self._stream)).value or b""
        try:
            return (await self._session.ended.get(self._stream + layout.OF_HELLO)).value or b""
        except KeyNotFoundError as error:
            raise FormatError(f"its run is unknown: the bucket {layout.HELLOS} has no such key") from error

    async def _answer_clock(self, message: Msg) -> None:
        """Answers a clock request of the exporter."""
        arrived = self._clock.now()
        try:
            header, _ = protocol.decode(message.data)
            if isinstance(header, protocol.Ping):
                pong = protocol.Pong(header.sent, arrived, self._clock.now(), self._clock.id)
                await message.respond(protocol.encode(pong))
        except (FormatError, NatsError) as error:
            log.debug("stream %s: a clock request was not answered: %s", self._stream, error)
