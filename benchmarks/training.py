"""A real training step with a hundred spans in it, with and without tracing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from benchmarks.emission import Span
from benchmarks.network import SPANS, Network
from benchmarks.peers import opentelemetry_provider, peer, torch_profile, viztracer
from benchmarks.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.scale import Scale
from benchmarks.session import Accounts, scratch


class _Half(msgspec.Struct, frozen=True):
    """Steps, all with tracing or all without."""

    wall: float
    """Median milliseconds of a step."""
    processor: float
    """Milliseconds of processor time per step, of all threads of the process."""


def _run(step: Callable[[], object], count: int) -> _Half:
    for _ in range(1 + count // 8):
        step()
    times: list[int] = []
    before = time.process_time_ns()
    for _ in range(count):
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return _Half(statistics.median(times) / 1e6, (time.process_time_ns() - before) / count / 1e6)


def _percent(
    network: Network, steps: int, traced: Callable[[], AbstractContextManager[Callable[[], object]]]
) -> Sample:
    """One alternation: by how much the median step is slower with tracing."""
    without = _run(network.step, steps)
    with traced() as step:
        traced_half = _run(step, steps)
    facts = {
        "spans/s": SPANS / traced_half.wall * 1e3,
        "processor time added by all threads, %": 100 * (traced_half.processor / without.processor - 1),
    }
    return Sample(100 * (traced_half.wall / without.wall - 1), without.wall, facts)


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    network = Network()
    lost: list[float] = []

    @contextmanager
    def traced() -> Generator[Callable[[], object]]:
        with scratch() as directory:
            chrome, journal = stepscope.ChromeTraceExporter(directory / "trace.json"), stepscope.JournalExporter()
            with stepscope.trace(output_dir=directory, exporters=[chrome, journal]) as profiler:
                accounts = Accounts(profiler)

                def step() -> None:
                    network.step_with(stepscope.span)
                    profiler.step()

                yield step
                lost.append(accounts.facts()["dropped"])

    def once() -> Sample:
        sample = _percent(network, scale.steps, traced)
        return Sample(sample.value, sample.baseline, {**sample.facts, "dropped": lost[-1]})

    yield once


def _peer(traced_with: Callable[[], tuple[AbstractContextManager[Any], Span, Callable[[], object] | None]]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        network = Network()

        @contextmanager
        def traced() -> Generator[Callable[[], object]]:
            context, span, after = traced_with()

            def step() -> None:
                network.step_with(span)
                if after is not None:
                    after()

            with context:
                yield step

        yield lambda: _percent(network, scale.steps, traced)

    return probe


def _torch() -> tuple[AbstractContextManager[Any], Span, Callable[[], object]]:
    profile = torch_profile()
    return profile, peer("torch.profiler").record_function, profile.step


def _viztracer() -> tuple[AbstractContextManager[Any], Span, None]:
    @contextmanager
    def running() -> Generator[None]:
        tracer.start()
        try:
            yield
        finally:
            tracer.stop()
            tracer.clear()

    tracer = viztracer(100_000)
    return running(), tracer.log_event, None


def _opentelemetry() -> tuple[AbstractContextManager[Any], Span, None]:
    @contextmanager
    def running() -> Generator[None]:
        try:
            yield
        finally:
            provider.shutdown()

    provider = opentelemetry_provider()
    return running(), provider.get_tracer("benchmark").start_as_current_span, None


ROWS = (
    Row(
        key="training.slowdown",
        what="slowdown of a real training step (10 ms, one thread) at 10,000 spans/s, two exporters",
        unit="%",
        budget=1.0,
        alternating=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "Chrome trace and journal", _stepscope),
            Contender(Tool.TORCH, "profile and record_function", _peer(_torch), every=3),
            Contender(Tool.VIZTRACER, "log_event", _peer(_viztracer), every=3),
            Contender(Tool.OPENTELEMETRY, "BatchSpanProcessor", _peer(_opentelemetry), every=3),
        ),
    ),
)
