"""Memory that a process grows by while a window is recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases.tools.session import Accounts, session
from benchmarks.cases.tools.small_operators import additions
from benchmarks.cases.tools.span_load import Span, emit
from benchmarks.harness.peers import opentelemetry_provider, torch_profile, viztracer
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


def resident() -> int:
    """Bytes of memory that the process has, mapped files of tmpfs included. Source: proc(5), /proc/[pid]/statm."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _growth(work: Callable[[], object], events: int) -> Sample:
    gc.collect()
    before = resident()
    work()
    grown = resident() - before
    return Sample(grown / events, facts={"grown, MB": grown / 1e6})


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    with session() as profiler:
        emit(stepscope.span, 1000)

        def once() -> Sample:
            accounts = Accounts(profiler)
            sample = _growth(lambda: emit(stepscope.span, scale.memory_events), scale.memory_events)
            return Sample(sample.value, facts={**sample.facts, **accounts.facts()})

        yield once


@contextmanager
def _stepscope_later(scale: Scale) -> Generator[Round]:
    import stepscope

    with session() as profiler:
        emit(stepscope.span, scale.memory_events)

        def once() -> Sample:
            accounts = Accounts(profiler)
            sample = _growth(lambda: emit(stepscope.span, 4 * scale.memory_events), 4 * scale.memory_events)
            return Sample(sample.facts["grown, MB"], facts=accounts.facts())

        yield once


@contextmanager
def _torch_operators(scale: Scale) -> Generator[Round]:
    loop = additions()
    with torch_profile():
        loop(1000)

    def once() -> Sample:
        profile = torch_profile()

        def work() -> None:
            with profile:
                loop(scale.memory_events)

        return _growth(work, scale.memory_events)

    yield once


@contextmanager
def _viztracer(scale: Scale) -> Generator[Round]:
    tracer = viztracer(scale.memory_events + 2000)
    tracer.start()
    emit(tracer.log_event, 1000, pause=0)
    try:
        yield lambda: _growth(lambda: emit(tracer.log_event, scale.memory_events, pause=0), scale.memory_events)
    finally:
        tracer.stop()


@contextmanager
def _opentelemetry(scale: Scale) -> Generator[Round]:
    provider = opentelemetry_provider()
    span: Span = provider.get_tracer("benchmark").start_as_current_span
    emit(span, 1000)
    try:
        yield lambda: _growth(lambda: emit(span, scale.memory_events // 10), scale.memory_events // 10)
    finally:
        provider.shutdown()


ROWS = (
    Row(
        key="memory.event",
        what="memory per recorded event, a window of {memory_events:,}",
        unit="bytes",
        budget=64,
        fresh=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "span", _stepscope),
            Contender(Tool.TORCH, "profile, operators", _torch_operators, every=3),
            Contender(Tool.VIZTRACER, "log_event", _viztracer, every=3),
            Contender(Tool.OPENTELEMETRY, "BatchSpanProcessor, drops when full", _opentelemetry, every=3),
        ),
    ),
    Row(
        key="memory.bound",
        what="memory that the next {four_times_memory_events:,} events of the same window need",
        unit="MB",
        fresh=True,
        contenders=(Contender(Tool.STEPSCOPE, "span", _stepscope_later),),
    ),
)
