"""A training step that is traced to the journal, and the same with an exporter that misbehaves."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.cases.tools.network import Network
from benchmarks.cases.tools.paired_comparison import PairedComparison
from benchmarks.cases.tools.session import scratch
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

if TYPE_CHECKING:
    from stepscope.exporters import MemoryExporter

CLOSE_TIMEOUT = 0.2
"""Seconds: a turn with an exporter that hangs ends with this, after it was timed."""


def _hanging() -> MemoryExporter:
    import stepscope

    return stepscope.exporters.MemoryExporter(name="bad", hang_in="export")


def _blocking() -> MemoryExporter:
    import stepscope

    return stepscope.exporters.MemoryExporter(name="bad", block_in="export")


def _raising() -> MemoryExporter:
    import stepscope

    return stepscope.exporters.MemoryExporter(name="bad", fail={"export": OSError("no space left")})


def _stepscope(bad: Callable[[], Any]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        network = Network()
        lost: list[float] = []

        @contextmanager
        def traced(*others: Callable[[], Any]) -> Generator[Callable[[], object]]:
            exporters = [make() for make in others]
            options = stepscope.Options(close_timeout=CLOSE_TIMEOUT)
            with (
                scratch() as directory,
                stepscope.trace(output_dir=directory, exporters=exporters, options=options) as profiler,
            ):

                def step() -> None:
                    network.step_with(stepscope.span)
                    profiler.step()

                yield step
                profiler.flush(timeout=1.0)
                recorder = profiler.statistics().recorder
                assert recorder is not None
                lost.append(recorder.dropped)

        comparison = PairedComparison(scale.steps, traced, partial(traced, bad))

        def once() -> Sample:
            sample = comparison()
            return Sample(sample.value, sample.baseline, {**sample.facts, "dropped by the recorder": lost[-1]})

        yield once

    return probe


def _row(key: str, how: str, bad: Callable[[], Any]) -> Row:
    contender = Contender(Tool.STEPSCOPE, f"journal and one that {how}", _stepscope(bad))
    return Row(
        key=f"neighbour.{key}",
        what=f"change of a traced training step (10 ms) by an exporter that {how}, beside the journal",
        unit="%",
        alternating=True,
        contenders=(contender,),
    )


ROWS = (
    _row("hangs", "hangs in `export`", _hanging),
    _row("blocks", "blocks its thread in `export`", _blocking),
    _row("raises", "raises in every `export`", _raising),
)
