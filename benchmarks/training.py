"""A real training step with a hundred spans in it, with and without tracing."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.emission import Span
from benchmarks.peers import opentelemetry_provider, peer, torch_profile, viztracer
from benchmarks.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.scale import Scale
from benchmarks.session import Accounts, scratch

LAYERS = 48
WIDTH, BATCH = 256, 40
"""Such that a step takes about 10 ms on one core: with 2 spans a layer and 4 more that is 10,000 spans a second."""


class Training:
    """A small network, trained on noise by stochastic gradient descent, on the CPU."""

    def __init__(self, threads: int) -> None:
        torch: Any = peer("torch")
        torch.set_num_threads(threads or os.cpu_count() or 1)
        torch.manual_seed(0)
        self._torch = torch
        self._layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self._parameters = [list(layer.parameters()) for layer in self._layers]
        self._x, self._y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def step(self) -> None:
        """One step, without a span."""
        torch = self._torch
        x = self._x
        for layer in self._layers:
            x = torch.tanh(layer(x))
        loss = torch.nn.functional.mse_loss(x, self._y)
        loss.backward()
        with torch.no_grad():
            for parameters in self._parameters:
                self._update(parameters)

    def step_with(self, span: Span) -> None:
        """The same step with a span around each of its parts, 100 in all."""
        torch = self._torch
        x = self._x
        with span("forward"):
            for layer in self._layers:
                with span("layer"):
                    x = torch.tanh(layer(x))
        with span("loss"):
            loss = torch.nn.functional.mse_loss(x, self._y)
        with span("backward"):
            loss.backward()
        with span("optimizer"), torch.no_grad():
            for parameters in self._parameters:
                with span("update"):
                    self._update(parameters)

    def _update(self, parameters: list[Any]) -> None:
        for parameter in parameters:
            parameter.add_(parameter.grad, alpha=-0.01)
            parameter.grad = None


SPANS = 2 * LAYERS + 4


def _times(step: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of each step."""
    times: list[float] = []
    for _ in range(count):
        start = time.perf_counter_ns()
        step()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return times


def _percent(
    training: Training, steps: int, traced: Callable[[], AbstractContextManager[Callable[[], object]]]
) -> Sample:
    """One alternation: by how much the median step is slower with tracing. A few steps on either side warm up."""
    warm = 1 + steps // 8
    without = _times(training.step, warm + steps)[warm:]
    with traced() as step:
        with_it = _times(step, warm + steps)[warm:]
    before, after = statistics.median(without), statistics.median(with_it)
    return Sample(100 * (after / before - 1), before, {"spans/s": SPANS / after * 1e3})


def _stepscope(threads: int) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        training = Training(threads)
        lost: list[float] = []

        def with_two_exporters(directory: Path) -> dict[str, Any]:
            # The journal is the second; it is kept by default.
            return {"output_dir": directory, "exporters": [stepscope.ChromeTraceExporter(directory / "trace.json")]}

        @contextmanager
        def traced() -> Generator[Callable[[], object]]:
            with scratch() as directory, stepscope.trace(**with_two_exporters(directory)) as profiler:
                accounts = Accounts(profiler)

                def step() -> None:
                    training.step_with(stepscope.span)
                    profiler.step()

                yield step
                lost.append(accounts.facts()["dropped"])

        def once() -> Sample:
            sample = _percent(training, scale.steps, traced)
            return Sample(sample.value, sample.baseline, {**sample.facts, "dropped": lost[-1]})

        yield once

    return probe


def _peer(traced_with: Callable[[], tuple[AbstractContextManager[Any], Span, Callable[[], object] | None]]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        training = Training(1)

        @contextmanager
        def traced() -> Generator[Callable[[], object]]:
            context, span, after = traced_with()

            def step() -> None:
                training.step_with(span)
                if after is not None:
                    after()

            with context:
                yield step

        yield lambda: _percent(training, scale.steps, traced)

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
            Contender(Tool.STEPSCOPE, "Chrome trace and journal", _stepscope(1)),
            Contender(Tool.TORCH, "profile and record_function", _peer(_torch), every=3),
            Contender(Tool.VIZTRACER, "log_event", _peer(_viztracer), every=3),
            Contender(Tool.OPENTELEMETRY, "BatchSpanProcessor", _peer(_opentelemetry), every=3),
        ),
    ),
    Row(
        key="training.all_cores",
        what="the same with torch on all cores, none left for the exporters",
        unit="%",
        alternating=True,
        contenders=(Contender(Tool.STEPSCOPE, "Chrome trace and journal", _stepscope(0)),),
    ),
)
