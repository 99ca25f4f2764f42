"""How long the messages of a WebSocket will be, seen when they begin. Source of the format: RFC 6455, section 5.2."""

from __future__ import annotations

_CONTROL = 8
"""Opcodes from this one on have no message."""
_CONTINUED = 0
_LONGEST_HEADER = 14


class Announced:
    """Follows the bytes of one connection after its handshake, frame by frame, and keeps none of them."""

    def __init__(self, unknown: int) -> None:
        """Args: what counts as the length of a message in several frames, of which only the first one's is known."""
        self._unknown = unknown
        self._head = b""
        """The begin of a header of which the rest is still to come."""
        self._remaining = 0
        """Bytes of the frame that are still to come."""

    def feed(self, data: bytes) -> list[int]:
        """Returns the lengths of the messages of which the first frame's header ends in these bytes, the next of the connection."""
        found: list[int] = []
        at = 0
        while at < len(data):
            if self._remaining:
                passed = min(self._remaining, len(data) - at)
                self._remaining -= passed
                at += passed
                continue
            buffered = len(self._head)
            self._head += data[at : at + _LONGEST_HEADER - buffered]
            size, length = _header(self._head)
            if len(self._head) < size:
                break
            final, opcode = self._head[0] & 0x80, self._head[0] & 0x0F
            if opcode != _CONTINUED and opcode < _CONTROL:
                found.append(length if final else self._unknown)
            at += size - buffered
            self._head, self._remaining = b"", length
        return found


def _header(head: bytes) -> tuple[int, int]:
    """The size of a frame's header and the length of its payload, if the header is whole; else a size that is larger than `head`."""
    if len(head) < 2:
        return 2, 0
    length = head[1] & 0x7F
    more = 0 if length < 126 else 2 if length == 126 else 8
    if more:
        length = int.from_bytes(head[2 : 2 + more], "big")
    return 2 + more + (4 if head[1] & 0x80 else 0), length
