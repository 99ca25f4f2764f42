"""An accelerator that does not exist: late, bursty, on a clock of its own. For trying out how windows wait for it."""

from __future__ import annotations

import time

import stepscope as sc


def main() -> None:
    device = sc.backends.SimulatedDevice(
        streams=2, kernels_per_second=20_000, clock_skew=3_000_000, clock_drift=50, flush_delay=0.05
    )
    memory = sc.exporters.MemoryExporter()
    with sc.trace(
        schedule=sc.schedule(wait=1, warmup=1, active=3, repeat=1),
        backends=[device],
        exporters=[memory, sc.ChromeTraceExporter("trace.json")],
        output_dir="run",
    ) as profiler:
        for _ in range(8):
            with sc.span("launch and wait"):
                time.sleep(0.01)
            profiler.step()
    (window,) = memory.windows
    for source, account in window.ledger.sources.items():
        print(f"{source}: {account.produced} produced, {account.accepted} in the window")
    print(profiler.report())


if __name__ == "__main__":
    main()
