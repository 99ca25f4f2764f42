"""Names and limits in JetStream that exporters and collectors share.

Messages are those of `exporters/stream/protocol.py`: `Frames` with their payload, on a subject for each stream. The
`Hello` of a stream is a value in a bucket, as those who come later need it as well. Which collector takes which partition is a
lease in another bucket: a value that vanishes if it is not renewed. There collectors say as well that they are there. A third
bucket says which streams have ended, and are written. `exporters/nats/names.py` has the names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, BadRequestError, NotFoundError, ServiceUnavailableError
from nats.js.kv import KeyValue

from stepscope.exporters.nats.names import Names
from stepscope.exporters.nats.servers import NatsLimits
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError

HELLO_SPARE_S = 86_400.0
"""Seconds that a `Hello` is kept longer than JetStream keeps messages. An exporter says it again twice in that time, so it is
there as long as any message of its stream."""
MAX_KEYS = 1 << 17
MAX_VALUE = 64 << 10
"""Values of a bucket, and bytes of one: beyond, the oldest values go, which are those of streams that ended, as exporters repeat theirs."""
LEASE_SECONDS = 15.0
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
    """Answers the messages on a subject."""
    untyped: Any = client
    subscription: Subscription = await untyped.subscribe(subject, cb=reply)
    return subscription


async def create(context: JetStreamContext, names: Names, limits: NatsLimits) -> float:
    """Creates the stream in JetStream and the bucket of `Hello`s, as far as they do not exist.

    Args:
        limits: of the stream, if it is created.

    Returns:
        Seconds for which JetStream keeps what is published; 0: for ever.

    Raises:
        nats.errors.Error: if something does not exist and cannot be created.
        TimeoutError: if the server does not answer.
    """
    config = StreamConfig(
        name=names.stream,
        subjects=[names.frames],
        storage=StorageType.FILE,
        max_bytes=limits.max_bytes or -1,
        max_age=limits.max_age,
        discard=DiscardPolicy(limits.discard),
        duplicate_window=min(DUPLICATES_SECONDS, limits.max_age or DUPLICATES_SECONDS),
        allow_direct=True,
    )
    try:
        info = await _existing(context, config)
    except ServiceUnavailableError as error:
        raise NatsError("nats: the server has no JetStream, or it is not ready") from error
    except APIError as error:
        if error.err_code != _NO_ROOM:
            raise
        raise NatsError(
            f"nats: the server cannot set {limits.max_bytes:,} bytes aside for the stream {names.stream}; give a smaller "
            "limit (max_bytes, --nats-max-bytes), or the server more room"
        ) from error
    if not info.config.allow_direct:
        raise NatsError(
            f"nats: the stream {names.stream} does not allow direct access: nats stream edit --allow-direct"
        )
    max_age = info.config.max_age or 0.0
    await bucket(context, names.hellos, max_age + HELLO_SPARE_S if max_age else None)
    return max_age


async def stored_before(context: JetStreamContext, names: Names, subject: str) -> int:
    """Frames of a stream before this number were stored once: its last message says so. 0 if there is no message.

    Raises:
        TimeoutError: if JetStream does not answer, or the team has no stream there.
        FormatError: if the message has no frames.
    """
    try:
        # Its subject is part of the request's, so that a user can be limited to it.
        last: Any = await context.get_last_msg(names.stream, subject, direct=True)
    except NotFoundError:
        return 0
    header, _ = protocol.decode(last.data or b"")
    if not isinstance(header, protocol.Frames):
        raise FormatError(f"the last message of the stream is {type(header).__name__}")
    return header.first + header.count


async def put(context: JetStreamContext, bucket: str, key: str, value: bytes) -> None:
    """Puts a value into a bucket, with no request but this. Raises `nats.js.errors.NoStreamResponseError` if there is
    no such bucket."""
    await context.publish(f"$KV.{bucket}.{key}", value)


async def bucket(context: JetStreamContext, name: str, ttl: float | None = None, *, direct: bool = True) -> KeyValue:
    """A key-value bucket of `MAX_KEYS` values, which is created if it does not exist. One that exists is left as it is.

    Args:
        ttl: seconds after which a value vanishes.
        direct: whether any server of a cluster may answer, which may be behind.
    """
    config = StreamConfig(
        name=f"KV_{name}",
        subjects=[f"$KV.{name}.>"],
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        max_msgs=MAX_KEYS,
        max_msg_size=MAX_VALUE,
        max_age=ttl,
        duplicate_window=min(ttl or 120.0, 120.0),
        discard=DiscardPolicy.OLD,
        deny_delete=True,
        allow_direct=direct,
        # With rollups, which buckets usually have, a user of one job could remove the values of all others.
        allow_rollup_hdrs=False,
    )
    await _existing(context, config)
    return await context.key_value(name)


async def _existing(context: JetStreamContext, config: StreamConfig) -> StreamInfo:
    """A stream of JetStream, which is created if it does not exist."""
    untyped: Any = context
    name = config.name or ""
    try:
        found: StreamInfo = await context.stream_info(name)
    except NotFoundError:
        try:
            found = await untyped.add_stream(config)
        except BadRequestError:  # another one was quicker
            found = await context.stream_info(name)
    return found


async def keys(context: JetStreamContext, name: str) -> set[str]:
    """The keys of a bucket; those that were deleted and have left a mark, too."""
    prefix = f"$KV.{name}."
    info = await context.stream_info(f"KV_{name}", subjects_filter=f"{prefix}>")
    return {subject.removeprefix(prefix) for subject in info.state.subjects or {}}


async def forget(context: JetStreamContext, name: str, key: str, revision: int = 0) -> None:
    """Removes a key from a bucket without leaving a mark, which would stay for ever where values have no age.

    Args:
        key: nothing happens if it is not there.
        revision: a value that is newer stays; 0: whatever it is.
    """
    untyped: Any = context
    await untyped.purge_stream(f"KV_{name}", subject=f"$KV.{name}.{key}", seq=revision + 1 if revision else None)
