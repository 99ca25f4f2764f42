"""How long the messages of a WebSocket will be, seen when they begin. Source of the format: RFC 6455, section 5.2."""

from __future__ import annotations

_CONTROL = 8
"""Opcodes from this one on have no message."""
_CONTINUED = 0
_LONGER = {126: 2, 127: 8}
"""Bytes of the length that follow, for the values of its seven bits that say so."""


class Announced:
    """Follows the bytes of one connection after its handshake, frame by frame, and keeps none of them."""

    def __init__(self, unknown: int) -> None:
        """Args: what counts as the length of a message in several frames, of which only the first one's is known."""
        self._unknown = unknown
        self._head = bytearray()
        self._left = 0
        """Bytes of the frame that are still to come."""

    def feed(self, data: bytes) -> list[int]:
        """Lengths of the messages of which the first frame's header ends in these bytes, the next of the connection."""
        found: list[int] = []
        at = 0
        while at < len(data):
            if self._left:
                passed = min(self._left, len(data) - at)
                self._left -= passed
                at += passed
                continue
            wanted = self._header_bytes() - len(self._head)
            self._head += data[at : at + wanted]
            at += wanted
            if len(self._head) == self._header_bytes():
                self._frame(found)
        return found

    def _header_bytes(self) -> int:
        if len(self._head) < 2:
            return 2
        masked, bits = self._head[1] & 0x80, self._head[1] & 0x7F
        return 2 + _LONGER.get(bits, 0) + (4 if masked else 0)

    def _frame(self, found: list[int]) -> None:
        final, opcode = self._head[0] & 0x80, self._head[0] & 0x0F
        more = _LONGER.get(self._head[1] & 0x7F, 0)
        length = int.from_bytes(self._head[2 : 2 + more], "big") if more else self._head[1] & 0x7F
        if opcode != _CONTINUED and opcode < _CONTROL:
            found.append(length if final else self._unknown)
        self._left = length
        self._head.clear()
