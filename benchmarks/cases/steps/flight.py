"""A step with spans under the flight recorder, and the same step that is written as it goes."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.tools.session import Accounts, session
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

SPANS = 100
"""In each step."""


def _stepscope(**arguments: Any) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        span = stepscope.span
        steps = max(scale.calls // SPANS, 1)
        with session(**arguments) as profiler:

            def run(count: int) -> None:
                for _ in range(count):
                    for _ in range(SPANS):
                        with span("x"):
                            pass
                    profiler.step()

            def once() -> Sample:
                accounts = Accounts(profiler)
                profiler.flush()
                processor, start = time.process_time_ns(), time.perf_counter_ns()
                run(steps)
                took = (time.perf_counter_ns() - start) / steps / 1000
                profiler.flush()
                # The loop's work with it is part of the price, though nobody waits for it.
                all_threads = (time.process_time_ns() - processor) / steps / 1000
                return Sample(took, facts={"processor": all_threads, **accounts.facts()})

            run(steps)
            yield once

    return probe


def _row(key: str, what: str, **arguments: Any) -> Row:
    contender = Contender(Tool.STEPSCOPE, "step with spans", _stepscope(**arguments))
    return Row(key=f"flight.{key}", what=what, unit="us", contenders=(contender,))


ROWS = (
    _row("written", f"a step of {SPANS} spans, written to the journal as it goes"),
    _row("kept", f"a step of {SPANS} spans, the last 20 kept by the flight recorder (`keep_last=20`)", keep_last=20),
)
