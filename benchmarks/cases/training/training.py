"""A real training step with a hundred spans in it, with and without tracing."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from benchmarks.cases.tools.network import Network
from benchmarks.cases.tools.paired_comparison import PairedComparison
from benchmarks.cases.tools.session import Accounts, scratch
from benchmarks.cases.tools.span_load import Span
from benchmarks.harness.peers import opentelemetry_provider, peer, torch_profile, viztracer
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


@contextmanager
def _bare(network: Network) -> Generator[Callable[[], object]]:
    yield network.step


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    network = Network()
    lost: list[float] = []

    @contextmanager
    def traced() -> Generator[Callable[[], object]]:
        with scratch() as directory:
            chrome, journal = (
                stepscope.ChromeTraceExporter(directory / "trace.json"),
                stepscope.exporters.JournalExporter(),
            )
            with stepscope.trace(output_dir=directory, exporters=[chrome, journal]) as profiler:
                accounts = Accounts(profiler)

                def step() -> None:
                    network.step_with(stepscope.span)
                    profiler.step()

                yield step
                lost.append(accounts.facts()["dropped"])

    comparison = PairedComparison(scale.steps, partial(_bare, network), traced)

    def once() -> Sample:
        sample = comparison()
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

        yield PairedComparison(scale.steps, partial(_bare, network), traced)

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
