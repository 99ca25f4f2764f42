"""The table of allocations with the scope of each: an exporter that keeps them until they are written."""

from __future__ import annotations

import csv
import os
from bisect import bisect_right
from pathlib import Path
from typing import Any

import msgspec

from stepscope.compat.mxnet.scopes import CATEGORY, NONE
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.output import make_directory, output_error
from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.threads import locks

KEPT = 1 << 18
"""Allocations, and scopes, that are kept; further ones are counted."""

COLUMNS = ("Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?")
"""As in MXNet's GPU memory profile."""

_DEVICES = {0: "cpu", 1: "gpu"}
"""Numbers of torch's device types (c10/core/DeviceType.h)."""


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """One allocation."""

    at: int
    track: int
    bytes: int
    device: str
    parent: int


class _Scope(msgspec.Struct, frozen=True, gc=False):
    start: int
    end: int
    label: str


class Allocations:
    """Keeps what backends tell of allocations (`Kind.MEMORY`), such as `TorchBackend(profile_memory=True)`."""

    name = "mxnet allocations"

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self._kept: list[Allocation] = []
        self._scopes: dict[int, list[_Scope]] = {}
        self._number_of_scopes = 0
        self.left_out = 0
        """Allocations and scopes that there was no room for."""

    async def open(self, run: Run) -> None:
        pass

    async def export(self, batch: EventBatch) -> None:
        events = batch.events
        scopes = events[(events["kind"] == Kind.SPAN) & (events["category"] == strings.category(CATEGORY))]
        memory: Any = events[events["kind"] == Kind.MEMORY]
        with self._lock:
            for event in scopes[: max(KEPT - self._number_of_scopes, 0)]:
                start = int(event["ts"])
                found = _Scope(start, start + int(event["dur"]), strings.text(int(event["name"])))
                self._scopes.setdefault(int(event["track"]), []).append(found)
            room = max(KEPT - len(self._kept), 0)
            made = [one for event in memory[:room] if (one := _allocation(event, batch.args)) is not None]
            self._kept += made
            self.left_out += max(len(scopes) - max(KEPT - self._number_of_scopes, 0), 0) + max(len(memory) - room, 0)
            self._number_of_scopes += len(scopes)

    async def close_window(self, window: Window) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def labelled(self) -> list[tuple[str, Allocation]]:
        """The allocations in order of time, each with the innermost scope that was open on its thread."""
        with self._lock:
            kept = sorted(self._kept, key=lambda one: one.at)
            scopes = {track: sorted(found, key=lambda one: one.start) for track, found in self._scopes.items()}
        starts = {track: [one.start for one in found] for track, found in scopes.items()}
        labelled: list[tuple[str, Allocation]] = []
        for one in kept:
            near = scopes.get(one.track, [])[: bisect_right(starts.get(one.track, []), one.at)]
            label = next((scope.label for scope in reversed(near) if scope.end >= one.at), NONE)
            labelled.append((label, one))
        return labelled

    def write(self, prefix: str) -> Path:
        """Writes `<prefix>-pid_<pid>.csv`, over what was written before.

        Raises:
            OutputError: if it cannot be written.
        """
        path = Path(f"{prefix}-pid_{os.getpid()}.csv")
        part = path.with_name(path.name + ".part")
        try:
            make_directory(path.parent)
            with part.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
                writer.writerow(COLUMNS)
                for label, one in self.labelled():
                    writer.writerow([label, one.bytes, one.device, one.bytes, 0])
            part.replace(path)
        except OSError as error:
            raise output_error(error, path, "write the allocations") from error
        return path


def _allocation(event: Any, heap: bytes) -> Allocation | None:
    at, length = int(event["args_at"]), int(event["args_len"])
    arguments: dict[str, Any] = {}
    if event["flags"] & int(Flag.ARG_INLINE):
        arguments = {strings.text(at): length}
    elif length:
        arguments = _core.decode_arguments(heap, at, length)
    size = arguments.get("Bytes", 0)
    if not isinstance(size, int) or size <= 0:  # a release
        return None
    kind, number = arguments.get("Device Type", 0), arguments.get("Device Id", -1)
    device = f"{_DEVICES.get(kind, f'device {kind}')}/{max(number, 0)}"
    return Allocation(int(event["ts"]), int(event["track"]), size, device, int(event["parent"]))
