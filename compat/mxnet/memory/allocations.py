"""The table of allocations with the scope of each: an exporter that collects them until they are written."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from stepscope.analysis.allocations import Allocation, AllocationLog
from stepscope.backends.counters.nvml_library import LIBRARY, Nvml, NvmlError
from stepscope.compat.mxnet.memory.counters import used_on_devices
from stepscope.compat.mxnet.objects.scopes import CATEGORY, NONE
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.output import make_directory, output_error, whole_file
from stepscope.runtime.threads import locks

MOST_ALLOCATIONS = 1 << 18
"""Allocations, and scopes, that are collected; further ones are counted."""

AMEND = "nvml_amend"
"""Name of the row, for each device, with the memory that no allocation explains, as MXNet calls it."""

COLUMNS = ("Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?")
"""As in MXNet's GPU memory profile."""


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

    def labelled(self) -> list[tuple[str, Allocation]]:
        """The allocations in order of time, each with the innermost scope that was open on its thread."""
        with self._lock:
            return [(label or NONE, one) for label, one in self._log.labelled() if one.bytes > 0]

    def _unexplained_memory(self) -> list[tuple[str, int]]:
        """By device what is in use beside the allocations that backends tell of, by this process and others."""
        try:
            nvml = Nvml(LIBRARY)
        except NvmlError:  # no driver, no devices
            return []
        try:
            used = {f"gpu/{number}": size for number, size in used_on_devices(nvml)}
        finally:
            nvml.close()
        with self._lock:
            allocated = {one.device: one.held for _, one in self._log.labelled()}
        unexplained = [(device, size - allocated.get(device, 0)) for device, size in used.items()]
        return [(device, size) for device, size in unexplained if size > 0]

    def write(self, prefix: str) -> Path:
        """Writes `<prefix>-pid_<pid>.csv`, over what was written before.

        Raises:
            OutputError: if it cannot be written.
        """
        path = Path(f"{prefix}-pid_{os.getpid()}.csv")
        try:
            make_directory(path.parent)
            with whole_file(path) as place, place.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
                writer.writerow(COLUMNS)
                for label, one in self.labelled():
                    writer.writerow([label, one.bytes, one.device, one.bytes, 0])
                for device, size in self._unexplained_memory():
                    writer.writerow([AMEND, size, device, size, 0])
        except OSError as error:
            raise output_error(error, path, "write the allocations") from error
        return path
