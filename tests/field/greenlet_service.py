"""A service of greenlets, traced: `greenlet_service.py DIRECTORY LIBRARY ORDER PATCHING`.

LIBRARY is gevent or eventlet. ORDER says when the standard library is patched: before stepscope is imported, after that, or
after the profiler was started. PATCHING is JSON, for `patch_all` or `monkey_patch`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER, LIBRARY, ORDER, PATCHING = sys.argv[1:]
ROUNDS, REQUESTS = 2, 3


def patch() -> None:
    """Replaces parts of the standard library."""
    library: Any = import_module(LIBRARY)
    how: Callable[..., Any] = (
        library.monkey_patch if LIBRARY == "eventlet" else import_module("gevent.monkey").patch_all
    )
    how(**json.loads(PATCHING))


if ORDER == "before":
    patch()
import stepscope  # noqa: E402

if ORDER == "imported":
    patch()


def main() -> None:
    """Serves requests, and prints what came of it."""
    exporter = stepscope.ChromeTraceExporter(f"{FOLDER}/trace.json")
    options = stepscope.Options(session_dir=FOLDER, close_timeout=1.5)
    with stepscope.trace(output_dir=f"{FOLDER}/run", exporters=[exporter], options=options) as profiler:
        if ORDER == "started":
            patch()
        greenlets: Any = import_module(LIBRARY)

        def request(number: int) -> None:
            with stepscope.span(f"request {number}"), stepscope.span("part"):
                greenlets.sleep(0.01)

        for _ in range(ROUNDS):
            spawned = [greenlets.spawn(request, number) for number in range(REQUESTS)]
            for one in spawned:
                (one.join if LIBRARY == "gevent" else one.wait)()
            profiler.step()
    events = [event for event in json.loads(Path(FOLDER, "trace.json").read_text()) if event["ph"] in "XBb"]
    print(
        json.dumps(
            {
                "requests": sum(event["name"].startswith("request") for event in events),
                "parts": sum(event["name"] == "part" for event in events),
                "rows": len({event["tid"] for event in events if event["name"] == "part"}),
                "slices": all(event["ph"] == "X" for event in events),
                "diagnostics": profiler.diagnostics(),
            }
        )
    )


main()
