"""Protocol buffers, field by field (protobuf.dev, "Encoding"), for what is too rare to be written by the native core."""

from __future__ import annotations

import struct


def varint(number: int) -> bytes:
    """An unsigned integer, or a negative one of 64 bits, as 7 bits a byte."""
    number &= (1 << 64) - 1
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(number: int, value: int | float | str | bytes) -> bytes:
    """One field: integers and bools as varint, floats as double, text, or a message that was made before."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data
