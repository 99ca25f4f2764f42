"""Streams a run to a collector while it lasts: start one first with `stepscope collect --dir runs/job1`.

Training does not notice if the collector is away: the run's journal is sent when the collector is there again, and
`stepscope deliver run --url URL` sends the rest when the run is over.
"""

from __future__ import annotations

import random
import sys
import time

import stepscope as sc


def main(url: str = "ws://127.0.0.1:7788") -> None:
    # The token, if the collector wants one, comes from the environment variable STEPSCOPE_TOKEN.
    exporter = sc.CollectorExporter(url)
    with sc.trace(exporters=[exporter], output_dir="run", schedule=sc.schedule(wait=0, warmup=1, active=5)) as profiler:
        for _ in range(30):
            with sc.span("forward"):
                time.sleep(random.uniform(0.001, 0.003))
            with sc.span("backward"):
                time.sleep(0.002)
            profiler.step()
    found = exporter.statistics()
    print(f"{found.confirmed if found else 0} frames are with the collector at {url}")


if __name__ == "__main__":
    main(*sys.argv[1:])
