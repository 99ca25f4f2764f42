"""What a journal says of frames that were given up, to free the disk."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec

from stepscope.runtime.accounting.ledger import Ledger, sum_ledgers
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt

KINDS = (fmt.FrameType.DISCARDED, fmt.FrameType.GIVEN_UP)
"""Frames of which nothing is left but what they were."""
BEGINNING = 512
"""Bytes of a payload that say in nearly all cases what was there."""

_SIZE = struct.Struct("<I")
_LONGEST = 1 << 20
"""Bytes of a record that are believed."""

_MOST = 1 << 48
"""What no stream has, and sums of many such counts fit everywhere."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Window = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class GivenUp(msgspec.Struct, frozen=True, array_like=True):
    """What was in frames that are gone."""

    events: dict[_Window, _Count] = {}
    """By window."""
    others: _Count = 0
    """Events of windows whose ends are gone as well."""
    windows: _Count = 0
    """Windows whose ends are gone."""
    ledger: Ledger | None = None
    """Their accounts, added up; `None` if there are none."""

    @property
    def total(self) -> int:
        """Events."""
        return min(sum(self.events.values()) + self.others, _MOST)

    def without(self, ended: Collection[int]) -> GivenUp:
        """The same, but for which of the events were of these windows."""
        moved = [window for window in self.events if window in ended]
        if not moved:
            return self
        events = {window: count for window, count in self.events.items() if window not in ended}
        others = self.others + sum(self.events[window] for window in moved)
        return msgspec.structs.replace(self, events=events, others=min(others, _MOST))

    def beyond(self, events: int) -> GivenUp:
        """What is left without the first so many events."""
        left: dict[int, int] = {}
        others = max(self.others - events, 0)
        events = max(events - self.others, 0)
        for window, count in self.events.items():
            if count > events:
                left[window] = count - events
            events = max(events - count, 0)
        return msgspec.structs.replace(self, events=left, others=others)


def together(several: Iterable[GivenUp]) -> GivenUp:
    """All of them, in a time that is in proportion to what they say."""
    events: dict[int, int] = {}
    others = windows = 0
    ledgers: list[Ledger] = []
    for one in several:
        for window, count in one.events.items():
            events[window] = min(events.get(window, 0) + count, _MOST)
        others, windows = min(others + one.others, _MOST), min(windows + one.windows, _MOST)
        if one.ledger is not None:
            ledgers.append(one.ledger)
    return GivenUp(events, others, windows, sum_ledgers(ledgers) if ledgers else None)


_decode = msgspec.msgpack.Decoder(GivenUp).decode


def encode(gone: GivenUp) -> bytes:
    """The beginning of a payload; zeros follow."""
    record = msgspec.msgpack.encode(gone)
    return _SIZE.pack(len(record)) + record


def needed(payload: fmt.Bytes) -> int:
    """Bytes of a `GIVEN_UP` payload that say what was there, by its beginning; 0 if none do.

    More than `BEGINNING` where a run of frames had many windows, or many accounts.
    """
    size: int = _SIZE.unpack_from(payload)[0] if len(payload) >= _SIZE.size else 0
    return _SIZE.size + size if 0 < size <= _LONGEST else 0


def decode(kind: int, payload: fmt.Bytes) -> GivenUp:
    """What a frame of one of these kinds says, of its payload or its beginning.

    Raises:
        FormatError: if it makes no sense.
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
