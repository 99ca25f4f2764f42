"""A service of greenlets, traced: `greenlet_service.py DIRECTORY LIBRARY ORDER PATCHING [PART]...`.

LIBRARY is gevent or eventlet. ORDER says when the standard library is patched: `before` stepscope is imported, after that
(`imported`), after the profiler was `started`, or in a span of its first `window`. PATCHING is JSON, for `patch_all` or
`monkey_patch`; gevent's `patch_thread` if it is `{"only": "thread"}`.

PARTs: `asyncio` for a loop that is not uvloop's, `restart` to stop and start the profiler in the middle, `open` to exit with the
profiler open, `starts_threads` for an exporter that has anyio start threads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio.to_thread

FOLDER, LIBRARY, ORDER, PATCHING, *PARTS = sys.argv[1:]
ROUNDS, REQUESTS = 6, 3


def patch() -> None:
    """Replaces parts of the standard library."""
    library: Any = import_module(LIBRARY)
    how: dict[str, Any] = json.loads(PATCHING)
    if LIBRARY == "eventlet":
        library.monkey_patch(**how)
    elif how.pop("only", "") == "thread":
        import_module("gevent.monkey").patch_thread()
    else:
        import_module("gevent.monkey").patch_all(**how)


if "asyncio" in PARTS:
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
if ORDER == "before":
    patch()
import stepscope  # noqa: E402

if ORDER == "imported":
    patch()


class StartsThreads:
    """An exporter that has anyio start threads."""

    name = "starts_threads"

    async def open(self, run: stepscope.exporters.Run) -> None:
        """Does nothing."""

    async def export(self, batch: stepscope.exporters.EventBatch) -> None:
        """Waits on a thread of anyio's."""
        await anyio.to_thread.run_sync(time.sleep, 0)

    async def close_window(self, window: stepscope.Window) -> None:
        """Does nothing."""

    async def aclose(self) -> None:
        """Does nothing."""


def main() -> None:
    """Serves requests, and prints what came of it."""
    called: list[int] = []
    windows: list[stepscope.Window] = []

    def finished(window: stepscope.Window) -> None:
        time.sleep(0.001)
        called.append(window.index)
        windows.append(window)

    exporters: list[stepscope.exporters.Exporter] = [
        stepscope.ChromeTraceExporter(f"{FOLDER}/trace.json"),
        stepscope.PerfettoExporter(f"{FOLDER}/trace.pftrace"),
    ]
    exporters += [StartsThreads()] if "starts_threads" in PARTS else []
    profiler = stepscope.trace(
        output_dir=f"{FOLDER}/run",
        schedule=stepscope.schedule(wait=0, warmup=0, active=2),
        exporters=exporters,
        on_trace_ready=finished,
        options=stepscope.Options(session_dir=FOLDER, close_timeout=1.5),
    )
    profiler.start()
    if ORDER == "started":
        patch()
    elif ORDER == "window":
        with stepscope.span("across"):
            patch()
    greenlets: Any = import_module(LIBRARY)

    def request(number: int) -> None:
        with stepscope.span(f"request {number}"), stepscope.span("part"):
            greenlets.sleep(0.01)

    for round_number in range(ROUNDS):
        spawned = [greenlets.spawn(request, number) for number in range(REQUESTS)]
        for one in spawned:
            (one.join if LIBRARY == "gevent" else one.wait)()
        thread = threading.Thread(target=lambda: stepscope.instant("of a thread of the program"))
        thread.start()
        thread.join()
        profiler.step()
        if "restart" in PARTS and round_number == ROUNDS // 2 - 1:
            assert profiler.flush()
            profiler.stop()
            profiler.start()
    if "open" in PARTS:
        sys.exit(3)
    profiler.close()
    copy = windows[0].export(f"{FOLDER}/copy.json")
    traced = json.loads(Path(FOLDER, "trace.json").read_text())
    events = [event for event in traced if event["ph"] in "XBb"]
    print(
        json.dumps(
            {
                "requests": sum(event["name"].startswith("request") for event in events),
                "parts": sum(event["name"] == "part" for event in events),
                "rows": len({event["tid"] for event in events if event["name"] == "part"}),
                "slices": all(event["ph"] == "X" for event in events),
                "windows": len(set(called)),
                "copied": copy.stat().st_size > 0,
                "audit": profiler.audit(),
                "diagnostics": profiler.diagnostics(),
                "report": str(profiler.report()),
            }
        )
    )


main()
