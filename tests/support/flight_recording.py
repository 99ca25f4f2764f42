"""A profiler that keeps its last steps, for tests, and a trigger that fires after chosen steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import stepscope as sc
from stepscope.runtime.flight.recorder import FlightStatistics
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News

QUIET = sc.Options(drain_interval=0.02, close_timeout=30)


class Profile:
    """A profiler that keeps steps, and what it gave to an exporter."""

    def __init__(self, output_dir: Path, *exporters: Any, **settings: Any) -> None:
        self.memory = sc.exporters.MemoryExporter()
        settings = {"steps": 3, "triggers": (), "cooldown": 0.0, **settings}
        self.profiler = sc.trace(
            keep_last=sc.FlightRecorder(**settings),
            exporters=[self.memory, *exporters],
            output_dir=output_dir,
            options=QUIET,
        )

    def steps(self, count: int, each: Callable[[int], object] = lambda _: None) -> None:
        """Runs steps with a span and a counter each."""
        for _ in range(count):
            number = self.profiler.step_num
            with sc.span("work", step=number):
                each(number)
            sc.counter("loss", float(number))
            self.profiler.step()

    @property
    def windows(self) -> list[list[int]]:
        """Numbers of the steps of each window that was saved."""
        assert self.profiler.flush()
        return [[step.number for step in window.steps] for window in self.memory.windows]

    @property
    def flight(self) -> FlightStatistics:
        """The counts of the flight recorder."""
        pipeline = self.profiler.statistics().pipeline
        assert pipeline is not None and pipeline.flight is not None
        return pipeline.flight

    def facts(self, window: int = -1) -> Any:
        """Why a window was saved."""
        return self.memory.windows[window].metadata["flight"]

    def check_accounts(self) -> None:
        """After the end: all that was seen was accepted, or is named, and every stage agrees with the next."""
        assert self.profiler.audit() == ()
        pipeline = self.profiler.statistics().pipeline
        assert pipeline is not None
        known = pipeline.windows
        for source, seen in known.seen.items():
            parts = (known.accepted, known.outside, known.late, known.superseded)
            assert seen == sum(part.get(source, 0) for part in parts)
        for output in pipeline.exporters:
            assert output.ledger.offered == output.ledger.exported + sum(output.ledger.dropped.values())


class When:
    """A user's trigger: fires after some steps."""

    name = "when"

    def __init__(self, *numbers: int, error: BaseException | None = None) -> None:
        self.numbers = numbers
        self.error = error

    def evaluator(self) -> Evaluator:
        return self

    def look(self, news: News) -> Sequence[Finding]:
        if self.error is not None and len(news.steps):
            raise self.error
        return [
            Finding(at=int(end) - 1, value=int(number), text="as chosen")
            for number, end in zip(news.steps.numbers, news.steps.ends, strict=True)
            if number in self.numbers
        ]
