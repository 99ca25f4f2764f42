"""Streams in JetStream as exporters leave them, made by hand."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from nats.aio.client import Client
from nats.js import JetStreamContext

from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.names import Names
from stepscope.exporters.nats.servers import NatsLimits, Servers
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal import format as fmt
from tests.support.streams import RUN, SYNC, frames, frames_header, hello

LIMITS = NatsLimits(max_bytes=1 << 30)


NAMES = Names()


class Publisher:
    """An exporter, as far as JetStream sees it.

    Args:
        jetstream: where it publishes.
        names: of its team.
        stream: id of its stream; by default one of its own.
    """

    def __init__(self, jetstream: JetStreamContext, names: Names = NAMES, stream: str | None = None) -> None:
        self.jetstream, self.team = jetstream, names
        self.stream = stream or uuid.uuid4().hex
        self.names = names.of(RUN, self.stream)

    async def begin(self) -> protocol.Hello:
        """Says which stream this is."""
        message = hello(self.stream)
        await layout.put(self.jetstream, self.team.hellos, self.names.key, message)
        header, _ = protocol.decode(message)
        assert isinstance(header, protocol.Hello)
        return header

    async def publish(self, first: int, count: int, size: int = 40) -> int:
        """Publishes frames, as if all before them had the same size; where JetStream has them."""
        header = frames_header(first, count, position=fmt.FILE_HEADER.size + len(frames(0, 1, size)) * first)
        return await self.send(protocol.encode(header, frames(first, count, size)))

    async def end(self, number: int) -> int:
        """Publishes the frame that ends the stream."""
        last = b"".join(map(bytes, fmt.encode_frame(SYNC, fmt.FrameType.END, number, [b""])))
        return await self.send(protocol.encode(frames_header(number, 1), last))

    async def send(self, message: bytes) -> int:
        """Publishes anything."""
        return (await self.jetstream.publish(self.names.frames, message)).seq


async def publish_stream(publisher: Publisher) -> None:
    """Publishes a stream with its end."""
    await publisher.begin()
    await publisher.publish(0, 5)
    await publisher.end(5)


@contextlib.asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncGenerator[Client]:
    """A connection to a server."""
    client = await connect(Servers(url), **options)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def jetstream(url: str, **options: Any) -> AsyncGenerator[JetStreamContext]:
    """JetStream of a server, with the stream that exporters use."""
    async with connected(url, **options) as client:
        context = layout.jetstream(client)
        await layout.create(context, NAMES, LIMITS)
        yield context
