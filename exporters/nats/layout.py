"""What exporters and collectors share in JetStream: names of the stream and of its key-value buckets.

Messages are those of `exporters/collector/protocol.py`: `Frames` with their payload, on a subject for each stream. The
`Hello` of a stream is a value in a bucket, as those who come later need it as well. Which collector takes a stream is a
lease in another bucket: a value that vanishes if it is not renewed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StorageType, StreamConfig
from nats.js.errors import BadRequestError, BucketNotFoundError, NotFoundError
from nats.js.kv import KeyValue

STREAM = "STEPSCOPE"
SUBJECTS = "stepscope.frames"
"""A stream's subject is this, a dot, and its id."""
CLOCKS = "stepscope.clock"
"""On this, a dot and a stream's id, the collector that takes the stream answers `Ping` with `Pong`; nothing is stored."""
HELLOS = "stepscope-hellos"
LEASES = "stepscope-leases"
LEASE_SECONDS = 15.0
DUPLICATES_SECONDS = 600.0
"""How long JetStream knows what it has stored: longer than an exporter tries without a restart of the server."""
OVERHEAD = 1024
"""Bytes of a message beside its frames: headers, and the protocol's."""


async def connect(servers: list[str], **options: Any) -> Client:
    """A connection, as `nats.connect` makes it."""
    module: Any = nats  # parts of it have no annotations
    client: Client = await module.connect(servers, **options)
    return client


def jetstream(client: Client, timeout: float = 5.0) -> JetStreamContext:
    """JetStream over a connection; `timeout` in seconds is that of a call."""
    untyped: Any = client
    context: JetStreamContext = untyped.jetstream(timeout=timeout)
    return context


async def answer(client: Client, subject: str, reply: Callable[[Msg], Awaitable[None]]) -> Subscription:
    """Has what comes on a subject answered."""
    untyped: Any = client
    subscription: Subscription = await untyped.subscribe(subject, cb=reply)
    return subscription


async def stream(context: JetStreamContext) -> None:
    """Makes the stream in JetStream, unless there is one: whoever made it decides its limits."""
    untyped: Any = context
    try:
        await context.stream_info(STREAM)
    except NotFoundError:
        config = StreamConfig(
            name=STREAM,
            subjects=[f"{SUBJECTS}.*"],
            storage=StorageType.FILE,
            duplicate_window=DUPLICATES_SECONDS,
        )
        try:
            await untyped.add_stream(config)
        except BadRequestError:  # another one was quicker
            await context.stream_info(STREAM)


async def bucket(context: JetStreamContext, name: str, ttl: float | None = None) -> KeyValue:
    """A key-value bucket, made if need be; values vanish after `ttl` seconds."""
    untyped: Any = context
    try:
        return await context.key_value(name)
    except BucketNotFoundError:
        try:
            made: KeyValue = await untyped.create_key_value(KeyValueConfig(bucket=name, ttl=ttl))
            return made
        except BadRequestError:
            return await context.key_value(name)
