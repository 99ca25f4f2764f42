"""Chrome JSON, uncompressed: the encoder alone, and from events in memory to the complete file.

Times are processor time of the whole process, so rates are per core whatever else runs on the machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.additions import additions
from benchmarks.emission import emit
from benchmarks.peers import torch_profile, viztracer
from benchmarks.row import Contender, Round, Row, Sample, Tool
from benchmarks.scale import Scale
from benchmarks.session import scratch, session

if TYPE_CHECKING:
    from stepscope.runtime.events import EventBatch
    from stepscope.runtime.run import Run


def rate(events: int, work: Callable[[], object]) -> float:
    """Millions of events per second of processor time."""
    start = time.process_time_ns()
    work()
    return events * 1e3 / max(time.process_time_ns() - start, 1)


def recorded(count: int) -> tuple[Run, list[EventBatch]]:
    """Batches of spans as they left the recorder."""
    import stepscope

    memory = stepscope.MemoryExporter()
    with session(exporters=[memory], options=stepscope.Options(journal=False)) as profiler:
        emit(stepscope.span, count)
        profiler.flush()
    assert memory.run is not None
    return memory.run, memory.batches


@contextmanager
def _encoder(scale: Scale) -> Generator[Round]:
    from stepscope.runtime import _core

    _, batches = recorded(scale.events)
    count = sum(len(batch) for batch in batches)
    base = int(batches[0].events["ts"][0]) - 1_000_000_000

    def once() -> Sample:
        size = 0

        def encode() -> None:
            nonlocal size
            for batch in batches:
                size += len(_core.encode_chrome(batch.events, batch.args, base, "kineto"))

        return Sample(rate(count, encode), facts={"bytes per event": size / count})

    yield once


@contextmanager
def _exporter(scale: Scale) -> Generator[Round]:
    import stepscope

    run, batches = recorded(scale.events)
    count = sum(len(batch) for batch in batches)

    async def export(path: Path) -> None:
        exporter = stepscope.ChromeTraceExporter(path)
        await exporter.open(run)
        for batch in batches:
            await exporter.export(batch)
        await exporter.aclose()

    def once() -> Sample:
        with scratch() as directory:
            path = directory / "trace.json"
            speed = rate(count, lambda: asyncio.run(export(path)))
            return Sample(speed, facts={"bytes per event": path.stat().st_size / count})

    yield once


@contextmanager
def _torch(scale: Scale) -> Generator[Round]:
    loop = additions()

    def once() -> Sample:
        with torch_profile() as profile:
            loop(scale.events // 5)
        count = len(profile.profiler.kineto_results.events())
        with scratch() as directory:
            path = directory / "trace.json"
            speed = rate(count, lambda: profile.export_chrome_trace(os.fspath(path)))
            return Sample(speed, facts={"bytes per event": path.stat().st_size / count})

    yield once


@contextmanager
def _viztracer(scale: Scale) -> Generator[Round]:
    count = scale.events // 5
    tracer = viztracer(count + 1000)

    def once() -> Sample:
        tracer.clear()
        tracer.start()
        for _ in range(count):
            with tracer.log_event("x"):
                pass
        tracer.stop()
        with scratch() as directory:
            path = directory / "trace.json"
            speed = rate(count, lambda: tracer.save(os.fspath(path)))
            return Sample(speed, facts={"bytes per event": path.stat().st_size / count})

    yield once


ROWS = (
    Row(
        key="json.encoder",
        what="Chrome JSON, uncompressed, one core: the encoder",
        unit="M events/s",
        budget=5.0,
        more_is_better=True,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "encode_chrome", _encoder),),
    ),
    Row(
        key="json.file",
        what="Chrome JSON, uncompressed, one core: from events to the complete file",
        unit="M events/s",
        budget=5.0,
        more_is_better=True,
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "ChromeTraceExporter", _exporter),
            Contender(Tool.TORCH, "export_chrome_trace", _torch, every=2),
            Contender(Tool.VIZTRACER, "save", _viztracer, every=2),
        ),
    ),
)
