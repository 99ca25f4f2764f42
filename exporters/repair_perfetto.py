"""Cuts off what is no whole packet of traces of ours in Perfetto's format, after a kill, a full disk or damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.exporters.perfetto_file import SAYING, packet
from stepscope.exporters.rewriting import Repair, rewrite
from stepscope.exporters.salvage import Salvage
from stepscope.runtime.errors import FormatError

PACKET = packet(SAYING, b"")[:1]
"""Begins every packet."""

MAX_PACKET = 64 << 20
"""Bytes of one packet; a longer one is damage."""

_FIRST = packet(SAYING, b"")[2:]
"""What follows the length of the first packet: the sequence that it is of."""


def repair_perfetto(path: Path) -> Repair:
    """Keeps the whole packets up to the first damage, so that other files may follow this one.

    Viewers read a file that was merely cut in any case. Memory is bounded by the longest packet.

    Args:
        path: a file of `PerfettoExporter`, plain or gzip, whatever its name.

    Raises:
        FormatError: it is not such a file.
        OutputError: it cannot be read or replaced.
    """
    return rewrite(path, _Packets)


class _Packets:
    """Copies packets up to the first that is not whole."""

    def __init__(self, source: Salvage, write: Callable[[bytes], object]) -> None:
        self.lost = 0
        self._source = source
        self._write = write
        self._ours = False

    @property
    def complete(self) -> bool:
        """Whether the file was as it should be."""
        return not self.lost and self._source.intact

    def copy(self) -> None:
        """Writes the trace.

        Raises:
            FormatError: if it is none of ours.
        """
        rest = b""
        damaged = False
        for piece in self._source.pieces():
            damaged = damaged or not self._source.intact  # something was passed over, inside a packet perhaps
            if damaged:
                self.lost += len(piece) + len(rest)
                rest = b""
                continue
            data = rest + piece
            end = self._whole(data)
            if end:
                self._write(data[:end])
            rest = data[end:]
            damaged = bool(rest) and (rest[:1] != PACKET or len(rest) > MAX_PACKET)
            if damaged:
                self.lost += len(rest)
                rest = b""
        self.lost += len(rest) + self._source.lost
        begun = rest[:1] == PACKET and _FIRST.startswith(rest[2:4])
        if not (self._ours or begun) and (self.lost or not self._source.intact):
            raise FormatError(f"{self._source.path} is not a Perfetto trace of stepscope")

    def _whole(self, data: bytes) -> int:
        """Where the last whole packet ends."""
        at = 0
        while at < len(data) and data[at : at + 1] == PACKET:
            length, begin = _length(data, at + 1)
            if length < 0 or begin + length > len(data):
                break
            if not self._ours and not data.startswith(_FIRST, begin):
                break
            self._ours = True
            at = begin + length
        return at


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends; -1 if it does not."""
    length = shift = 0
    while at < len(data) and shift < 35:
        length |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return length, at
    return -1, at
