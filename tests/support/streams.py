"""Streams as exporters send them, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.exporters.specimens import run_in
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import encode_record, run_record

SYNC = b"\xf5abc"
STREAM = "0123456789abcdef" * 2
RUN = run_record(run_in(Path("/")), 0)
CONNECTION: Any = object()
"""Stands for the connection of a stream, where nobody gives orders."""


def frames(first: int, count: int, size: int = 40, sync: bytes = SYNC) -> bytes:
    """Frames of a stream, of a type that nobody knows."""
    return b"".join(
        bytes(part)
        for number in range(first, first + count)
        for part in fmt.encode_frame(sync, 99, number, [number.to_bytes(8, "little") * (size // 8)])
    )


def frames_header(first: int, count: int, segment: int = 0, position: int = 20) -> protocol.Frames:
    """Announces frames, of the first segment by default."""
    return protocol.Frames(first, count, segment, position)


def run_frame(number: int) -> bytes:
    """The frame that says whose stream it is."""
    return b"".join(map(bytes, fmt.encode_frame(SYNC, fmt.FrameType.RUN, number, [encode_record(RUN)])))


def hello(stream: str = STREAM, **fields: Any) -> bytes:
    """The first message of an exporter."""
    return protocol.encode(protocol.Hello(stream, fields.pop("sync", SYNC), RUN, **fields))
