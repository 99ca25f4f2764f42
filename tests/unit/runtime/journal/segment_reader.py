"""Reads a journal with all its segments; written from docs/segment-format.md alone."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.unit.runtime.journal.columns_reader import events_of

FRAME = struct.Struct("<4sBBHIIII")
EVENTS, WINDOW_CLOSED, METADATA = 4, 8, 6


def checked(data: bytes, crc: int) -> bytes:
    """The same bytes, if their checksum is right."""
    assert zlib.crc32(data) == crc
    return data


def frames_of(data: bytes) -> tuple[bytes, int, list[tuple[int, int, bytes]]]:
    """Sync word, number of the segment, and (type, flags, payload) of each frame of a file."""
    magic, version, segment, sync, crc = struct.unpack_from("<8sHH4sI", data)
    assert (magic, version) == (b"\x89SSJ\r\n\x1a\n", 2)
    checked(data[:16], crc)
    at = 20
    if segment:
        checked(data[20:28], struct.unpack_from("<I", data, 28)[0])
        at = 32
    found: list[tuple[int, int, bytes]] = []
    while at + FRAME.size <= len(data):
        mark, kind, flags, _, _, length, payload_crc, crc = FRAME.unpack_from(data, at)
        checked(data[at : at + 20], crc)
        assert mark == sync
        at += FRAME.size
        if at + length > len(data):
            break  # it was being written
        found.append((kind, flags, checked(data[at : at + length], payload_crc)))
        at += length
    return sync, segment, found


def files_of(path: Path) -> Iterator[bytes]:
    """The files of a journal, in their order."""
    later = (re.fullmatch(re.escape(path.name) + r"\.(\d+)", each.name) for each in path.parent.iterdir())
    numbers = sorted(int(match[1]) for match in later if match)
    for each in [path, *(path.with_name(f"{path.name}.{number}") for number in numbers)]:
        if each.exists():
            yield each.read_bytes()


def read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Events, ends of windows, and the run's metadata."""
    events: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}
    mark = b""
    for data in files_of(path):
        sync, _, frames = frames_of(data)
        mark = mark or sync
        for kind, flags, payload in frames if sync == mark else ():
            if kind == EVENTS:
                *_, window, count, _, length = struct.unpack_from("<qqiIIH", payload)
                body = payload[32 + length :]
                events += ({"window": window, **event} for event in events_of(count, body, bool(flags & 2)))
            elif kind == WINDOW_CLOSED:
                windows.append(msgspec.msgpack.decode(payload))
            elif kind == METADATA:
                metadata = msgspec.msgpack.decode(payload)["values"]
    return events, windows, metadata
