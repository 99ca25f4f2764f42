"""Decides which streams a collector acquires and which it releases: its fair share, what is unassigned, and when to try again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RawStreamMsg, StreamInfo
from nats.js.errors import NotFoundError

from stepscope.exporters.nats import layout
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError

log = logging.getLogger("stepscope.collector")

PATIENCE = 10.0
"""Seconds after which an unassigned stream is acquired by any collector, whatever its share. A collector does not acquire a stream
again that it released in these seconds."""
MAX_RELEASED = 32
"""Streams that a collector releases at once: who acquires them reads them from the beginning."""
MIN_REMAINING = 0.25
"""A stream may move to another collector only if its first message is deleted no sooner than after so much of what JetStream stores
was replaced."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds until a stream that failed is tried again, doubled each time."""


class FairShare(msgspec.Struct, frozen=True):
    """How many streams this collector should have."""

    assigned: int
    """Number of streams that it has."""
    streams: int
    """Number of all streams, without those that have ended and those that it cannot ingest for now."""
    others: Sequence[int]
    """For each other collector, the number of streams that it has, or cannot ingest for now."""

    @property
    def room(self) -> int:
        """Number of streams that it may acquire. A single collector may acquire all."""
        return max(-(-self.streams // (1 + len(self.others))) - self.assigned, 0)

    @property
    def surplus(self) -> int:
        """Number of streams to release now: a part of the difference to the collector with the fewest, but none of its share."""
        if not self.others:
            return 0
        difference = self.assigned - min(self.others)
        above_share = self.assigned - self.streams // (1 + len(self.others))
        if difference < 2 or above_share < 1:
            return 0
        return min(max(difference // 4, 1), above_share, MAX_RELEASED)


class UnassignedStreams:
    """Streams on which no collector has a lease, and since when."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._released: dict[str, float] = {}

    def retain(self, streams: set[str]) -> set[str]:
        """Forgets all streams but these. Returns those of them that are not known yet."""
        for stream in self._since.keys() - streams:
            del self._since[stream]
        return streams - self._since.keys()

    def add(self, stream: str) -> None:
        """Adds a stream that is unassigned from now on."""
        self._since[stream] = time.monotonic()

    def note_release(self, stream: str) -> None:
        """Notes that this collector released a stream: others get the time to acquire it first."""
        self._released[stream] = time.monotonic()

    def candidates(self, room: int) -> Iterator[tuple[str, bool]]:
        """Streams to acquire, in random order, each with whether it is to be acquired even without room.

        Args:
            room: number of streams that this collector may acquire by its share.
        """
        limit = time.monotonic() - PATIENCE
        self._released = {stream: at for stream, at in self._released.items() if at > limit}
        for stream in random.sample(sorted(self._since), len(self._since)):
            overdue = self._since[stream] <= limit
            if overdue or room and stream not in self._released:
                yield stream, overdue


async def is_complete_in_jetstream(jetstream: JetStreamContext, stream: str, info: StreamInfo) -> bool:
    """Whether another collector can still read the whole stream, from its first frame on.

    Args:
        jetstream: the JetStream that has it.
        stream: id of the stream.
        info: state and limits of what JetStream stores.

    Raises:
        nats.errors.Error: if JetStream refuses to answer.
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
    return isinstance(header, protocol.Frames) and header.first == 0 and _remaining(first, info) >= MIN_REMAINING


def _remaining(message: RawStreamMsg, info: StreamInfo) -> float:
    """Part of what JetStream stores that must be replaced before it deletes a message; 1 or more if it is not full."""
    config, state = info.config, info.state
    remaining = 1.0
    if config.discard != DiscardPolicy.NEW:
        used = max(
            state.bytes / config.max_bytes if config.max_bytes and config.max_bytes > 0 else 0.0,
            state.messages / config.max_msgs if config.max_msgs and config.max_msgs > 0 else 0.0,
        )
        before = ((message.seq or 0) - state.first_seq) / max(state.last_seq - state.first_seq, 1)
        remaining = 1.0 - used + before * used
    if config.max_age and message.time is not None:
        age = (datetime.now(UTC) - message.time).total_seconds()
        remaining = min(remaining, 1.0 - age / config.max_age)
    return remaining


class _Failure(msgspec.Struct):
    text: str
    retry_at: float
    delay: float


class RetryState:
    """Failures of streams and of the connection, and when to try again. Each text is logged once.

    Args:
        where: what is connected to, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._failures: dict[str, _Failure] = {}
        self._warned: set[str] = set()

    def fail(self, stream: str, error: BaseException) -> None:
        """Notes a failure of a stream, or with an empty id of the connection. The time until the next try is doubled."""
        before = self._failures.get(stream)
        if isinstance(error, TimeoutError) and before is not None:
            text = before.text  # it says more
        else:
            text = f"{type(error).__name__}: {error}"[:500]
        delay = FIRST_DELAY if before is None else min(2 * before.delay, LONGEST_DELAY)
        self._failures[stream] = _Failure(text, time.monotonic() + delay, delay)
        if before is None or before.text != text:
            what = f"stream {stream} of {self._where}" if stream else self._where
            log.error("%s cannot be read, and is tried again: %s", what, ascii(text)[1:-1])

    def succeed(self, stream: str) -> None:
        """Forgets the failure of a stream, or with an empty id that of the connection."""
        self._failures.pop(stream, None)

    def retain(self, streams: set[str]) -> None:
        """Forgets the failures of all streams but these."""
        self._warned &= streams
        for stream in self._failures.keys() - streams - {""}:
            del self._failures[stream]

    def is_waiting(self, stream: str) -> bool:
        """Whether it is too early to try a stream again."""
        failure = self._failures.get(stream)
        return failure is not None and time.monotonic() < failure.retry_at

    def warn_once(self, stream: str, text: str) -> None:
        """Logs a warning, if there was none for this stream."""
        if stream not in self._warned:
            self._warned.add(stream)
            log.warning("stream %s of %s: %s", ascii(stream[:100])[1:-1], self._where, ascii(text[:300])[1:-1])

    @property
    def problem(self) -> str:
        """The failure of the connection, or else of any stream; empty if there is none."""
        if "" in self._failures:
            return self._failures[""].text
        return next((f"stream {stream}: {failure.text}" for stream, failure in self._failures.items()), "")
