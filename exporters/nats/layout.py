"""What exporters and collectors share in JetStream: names of the stream and of its key-value buckets.

Messages are those of `exporters/stream/protocol.py`: `Frames` with their payload, on a subject for each stream. The
`Hello` of a stream is a value in a bucket, as those who come later need it as well. Which collector takes a stream is a
lease in another bucket: a value that vanishes if it is not renewed. There collectors say as well that they are there. A third
bucket says which streams have ended, and are written; it has their `Hello`s then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DiscardPolicy, KeyValueConfig, StorageType, StreamConfig
from nats.js.errors import APIError, BadRequestError, BucketNotFoundError, NotFoundError, ServiceUnavailableError
from nats.js.kv import KeyValue

from stepscope.exporters.nats.limits import NatsLimits
from stepscope.runtime.errors import FormatError

STREAM = "STEPSCOPE"
SUBJECTS = "stepscope.frames"
"""A stream's subject is this, a dot, and its id."""
CLOCKS = "stepscope.clock"
"""On this, a dot and a stream's id, the collector that takes the stream answers `Ping` with `Pong`; nothing is stored."""
HELLOS = "stepscope-hellos"
"""Of streams that have not ended."""
HELLO_SPARE = 86_400.0
"""Seconds that a `Hello` is kept longer than JetStream keeps messages. An exporter says it again twice in that time, so it is
there as long as any message of its stream."""
LEASES = "stepscope-leases"
LEASE_SECONDS = 15.0
ENDED = "stepscope-ended"
"""Streams of which a collector has everything up to the end: which one, by the identity of its directory. With `OF_HELLO` behind
the stream: its `Hello`, for who takes it once more."""
OF_HELLO = ".hello"
OLDEST = "Stepscope-Oldest"
"""Header of a message: frames before this number were stored when it was composed, or are nowhere."""
IN_FLIGHT = 64
"""Messages that an exporter may have published without knowing whether they are stored: so far they may be out of order."""
IN_FLIGHT_BYTES = 16 << 20
"""And bytes of such messages, beside what the exporter keeps until they are stored; one message may always be on its way."""
DUPLICATES_SECONDS = 600.0
"""How long JetStream knows what it has stored: longer than an exporter tries without a restart of the server. No longer than
it keeps anything."""
OVERHEAD = 1024
"""Bytes of a message beside its frames: headers, and the protocol's."""

_NO_ROOM = 10047
"""JetStream's number for a limit that it cannot set aside."""


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


async def stream(context: JetStreamContext, limits: NatsLimits) -> float:
    """Makes the stream in JetStream, unless there is one: whoever made it decides its limits.

    Args:
        context: JetStream.
        limits: to make it with.

    Returns:
        Seconds for which it keeps what is published; 0: for ever.

    Raises:
        nats.errors.Error: if it is not there and cannot be made.
    """
    untyped: Any = context
    try:
        info = await context.stream_info(STREAM)
    except ServiceUnavailableError as error:
        raise NatsError("nats: the server has no JetStream, or it is not ready") from error
    except NotFoundError:
        config = StreamConfig(
            name=STREAM,
            subjects=[f"{SUBJECTS}.*"],
            storage=StorageType.FILE,
            max_bytes=limits.max_bytes or -1,
            max_age=limits.max_age,
            discard=DiscardPolicy(limits.discard),
            duplicate_window=min(DUPLICATES_SECONDS, limits.max_age or DUPLICATES_SECONDS),
        )
        try:
            info = await untyped.add_stream(config)
        except BadRequestError:  # another one was quicker
            info = await context.stream_info(STREAM)
        except APIError as error:
            if error.err_code != _NO_ROOM:
                raise
            raise NatsError(
                f"nats: the server cannot set {limits.max_bytes:,} bytes aside for the stream {STREAM}; give a smaller "
                "limit (max_bytes, --nats-max-bytes), or the server more room"
            ) from error
    return info.config.max_age or 0.0


async def stored_before(context: JetStreamContext, stream: str) -> int:
    """Frames of a stream before this number were stored once: its last message says so. 0 if there is no message."""
    try:
        last: Any = await context.get_last_msg(STREAM, f"{SUBJECTS}.{stream}")
    except NotFoundError:
        return 0
    return oldest(last.headers)


def oldest(headers: Mapping[str, str] | None) -> int:
    """The header `OLDEST` of a message; 0 without one.

    Raises:
        FormatError: if it is no number.
    """
    number = (headers or {}).get(OLDEST, "0")
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise FormatError(f"its header {OLDEST} is no number")
    return int(number)


async def consumer(context: JetStreamContext, config: ConsumerConfig) -> None:
    """Makes a consumer of the stream."""
    untyped: Any = context
    await untyped.add_consumer(STREAM, config)


async def hellos(context: JetStreamContext, max_age: float) -> KeyValue:
    """The bucket of `Hello`s; values vanish some time after what JetStream keeps for so many seconds (0: for ever)."""
    return await bucket(context, HELLOS, max_age + HELLO_SPARE if max_age else None)


async def bucket(context: JetStreamContext, name: str, ttl: float | None = None) -> KeyValue:
    """A key-value bucket, made if need be: values vanish after `ttl` seconds then. One that is there is left as it is."""
    untyped: Any = context
    try:
        return await context.key_value(name)
    except BucketNotFoundError:
        try:
            made: KeyValue = await untyped.create_key_value(KeyValueConfig(bucket=name, ttl=ttl))
            return made
        except BadRequestError:
            return await context.key_value(name)


async def keys(context: JetStreamContext, name: str) -> set[str]:
    """The keys of a bucket; those that were deleted and have left a mark, too."""
    prefix = f"$KV.{name}."
    info = await context.stream_info(f"KV_{name}", subjects_filter=f"{prefix}>")
    return {subject.removeprefix(prefix) for subject in info.state.subjects or {}}


async def forget(context: JetStreamContext, name: str, key: str, revision: int = 0) -> None:
    """Removes a key from a bucket without leaving a mark, which would stay for ever where values have no age.

    Args:
        context: JetStream.
        name: of the bucket.
        key: nothing happens if it is not there.
        revision: a value that is newer stays; 0: whatever it is.
    """
    untyped: Any = context
    await untyped.purge_stream(f"KV_{name}", subject=f"$KV.{name}.{key}", seq=revision + 1 if revision else None)
