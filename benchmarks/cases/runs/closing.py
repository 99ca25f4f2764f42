"""The end of a run that has nothing left to write."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases.steps.window_end import milliseconds
from benchmarks.cases.tools.session import scratch
from benchmarks.harness.peers import opentelemetry_provider, torch_profile, viztracer
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

if TYPE_CHECKING:
    from stepscope.exporters.base import Exporter

BUDGET = 50.0
"""Milliseconds that an end with nothing pending may take."""


def _exporters(directory: Path, outputs: int) -> list[Exporter]:
    """Beside the journal, which is the first output: a Chrome trace, and what TensorBoard reads."""
    import stepscope

    every: list[Exporter] = [
        stepscope.ChromeTraceExporter(directory / "trace.json"),
        stepscope.tensorboard_trace_handler(directory / "tensorboard"),
    ]
    return every[: max(outputs - 1, 0)]


def _close(outputs: int) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        def once() -> Sample:
            with scratch() as directory:
                options = stepscope.Options(journal=outputs > 0)
                exporters = _exporters(directory, outputs)
                profiler = stepscope.trace(output_dir=directory, exporters=exporters, options=options)
                profiler.start()
                with stepscope.span("x"):
                    pass
                profiler.stop()
                return Sample(milliseconds(profiler.close))

        yield once

    return probe


PROGRAM = """
import sys, time
if {asyncio}:
    sys.modules["uvloop"] = None
import stepscope
from pathlib import Path
from benchmarks.cases.runs.closing import _exporters
if {outputs}:
    place = Path({directory!r})
    profiler = stepscope.trace(output_dir=place, exporters=_exporters(place, {outputs}))
    profiler.start()
    with stepscope.span("x"):
        pass
    profiler.flush()
print(time.monotonic_ns(), flush=True)
"""


def _exit(outputs: int, asyncio: bool = False) -> Probe:
    """The time that the exit of an interpreter takes, from the last line of a program, more than that of one which traces
    nothing."""

    def ending(outputs: int) -> float:
        with scratch() as directory:
            program = PROGRAM.format(asyncio=asyncio, outputs=outputs, directory=str(directory))
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            return (time.monotonic_ns() - int(done.stdout)) / 1e6

    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        def once() -> Sample:
            without = ending(0)
            return Sample(ending(outputs) - without, without)

        yield once

    return probe


@contextmanager
def _torch(scale: Scale) -> Generator[Round]:
    def once() -> Sample:
        profile = torch_profile()
        profile.start()
        return Sample(milliseconds(profile.stop))

    yield once


@contextmanager
def _viztracer(scale: Scale) -> Generator[Round]:
    tracer = viztracer(1000)

    def once() -> Sample:
        tracer.start()
        tracer.stop()
        with scratch() as directory:
            return Sample(milliseconds(lambda: tracer.save(str(directory / "trace.json"))))

    yield once


@contextmanager
def _opentelemetry(scale: Scale) -> Generator[Round]:
    yield lambda: Sample(milliseconds(opentelemetry_provider().shutdown))


def _own(key: str, what: str, probe: Probe, heavy: bool = False) -> Row:
    contenders = (Contender(Tool.STEPSCOPE, "close", probe),)
    return Row(key=f"closing.{key}", what=what, unit="ms", budget=BUDGET, heavy=heavy, contenders=contenders)


ROWS = (
    Row(
        key="closing.idle",
        what="`close()` with nothing pending: a Chrome trace and the journal are completed",
        unit="ms",
        budget=BUDGET,
        contenders=(
            Contender(Tool.STEPSCOPE, "close", _close(2)),
            Contender(Tool.TORCH, "stop, nothing recorded", _torch),
            Contender(Tool.VIZTRACER, "save, nothing recorded", _viztracer),
            Contender(Tool.OPENTELEMETRY, "shutdown", _opentelemetry),
        ),
    ),
    _own("none", "the same without any exporter, and without a journal", _close(0)),
    _own("three", "the same with a Chrome trace, a trace for TensorBoard and the journal", _close(3)),
    _own(
        "exit",
        "exit of the interpreter with that profiler left open, nothing pending: more than without one",
        _exit(3),
        heavy=True,
    ),
    _own("asyncio", "the same on asyncio's loops instead of uvloop's", _exit(3, asyncio=True), heavy=True),
)
