"""Records of frames that were given up: their bytes were released to free the disk."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec

from stepscope.runtime.accounting.ledger import Ledger, sum_ledgers
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt

KINDS = (fmt.FrameType.DISCARDED, fmt.FrameType.GIVEN_UP)
"""Types of frames that were given up."""
BEGINNING = 512
"""Bytes of a payload that nearly always contain the whole record."""

_SIZE = struct.Struct("<I")
_MAX_RECORD = 1 << 20
"""Limit of a record, in bytes."""

_MAX_COUNT = 1 << 48
"""Limit of counts: more than any stream has, and sums of many of them fit 64 bits."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]
_Window = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class GivenUp(msgspec.Struct, frozen=True, array_like=True):
    """Counts of what frames contained before they were given up."""

    events: dict[_Window, _Count] = {}
    """Events by window."""
    others: _Count = 0
    """Events of windows whose ends were given up, too."""
    windows: _Count = 0
    """Number of windows whose ends were given up."""
    ledger: Ledger | None = None
    """Sum of the accounts of these windows; `None` if there are none."""

    @property
    def total(self) -> int:
        """Number of events."""
        return min(sum(self.events.values()) + self.others, _MAX_COUNT)

    def without(self, ended: Collection[int]) -> GivenUp:
        """Moves the events of these windows to `others`."""
        moved = [window for window in self.events if window in ended]
        if not moved:
            return self
        events = {window: count for window, count in self.events.items() if window not in ended}
        others = self.others + sum(self.events[window] for window in moved)
        return msgspec.structs.replace(self, events=events, others=min(others, _MAX_COUNT))

    def without_first(self, events: int) -> GivenUp:
        """Removes the first `events` events."""
        rest: dict[int, int] = {}
        others = max(self.others - events, 0)
        events = max(events - self.others, 0)
        for window, count in self.events.items():
            if count > events:
                rest[window] = count - events
            events = max(events - count, 0)
        return msgspec.structs.replace(self, events=rest, others=others)


def merge(several: Iterable[GivenUp]) -> GivenUp:
    """The sum of records, in linear time."""
    events: dict[int, int] = {}
    others = windows = 0
    ledgers: list[Ledger] = []
    for one in several:
        for window, count in one.events.items():
            events[window] = min(events.get(window, 0) + count, _MAX_COUNT)
        others, windows = min(others + one.others, _MAX_COUNT), min(windows + one.windows, _MAX_COUNT)
        if one.ledger is not None:
            ledgers.append(one.ledger)
    return GivenUp(events, others, windows, sum_ledgers(ledgers) if ledgers else None)


_decode = msgspec.msgpack.Decoder(GivenUp).decode


def encode(counts: GivenUp) -> bytes:
    """The beginning of a payload. Zeros follow in the file."""
    record = msgspec.msgpack.encode(counts)
    return _SIZE.pack(len(record)) + record


def needed(payload: fmt.Bytes) -> int:
    """Number of bytes of a `GIVEN_UP` payload that contain its record, from the first bytes; 0 if there is none.

    It exceeds `BEGINNING` if the frames had many windows or accounts.
    """
    size: int = _SIZE.unpack_from(payload)[0] if len(payload) >= _SIZE.size else 0
    return _SIZE.size + size if 0 < size <= _MAX_RECORD else 0


def decode(kind: int, payload: fmt.Bytes) -> GivenUp:
    """Decodes the record of a frame that was given up, from its payload or the beginning of it.

    Raises:
        FormatError: if it cannot be decoded.
    """
    if kind == fmt.FrameType.DISCARDED:
        found = fmt.decode_events_header(bytes(payload[: fmt.MAX_EVENTS_HEADER]))
        if found is None:
            raise FormatError("a frame that was given up does not say what it was")
        return GivenUp({found[0].window: found[0].count})
    end = needed(payload)
    try:
        return _decode(payload[_SIZE.size : end])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"a frame that was given up does not say what it was: {error}") from error
