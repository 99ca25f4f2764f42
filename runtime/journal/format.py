"""The bytes of a journal: file header, frames and events. `docs/segment-format.md` describes the format.

Nothing here touches a file. All numbers are little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.record import EVENT_DTYPE, Block, Flag
from stepscope.runtime.journal import columns

if TYPE_CHECKING:
    from stepscope.runtime.journal.ids import IdMap

MAGIC = b"\x89SSJ\r\n\x1a\n"
"""First bytes of a journal. They reveal a transfer that changed line ends or the eighth bit."""
VERSION = 2
"""Incremented when old readers cannot read new files. New frame types and new fields do not matter."""

FILE_HEADER = struct.Struct("<8sHH4sI")
"""Magic, version, number of the segment, sync word of the journal's frames, CRC-32 of the bytes before."""
_BEGIN = struct.Struct("<QI")
"""Only in later segments: position of the first frame in the journal, CRC-32 of these 8 bytes."""
MAX_FILE_HEADER = FILE_HEADER.size + _BEGIN.size
MAX_POSITION = 1 << 62
FRAME_HEADER = struct.Struct("<4sBBHIIII")
"""Sync word, type, flags, zero, number, length of the payload, CRC-32 of the payload, CRC-32 of the bytes before."""
EVENTS_HEADER = struct.Struct("<qqiIIH2x")
"""First `ts`, last `ts + dur`, window, events, bytes of arguments, bytes of the source's name."""

MAX_SOURCE = 255
"""Limit for a source's name, in bytes of UTF-8; longer names are cut."""
MAX_EVENTS_HEADER = EVENTS_HEADER.size + MAX_SOURCE
"""Maximum number of bytes of an events payload before its events."""

ZSTD = 2
"""Frame flag: the columns are compressed by zstd."""
COLUMNS = 8
"""Frame flag: columns follow the source's name (docs/segment-format.md)."""
MAX_PAYLOAD = 64 << 20
"""Limit of a frame. Longer ones are neither written nor read."""
CHUNK_BYTES = 4 << 20
"""Batches are split into frames of about this size, which bounds the memory of a reader."""

MAX_SMALL_BYTES = 1 << 16
"""`decode_unnamed` decodes so many bytes of a few events with long names."""

Bytes = bytes | bytearray | memoryview


class FrameType(IntEnum):
    """Type of a frame. Readers skip unknown types."""

    RUN = 1
    EVENTS = 4
    CLOCK = 5
    METADATA = 6
    WINDOW_OPENED = 7
    WINDOW_CLOSED = 8
    LEDGER = 9
    CAP = 10
    END = 11
    CLOCK_SYNC = 12
    RECOVERED = 15
    INDEX = 16
    OUTLINE = 17
    STEP_FACTS = 18


class FileHeader(msgspec.Struct, frozen=True):
    """Header of a file of a journal."""

    sync: bytes
    """Sync word of the journal's frames."""
    segment: int = 0
    """Number of the file in the journal."""
    begin: int = FILE_HEADER.size
    """Position of its first frame in the journal."""

    @property
    def nbytes(self) -> int:
        return MAX_FILE_HEADER if self.segment else FILE_HEADER.size


class EventsHeader(msgspec.Struct, frozen=True, gc=False):
    """Header of an events payload."""

    first_ns: int
    last_ns: int
    window: int
    count: int
    args_bytes: int
    source: str

    @property
    def body_bytes(self) -> int:
        """Bytes of events and arguments, uncompressed."""
        return self.count * EVENT_DTYPE.itemsize + self.args_bytes


def new_sync_word() -> bytes:
    """Creates the sync word, with which every frame of a file begins.

    It is random, so that neither a text in an event nor a journal inside a journal is mistaken for a frame. 0xF5 never occurs in
    UTF-8, and only once here. So two sync words never overlap, and a search reads each byte once.
    """
    return b"\xf5" + bytes(byte if byte != 0xF5 else 0xF4 for byte in os.urandom(3))


def is_sync_word(word: bytes) -> bool:
    """Whether it is a possible result of `new_sync_word`."""
    return len(word) == 4 and word[0] == 0xF5 and 0xF5 not in word[1:]


def encode_file_header(sync: bytes, segment: int = 0, begin: int = FILE_HEADER.size) -> bytes:
    """The first bytes of a file of a journal. `begin` is only in those of later segments."""
    head = _with_crc(FILE_HEADER.pack(MAGIC, VERSION, segment, sync, 0))
    return head + _with_crc(_BEGIN.pack(begin, 0)) if segment else head


def _with_crc(packed: bytes) -> bytes:
    return packed[:-4] + _core.crc32(packed[:-4]).to_bytes(4, "little")


def decode_file_header(head: bytes) -> FileHeader | None:
    """The header of a file that begins with `head`; `None` if it is damaged.

    Raises:
        FormatError: if the file has a newer version of the format.
    """
    if len(head) < FILE_HEADER.size:
        return None
    magic, version, segment, sync, crc = FILE_HEADER.unpack_from(head)
    if crc != _core.crc32(head[: FILE_HEADER.size - 4]) or magic != MAGIC or not is_sync_word(sync):
        return None
    if version != VERSION:
        other = "a newer stepscope" if version > VERSION else "the earlier stepscope that wrote it"
        raise FormatError(
            f"this journal has format version {version}, this stepscope reads version {VERSION}; use {other}"
        )
    if not segment:
        return FileHeader(bytes(sync))
    if len(head) < MAX_FILE_HEADER:
        return None
    begin, crc = _BEGIN.unpack_from(head, FILE_HEADER.size)
    if crc != _core.crc32(head[FILE_HEADER.size : MAX_FILE_HEADER - 4]) or not FILE_HEADER.size <= begin < MAX_POSITION:
        return None
    return FileHeader(bytes(sync), segment, begin)


def encode_frame(sync: bytes, kind: int, number: int, parts: Sequence[Bytes], flags: int = 0) -> list[Bytes]:
    """A frame as a list of buffers; the parts of its payload are not copied.

    Raises:
        FormatError: if the payload is too long for readers.
    """
    length = sum(map(len, parts))
    if length > MAX_PAYLOAD:
        raise FormatError(f"a frame of {length} bytes is longer than the {MAX_PAYLOAD} that readers accept")
    crc = 0
    for part in parts:
        crc = _core.crc32(part, crc)
    head = FRAME_HEADER.pack(sync, kind, flags, 0, number & 0xFFFFFFFF, length, crc, 0)[:-4]
    return [head + _core.crc32(head).to_bytes(4, "little"), *parts]


def decode_frame_header(head: Bytes, at: int, sync: bytes) -> tuple[int, int, int, int, int] | None:
    """(type, flags, number, length, CRC of the payload) of the frame header at `head[at:]`; `None` if there is none."""
    found, kind, flags, _, number, length, payload_crc, crc = FRAME_HEADER.unpack_from(head, at)
    if found != sync or crc != _core.crc32(head[at : at + FRAME_HEADER.size - 4]) or length > MAX_PAYLOAD:
        return None
    return kind, flags, number, length, payload_crc


def frames_in(data: Bytes, sync: bytes) -> Iterator[tuple[int, int, int, memoryview]]:
    """(type, flags, number, payload) of each of the consecutive frames in `data`, checked.

    Raises:
        FormatError: at other bytes, or at a damaged or incomplete frame.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        body = at + FRAME_HEADER.size
        head = decode_frame_header(view, at, sync) if body <= len(view) else None
        if head is None:
            raise FormatError(f"no frame of this journal at byte {at} of {len(view)}")
        kind, flags, number, length, crc = head
        payload = view[body : body + length]
        if len(payload) != length or _core.crc32(payload) != crc:
            raise FormatError(f"frame {number} is damaged, or not whole")
        yield kind, flags, number, payload
        at = body + length


def decode_frame(frame: Bytes, sync: bytes) -> bytes | None:
    """The payload of a complete frame; `None` if it is damaged."""
    head = None if len(frame) < FRAME_HEADER.size else decode_frame_header(frame, 0, sync)
    payload = bytes(frame[FRAME_HEADER.size :])
    return payload if head is not None and head[3] == len(payload) and head[4] == _core.crc32(payload) else None


@lru_cache(64)
def source_bytes(source: str) -> bytes:
    """The name of a source in frames."""
    text: str = plain(source)
    return text.encode()[:MAX_SOURCE].decode(errors="ignore").encode()


def encode_rows(source: str, window: int, events: Block, args: bytes) -> list[Bytes]:
    """Encodes events as they are in memory, with the ids of this process: an events payload without the flag `COLUMNS`."""
    raw = np.ascontiguousarray(events).view(np.uint8).reshape(-1).data
    name = source_bytes(source)
    header = EVENTS_HEADER.pack(*time_range(events), window, len(events), len(args), len(name))
    return [header + name, raw, args]


def decode_events_header(payload: bytes) -> tuple[EventsHeader, int] | None:
    """The header of an events payload, or of its first `MAX_EVENTS_HEADER` bytes, and the offset of the events.

    `None` if it contradicts itself or claims more than `MAX_PAYLOAD`.
    """
    if len(payload) < EVENTS_HEADER.size:
        return None
    first, last, window, count, args_bytes, source_bytes = EVENTS_HEADER.unpack_from(payload)
    body = EVENTS_HEADER.size + source_bytes
    if source_bytes > MAX_SOURCE or body > len(payload):
        return None
    source = payload[EVENTS_HEADER.size : body].decode(errors="replace")
    header = EventsHeader(first, last, window, count, args_bytes, source)
    return (header, body) if header.body_bytes <= MAX_PAYLOAD else None


def decode_rows(payload: bytes, flags: int) -> tuple[EventsHeader, Block, bytearray] | None:
    """Header, events and arguments of `encode_rows`, copied, with the ids of the writer; `None` if it contradicts its header."""
    decoded = None if flags & (COLUMNS | ZSTD) else decode_events_header(payload)
    if decoded is None:
        return None
    header, at = decoded
    body = memoryview(payload)[at:]
    if len(body) != header.body_bytes:
        return None
    split = header.count * EVENT_DTYPE.itemsize
    events: Block = np.frombuffer(bytearray(body[:split]), EVENT_DTYPE)
    return header, events, bytearray(body[split:])


def decode_columns(payload: bytes, flags: int, tracks: IdMap) -> tuple[EventsHeader, Block, bytes] | None:
    """Header, events and arguments of an events payload in a journal, with ids of this process; `None` if it is damaged."""
    decoded = decode_events_header(payload) if flags & COLUMNS else None
    if decoded is None:
        return None
    header, at = decoded
    try:
        events, args = columns.decode(header.count, memoryview(payload)[at:], bool(flags & ZSTD), tracks)
    except FormatError:
        return None
    return header, events, args


def decode_unnamed(payload: bytes, flags: int) -> tuple[Block, list[str]] | None:
    """Events of another process, and the texts of which their names and categories are places; `None` if the payload is damaged,
    or needs more memory than events like those that its header announces."""
    decoded = decode_events_header(payload) if flags & COLUMNS else None
    if decoded is None:
        return None
    header, at = decoded
    try:
        return columns.decode_unnamed(
            header.count, memoryview(payload)[at:], bool(flags & ZSTD), 4 * header.body_bytes + MAX_SMALL_BYTES
        )
    except FormatError:
        return None


def time_range(events: Block) -> tuple[int, int]:
    """First `ts` and last `ts + dur` of a block, in ns; (0, 0) if it is empty."""
    if not len(events):
        return 0, 0
    times = events["ts"].copy()
    first = int(times.min())
    times += np.maximum(events["dur"], 0)
    return first, int(times.max())


def heap_arguments(events: Block, heap_bytes: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks over a block: events with arguments within a heap of this size, and events with arguments beyond it."""
    claims = events["args_len"] > 0
    if claims.any():
        claims &= events["flags"] & int(Flag.ARG_INLINE) == 0
    if not claims.any():
        return claims, claims.copy()
    fits = events["args_at"].astype(np.uint64) + events["args_len"] <= heap_bytes
    return claims & fits, claims & ~fits


def gather_arguments(events: Block, heap: Bytes) -> bytes:
    """Copies the arguments of these events into a new heap, in their order, and changes `args_at`.

    Arguments must lie within `heap`.
    """
    has_args, _ = heap_arguments(events, len(heap))
    lengths = events["args_len"][has_args].astype(np.int64)
    new_at = np.cumsum(lengths) - lengths
    shift = np.repeat(events["args_at"][has_args].astype(np.int64) - new_at, lengths)
    gathered = np.frombuffer(heap, np.uint8)[shift + np.arange(len(shift))]
    events["args_at"][has_args] = new_at
    return gathered.tobytes()
