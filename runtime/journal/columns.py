"""Decodes events from columns of differences. `docs/segment-format.md` has the format; `_core.encode_frames` writes it.

Nothing here touches a file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, Block

if TYPE_CHECKING:
    from stepscope.runtime.journal.ids import IdMap

MAX_CONTENT_BYTES = 64 << 20
"""Limit for columns, arguments and table together."""
MAX_TEXTS = 1 << 19
"""Limit for the names, and for the tracks, of a table."""
HEADER = struct.Struct("<III")
"""Bytes of the uncompressed content; of the arguments in it; of the table in it."""


Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class TrackRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A track, see `tracks.Track`."""

    id: Id
    kind: Annotated[int, msgspec.Meta(ge=0, le=255)]
    pid: Int64
    tid: Int64
    parent: Id
    name: str


class _Table(msgspec.Struct, frozen=True, array_like=True):
    names: Annotated[list[str], msgspec.Meta(max_length=MAX_TEXTS)]
    tracks: Annotated[list[tuple[Id, int, Int64, Int64, Id, int]], msgspec.Meta(max_length=MAX_TEXTS)]
    """Id, kind, pid, tid, id of the parent or 0, place of the name. Ids are the writer's."""


_decode_table = msgspec.msgpack.Decoder(_Table)


def decode(count: int, stored: memoryview, compressed: bool, tracks: IdMap) -> tuple[Block, bytes]:
    """Decodes events of a recording from a header and its content. Returns them, and the heap of their arguments.

    Raises:
        FormatError: if it is damaged.
    """
    columns, args, table = _parts(count, stored, compressed, MAX_CONTENT_BYTES)
    names = np.array([strings.intern(name) for name in table.names], np.uint32)
    # Parents are older than their children.
    tracks.add_tracks(
        TrackRecord(number, kind, pid, tid, parent, table.names[name])
        for number, kind, pid, tid, parent, name in sorted(table.tracks)
        if number
    )
    track_ids = np.array([tracks.track(row[0]) for row in table.tracks], np.uint32)
    return _events(columns, count, args, names, track_ids, lambda place: strings.category(table.names[place]))


def decode_unnamed(count: int, stored: memoryview, compressed: bool, max_bytes: int) -> tuple[Block, list[str]]:
    """Decodes events of others without giving their names ids of this process: names and categories are places in the list of texts that
    is returned, too, and there are no tracks.

    Raises:
        FormatError: if the content is damaged, or larger than `max_bytes`.
    """
    columns, args, table = _parts(count, stored, compressed, max_bytes)
    names = np.arange(len(table.names), dtype=np.uint32)
    events, _ = _events(columns, count, args, names, np.zeros(len(table.tracks), np.uint32), None)
    return events, table.names


def _parts(count: int, stored: memoryview, compressed: bool, max_bytes: int) -> tuple[memoryview, memoryview, _Table]:
    """Columns, arguments and table."""
    if len(stored) < HEADER.size:
        raise FormatError("columns of events end before their header does")
    content_bytes, arguments_bytes, table_bytes = HEADER.unpack_from(stored)
    if content_bytes > max_bytes or arguments_bytes + table_bytes > content_bytes:
        raise FormatError("the header of columns of events contradicts itself, or they are too large")
    body = stored[HEADER.size :]
    try:
        content = _core.decompress(body, content_bytes) if compressed else bytes(body)
        if len(content) != content_bytes:
            raise FormatError("columns of events are not as long as their header says")
        table_at = content_bytes - table_bytes
        arguments_at = table_at - arguments_bytes
        # An event has a name, a category, a track with a few parents, and arguments of 8 bytes or more, each with a key.
        if _array_length(content, table_at + 1) > 8 * count + arguments_bytes // 8 + 64:
            raise FormatError("a table of names has more of them than its events can use")
        view = memoryview(content)
        return view[:arguments_at], view[arguments_at:table_at], _decode_table.decode(view[table_at:])
    except (ValueError, msgspec.DecodeError) as error:
        raise FormatError(f"columns of events are damaged: {error}") from error


def _array_length(data: bytes, at: int) -> int:
    """Length of the array in MessagePack that begins there; 0 if there is none."""
    kind = data[at] if at < len(data) else 0
    if kind & 0xF0 == 0x90:
        return kind & 0x0F
    return int.from_bytes(data[at + 1 : at + 1 + (2 if kind == 0xDC else 4)], "big") if kind in (0xDC, 0xDD) else 0


def _events(
    columns: memoryview,
    count: int,
    args: memoryview,
    names: NDArray[np.uint32],
    track_ids: NDArray[np.uint32],
    category: Callable[[int], int] | None,
) -> tuple[Block, bytes]:
    try:
        packed, heap, _ = _core.decode_columns(columns, count, args, names, track_ids, category)
    except (ValueError, IndexError) as error:
        raise FormatError(f"columns of events are damaged: {error}") from error
    events: Block = np.frombuffer(packed, EVENT_DTYPE)
    return events, heap
