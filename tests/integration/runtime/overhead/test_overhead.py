"""The overhead budget with the real recorder: what is left out, what is written down, and what others still get."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.overhead.controller import OverheadController
from stepscope.runtime.overhead.meter import event_costs
from stepscope.runtime.schedule.detail import FULL, MARKS_ONLY, Detail, DetailFilter
from tests.support.block_contents import texts
from tests.support.messages import refused

ABSURD = sc.control.OverheadBudget(fraction=0.0001, interval=0.02)
RING = sc.Options().ring_slots
PLENTY = sc.control.OverheadBudget(fraction=1.0, interval=0.02, background=0.0)


def work_until(profiler: sc.Profiler, detail: str, seconds: float = 60) -> int:
    """Steps with many spans until a level is reached; returns how many spans were made."""
    deadline = time.monotonic() + seconds
    made = 0
    while overhead(profiler).detail != detail:
        for _ in range(20):
            for _ in range(200):
                with sc.span("work"):
                    pass
            made += 200
            profiler.step()
        assert time.monotonic() < deadline, f"{detail} was not reached: {overhead(profiler)}"
    return made


def overhead(profiler: sc.Profiler) -> sc.results.OverheadStatistics:
    """The measured overhead of a profiler."""
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    return pipeline.overhead


def test_an_absurd_load_ends_with_step_marks_and_everything_is_accounted_for(output_dir: Path) -> None:
    """Spans = recorded + left out + dropped, each step is there, and the trace says what was done."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir, overhead_budget=ABSURD) as profiler:
        made = work_until(profiler, "step marks only")
        for _ in range(10):
            with sc.span("unseen"):
                profiler.step()
        made += 10
        profiler.flush()
        began = time.monotonic()
    assert time.monotonic() - began < 4, "closing waited for its deadline"
    profiler.raise_errors()
    (window,) = memory.windows
    statistics = overhead(profiler)
    names = memory.names(kind=Kind.SPAN)
    dropped = window.ledger.dropped()
    # The ring of step marks is finite as well: hundreds of thousands of steps while the loop has no turn fill it.
    assert 0 <= names.count("work") + statistics.left_out + dropped - made <= max(profiler.step_num - RING, 0)
    assert "unseen" not in names
    assert sum(name.startswith("ProfilerStep#") for name in names) == len(window.steps)
    numbers = [step.number for step in window.steps]
    assert numbers == list(range(len(numbers))) if profiler.step_num <= RING else sorted(set(numbers))
    changes = [name for name in memory.names(kind=Kind.INSTANT) if name.startswith("detail ")]
    assert changes and set(changes) == {"detail lowered"}
    arguments = [found for found in memory.arguments() if "before" in found]
    assert arguments[0]["before"] == "full" and arguments[-1]["after"] == "step marks only"
    measured = arguments[0]["measured %"]
    assert isinstance(measured, float) and measured > 0.01 == arguments[0]["budget %"]
    assert memory.names(kind=Kind.COUNTER).count("overhead %") >= len(changes)
    assert any("detail lowered to 'step marks only'" in note for note in window.diagnostics)
    report = str(profiler.report())
    assert "budget 0.01%" in report and "detail now 'step marks only'" in report and "left out" in report
    assert all(source.balanced() for source in window.ledger.sources.values())


def test_detail_comes_back_when_the_load_has_ended(output_dir: Path) -> None:
    """Nothing is recorded any more at the lowest level, and still it is seen that there is nothing to record."""
    memory = sc.exporters.MemoryExporter()
    budget = sc.control.OverheadBudget(fraction=0.05, interval=0.02, background=0.0)
    with sc.trace(exporters=[memory], output_dir=output_dir, overhead_budget=budget) as profiler:
        deadline = time.monotonic() + 60
        while overhead(profiler).detail == "full":
            for _ in range(2000):
                sc.instant("load", text="x" * 1000)
            profiler.step()
            assert time.monotonic() < deadline
        while overhead(profiler).detail != "full":
            time.sleep(0.001)
            profiler.step()
            assert time.monotonic() < deadline, str(overhead(profiler))
        sc.instant("again")
    assert "again" in memory.names()
    names = memory.names(kind=Kind.INSTANT)
    assert names.count("detail lowered") and names.count("detail raised")
    raised = [found["after"] for found in memory.arguments() if "before" in found][-1:]
    assert raised == ["full"]
    (window,) = memory.windows
    for change in ("lowered", "raised"):
        levels = names.count(f"detail {change}") - (change == "raised")  # the last one is not reported
        noted = sum(note.startswith(f"detail {change} to ") for note in window.diagnostics)
        assert noted == levels or any("more times" in note for note in window.diagnostics)
    assert overhead(profiler).lowered_ns < overhead(profiler).recorded_ns


def test_a_profiler_without_a_budget_gets_everything(tmp_path: Path) -> None:
    """Another one lowers its own detail only; events that were recorded for the first do not reach it."""
    whole, thin = sc.exporters.MemoryExporter(name="whole"), sc.exporters.MemoryExporter(name="thin")
    with (
        sc.trace(exporters=[whole], output_dir=tmp_path / "whole") as free,
        sc.trace(exporters=[thin], output_dir=tmp_path / "thin", overhead_budget=ABSURD) as governed,
    ):
        made = work_until(governed, "step marks only")
        free.flush()  # the work may have filled the rings
        while _core.unreleased():  # until the journals have what is in them
            time.sleep(0.001)
        for _ in range(5):
            sc.instant("for one only")
            governed.step()
        free.flush()
        governed.flush()
    found = whole.names().count("work") + whole.windows[0].ledger.dropped()
    assert 0 <= found - made <= max(governed.step_num - RING, 0)
    assert whole.names().count("for one only") == 5
    assert "for one only" not in thin.names()
    statistics = overhead(governed)
    dropped = thin.windows[0].ledger.dropped()
    surplus = thin.names().count("work") + statistics.left_out + dropped - made - 5
    assert 0 <= surplus <= max(governed.step_num - RING, 0)
    assert overhead(free).detail == "full"


def test_steps_are_recorded_whole_or_not_at_all(output_dir: Path) -> None:
    """Where detail changes every four steps every span of the steps with detail is there, and none of the others."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir, overhead_budget=PLENTY) as profiler:
        profiler.step()
        for number in range(40):
            profiler._steps.request_detail(FULL if number % 8 < 4 else MARKS_ONLY)  # pyright: ignore[reportPrivateUsage]
            profiler.step()
            for _ in range(3):
                with sc.span("a"), sc.span("b"):
                    pass
        profiler._steps.request_detail(FULL)  # pyright: ignore[reportPrivateUsage]
        profiler.step()
        sc.instant("whole again")
    spans = memory.events(kind=Kind.SPAN)
    steps = spans["step"][[name in "ab" for name in texts(spans)]]
    numbers, counts = np.unique(steps, return_counts=True)
    assert numbers.tolist() == [2 + number for number in range(40) if number % 8 < 4]
    assert set(counts.tolist()) == {6}
    assert overhead(profiler).left_out == 20 * 6
    assert "whole again" in memory.names()


def test_backends_are_asked_to_do_less(output_dir: Path) -> None:
    """Those that have `set_detail`, on their own thread, before anything else is left out."""

    class Reducible(ScriptedBackend):
        def __init__(self, thread_bound: bool) -> None:
            super().__init__(name=f"bound={thread_bound}", thread_bound=thread_bound)
            self.details: list[str] = []

        def set_detail(self, detail: Detail) -> None:
            self.details.append(detail.name)

    backends = [Reducible(True), Reducible(False)]
    with sc.trace(backends=backends, output_dir=output_dir, overhead_budget=ABSURD) as profiler:
        work_until(profiler, "step marks only")
    profiler.raise_errors()
    for backend in backends:
        assert backend.details[-2:] == ["no operators", "step marks only"]


def test_the_cost_is_measured_without_a_budget(output_dir: Path) -> None:
    """The report has it, and the trace has no event of it."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler:
        for _ in range(100):
            for _ in range(100):
                with sc.span("work", text="text"):
                    pass
            profiler.step()
        profiler.flush()
    statistics = overhead(profiler)
    costs = event_costs()
    assert statistics.steps in (100, 101)  # with the one that the last step() began
    assert statistics.events == 10_000
    assert statistics.training_ns >= 10_000 * (costs.span + costs.arguments)
    assert statistics.background_ns > 0
    assert 0 < statistics.fraction
    assert "overhead" in profiler.report().text(verbose=True) and '"overhead"' in profiler.report().json()
    assert "overhead" not in memory.windows[0].ledger.sources
    assert statistics.left_out == 0


@pytest.mark.parametrize(
    ("budget", "facts"),
    [
        (0, ["OverheadBudget.fraction", "0.0"]),
        (2, ["overhead_budget", "0.01", "2"]),
        ("1 %", ["overhead_budget", "0.01", "1 %"]),
        (True, ["overhead_budget", "0.01", "True"]),
    ],
)
def test_wrong_budgets_are_named(budget: object, facts: list[str]) -> None:
    """By field, value and remedy."""
    with refused((TypeError, ValueError), *facts):
        sc.trace(overhead_budget=budget)  # type: ignore[arg-type]


def marks(*steps: int) -> Block:
    """Step marks, a µs apart."""
    block = empty_block(len(steps))
    block["ts"], block["step"], block["kind"] = np.array(steps) * 1000, steps, Kind.STEP
    return block


def test_the_filter_knows_levels_by_time_in_any_order_of_arrival() -> None:
    """Events of before a change are judged by the level of before, whenever they arrive."""
    filter = DetailFilter()
    events = empty_block(8)
    events["ts"], events["kind"] = np.arange(8) * 1000 + 500, Kind.SPAN
    assert filter.wanted(events) is None
    filter.change(2000, Detail("every other step", operators=False, every=2))
    filter.change(6000, FULL)
    filter.add_marks(marks(*range(8)))
    filter.add_marks(marks(*range(8)))
    chosen = filter.wanted(events)
    assert chosen is not None and chosen.tolist() == [True, True, True, False, True, False, True, True]
    events["category"] = strings.category("cpu_op")
    chosen = filter.wanted(events)
    assert chosen is not None and chosen.tolist() == [True, True, False, False, False, False, True, True]
    assert len(filter.keep(events)) == 4 and filter.left_out == 4
    events["kind"] = Kind.GAP
    assert filter.wanted(events) is None


def test_a_change_reports_the_cost_that_caused_it() -> None:
    """Not what was measured later, while it waited for the next step."""
    budget = sc.control.OverheadBudget(fraction=0.01, interval=1.0, background=0.0)
    overhead_controller = OverheadController(budget, DetailFilter(), transitions=lambda: 0)
    overhead_controller.begin(0)
    overhead_controller.counted.spans = 1_000_000
    detail, cost = overhead_controller.look(1_000_000_000)
    assert detail is not None and cost is not None and cost > budget.fraction
    assert overhead_controller.look(2_000_000_000) == (None, 0.0)
    change = overhead_controller.changed(3_000_000_000, 7, detail, detail)
    assert change is not None and change.cost == cost


def test_open_spans_at_a_windows_end_are_counted(tmp_path: Path) -> None:
    """Costs are estimated from all that goes to the exporters: also spans that go on, which go last."""
    memory = sc.exporters.MemoryExporter()
    schedule = sc.schedule(wait=0, warmup=0, active=2, repeat=3)
    with sc.trace(schedule=schedule, exporters=[memory], output_dir=tmp_path) as profiler:
        with sc.span("all of it"):
            for _ in range(6):
                with sc.span("work"):
                    pass
                profiler.step()
                profiler.flush()  # a window that has ended is closed meanwhile
    pipeline = profiler.output.pipeline
    assert pipeline is not None
    spans = sum(len(memory.events(window.index, Kind.SPAN)) for window in memory.windows)
    assert pipeline.overhead.counted.spans == spans - 6, "spans of steps are made by the background"
