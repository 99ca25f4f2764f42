"""Memory of the process and of devices, as counters."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from typing import Any

from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading
from stepscope.backends.counters.nvml import LIBRARY, Nvml, NvmlError
from stepscope.backends.counters.process_memory import resident_bytes

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
    """Number and bytes in use, by all processes, of each device that says it."""
    for number in range(nvml.count):
        try:
            readings = {reading.name: reading.value for reading in nvml.device(number).memory()}
        except NvmlError:
            continue
        yield number, int(readings["memory used"])
