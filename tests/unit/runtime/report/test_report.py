"""The report: every line that it may have is explained."""

from __future__ import annotations

import inspect
import re
import sys
import time
from pathlib import Path

import msgspec

import stepscope as sc
from stepscope.runtime.report import run_report
from tests.support.basics import ROOT

PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


def test_every_line_of_a_report_is_explained(output_dir: Path) -> None:
    """By its first word; those that a run has, and those that it could have."""
    with sc.trace(keep_last=2, backends=[sc.backends.HostBackend()], output_dir=output_dir) as profiler:
        profiler.step()
        profiler.save()
    report = profiler.report()
    titles = set(re.findall(r"^  (\w+)", report.text(verbose=True), re.MULTILINE))
    shorter = set(re.findall(r"^  (\w+)", str(report), re.MULTILINE))
    assert titles - {"clock", "cost"} == shorter | {"overhead"}  # of which a run of less than a second says nothing
    assert {"state", "run", "recorded", "output", "flight", "saved", "clock", "backend", "cost", "overhead"} <= titles
    could_be = set(re.findall(r'f"(\w+) {2,}', inspect.getsource(run_report)))
    assert len(could_be) > 10
    explained = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert titles | could_be <= explained


def test_the_report_explains_cost_and_overhead(output_dir: Path) -> None:
    """One is time of single threads that passed, the other processor time of all of them: they are not to be added up."""
    with sc.trace(output_dir=output_dir) as profiler:
        time.sleep(1.1)  # a shorter run is not judged
    text = profiler.report().text(verbose=True)
    cost, overhead = text.split("\n  cost ")[1].split("\n  overhead ")
    assert "in the background: sorting events " in cost and "ms, journal " in cost
    assert "of the time recorded: a step has " in overhead
    assert "of processor time in the background" in overhead
    assert f"\n  overhead {overhead}" in str(profiler.report())


def test_a_window_that_began_with_the_end_is_reported(output_dir: Path) -> None:
    """Its recorded events are reported as not exported: the lines add up."""
    with sc.trace(schedule=sc.schedule(wait=0, warmup=0, active=5), output_dir=output_dir) as profiler:
        for _ in range(10):
            with sc.span("work"):
                pass
            profiler.step()
    text = str(profiler.report())
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    (output,) = pipeline.exporters
    recorded = sum(pipeline.windows.accepted.values())
    assert pipeline.windows.withheld == recorded - output.ledger.exported > 0
    assert f"{pipeline.windows.withheld:,} of them not passed on" in text


def test_a_profiler_shows_its_state(output_dir: Path) -> None:
    """In a debugger or a notebook."""
    with sc.trace(output_dir=output_dir) as profiler:
        profiler.step()
        assert repr(profiler) == f"<stepscope.Profiler: running, 1 step, 1 window, {output_dir}>"
    assert repr(profiler) == f"<stepscope.Profiler: closed, 1 step, 1 window, {output_dir}>"


def test_a_set_clock_is_reported_without_being_asked_for(output_dir: Path) -> None:
    """It explains times in files."""
    with sc.trace(output_dir=output_dir) as profiler:
        profiler.step()
    report = profiler.report()
    assert "  clock " not in str(report) and report.anchor is not None
    was_set = msgspec.structs.replace(report.anchor_now, wall_ns=report.anchor_now.wall_ns + 3_600 * 10**9)
    assert "the wall clock was set" in str(msgspec.structs.replace(report, anchor_now=was_set))


def test_an_empty_window_names_ways_to_record(output_dir: Path) -> None:
    """A program that uses torch learns of its backend."""
    with sc.trace(output_dir=output_dir) as profiler:
        profiler.step()
    (why,) = profiler.diagnostics()
    backend = "or record torch's operators with backends=[stepscope.TorchBackend()]"
    assert "mark code with stepscope.span()" in why and (backend in why) == ("torch" in sys.modules)
