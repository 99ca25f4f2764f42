"""Records a span with an installed stepscope, as its first user would; run outside the tree."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import stepscope as sc
from stepscope.exporters.memory import MemoryExporter


def main() -> None:
    """Traces three steps, and fails unless exactly the recorded one's span came out."""
    memory = MemoryExporter()
    with (
        tempfile.TemporaryDirectory() as directory,
        sc.trace(
            schedule=sc.schedule(wait=1, warmup=1, active=1), exporters=[memory], output_dir=Path(directory) / "run"
        ) as profiler,
    ):
        for step in range(3):
            with sc.span("smoke", step=step):
                pass
            profiler.step()
    profiler.raise_errors()
    (window,) = memory.windows
    assert window.complete, window.diagnostics
    assert [step.number for step in window.steps] == [2], window.steps
    (row,) = (row for row in window.summary().rows if row.name == "smoke")
    assert row.count == 1, row
    python = ".".join(map(str, sys.version_info[:3]))
    torch = "with" if importlib.util.find_spec("torch") else "without"
    print(
        f"stepscope on Python {python}, {torch} torch: recorded 1 span of {row.total_ns} ns in {Path(sc.__file__).parent}"
    )


if __name__ == "__main__":
    main()
