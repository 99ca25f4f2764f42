"""Memory of the process and of devices as counters, and the table of allocations with the scope of each."""

from __future__ import annotations

import csv
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.analysis.tables.allocations import AllocationLog
from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading
from stepscope.backends.counters.nvml import LIBRARY, Nvml, NvmlError
from stepscope.backends.counters.process_memory import resident_bytes
from stepscope.compat.mxnet.objects.scopes import CATEGORY, NONE
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.files.output import make_directory, output_error, whole_file
from stepscope.runtime.threads import locks

DEVICE_STORAGE = "Device Storage"
"""Category of the counters, as MXNet names it."""

INTERVAL = 0.05
"""Seconds between two readings."""


class MemoryBackend(CountingBackend):
    """Reads the memory in use 20 times a second, on a thread of its own, in bytes: `Memory: cpu/0` is what the process has in RAM.
    `Memory: gpu/<n>` is what torch has allocated on device n, once the program has used CUDA; before, and without torch, what all
    processes have there, by NVIDIA's driver."""

    category = DEVICE_STORAGE

    def __init__(self) -> None:
        super().__init__("mxnet memory", INTERVAL)
        self._page = resource.getpagesize()
        self._nvml: Nvml | None = None
        self._paused = False

    def pause(self, paused: bool) -> None:
        """Reads nothing while recording is paused: the thread sleeps."""
        self._paused = paused
        self._wake.set()

    def open(self, sink: Sink) -> None:
        """Starts the thread."""
        try:
            self._nvml = Nvml(LIBRARY)
        except NvmlError:  # no driver, no devices
            self._nvml = None
        super().open(sink)

    async def aclose(self) -> None:
        await super().aclose()
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    @property
    def _recording(self) -> bool:
        return super()._recording and not self._paused

    def _read(self) -> Iterator[Reading]:
        yield Reading("Memory: cpu/0", resident_bytes(self._page))
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            for device in range(cuda.device_count()):
                yield Reading(f"Memory: gpu/{device}", cuda.memory_allocated(device))
        elif self._nvml is not None:
            for device, used in used_on_devices(self._nvml):
                yield Reading(f"Memory: gpu/{device}", used)


def used_on_devices(nvml: Nvml) -> Iterator[tuple[int, int]]:
    """Numbers of devices, and bytes in use there by all processes, for devices that report them."""
    for number in range(nvml.count):
        try:
            readings = {reading.name: reading.value for reading in nvml.device(number).memory()}
        except NvmlError:
            continue
        yield number, int(readings["memory used"])


MOST_ALLOCATIONS = 1 << 18
"""Allocations, and scopes, that are collected; further ones are counted."""

AMEND = "nvml_amend"
"""MXNet's name for the row, one for each device, with the memory that no allocation explains."""

COLUMNS = ("Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?")
"""Columns of MXNet's GPU memory profile."""


class Allocations:
    """Collects the allocations that backends report (`Kind.MEMORY`), such as `TorchBackend(profile_memory=True)`."""

    name = "mxnet allocations"

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self._log = AllocationLog(lambda _, category: category == CATEGORY, MOST_ALLOCATIONS)

    async def open(self, run: Run) -> None:
        pass

    async def export(self, batch: EventBatch) -> None:
        with self._lock:
            self._log.update(batch)

    async def close_window(self, window: Window) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def rows(self, requested: Mapping[tuple[str, int, int], int]) -> Iterator[tuple[str, int, str, int]]:
        """Allocations in order of time: the innermost scope open on the thread, requested bytes, device, actual bytes.

        Args:
            requested: of blocks that are allocated still, by device, address and actual bytes. Other allocations have their
                actual bytes in both places.
        """
        with self._lock:
            labelled = list(self._log.labelled())
        latest = {(one.device, one.address): one for _, one in labelled}
        for label, one in labelled:
            if one.bytes > 0:
                block = (one.device, one.address, one.bytes)
                requested_bytes = requested.get(block, one.bytes) if latest[block[:2]] is one else one.bytes
                yield label or NONE, requested_bytes, one.device, one.bytes

    def _unexplained_memory(self) -> list[tuple[str, int]]:
        """Memory in use by device that no reported allocation explains, of this process and others."""
        try:
            nvml = Nvml(LIBRARY)
        except NvmlError:  # no driver, no devices
            return []
        try:
            used = {f"gpu/{number}": size for number, size in used_on_devices(nvml)}
        finally:
            nvml.close()
        with self._lock:
            allocated = {one.device: one.in_use for _, one in self._log.labelled()}
        unexplained = [(device, size - allocated.get(device, 0)) for device, size in used.items()]
        return [(device, size) for device, size in unexplained if size > 0]

    def write(self, prefix: str) -> Path:
        """Writes `<prefix>-pid_<pid>.csv`, over what was written before. Raises `OutputError` if it cannot be
        written."""
        path = Path(f"{prefix}-pid_{os.getpid()}.csv")
        try:
            make_directory(path.parent)
            with whole_file(path) as place, place.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
                writer.writerow(COLUMNS)
                writer.writerows([*row, 0] for row in self.rows(requested_sizes(_segments())))
                for device, size in self._unexplained_memory():
                    writer.writerow([AMEND, size, device, size, 0])
        except OSError as error:
            raise output_error(error, path, "write the allocations") from error
        return path


def _segments() -> Iterable[Mapping[str, Any]]:
    """The segments of torch's allocator for devices, each with its blocks, as they are now."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ()
    try:
        segments: Iterable[Mapping[str, Any]] = cuda.memory_snapshot()
    except RuntimeError:  # of CUDA's own allocator, or of one that was plugged in, torch has none
        return ()
    return segments


def requested_sizes(segments: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int, int], int]:
    """The bytes that were requested of each block that is allocated, by device, address and bytes of the block, of what
    `torch.cuda.memory_snapshot()` returns."""
    return {
        (f"gpu/{segment['device']}", block["address"], block["size"]): block["requested_size"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
