"""A span while something records: plain, with an argument, as a decorator, in an asyncio task."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.tools import loops
from benchmarks.cases.tools.session import Accounts, scratch, session
from benchmarks.cases.tools.timing import AsyncLoop, Loop, per_turn, per_turn_in_task
from benchmarks.harness.peers import opentelemetry_provider, peer, torch_profile, viztracer
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

Measure = Callable[[int], Sample]


def _stepscope(measure_with: Callable[[], Measure]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        with session() as profiler:
            measure = measure_with()

            def once() -> Sample:
                profiler.flush()  # so that rings are empty, as they are when spans are not the only work
                accounts = Accounts(profiler)
                sample = measure(scale.calls)
                return Sample(sample.value, sample.baseline, accounts.facts())

            yield once

    return probe


@contextmanager
def _without_a_pause(scale: Scale) -> Generator[Round]:
    import stepscope

    with (
        scratch() as directory,
        session(exporters=[stepscope.ChromeTraceExporter(directory / "trace.json")]) as profiler,
    ):
        loop = loops.spans(stepscope.span)

        def once() -> Sample:
            profiler.flush()
            accounts = Accounts(profiler)
            sample = per_turn(loop, scale.events)
            profiler.flush()
            return Sample(sample.value, sample.baseline, accounts.facts())

        yield once


def _torch(measure_with: Callable[[], Measure]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        measure = measure_with()

        def once() -> Sample:
            # Anew each time: torch keeps all of a window in memory.
            with torch_profile():
                return measure(max(scale.calls // 4, 1))

        yield once

    return probe


def _viztracer(loop_with: Callable[[Any], Loop]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        tracer = viztracer(scale.calls * 2 + 1000)
        loop = loop_with(tracer)

        def once() -> Sample:
            tracer.clear()
            tracer.start()
            try:
                return per_turn(loop, scale.calls)
            finally:
                tracer.stop()

        yield once

    return probe


def _opentelemetry(measure_with: Callable[[Any], Measure]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        provider = opentelemetry_provider()
        measure = measure_with(provider.get_tracer("benchmark"))
        try:
            yield lambda: measure(max(scale.calls // 8, 1))
        finally:
            provider.shutdown()

    return probe


def _loop(loop: Loop) -> Measure:
    return lambda n: per_turn(loop, n)


def _decorated(decorate: Callable[[Callable[[], None]], Callable[[], None]]) -> Measure:
    """Calls of a decorated function, less calls of the bare one."""

    def bare() -> None: ...

    return lambda n: per_turn(loops.calls(decorate(bare)), n, loops.calls(bare))


def _task(loop: AsyncLoop) -> Measure:
    return lambda n: per_turn_in_task(loop, n)


def _span() -> Any:
    import stepscope

    return stepscope.span


def _instant() -> Any:
    import stepscope

    return stepscope.instant


def _record_function() -> Any:
    return peer("torch.profiler").record_function


ROWS = (
    Row(
        key="span.recording",
        what='`with span("x")` while recording',
        unit="ns",
        budget=200,
        cited="MXNet 1.9.1 task 1,900 ns",
        contenders=(
            Contender(Tool.STEPSCOPE, "span", _stepscope(lambda: _loop(loops.spans(_span())))),
            Contender(Tool.TORCH, "record_function", _torch(lambda: _loop(loops.spans(_record_function())))),
            Contender(Tool.VIZTRACER, "log_event", _viztracer(lambda tracer: loops.spans(tracer.log_event))),
            Contender(
                Tool.OPENTELEMETRY,
                "start_as_current_span, BatchSpanProcessor",
                _opentelemetry(lambda tracer: _loop(loops.spans(tracer.start_as_current_span))),
            ),
        ),
    ),
    Row(
        key="span.sustained",
        what="the same {events:,} times without a pause, while a Chrome trace and the journal are written",
        unit="ns",
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "span", _without_a_pause),),
    ),
    Row(
        key="span.argument",
        what='`with span("x", layer=3)` while recording',
        unit="ns",
        contenders=(
            Contender(Tool.STEPSCOPE, "span", _stepscope(lambda: _loop(loops.spans_with_argument(_span())))),
            Contender(
                Tool.TORCH,
                "record_function(name, args)",
                _torch(lambda: _loop(loops.spans_with_text(_record_function()))),
            ),
            Contender(
                Tool.OPENTELEMETRY,
                "attributes=",
                _opentelemetry(lambda tracer: _loop(loops.spans_with_attribute(tracer.start_as_current_span))),
            ),
        ),
    ),
    Row(
        key="span.decorator",
        what='`@span("x")` on a function, per call, while recording',
        unit="ns",
        contenders=(
            Contender(Tool.STEPSCOPE, "span", _stepscope(lambda: _decorated(_span()("x")))),
            Contender(Tool.TORCH, "record_function", _torch(lambda: _decorated(_record_function()("x")))),
            Contender(
                Tool.OPENTELEMETRY,
                "start_as_current_span",
                _opentelemetry(lambda tracer: _decorated(tracer.start_as_current_span("x"))),
            ),
        ),
    ),
    Row(
        key="span.task",
        what='`with span("x")` in an asyncio task, while recording',
        unit="ns",
        contenders=(
            Contender(Tool.STEPSCOPE, "span", _stepscope(lambda: _task(loops.spans_in_task(_span())))),
            Contender(Tool.TORCH, "record_function", _torch(lambda: _task(loops.spans_in_task(_record_function())))),
            Contender(
                Tool.OPENTELEMETRY,
                "start_as_current_span",
                _opentelemetry(lambda tracer: _task(loops.spans_in_task(tracer.start_as_current_span))),
            ),
        ),
    ),
    Row(
        key="span.instant",
        what='`instant("x")` while recording',
        unit="ns",
        contenders=(
            Contender(Tool.STEPSCOPE, "instant", _stepscope(lambda: _loop(loops.instants(_instant())))),
            Contender(Tool.VIZTRACER, "add_instant", _viztracer(lambda tracer: loops.instants(tracer.add_instant))),
        ),
    ),
)
