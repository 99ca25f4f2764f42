"""Records some steps of an ordinary loop, and writes them for Perfetto (https://ui.perfetto.dev) as `trace.json`."""

from __future__ import annotations

import random

import stepscope as sc


def forward(batch: list[float]) -> float:
    return sum(x * x for x in batch)


def main() -> None:
    with sc.trace(
        schedule=sc.schedule(skip_first=2, wait=1, warmup=1, active=3, repeat=2),
        exporters=[sc.ChromeTraceExporter("trace.json")],
        output_dir="run",
    ) as profiler:
        for step in range(20):
            with sc.span("load", step=step):
                batch = [random.random() for _ in range(1000)]
            with sc.span("forward"):
                loss = forward(batch)
            sc.counter("loss", loss)
            profiler.step()
    print(profiler.summary())
    print(profiler.report())


if __name__ == "__main__":
    main()
