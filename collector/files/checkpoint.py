"""Where a stream's file ended some time ago, so that a long one need not be read to find its end."""

from __future__ import annotations

import os
import struct
import zlib
from functools import cache
from pathlib import Path

import msgspec

from stepscope.runtime.journal import format as fmt

NAME = "end"
"""Of the file, beside the journal."""

_LAYOUT = struct.Struct("<8s16s4sQQQ")
"""Magic, boot, sync word, number of the next frame, where it begins, where the frame before begins. A CRC-32 follows."""
_MAGIC = b"SSEND1\r\n"
_SIZE = _LAYOUT.size + 4


class Checkpoint(msgspec.Struct, frozen=True):
    """A border between two frames."""

    next: int
    """Number of the frame that follows, counted beyond 2**32."""
    at: int
    """Where it begins."""
    last: int
    """Where the frame before begins."""


@cache
def boot() -> bytes:
    """Names this start of the machine: what was written before another one may not have reached the disk."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


def encode(sync: bytes, checkpoint: Checkpoint) -> bytes:
    """The content of the file."""
    head = _LAYOUT.pack(_MAGIC, boot(), sync, checkpoint.next, checkpoint.at, checkpoint.last)
    return head + zlib.crc32(head).to_bytes(4, "little")


def fitting(data: bytes, journal: int, sync: bytes) -> Checkpoint | None:
    """A checkpoint that is believed: it is of this start of the machine, and the frame that it names ends where it says.

    Args:
        data: the content of the file.
        journal: descriptor of the journal.
        sync: the mark of its frames.
    """
    if len(data) != _SIZE or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    magic, its_boot, its_sync, next, at, last = _LAYOUT.unpack_from(data)
    if (magic, its_boot, its_sync) != (_MAGIC, boot(), sync) or at > os.fstat(journal).st_size:
        return None
    if not next or not fmt.FILE_HEADER.size <= last <= at - fmt.FRAME_HEADER.size:
        return None
    if at - last > fmt.FRAME_HEADER.size + fmt.MAX_PAYLOAD:
        return None
    frame = os.pread(journal, at - last, last)
    head = fmt.decode_frame_header(frame, 0, sync) if len(frame) >= fmt.FRAME_HEADER.size else None
    if head is None or head[2] != (next - 1) & 0xFFFFFFFF or fmt.decode_frame(frame, sync) is None:
        return None
    return Checkpoint(next, at, last)
