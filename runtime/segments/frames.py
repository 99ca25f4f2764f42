"""Event frames of a segment: batches of events as columns, which any reader understands without another frame.

`docs/segment-format.md` describes the bytes. Nothing here touches a file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core, strings, tracks
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import EVENT_DTYPE, Block, EventBatch

MOST_EVENTS = 1 << 16
"""Events of a frame: of longer blocks the columns no longer fit the processor's cache."""
MAX_STORED_BYTES = 64 << 20
"""Bytes of a frame's content, stored and as it was before; longer ones are neither written nor believed."""

MOST_DEPTH = 16
"""Tracks inside of each other: a task in a thread in a process is 3."""


class Codec(IntEnum):
    """How the content of a frame is stored."""

    PLAIN = 0
    ZSTD = 1


class EventsHeader(msgspec.Struct, frozen=True, gc=False):
    """What an event frame says before its content."""

    window: int
    count: int
    """Events."""
    first_ns: int
    """The earliest begin of an event."""
    last_ns: int
    """The latest end of an event."""
    content_bytes: int
    """Bytes of columns, arguments and table, before they were compressed."""
    arguments_bytes: int
    table_bytes: int
    codec: int
    checksum: int
    """CRC-32 of the stored content."""


HEADER = struct.Struct("<iIqqIIIB3xI")
"""The fields of `EventsHeader`, in their order."""


class _Table(msgspec.Struct, frozen=True, array_like=True):
    names: list[str]
    tracks: list[tuple[int, int, int, int, int]]
    """Kind, pid, tid, 1 + place of the parent or 0, place of the name."""
    sources: list[str]


_decode_table = msgspec.msgpack.Decoder(_Table)


def encode_events(batch: EventBatch) -> tuple[list[bytes], int]:
    """Encodes a batch as event frames, each an `EventsHeader` and its content.

    Returns:
        The frames, and how many events are written without their arguments, which are malformed.

    Raises:
        MemoryError: if there is none for a frame.
    """
    found: list[bytes] = []
    cut = 0
    for at in range(0, len(batch), MOST_EVENTS):
        frame, without = _encode(batch, np.ascontiguousarray(batch.events[at : at + MOST_EVENTS]))
        found.append(frame)
        cut += without
    return found, cut


def _encode(batch: EventBatch, events: Block) -> tuple[bytes, int]:
    content, arguments_bytes, table_bytes, cut = _core.encode_frame(events, batch.args, (batch.source,))
    packed = _core.compress(content)
    stored = content if packed is None else packed
    header = HEADER.pack(
        batch.window,
        len(events),
        int(events["ts"].min()),
        int((events["ts"] + np.maximum(events["dur"], 0)).max()),
        len(content),
        arguments_bytes,
        table_bytes,
        Codec.PLAIN if packed is None else Codec.ZSTD,
        zlib.crc32(stored),
    )
    return header + stored, cut


def decode_header(frame: bytes) -> EventsHeader:
    """Reads the header of an event frame.

    Args:
        frame: the frame's bytes, or the first `HEADER.size` of them.

    Raises:
        FormatError: if it contradicts itself.
    """
    if len(frame) < HEADER.size:
        raise FormatError(f"an event frame has a header of {HEADER.size} bytes, this one ends after {len(frame)}")
    header = EventsHeader(*HEADER.unpack_from(frame))
    if header.content_bytes > MAX_STORED_BYTES or header.arguments_bytes + header.table_bytes > header.content_bytes:
        raise FormatError("the header of an event frame contradicts itself")
    return header


class EventDecoder:
    """Decodes the event frames of one recording. Names and tracks become those of this process; a track that several frames
    use is one track."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[int, int, int, str, int], int] = {}

    def decode(self, frame: bytes) -> list[EventBatch]:
        """Decodes a frame into a batch for each of its sources.

        Raises:
            FormatError: if the frame is damaged.
        """
        header = decode_header(frame)
        stored = frame[HEADER.size :]
        if zlib.crc32(stored) != header.checksum:
            raise FormatError("an event frame is damaged: its checksum does not fit")
        try:
            content = _core.decompress(stored, header.content_bytes) if header.codec == Codec.ZSTD else stored
            table_at = header.content_bytes - header.table_bytes
            arguments_at = table_at - header.arguments_bytes
            table = _decode_table.decode(content[table_at:])
            names = np.array([strings.intern(name) for name in table.names], np.uint32)
            packed, args, source, _ = _core.decode_frame(
                content[:arguments_at], header.count, content[arguments_at:table_at], names, self._track_ids(table)
            )
        except (ValueError, IndexError, msgspec.DecodeError) as error:
            raise FormatError(f"an event frame is damaged: {error}") from error
        events: Block = np.frombuffer(bytearray(packed), EVENT_DTYPE)
        _name_categories(events, table.names)
        events.flags.writeable = False
        return _by_source(header.window, events, args, np.frombuffer(source, np.uint8), table.sources)

    def _track_ids(self, table: _Table) -> NDArray[np.uint32]:
        """Ids of this process for the tracks of a table, in their order."""
        found = np.zeros(len(table.tracks), np.uint32)

        def add(place: int, depth: int) -> int:
            kind, pid, tid, parent, name = table.tracks[place]
            if not kind or found[place]:
                return int(found[place])
            if depth > MOST_DEPTH:
                raise FormatError(f"an event frame has tracks inside of each other, more than {MOST_DEPTH} deep")
            above = add(parent - 1, depth + 1) if parent else 0
            key = kind, pid, tid, table.names[name], above
            if key not in self._tracks:
                self._tracks[key] = tracks.read(tracks.TrackKind(kind), pid, tid, table.names[name], above)
            found[place] = self._tracks[key]
            return self._tracks[key]

        for place in range(len(found)):
            add(place, 0)
        return found


def _name_categories(events: Block, names: Sequence[str]) -> None:
    """Puts categories of this process in the place of places in the table."""
    used = np.unique(events["category"])
    ids = np.zeros(int(used[-1]) + 1 if len(used) else 0, np.uint16)
    ids[used] = [strings.category(names[place]) for place in used.tolist()]
    events["category"] = ids[events["category"]]


def _by_source(
    window: int, events: Block, args: bytes, source: NDArray[np.uint8], names: Sequence[str]
) -> list[EventBatch]:
    found: list[EventBatch] = []
    for number in np.unique(source).tolist():
        if number >= len(names):
            raise FormatError(f"an event frame has {len(names)} sources, and events of number {number}")
        chosen = events if (source == number).all() else events[source == number]
        found.append(EventBatch(names[number], window, chosen, args))
    return found
