"""Steps of 1.5 ms that hold the interpreter, in windows of five of them, with and without tracing."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases.tools.paired_comparison import PairedComparison
from benchmarks.cases.tools.session import Accounts, scratch
from benchmarks.cases.tools.span_load import Span
from benchmarks.cases.tools.timing import empty, took
from benchmarks.harness.peers import peer, torch_profile
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

STEP_NS = 1_500_000
PARTS = {"load": 1, "forward": 2, "backward": 2}
"""Spans of a step, and their shares of it."""
SMALL_STEPS = 16
"""Small steps for each training step of the scale, so that a turn has twice as many windows as it has training steps, and lasts some
seconds: the loop works once a second."""


class _Step:
    """A step whose work is a loop of Python: whoever else wants the interpreter makes it longer."""

    def __init__(self) -> None:
        self._turns = 2000
        for _ in range(4):
            each = sorted(took(empty, self._turns) for _ in range(51))[25]
            self._turns = max(round(STEP_NS / each / sum(PARTS.values())), 1)

    def bare(self) -> None:
        """Without a span."""
        for share in PARTS.values():
            empty(share * self._turns)

    def traced(self, span: Span) -> None:
        """With one around each part."""
        for name, share in PARTS.items():
            with span(name):
                empty(share * self._turns)


@contextmanager
def _bare(step: _Step) -> Generator[Callable[[], object]]:
    yield step.bare


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    small = _Step()
    lost: list[float] = []

    @contextmanager
    def traced() -> Generator[Callable[[], object]]:
        with scratch() as directory:
            schedule = stepscope.schedule(wait=2, warmup=1, active=5)
            exporters = [stepscope.ChromeTraceExporter(directory / "trace.json")]
            with stepscope.trace(schedule=schedule, output_dir=directory, exporters=exporters) as profiler:
                accounts = Accounts(profiler)

                def step() -> None:
                    small.traced(stepscope.span)
                    profiler.step()

                yield step
                lost.append(accounts.facts()["dropped"])

    comparison = PairedComparison(SMALL_STEPS * scale.steps, partial(_bare, small), traced)

    def once() -> Sample:
        sample = comparison()
        return Sample(sample.value, sample.baseline, {**sample.facts, "dropped": lost[-1]})

    yield once


@contextmanager
def _torch(scale: Scale) -> Generator[Round]:
    small = _Step()

    @contextmanager
    def traced() -> Generator[Callable[[], object]]:
        module = peer("torch.profiler")
        with scratch() as directory:
            schedule = module.schedule(wait=2, warmup=1, active=5)
            with torch_profile(schedule=schedule, on_trace_ready=partial(_export, directory)) as profile:

                def step() -> None:
                    small.traced(module.record_function)
                    profile.step()

                yield step

    yield PairedComparison(SMALL_STEPS * scale.steps, partial(_bare, small), traced)


def _export(directory: Path, profile: Any) -> None:
    profile.export_chrome_trace(str(directory / f"trace-{profile.step_num}.json"))


ROWS = (
    Row(
        key="small_windows.slowdown",
        what="slowdown of a step of 1.5 ms of Python with 3 spans, windows of 5 of 8 steps, Chrome trace",
        unit="%",
        budget=5.0,
        alternating=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "Chrome trace and journal", _stepscope),
            Contender(Tool.TORCH, "profile, export_chrome_trace", _torch, every=3),
        ),
    ),
)
