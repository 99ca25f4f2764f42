"""A training loop that traces to a bad exporter and to good ones, as a program: the events of each, and the cost.

usage: python -m tests.stress.torture.faulty_exporter_loop HOW METHOD DIRECTORY PORT SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import stepscope as sc
from stepscope.exporters.base import EventBatch, Exporter
from stepscope.exporters.memory import MemoryExporter, Method
from stepscope.runtime.events import strings
from stepscope.runtime.journal.reader import JournalReader
from tests.stress.torture.servers import StreamExporter
from tests.support.exceptions import length

STEPS = 60
SPANS = 50
TIMEOUT = 1.0
"""`Options.close_timeout` of most trials, in seconds: shorter than its default, so that many fit into a run."""


class Threaded(MemoryExporter):
    """Hands its work to a thread, as most do who call a synchronous client, and that never comes back."""

    async def export(self, batch: EventBatch) -> None:
        await asyncio.to_thread(threading.Event().wait)


class Lost(MemoryExporter):
    """Reads what a server says to each batch, on a connection that was lost: asyncio raises the same object each time."""

    async def export(self, batch: EventBatch) -> None:
        if not self.calls.count("export"):
            self._reader = asyncio.StreamReader()
            self._reader.set_exception(ConnectionResetError("by the server"))
        self.calls.append("export")
        await self._reader.readexactly(1)


class Full(sc.ChromeTraceExporter):
    """Writes to a disk that is too small."""

    def __init__(self, disk: Path) -> None:
        super().__init__(disk / "trace.json")
        self.name = "bad"


def neighbours(how: str, method: Method, directory: Path, port: int) -> list[Exporter]:
    """The bad exporters."""
    if how == "several":
        blocks = MemoryExporter(name="bad 3", block_in=method)
        return [MemoryExporter(name="bad", hang_in=method), Threaded(name="bad 2"), blocks, Threaded(name="bad 4")]
    return [neighbour(how, method, directory, port)]


def neighbour(how: str, method: Method, directory: Path, port: int) -> Exporter:
    """One."""
    match how:
        case "raise":
            return MemoryExporter(name="bad", fail={method: OSError("the disk is on fire")})
        case "cancel":
            return MemoryExporter(name="bad", fail={method: asyncio.CancelledError("made up")})
        case "exit":
            return MemoryExporter(name="bad", fail={method: SystemExit(3)})
        case "hang":
            return MemoryExporter(name="bad", hang_in=method)
        case "block":
            return MemoryExporter(name="bad", block_in=method)
        case "thread":
            return Threaded(name="bad")
        case "again":
            return Lost(name="bad")
        case "slow":
            return MemoryExporter(name="bad", delay=3.0)
        case "full":
            return Full(directory / "disk")
        case "connect":
            return StreamExporter(port)
        case "otlp":
            return sc.exporters.OtlpExporter(f"http://127.0.0.1:{port}")
        case "collector":
            return sc.CollectorExporter(f"ws://127.0.0.1:{port}")
        case "nats":
            return sc.exporters.NatsExporter(f"nats://127.0.0.1:{port}")
        case _:
            raise ValueError(f"no way to misbehave: {how}")


def longest(profiler: sc.Profiler) -> int:
    """Entries of the longest traceback of the stored errors; each keeps a frame and its objects alive."""
    try:
        profiler.raise_errors()
    except ExceptionGroup as group:
        causes = [error.__cause__ for error in group.exceptions if error.__cause__ is not None]
        linked = [
            further for cause in causes for further in (cause.__cause__, cause.__context__) if further is not None
        ]
        return max(map(length, [*causes, *linked]), default=0)
    return 0


def work(until: float) -> int:
    """A step's work: some spans, then idle until it is time for the next. Returns what the longest of them took, in ns."""
    longest = 0
    for _ in range(SPANS):
        before = time.perf_counter_ns()
        with sc.span("work", batch=7):
            pass
        longest = max(longest, time.perf_counter_ns() - before)
    time.sleep(max(until - time.perf_counter(), 0))
    return longest


def main(how: str, method: Method, directory: Path, port: int, seconds: float) -> dict[str, Any]:
    """Trains, and returns the accounts."""
    good = MemoryExporter(name="good")
    chrome = sc.ChromeTraceExporter(directory / "good.json")
    bad = neighbours(how, method, directory, port)
    options = sc.Options(close_timeout=seconds, drain_interval=0.05, queue_bytes=1 << 16)
    profiler = sc.trace(
        exporters=[*bad, good, chrome],
        output_dir=directory / "run",
        options=options,
    )
    durations: list[int] = []
    began = time.perf_counter()
    profiler.start()
    for step in range(STEPS):
        durations.append(work(began + (step + 1) * 0.01))
        before = time.perf_counter_ns()
        profiler.step()
        durations.append(time.perf_counter_ns() - before)
    before = time.perf_counter_ns()
    profiler.close()
    closing = time.perf_counter_ns() - before
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    with JournalReader(directory / "run" / "journal") as reader:
        journal = sum(
            int((item.events["name"] == strings.intern("work")).sum())
            for item in reader
            if isinstance(item, EventBatch)
        )
    trace = json.loads((directory / "good.json").read_text())
    rows: list[dict[str, Any]] = trace["traceEvents"] if "traceEvents" in trace else trace
    return {
        "blocked": max(durations),
        "closing": closing,
        "journal": journal,
        "chrome": sum(row.get("name") == "work" for row in rows),
        "memory": good.names().count("work"),
        "ledger": {
            output.name: [
                output.ledger.offered, output.ledger.exported, output.ledger.dropped, output.ledger.in_flight,
            ]
            for output in pipeline.exporters
        },
        "longest": longest(profiler),
        # Events that a collector has not confirmed are stored in files; this is no error.
        "named": {
            output.name: bool(output.first_error or output.unsent_files)
            for output in pipeline.exporters if output.name in {exporter.name for exporter in bad}
        },
    }  # fmt: skip


if __name__ == "__main__":
    accounts = main(sys.argv[1], cast(Method, sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    print(json.dumps({**accounts, "ending": time.monotonic_ns()}), flush=True)
