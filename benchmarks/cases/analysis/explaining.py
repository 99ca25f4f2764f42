"""Explaining a run and writing its report, each in a process of its own: processor time, memory, and the size of the page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.cases.analysis.long_runs import write_training
from benchmarks.cases.tools.session import scratch
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

_MEASURE = """
import resource, sys
if sys.argv[1] == "explain":
    from stepscope.analysis.explain import explain
    size = len(str(explain(sys.argv[2])))
else:
    from stepscope.analysis.page.render import report_html
    size = len(report_html(sys.argv[2]).encode())
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6, size / 1e6)
"""
"""Seconds of processor time, imports included, and megabytes of memory and of the answer. Source: getrusage(2)."""
FACTS = ("processor time, s", "memory, MB", "size, MB")


def _of(
    what: str, fact: str, events: Callable[[Scale], int], a_step: int, step_ns: int = 20_000_000
) -> Callable[[Scale], AbstractContextManager[Round]]:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        with scratch() as directory:
            count = events(scale)
            write_training(directory, count, max(count // a_step, 1), step_ns)

            def once() -> Sample:
                command = [sys.executable, "-P", "-c", _MEASURE, what, str(directory)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                facts: dict[str, float] = dict(zip(FACTS, map(float, done.stdout.split()), strict=True))
                return Sample(facts[fact], facts=facts)

            yield once

    return probe


def _twice(scale: Scale) -> int:
    return 2 * scale.events


def _row(
    key: str, what: str, unit: str, budget: float, call: str, probe: Callable[[Scale], AbstractContextManager[Round]]
) -> Row:
    contender = Contender(Tool.STEPSCOPE, call, probe)
    return Row(key=key, what=what, unit=unit, budget=budget, heavy=True, contenders=(contender,))


ROWS = (
    _row(
        "explain.time",
        "explaining {twice_events:,} events in steps of 500, processor time",
        "s",
        3,
        "stepscope explain",
        _of("explain", "processor time, s", _twice, 500),
    ),
    _row(
        "explain.memory",
        "explaining {twice_events:,} events, memory at its highest",
        "MB",
        400,
        "stepscope explain",
        _of("explain", "memory, MB", _twice, 500),
    ),
    _row(
        "explain.short_steps",
        "explaining {twice_events:,} events in steps of 20 µs and 10 events, processor time",
        "s",
        3,
        "stepscope explain",
        _of("explain", "processor time, s", _twice, 10, 20_000),
    ),
    _row(
        "report.time",
        "report of {twice_events:,} events, processor time",
        "s",
        5,
        "stepscope report",
        _of("report", "processor time, s", _twice, 500),
    ),
    _row(
        "report.size",
        "size of the report of {events:,} events",
        "MB",
        1,
        "stepscope report",
        _of("report", "size, MB", lambda scale: scale.events, 500),
    ),
)
