"""Fields as bytes with a version and a checksum, so that a reader notices a block that another process has half replaced.

A block is `<magic> <version> <flags> <length> <CRC-32 of what follows>`, little-endian in 16 bytes, and then JSON.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from stepscope.compat.mindspore.errors import WireError

MAGIC: Final = b"SSDA"
VERSION: Final = 1
_HEAD = struct.Struct("<4sHHII")


def encode_block(fields: Mapping[str, Any]) -> bytes:
    """A block with these fields, whose values are those of JSON."""
    content = json.dumps(fields, separators=(",", ":")).encode()
    return _HEAD.pack(MAGIC, VERSION, 0, len(content), zlib.crc32(content)) + content


def decode_block(block: bytes) -> dict[str, Any]:
    """The fields of a block; bytes behind it are ignored.

    Raises:
        WireError: if it is torn, of another version, or something else; says which.
    """
    if len(block) < _HEAD.size:
        raise WireError(f"a block has at least {_HEAD.size} bytes, got {len(block)}")
    magic, version, _, length, checksum = _HEAD.unpack_from(block)
    if magic != MAGIC:
        raise WireError(f"a block begins with {MAGIC!r}, got {bytes(magic)!r}")
    if version != VERSION:
        raise WireError(f"the block is of version {version}; this one reads version {VERSION}")
    content = block[_HEAD.size : _HEAD.size + length]
    if len(content) != length or zlib.crc32(content) != checksum:
        raise WireError(f"the block is torn: {length} bytes were announced, {len(content)} are there")
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except ValueError as error:
        raise WireError(f"the block holds no JSON object: {error}") from error
