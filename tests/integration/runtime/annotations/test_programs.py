"""Random programs of tasks, threads and generators: every output is well formed, and nothing is lost."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import uvloop
from hypothesis import given, note, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.runtime.events import strings
from tests.support.nesting import chrome_problems, journal_problems, journal_spans, overlaps
from tests.support.random_programs import Program, Runner, random_program


def check(program: list[Program], loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Runs a program under a profiler, and looks at what was written."""
    note(f"the program: {program}")
    runner = Runner()
    with tempfile.TemporaryDirectory() as directory:
        chrome = Path(directory) / "trace.json"
        with sc.trace(output_dir=directory, exporters=[sc.ChromeTraceExporter(chrome)]) as profiler:
            sc.instant("begin")
            runner.run(program, loop_factory)
        profiler.raise_errors()
        spans = journal_spans(Path(directory) / "journal")
        assert journal_problems(spans) == []
        assert chrome_problems(chrome) == []
    of_program = spans[spans["name"] == strings.intern("s")]
    numbers = sorted(of_program["args_len"].tolist())
    assert set(runner.ended) <= set(numbers) and len(numbers) == len(set(numbers))


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_random_programs(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Spans that are not drawn apart nest on every track, self times add up, and each span is there once."""

    @settings(max_examples=40)
    @given(st.randoms(use_true_random=False))
    def programs(seed: Random) -> None:
        check(random_program(seed), loop_factory)

    programs()


def test_overlaps_are_found() -> None:
    """The check itself: spans that touch or nest are fine."""
    assert overlaps([(0, 10), (0, 4), (4, 10), (5, 5), (10, 12)]) == []
    assert overlaps([(0, 10), (8, 12)]) == [(8, 12)]
    assert overlaps([(0, 10), (2, 6), (4, 10)]) == [(4, 10)]
