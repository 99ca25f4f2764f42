"""A backend of one's own: a thread that measures the memory of this process while steps are recorded."""

from __future__ import annotations

import asyncio
import resource
import threading
import time

import stepscope as sc
from stepscope.backends import BackendReport, Sink
from stepscope.exporters import Kind
from stepscope.runtime.events import clock, record, strings, tracks


class MemoryBackend:
    name = "memory"
    thread_bound = False  # open() and transition() need not run on the training thread

    def open(self, sink: Sink) -> None:
        self._records, self._closed = False, threading.Event()
        self._thread = threading.Thread(target=self._measure, args=[sink], name="memory backend", daemon=True)
        self._thread.start()

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        self._records = after.records

    def _measure(self, sink: Sink) -> None:
        while not self._closed.wait(0.005):
            now = clock.now()
            if self._records:
                event = record.empty_block(1)  # a source of many events delivers thousands at a time
                event["ts"], event["kind"], event["name"] = now, Kind.COUNTER, strings.intern("peak resident bytes")
                event["category"], event["track"] = strings.category("memory"), tracks.process()
                event["value"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                sink.deliver(event)
            sink.watermark(now)  # later events begin later: a window that ended before may close

    async def aclose(self) -> None:
        self._closed.set()
        await asyncio.to_thread(self._thread.join)

    def report(self) -> BackendReport:
        return BackendReport(mode="200 times a second")


if __name__ == "__main__":
    with sc.trace(backends=[MemoryBackend()], exporters=[sc.ChromeTraceExporter("trace.json")], output_dir="run") as p:
        time.sleep(0.5)
    print(p.report())
