"""Events as columns of differences, which take a tenth of their bytes in memory or less. `docs/event-columns.md` describes the bytes.

Nothing here touches a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, Block

MAX_CONTENT_BYTES = 64 << 20
"""Bytes of columns, arguments and table; more are not believed."""
HEADER = struct.Struct("<III")
"""Bytes of the content before it was compressed; of these, bytes of the arguments, and of the table."""


Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class TrackRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One track, as `tracks.Track` has it."""

    id: Id
    kind: Annotated[int, msgspec.Meta(ge=0, le=255)]
    pid: Int64
    tid: Int64
    parent: Id
    name: str


class _Table(msgspec.Struct, frozen=True, array_like=True):
    names: list[str]
    tracks: list[tuple[Id, int, Int64, Int64, Id, int]]
    """Id, kind, pid, tid, id of the parent or 0, place of the name. Ids are the writer's."""


class TrackMap(Protocol):
    """Tracks of a recording, and what they are in this process."""

    def add_tracks(self, records: Iterable[TrackRecord], /) -> None:
        """Learns of tracks; those that it knows already do not change."""

    def track(self, theirs: int, /) -> int:
        """The id in this process; 0 if the track is not known."""
        ...


_decode_table = msgspec.msgpack.Decoder(_Table)


def encode(events: Block, args: bytes) -> tuple[bytes, bytes, bool, int]:
    """Encodes events, with all that is needed to read them.

    Args:
        events: a contiguous block.
        args: the heap of their arguments.

    Returns:
        The header; the content; whether that is compressed, which it is where the system has libzstd; and how many events are
        written without their arguments, which lie outside of the heap.
    """
    content, arguments_bytes, table_bytes, cut = _core.encode_columns(events, args)
    packed = _core.compress(content)
    header = HEADER.pack(len(content), arguments_bytes, table_bytes)
    return header, content if packed is None else packed, packed is not None, cut


class ColumnDecoder:
    """Decodes events of one recording.

    Args:
        tracks: what the tracks of the recording are in this process.
    """

    def __init__(self, tracks: TrackMap) -> None:
        self._tracks = tracks

    def decode(self, count: int, stored: memoryview, compressed: bool) -> tuple[Block, bytes]:
        """Decodes what `encode` made: header and content, one after the other.

        Args:
            count: how many events there are.

        Returns:
            The events, and the heap of their arguments.

        Raises:
            FormatError: if it is damaged.
        """
        if len(stored) < HEADER.size:
            raise FormatError("columns of events end before their header does")
        content_bytes, arguments_bytes, table_bytes = HEADER.unpack_from(stored)
        if content_bytes > MAX_CONTENT_BYTES or arguments_bytes + table_bytes > content_bytes:
            raise FormatError("the header of columns of events contradicts itself")
        body = stored[HEADER.size :]
        try:
            content = _core.decompress(body, content_bytes) if compressed else bytes(body)
            if len(content) != content_bytes:
                raise FormatError("columns of events are not as long as their header says")
            table_at = content_bytes - table_bytes
            arguments_at = table_at - arguments_bytes
            table = _decode_table.decode(content[table_at:])
            names = np.array([strings.intern(name) for name in table.names], np.uint32)
            packed, args, _ = _core.decode_columns(
                content[:arguments_at], count, content[arguments_at:table_at], names, self._track_ids(table)
            )
        except (ValueError, IndexError, msgspec.DecodeError) as error:
            raise FormatError(f"columns of events are damaged: {error}") from error
        events: Block = np.frombuffer(bytearray(packed), EVENT_DTYPE)
        _name_categories(events, table.names)
        return events, args

    def _track_ids(self, table: _Table) -> NDArray[np.uint32]:
        """Ids of this process for the tracks of a table, in their order."""
        # Those to which others belong are older.
        self._tracks.add_tracks(
            TrackRecord(number, kind, pid, tid, parent, table.names[name])
            for number, kind, pid, tid, parent, name in sorted(table.tracks)
            if number
        )
        return np.array([self._tracks.track(row[0]) for row in table.tracks], np.uint32)


def _name_categories(events: Block, names: list[str]) -> None:
    """Puts categories of this process in the place of places in the table."""
    places: NDArray[np.uint16] = events["category"]
    used: list[int] = np.unique(places).tolist()
    ids = np.zeros(max(used, default=-1) + 1, np.uint16)
    ids[used] = [strings.category(names[place]) for place in used]
    events["category"] = ids[places]
