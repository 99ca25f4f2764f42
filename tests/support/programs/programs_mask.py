"""A program whose callbacks, exporters, backends and triggers say which signals they block, and start programs: `<place> <loop>`.

It prints one line for each of them: what it blocks, how `sh -c 'kill $$'` that it starts ends, and what that blocks.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.support.programs.masked_threads import OURS_NOT, check

if sys.argv[2:] == ["asyncio"]:
    sys.modules["uvloop"] = None  # type: ignore[assignment]

import stepscope as sc  # noqa: E402 - after that

OWN = {signal.SIGUSR1, signal.SIGWINCH}
seen: dict[str, set[str]] = {}


def blocked() -> str:
    """Signals that this thread blocks."""
    return " ".join(sorted(signal.Signals(number).name for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def note_mask(where: str) -> None:
    """Notes what this thread blocks, and how a program ends that it starts."""
    killed = subprocess.run(["sh", "-c", "kill $$; sleep 0.1"]).returncode
    seen.setdefault(where, set()).add(f"blocks {blocked()}; sh ends with {killed}")


def wait_for(where: str) -> None:
    """Waits until it was noted."""
    end = time.monotonic() + 20
    while where not in seen and time.monotonic() < end:
        time.sleep(0.01)


def forked(where: str) -> None:
    """The same of a process that is forked."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(20,))
    process.start()
    process.terminate()
    process.join(10)
    seen.setdefault(where, set()).add(f"blocks {blocked()}; sh ends with {process.exitcode}")


class Exports:
    """An exporter of the program."""

    name = "mine"

    async def open(self, run: sc.exporters.Run) -> None:
        note_mask("exporter, open")

    async def export(self, batch: sc.exporters.EventBatch) -> None:
        await asyncio.sleep(0.001)
        note_mask("exporter, export")
        await asyncio.to_thread(note_mask, "exporter, to_thread")
        process = await asyncio.create_subprocess_exec("sh", "-c", "kill $$; sleep 0.1")
        seen.setdefault("exporter, asyncio", set()).add(f"blocks {blocked()}; sh ends with {await process.wait()}")

    async def close_window(self, window: sc.Window) -> None:
        note_mask("exporter, close_window")

    async def aclose(self) -> None:
        note_mask("exporter, aclose")
        raise OSError("its own")


class Delivers:
    """A backend of the program."""

    name, thread_bound = "mine", False

    def open(self, sink: sc.backends.Sink) -> None:
        note_mask("backend, open")
        self.sink = sink

        async def soon() -> None:
            note_mask("backend, run_soon")
            await asyncio.to_thread(note_mask, "backend, to_thread")

        sink.run_soon(soon)

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        note_mask("backend, transition")
        self.sink.watermark(at)

    async def aclose(self) -> None:
        note_mask("backend, aclose")

    def report(self) -> sc.backends.BackendReport:
        return sc.backends.BackendReport()


class Trigger:
    """A trigger of the program."""

    name = "mine"

    def evaluator(self) -> Trigger:
        note_mask("trigger, evaluator")
        return self

    def look(self, news: sc.triggers.News) -> Sequence[sc.triggers.Finding]:
        note_mask("trigger, look")
        return ()


def ready(window: sc.Window) -> None:
    note_mask("callback")
    forked("callback, fork")


async def ready_later(window: sc.Window) -> None:
    note_mask("callback, async")
    await asyncio.sleep(0.01)
    note_mask("callback, async, later")


def main(place: str) -> None:
    def trace(name: str, **settings: Any) -> sc.Profiler:
        return sc.trace(output_dir=f"{place}/{name}", schedule=sc.schedule(wait=0, warmup=0, active=1), **settings)

    OURS_NOT.add(threading.get_native_id())
    recorder = sc.FlightRecorder(steps=2, triggers=(Trigger(),))
    signal.pthread_sigmask(signal.SIG_BLOCK, OWN)
    profilers = [
        trace("0", on_trace_ready=ready),
        trace("1", on_trace_ready=ready_later, backends=[Delivers()], exporters=[Exports()]),
        sc.trace(output_dir=f"{place}/2", keep_last=recorder),
    ]
    for profiler in profilers:
        profiler.start()
    wait_for("backend, to_thread")
    for profiler in profilers:
        profiler.step()
    for profiler in profilers:
        profiler.flush(20)
    wait_for("trigger, look")
    check("flushed")
    for profiler in profilers:
        profiler.close()
    check("closed")
    try:
        profilers[1].raise_errors()
    except ExceptionGroup as group:
        seen.update({f"error {error}": {""} for error in group.exceptions if not str(error).endswith("its own")})
    for where, how in sorted(seen.items()):
        for each in sorted(how):
            print(f"{where}: {each}")


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
