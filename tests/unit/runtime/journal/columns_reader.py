"""Reads events as columns; written from docs/segment-format.md alone."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import zstandard

MASK = (1 << 64) - 1


def columns_of(content: bytes, count: int) -> tuple[list[list[int]], int]:
    """The 14 columns, and where they end."""
    found: list[list[int]] = []
    at = 0
    for _ in range(14):
        width, at = content[at], at + 1
        planes = [content[at + count * plane : at + count * (plane + 1)] for plane in range(width)]
        found.append([sum(plane[i] << 8 * n for n, plane in enumerate(planes)) for i in range(count)])
        at += width * count
    return found, at


def signed(value: int) -> int:
    """Undoes the zig-zag."""
    return value >> 1 ^ -(value & 1)


def wrapped(value: int) -> int:
    """A signed 64-bit number."""
    return (value + (1 << 63) & MASK) - (1 << 63)


def sums(column: list[int]) -> list[int]:
    """Undoes differences."""
    total = 0
    found: list[int] = []
    for value in column:
        total += signed(value)
        found.append(total)
    return found


def arguments_of(data: bytes, names: list[str]) -> list[tuple[str, str, bytes]]:
    """Key, type and value of each argument."""
    at = 0
    found: list[tuple[str, str, bytes]] = []
    while at < len(data):
        key, length, kind, _ = struct.unpack_from("<IHcB", data, at)
        found.append((names[key], kind.decode(), data[at + 8 : at + 8 + length]))
        at += 8 + length
    return found


def events_of(count: int, frame: bytes, compressed: bool) -> list[dict[str, Any]]:
    """The events of a frame."""
    size, arguments, table_size = struct.unpack_from("<III", frame)
    content = frame[12:]
    if compressed:
        content = zstandard.ZstdDecompressor().decompress(content)
    assert len(content) == size
    columns, at = columns_of(content, count)
    heap, table = content[at : at + arguments], content[at + arguments :]
    assert len(table) == table_size
    names, tracks = msgspec.msgpack.decode(table)
    steps, ids, parents = (sums(columns[number]) for number in (5, 9, 10))
    found: list[dict[str, Any]] = []
    end = used = 0
    for i in range(count):
        kind, flags, category, name, track = (column[i] for column in columns[:5])
        gap, own, child = (signed(column[i]) for column in columns[6:9])
        value, key, length = (column[i] for column in columns[11:])
        end += gap + own
        inline = flags & 1
        items = (
            [(names[key - 1], "u", struct.pack("<Q", length))]
            if inline
            else arguments_of(heap[used : used + length], names)
        )
        used += 0 if inline else length
        found.append(
            {
                "kind": kind,
                "flags": flags,
                "category": names[category],
                "name": names[name],
                "track": tracks[track][:4],
                "step": steps[i],
                "ts": wrapped(end - own - child),
                "dur": wrapped(own + child),
                "rest": wrapped(own if kind == 1 else value),
                "id": ids[i] & MASK,
                "parent": parents[i] & MASK,
                "arguments": items,
            }
        )
    return found
