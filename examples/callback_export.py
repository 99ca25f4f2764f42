"""Looks at every window as soon as it is there, and keeps a trace only of those that were slow."""

from __future__ import annotations

import time
from pathlib import Path

import stepscope as sc

saved: list[Path] = []


def keep_if_slow(window: sc.Window) -> None:
    """Runs off the loop's thread, while the loop goes on; may also be a coroutine function."""
    times = [step.end_ns - step.start_ns for step in window.steps]
    print(f"window {window.index}: slowest step {max(times) / 1e6:.1f} ms")
    if max(times) > 100_000_000:
        saved.append(window.export(f"slow-{window.index}.json.gz"))


def main() -> None:
    schedule = sc.schedule(wait=0, warmup=1, active=2, repeat=3)
    print(schedule.plan(9))
    with sc.trace(schedule=schedule, on_trace_ready=keep_if_slow, output_dir="run") as profiler:
        for step in range(9):
            with sc.span("work"):
                time.sleep(0.2 if step == 4 else 0.001)
            profiler.step()
    profiler.raise_errors()
    print("saved", *saved)


if __name__ == "__main__":
    main()
