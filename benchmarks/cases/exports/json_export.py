"""Chrome JSON, uncompressed: the encoder alone, and from events in memory to the complete file."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from benchmarks.cases.exports.exporting import encoder, exporter, file, row, slices
from benchmarks.cases.tools.small_operators import additions
from benchmarks.harness.peers import torch_profile, viztracer
from benchmarks.harness.row import Contender, Round, Sample, Tool
from benchmarks.harness.scale import Scale

if TYPE_CHECKING:
    from stepscope.runtime.events.record import EventBatch
    from stepscope.runtime.export.run import Run

FILE = "trace.json"


def _encode(run: Run, batches: list[EventBatch]) -> int:
    from stepscope.runtime import _core

    base = int(batches[0].events["ts"][0]) - 1_000_000_000
    return sum(len(_core.encode_chrome(batch.events, batch.args, base, "kineto")) for batch in slices(batches))


def _encoder(scale: Scale) -> AbstractContextManager[Round]:
    return encoder(scale, _encode)


def _exporter(scale: Scale) -> AbstractContextManager[Round]:
    import stepscope

    return exporter(scale, stepscope.ChromeTraceExporter, FILE)


@contextmanager
def _torch(scale: Scale) -> Generator[Round]:
    loop = additions()

    def once() -> Sample:
        with torch_profile() as profile:
            loop(scale.events // 5)
        count = len(profile.profiler.kineto_results.events())
        return file(count, lambda path: profile.export_chrome_trace(os.fspath(path)), FILE)

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
        return file(count, lambda path: tracer.save(os.fspath(path)), FILE)

    yield once


ROWS = (
    row(
        "json.encoder",
        "Chrome JSON, uncompressed, one core: the encoder",
        Contender(Tool.STEPSCOPE, "encode_chrome", _encoder),
    ),
    row(
        "json.file",
        "Chrome JSON, uncompressed, one core: from events to the complete file",
        Contender(Tool.STEPSCOPE, "ChromeTraceExporter", _exporter),
        Contender(Tool.TORCH, "export_chrome_trace", _torch, every=2),
        Contender(Tool.VIZTRACER, "save", _viztracer, every=2),
    ),
)
