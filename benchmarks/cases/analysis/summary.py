"""From the end of a window to its aggregate table."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.tools.session import Accounts, scratch
from benchmarks.cases.tools.small_operators import additions
from benchmarks.cases.tools.span_load import emit
from benchmarks.harness.peers import torch_profile
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    def once() -> Sample:
        rendered: list[tuple[int, int]] = []

        def ready(window: Any) -> None:
            start = time.perf_counter_ns()
            assert "forward" in window.summary().render()
            rendered.append((start, time.perf_counter_ns()))

        schedule = stepscope.schedule(wait=0, warmup=0, active=1, repeat=1)
        with (
            scratch() as directory,
            stepscope.trace(schedule=schedule, on_trace_ready=ready, output_dir=directory) as profiler,
        ):
            accounts = Accounts(profiler)
            emit(stepscope.span, scale.events)
            ended = time.perf_counter_ns()
            profiler.step()
            profiler.flush()
            [(began, done)] = rendered
            facts = {"end of window to callback, ms": (began - ended) / 1e6, "table, ms": (done - began) / 1e6}
            return Sample((done - ended) / scale.events, facts={**facts, **accounts.facts()})

    yield once


@contextmanager
def _torch(scale: Scale) -> Generator[Round]:
    loop = additions()

    def once() -> Sample:
        with torch_profile() as profile:
            loop(scale.table_events)
        start = time.perf_counter_ns()
        profile.key_averages().table()
        return Sample((time.perf_counter_ns() - start) / scale.table_events)

    yield once


ROWS = (
    Row(
        key="summary.ready",
        what="aggregate table of a window, from its end, per event",
        unit="ns",
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "window.summary() in on_trace_ready", _stepscope),
            Contender(Tool.TORCH, "key_averages().table()", _torch, every=2),
        ),
    ),
)
