"""One file in Perfetto's native format while it is written."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from stepscope.exporters.files.chrome_file import NOTES
from stepscope.exporters.files.output import OutputFile
from stepscope.exporters.files.trace_file import TraceFile, begin, write_head
from stepscope.runtime import _core
from stepscope.runtime.events.clock import WALL_STEP_NS
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.record import Block
from stepscope.runtime.export.run import Run
from stepscope.runtime.session.note import TraceNote

SAYING = 2
"""Packet sequence of notes about the run and its windows. The encoder uses others, with 1 for descriptors."""

REALTIME, MONOTONIC = 1, 3
"""Numbers of clocks (perfetto/common/builtin_clock.proto)."""

INSTANT = 3


def base_of(run: Run) -> int:
    """64 bits that differ between runs, ranks and processes, for ids of rows."""
    text = repr((run.host, run.pid, run.rank, run.anchor.monotonic_ns, run.anchor.wall_ns))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "little")


class PerfettoFile(TraceFile):
    """A `.pftrace` being written. It can be read after every piece, but for begins of spans that are still delayed."""

    def __init__(self, path: Path, run: Run, output: OutputFile, limit: int | None) -> None:
        super().__init__(path, run, output, limit)
        self._encoder = _core.PerfettoEncoder(base_of(run), run.pid)
        self._process = self._encoder.process(run.pid)
        self._notes = self._process ^ 1 << 63 or 1
        """Number of the row with facts about the run and its windows."""
        self._ahead = 0  # wall clock less monotonic clock, as the file has it

    @classmethod
    async def create(cls, path: Path, run: Run, gzip: bool, limit: int | None, note: TraceNote) -> PerfettoFile:
        """Creates the file and writes its head; `note` says how it is written anew.

        Raises:
            OutputError: if it cannot be written.
        """
        output = await begin(path, run, note, gzip=gzip)
        file = cls(path, run, output, limit)
        await write_head(output, file._head())
        return file

    def count_unfinished(self) -> int:
        """Spans whose begin is delayed."""
        return self._encoder.delayed

    def write_pending(self) -> None:
        """Writes the pending begins."""
        if not self._ended and self._encoder.delayed:
            self._put(self._encoder.release())

    def _write(self, events: Block, args: bytes, window: int) -> None:
        self._put(self._encoder.encode(events, args, window), len(events))

    def _put(self, packets: bytes, events: int = 0) -> None:
        """Writes the encoder's last packets. If the system refuses them, the encoder makes them again, with the names in them."""
        try:
            self.output.write(packets, events=events)
        except BaseException:
            self._encoder.forget()
            raise

    def _instant(self, name: str, at: int, args: Mapping[str, Any]) -> bytes:
        annotations = b"".join(
            field(4, _annotation(key, value)) for key, value in cast(dict[str, object], plain(args, items=None)).items()
        )
        event = field(9, INSTANT) + field(11, self._notes) + field(22, "stepscope") + field(23, name) + annotations
        return packet(SAYING, field(8, at) + field(58, MONOTONIC) + field(11, event))

    def _opening(self, at: int) -> bytes:
        run = self._run
        about = {
            "schemaVersion": 1,
            "clock": run.anchor,
            **({"run_id": run.id} if run.id else {}),
            "host_name": run.host,
            "rank": run.rank,
            "world_size": run.world_size,
        }
        return self._clocks(at) + self._instant("run", at, about)

    def _clocks(self, at: int) -> bytes:
        """The wall clock at a monotonic time."""
        wall = self._run.wall(at)
        self._ahead = wall - at
        return packet(SAYING, _snapshot(at, wall))

    def mark(self, name: str, at: int, args: Mapping[str, Any]) -> None:
        """The same, and what the wall clock shows now if it was set."""
        if self._opened and abs(self._run.wall(at) - at - self._ahead) > WALL_STEP_NS:
            self.output.write(self._clocks(at))
        super().mark(name, at, args)

    def _head(self) -> bytes:
        run = self._run
        label = run.host if run.rank is None else f"rank {run.rank} on {run.host}"
        process = field(1, run.pid) + field(6, plain(run.name)) + field(8, plain(label))
        if run.rank is not None:
            process += field(3, run.rank)
        descriptor = field(1, self._process) + field(3, process)
        notes = field(1, self._notes) + field(5, self._process) + field(2, NOTES)
        return packet(SAYING, field(60, descriptor)) + packet(SAYING, field(60, notes))


def _varint(number: int) -> bytes:
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
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def packet(sequence: int, fields: bytes) -> bytes:
    """A whole packet of a sequence."""
    return field(1, field(10, sequence) + fields)


def _snapshot(monotonic_ns: int, wall_ns: int) -> bytes:
    """The monotonic clock is that of the trace; what it was when the wall clock showed what."""
    read = ((MONOTONIC, monotonic_ns), (REALTIME, wall_ns))
    clocks = b"".join(field(1, field(1, clock) + field(2, time)) for clock, time in read)
    return field(6, clocks + field(2, MONOTONIC))


def _annotation(name: str | None, value: object) -> bytes:
    """A debug annotation of what JSON can say; without a name, an element of a list."""
    message = b"" if name is None else field(10, name)
    if isinstance(value, dict) and value:
        entries = cast(dict[str, object], value)
        return message + b"".join(field(11, _annotation(key, item)) for key, item in entries.items())
    if isinstance(value, list) and value:
        items = cast(list[object], value)
        return message + b"".join(field(12, _annotation(None, item)) for item in items)
    if isinstance(value, bool):
        return message + field(2, value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return message + field(4, value)
    if isinstance(value, float):
        return message + field(5, value)
    return message + field(6, "null" if value is None else str(cast(Any, value)))
