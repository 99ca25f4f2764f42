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

Traced = Callable[[], AbstractContextManager[Callable[[], object]]]
"""Starts a tool, gives the step to run under it, and stops it."""


class _Half(msgspec.Struct, frozen=True):
    """Steps, all with tracing or all without; milliseconds per step."""

    mean: float
    """The mean, because a tool that works in the background may disturb one step in many, and no median shows that."""
    median: float
    processor: float
    """Processor time of all threads of the process."""


def _run(step: Callable[[], object], count: int) -> _Half:
    for _ in range(1 + count // 8):
        step()
    times: list[float] = []
    before = time.process_time_ns()
    for _ in range(count):
        start = time.perf_counter_ns()
        step()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return _Half(statistics.fmean(times), statistics.median(times), (time.process_time_ns() - before) / count / 1e6)


class _Alternation:
    """Training by turns with and without tracing; which comes first changes, so that no drift counts for one of them."""

    def __init__(self, network: Network, steps: int, traced: Traced) -> None:
        self._network, self._steps, self._traced = network, steps, traced
        self._traced_first = False

    def __call__(self) -> Sample:
        """By how much training is slower with tracing, in percent."""
        self._traced_first = not self._traced_first
        if self._traced_first:
            traced, bare = self._with(), self._without()
        else:
            bare, traced = self._without(), self._with()
        facts = {
            "spans/s": SPANS / traced.mean * 1e3,
            "of the median step, %": _percent(traced.median, bare.median),
            "processor time added by all threads, %": _percent(traced.processor, bare.processor),
        }
        return Sample(_percent(traced.mean, bare.mean), bare.mean, facts)

    def _with(self) -> _Half:
        with self._traced() as step:
            return _run(step, self._steps)

    def _without(self) -> _Half:
        return _run(self._network.step, self._steps)


def _percent(larger: float, than: float) -> float:
    return 100 * (larger / than - 1)


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

    alternation = _Alternation(network, scale.steps, traced)

    def once() -> Sample:
        sample = alternation()
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

        yield _Alternation(network, scale.steps, traced)

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
