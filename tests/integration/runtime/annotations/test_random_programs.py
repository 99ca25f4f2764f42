"""Random programs of tasks, threads and generators, and random loops: every output is well formed, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import uvloop
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.runtime.events import strings
from tests.support.nesting import chrome_problems, journal_problems, journal_spans
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


ACTIONS = st.sampled_from(["enter", "leave", "leave the first", "step", "step", "pause"])


def run_loop(actions: list[str], profiler: sc.Profiler) -> None:
    """Carries out the actions; a second pause ends the first."""
    open_regions: list[sc.span] = []
    paused = False
    with profiler:
        for action in actions:
            if action == "enter":
                open_regions.append(sc.span("region"))
                open_regions[-1].__enter__()
            elif action.startswith("leave") and open_regions:
                open_regions.pop(-1 if action == "leave" else 0).__exit__(None, None, None)
            elif action == "step":
                profiler.step()
            elif action == "pause":
                (profiler.resume if paused else profiler.pause)()
                paused = not paused
    while open_regions:
        open_regions.pop().__exit__(None, None, None)


@settings(max_examples=25)
@example(
    ["step", "enter", "step", "step", "leave", "enter", "step", "step", "leave"], 4
)  # the last step is in two epochs
@example(["enter", "step", "pause", "pause", "step", "leave"], 4)
@given(st.lists(ACTIONS, min_size=4, max_size=40), st.integers(1, 4))
def test_random_loops(actions: list[str], active: int) -> None:
    """No step overlaps a region on its row, and none is there twice."""
    note(f"windows of {active}: {actions}")
    with tempfile.TemporaryDirectory() as directory:
        chrome = Path(directory) / "trace.json"
        profiler = sc.trace(
            schedule=sc.schedule(wait=0, warmup=0, active=active),
            output_dir=directory,
            exporters=[sc.ChromeTraceExporter(chrome)],
        )
        run_loop(["enter", "leave", *actions, "step"], profiler)
        profiler.raise_errors()
        assert chrome_problems(chrome) == []
        steps = [event["name"] for event in json.loads(chrome.read_text()) if event["name"].startswith("ProfilerStep")]
    assert "ProfilerStep#0" in steps and len(steps) == len(set(steps))
