"""Memory of the process and of torch's devices, as counters."""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.backends.base import BackendReport, Sink
from stepscope.compat.mxnet.pausing import pausing
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.schedule.schedule import ProfilerAction
from stepscope.runtime.threads import background_call

DEVICE_STORAGE = "Device Storage"
"""Category of the counters, as MXNet names it."""

INTERVAL = 0.05
"""Seconds between two looks."""


class MemoryBackend:
    """Looks at the memory in use 20 times a second, on a thread of its own: `Memory: cpu/0` is what the process has in
    RAM, and `Memory: gpu/<n>` what torch has allocated on device n, once the program has used CUDA. In bytes."""

    name = "mxnet memory"
    thread_bound = False

    def __init__(self) -> None:
        self._records = False
        self._changed = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._error = ""

    def open(self, sink: Sink) -> None:
        self._closed, self._records = False, False
        self._changed.clear()
        self._thread = threading.Thread(target=self._look, args=[sink], name="stepscope mxnet memory", daemon=True)
        background_call.start(self._thread)
        pausing.resumed = self._changed.set

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        self._records = after.records
        self._changed.set()

    @property
    def _looks(self) -> bool:
        return self._records and not pausing.paused

    def _look(self, sink: Sink) -> None:
        category, track = strings.category(DEVICE_STORAGE), tracks.process()
        while not self._closed:
            self._changed.wait(INTERVAL if self._looks else None)  # stopped or paused, it sleeps
            self._changed.clear()
            now = clock.now()
            found = list(self._in_use()) if self._looks else []
            try:
                if found:
                    sink.deliver(_block(found, now, category, track))
                sink.watermark(now)
            except ClosedError:
                return

    def _in_use(self) -> Iterator[tuple[str, int]]:
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            yield "Memory: cpu/0", pages * resource.getpagesize()
            torch: Any = sys.modules.get("torch")
            cuda = getattr(torch, "cuda", None)
            if cuda is not None and cuda.is_initialized():
                for device in range(cuda.device_count()):
                    yield f"Memory: gpu/{device}", cuda.memory_allocated(device)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    async def aclose(self) -> None:
        self._closed = True
        self._changed.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def report(self) -> BackendReport:
        return BackendReport(mode=f"every {INTERVAL} s", notes=(self._error,) if self._error else ())


def _block(found: list[tuple[str, int]], now: int, category: int, track: int) -> Block:
    events: Any = empty_block(len(found))
    events["ts"], events["kind"], events["category"], events["track"] = now, Kind.COUNTER, category, track
    events["name"] = [strings.intern(name) for name, _ in found]
    events["value"] = [value for _, value in found]
    return events  # type: ignore[no-any-return]
