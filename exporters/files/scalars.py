"""Times of steps as scalars for TensorBoard, whose own pages draw them."""

from __future__ import annotations

import errno
import itertools
import os
import re
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.files.output import check_directory, open_for_writing, output_error
from stepscope.runtime.export.run import refuse_another_run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.settings.arguments import path_argument
from stepscope.runtime.windows.step_facts import Facts, Phase

MAX_POINTS = 1024
"""Points that wait to be written; the oldest are dropped."""
DURATION, LONGEST = "step (ms)/mean", "step (ms)/longest"
"""Names of charts; those of phases follow `PHASE_GROUP`."""
PHASE_GROUP = "time in a step (ms)/"

_numbers = itertools.count()
"""Distinguish the files of a process."""

_DOUBLE, _BYTES, _FLOAT = 1, 2, 5
"""Wire types of protobuf."""
_CASTAGNOLI = 0x82F63B78
"""The polynomial of CRC-32C, bits reversed."""


def _crc_table() -> tuple[int, ...]:
    table: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _crc_table()


class _Point(msgspec.Struct, frozen=True):
    """Values at one step."""

    step: int
    wall_s: float
    values: dict[str, float]


class StepScalarExporter:
    """Writes the time of steps, and of their phases, as scalars for TensorBoard, about once a second.

    TensorBoard draws them on its own pages, without a plugin and without a network. A point has the means of all steps that ended
    since the point before, and stands at the last of them. The file grows by whole records, so it can be read while training goes on, and
    after a kill. It is `events.out.tfevents.<seconds>.<host>.<pid>.<n>`, in `rank<n>` of the directory if the process has a rank.
    No event is in it: they count as exported.

    Format: TFRecord, and the messages `Event` and `Summary`, of
    https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto.

    Args:
        dir_name: the run's directory, to be given to TensorBoard as `--logdir`, or one below that.

    Raises:
        TypeError: if `dir_name` is no path.
    """

    needs_events = False
    """`export` gets no events."""

    def __init__(self, dir_name: str | os.PathLike[str]) -> None:
        path_argument("dir_name", dir_name)
        self.name = f"scalars:{os.fsdecode(dir_name)}"
        self._directory = absolute(dir_name)
        self._run: Run | None = None
        self._file: BinaryIO | None = None
        self._path = self._directory
        self._points: deque[_Point] = deque(maxlen=MAX_POINTS)
        self._phases: set[Phase] = set()
        """Phases that have had time in some step: their charts go on with 0."""

    async def open(self, run: Run) -> None:
        """Creates the file.

        Raises:
            OutputError: if it cannot be written.
        """
        refuse_another_run(self, self._run)
        self._run = run
        directory = self._directory if run.rank is None else self._directory / f"rank{run.rank}"
        check_directory(directory)
        host = re.sub(r"[/\\\0]", "_", run.host)[:64]
        self._path = directory / f"events.out.tfevents.{int(time.time()):010}.{host}.{run.pid}.{next(_numbers)}"
        self._file = self._create()
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))
        if run.steps is not None:
            run.steps.follow(self._receive)

    def _create(self) -> BinaryIO:
        try:
            return open(self._path, "wb", buffering=0, opener=open_for_writing)
        except OSError as error:
            raise output_error(error, self._path, "create the file") from error

    async def export(self, batch: EventBatch) -> None:
        """Writes the points that wait."""
        self._write_points()

    async def close_window(self, window: Window) -> None:
        """Writes the points that wait."""
        self._write_points()

    async def aclose(self) -> None:
        """Writes the last points, and closes the file."""
        file = self._file
        if file is None:
            return
        if self._run is not None and self._run.steps is not None:
            self._run.steps.unfollow(self._receive)
        try:
            self._write_points()
        finally:
            self._file = None
            file.close()

    def _receive(self, facts: Facts) -> None:
        """Gets the facts of steps that have ended, on the thread of the pipeline's loop."""
        if not len(facts) or self._run is None:
            return
        durations = (facts["end"] - facts["begin"]) / 1e6
        phases: Sequence[float] = (facts["phases"].mean(axis=0) / 1e6).tolist()
        self._phases.update(phase for phase in Phase if phases[phase] > 0)
        values = {DURATION: float(durations.mean()), LONGEST: float(durations.max())}
        values |= {PHASE_GROUP + _name(phase): phases[phase] for phase in sorted(self._phases)}
        last: Any = facts[-1]
        self._points.append(_Point(int(last["step"]), self._run.anchor.wall(int(last["end"])) / 1e9, values))

    def _write_points(self) -> None:
        while self._points:
            point = self._points.popleft()
            values = b"".join(
                _bytes(1, _bytes(1, name.encode()) + _float(2, value)) for name, value in point.values.items()
            )
            self._write(_double(1, point.wall_s) + _key(2, 0) + _varint(point.step) + _bytes(5, values))

    def _write(self, event: bytes) -> None:
        """Appends one record.

        Raises:
            OutputError: if the system refuses it. The file ends with the record before.
        """
        assert self._file is not None
        head = struct.pack("<Q", len(event))
        record = head + _checksum(head) + event + _checksum(event)
        begin = self._file.tell()
        try:
            written = self._file.write(record)
            if written != len(record):
                self._file.truncate(begin)
                self._file.seek(begin)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise output_error(error, self._path, "write") from error


def _name(phase: Phase) -> str:
    return "other spans" if phase is Phase.SPAN else phase.name.lower().replace("_", " ")


def _checksum(content: bytes) -> bytes:
    """The masked CRC-32C of TFRecord."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _key(field, _FLOAT) + struct.pack("<f", value)
