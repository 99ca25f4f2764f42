"""Trains a line with no schedule: the last steps are always kept, and saved when one is slow or the loss is NaN."""

from __future__ import annotations

import math
import random
import time

import stepscope as sc
from stepscope.triggers import NotFinite, Raised, SlowStep

RECORDER = sc.FlightRecorder(
    steps=5, triggers=(SlowStep(factor=3, least=0.05), NotFinite(counters=("loss",)), Raised())
)


def load(step: int) -> list[tuple[float, float]]:
    if step == 60:
        time.sleep(0.3)  # a file server that is busy
    return [(x, 3 * x + 1) for x in (random.uniform(-1, 1) for _ in range(200))]


def train(batch: list[tuple[float, float]], slope: float, offset: float, rate: float) -> tuple[float, float, float]:
    errors = [(slope * x + offset - y, x) for x, y in batch]
    loss = sum(error * error for error, _ in errors) / len(batch)
    slope -= rate * sum(error * x for error, x in errors) / len(batch)
    offset -= rate * sum(error for error, _ in errors) / len(batch)
    return loss, slope, offset


def print_window(window: sc.Window) -> None:
    print(*window.diagnostics)


def main() -> None:
    slope = offset = 0.0
    with sc.trace(keep_last=RECORDER, output_dir="run", on_trace_ready=print_window) as profiler:
        for step in range(120):
            with sc.span("load"):
                batch = load(step)
            with sc.span("train"):
                loss, slope, offset = train(batch, slope, offset, rate=0.1 if step != 100 else math.inf)
            sc.counter("loss", loss)
            profiler.step()
    for path in sorted((profiler.output.path / "windows").iterdir()):
        print("saved", path.name)


if __name__ == "__main__":
    main()
