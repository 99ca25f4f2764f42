"""Whether JetStream has all of a stream: another collector, with a directory of its own, needs it from the beginning."""

from __future__ import annotations

from datetime import UTC, datetime

from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RawStreamMsg, StreamInfo
from nats.js.errors import NotFoundError

from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.runtime.errors import FormatError

SPARE = 0.25
"""Of what JetStream keeps: so much must still come before it throws the beginning away, as it has to be read first."""


async def has_beginning(jetstream: JetStreamContext, stream: str, info: StreamInfo) -> bool:
    """Whether who reads a stream now gets its first frame and all others.

    Args:
        jetstream: where it is.
        stream: its id.
        info: what JetStream holds.

    Raises:
        nats.errors.Error: if it cannot be asked.
        TimeoutError: if it does not answer.
    """
    try:
        first = await jetstream.get_msg(layout.STREAM, seq=1, subject=f"{layout.SUBJECTS}.{stream}", next=True)
    except NotFoundError:
        return False
    try:
        header, _ = protocol.decode(first.data or b"")
    except FormatError:
        return False
    return isinstance(header, protocol.Frames) and header.first == 0 and _left(first, info) >= SPARE


def _left(message: RawStreamMsg, info: StreamInfo) -> float:
    """How much of what JetStream keeps comes before it throws a message away; from 0 to 1 and more."""
    config, state = info.config, info.state
    left = 1.0
    if config.discard != DiscardPolicy.NEW:
        used = max(
            state.bytes / config.max_bytes if config.max_bytes and config.max_bytes > 0 else 0.0,
            state.messages / config.max_msgs if config.max_msgs and config.max_msgs > 0 else 0.0,
        )
        before = ((message.seq or 0) - state.first_seq) / max(state.last_seq - state.first_seq, 1)
        left = 1.0 - used + before * used
    if config.max_age and message.time is not None:
        left = min(left, 1.0 - (datetime.now(UTC) - message.time).total_seconds() / config.max_age)
    return left
