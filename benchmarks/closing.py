"""The end of a run that has nothing left to write."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from benchmarks.peers import opentelemetry_provider, torch_profile, viztracer
from benchmarks.row import Contender, Round, Row, Sample, Tool
from benchmarks.scale import Scale
from benchmarks.session import scratch
from benchmarks.window_end import milliseconds


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    def once() -> Sample:
        with scratch() as directory:
            exporters = [stepscope.ChromeTraceExporter(directory / "trace.json")]
            profiler = stepscope.trace(output_dir=directory, exporters=exporters)
            profiler.start()
            with stepscope.span("x"):
                pass
            profiler.stop()
            return Sample(milliseconds(profiler.close))

    yield once


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


ROWS = (
    Row(
        key="closing.idle",
        what="`close()` with nothing pending: a Chrome trace and the journal are completed",
        unit="ms",
        contenders=(
            Contender(Tool.STEPSCOPE, "close", _stepscope),
            Contender(Tool.TORCH, "stop, nothing recorded", _torch),
            Contender(Tool.VIZTRACER, "save, nothing recorded", _viztracer),
            Contender(Tool.OPENTELEMETRY, "shutdown", _opentelemetry),
        ),
    ),
)
