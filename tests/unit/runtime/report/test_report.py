"""The report: every line that it may have is explained."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path

import stepscope as sc
from stepscope.runtime.report import run_report
from tests.support.basics import ROOT

PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


def test_every_line_of_a_report_is_explained(output_dir: Path) -> None:
    """By its first word; those that a run has, and those that it could have."""
    with sc.trace(keep_last=2, backends=[sc.backends.HostBackend()], output_dir=output_dir) as profiler:
        profiler.step()
        profiler.save()
    said = set(re.findall(r"^  (\w+)", str(profiler.report()), re.MULTILINE))
    assert {"state", "run", "recorded", "output", "flight", "saved", "clock", "backend", "cost", "overhead"} <= said
    could_be = set(re.findall(r'f"(\w+) {2,}', inspect.getsource(run_report)))
    assert len(could_be) > 10
    explained = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert said | could_be <= explained


def test_what_cost_and_overhead_measure_is_told(output_dir: Path) -> None:
    """One is time of single threads that passed, the other processor time of all of them: they are not to be added up."""
    with sc.trace(output_dir=output_dir) as profiler:
        time.sleep(1.1)  # a shorter run is not judged
    said = str(profiler.report())
    cost, overhead = said.split("\n  cost ")[1].split("\n  overhead ")
    assert "passed in the background loop" in cost and "passed in calls of journal" in cost
    assert "of the time recorded, all threads together; per step" in overhead
    assert "of processor time of the loop and the exporters in the background" in overhead


def test_a_window_that_began_with_the_end_is_told(output_dir: Path) -> None:
    """What was recorded of it is said not to be given: the lines add up."""
    with sc.trace(schedule=sc.schedule(wait=0, warmup=0, active=5), output_dir=output_dir) as profiler:
        for _ in range(10):
            with sc.span("work"):
                pass
            profiler.step()
    said = str(profiler.report())
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    (output,) = pipeline.exporters
    recorded = sum(pipeline.windows.accepted.values())
    assert pipeline.windows.withheld == recorded - output.ledger.exported > 0
    assert f"{pipeline.windows.withheld:,} of them not passed on" in said
