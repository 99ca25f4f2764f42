"""The time until something can be recorded: the import, and the first start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from benchmarks.cases.steps.window_end import milliseconds
from benchmarks.cases.tools.session import scratch
from benchmarks.harness.peers import opentelemetry_provider, peer, torch_profile, viztracer
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


def _imported(module: str) -> Probe:
    """A new interpreter's time for an import statement, as it sees it itself; files are in the page cache."""
    code = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"

    def once() -> Sample:
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        return Sample(float(done.stdout.split()[-1]))

    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        peer(module)
        yield once

    return probe


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    with scratch() as directory:
        profiler = stepscope.trace(output_dir=directory)
        yield lambda: Sample(milliseconds(profiler.start))
        profiler.close()


def _first(start: Callable[[], object], module: str) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        peer(module)
        yield lambda: Sample(milliseconds(start))

    return probe


ROWS = (
    Row(
        key="startup.import",
        what="import",
        unit="ms",
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "import stepscope", _imported("stepscope")),
            Contender(Tool.TORCH, "import torch.profiler", _imported("torch.profiler"), every=3),
            Contender(Tool.VIZTRACER, "import viztracer", _imported("viztracer"), every=2),
            Contender(
                Tool.OPENTELEMETRY, "import opentelemetry.sdk.trace.export", _imported("opentelemetry.sdk.trace.export")
            ),
            Contender(Tool.NVTX, "import nvtx", _imported("nvtx")),
        ),
    ),
    Row(
        key="startup.start",
        what="first `start()` in a process: directories, rings, loop thread, journal",
        unit="ms",
        fresh=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "start", _stepscope),
            Contender(Tool.TORCH, "profile.start", _first(lambda: torch_profile().start(), "torch.profiler"), every=3),
            Contender(Tool.VIZTRACER, "VizTracer.start", _first(lambda: viztracer(1_000_000).start(), "viztracer")),
            Contender(
                Tool.OPENTELEMETRY,
                "TracerProvider, BatchSpanProcessor",
                _first(opentelemetry_provider, "opentelemetry.sdk.trace.export"),
            ),
        ),
    ),
)
