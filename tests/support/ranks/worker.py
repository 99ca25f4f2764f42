"""A rank: trains for some steps, and streams them to a collector; run as a program of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from stepscope import counter, schedule, span, trace
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.transport import LinkSettings


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """Deviations of a rank from the others."""

    rank: int
    ahead_seconds: int = 0
    """Seconds by which its monotonic clock is ahead."""
    slow_seconds: float = 0.0
    """Seconds that each of its steps takes longer."""
    first_step: int = 0
    steps: int = 10
    killed_at: int = -1
    """The step in which it is killed."""


def main(url: str, directory: Path, rank: Rank) -> None:
    """Steps of about 15 ms. When each began is written down by the wall clock, which all ranks of the test share."""
    exporter = CollectorExporter(url, settings=LinkSettings(first_sync=0.02, sync_interval=0.1, closing_seconds=60))
    profiler = trace(
        schedule=schedule(wait=0, warmup=0, active=5),
        exporters=[exporter],
        output_dir=directory / f"run-{os.getpid()}",
        metadata={"model": "tiny"},
    )
    profiler.step_num = rank.first_step
    with open(directory / f"truth-{os.getpid()}", "w", encoding="utf-8") as truth, profiler:
        for step in range(rank.first_step, rank.steps):
            with span("compute"):
                if step == rank.killed_at:
                    time.sleep(1.0)  # until then is in the collector
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.01 + rank.slow_seconds)
                counter("loss", 1.0 / (1 + step))
            with span("gloo:all_reduce", category="user_annotation", step=step):
                print(rank.rank, step, time.time_ns(), file=truth, flush=True)
                time.sleep(0.005)
            profiler.step()
        time.sleep(0.3)  # some more comparisons of the clocks


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Rank))
