"""Runs that are long: all of it is judged however it was written, and the page stays small."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import stepscope as sc
from benchmarks.cases.analysis.long_runs import write_training
from stepscope.analysis.explain import explain
from stepscope.analysis.page.render import report_html
from stepscope.analysis.tables.rank_summary import RankSummary
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
from tests.support.basics import ROOT
from tests.support.commands import python
from tests.support.journals import batch_with_arguments, write_journal

MOST_BYTES = 1_000_000


def new_directory(directory: Path) -> Path:
    """It was not there."""
    directory.mkdir()
    return directory


def test_however_it_was_written(tmp_path: Path) -> None:
    """A slow run writes a few events at a time, a quick one thousands: the answer is the same, and nothing is lost."""
    found = [
        explain(write_training(new_directory(tmp_path / f"by{batch}"), 60_000, 600, batch=batch))
        for batch in (100, 2_000, 10**6)
    ]
    assert found[0].ranks[0].statistics is not None and found[0].ranks[0].statistics.steps == 600
    assert {msgspec.json.encode(msgspec.structs.replace(each, path="")) for each in found} == {
        msgspec.json.encode(msgspec.structs.replace(found[0], path=""))
    }
    (rank,) = sc.load(tmp_path / "by100").ranks
    summary = RankSummary(rank)
    assert summary.events == len(rank.events())
    assert len(summary.samples) == 240 and len({sample.stack for sample in summary.samples}) == 1
    assert summary.samples[0].stack.startswith("function_0 (/project/") and summary.samples[0].state == "R"
    assert [each.generation for each in summary.collections] == [2] * 60


def test_a_hundred_thousand_short_steps(tmp_path: Path) -> None:
    """Of 20 µs each."""
    run = write_training(tmp_path, 1_200_000, 100_000, 20_000)
    (rank,) = explain(run).ranks
    assert rank.statistics is not None and rank.statistics.steps == 100_000 and rank.statistics.p50 == 20_000
    assert round(sum(share.ns for share in rank.shares)) == 20_000
    assert len(report_html(run).encode()) < MOST_BYTES


def test_the_page_of_many_events_is_small(tmp_path: Path) -> None:
    """100,000 events of a training; and as many with 3,000 names, long and full of markup, and ever other stacks."""
    assert len(report_html(write_training(new_directory(tmp_path / "run"), 100_000, 2_000)).encode()) < MOST_BYTES
    chance = random.Random(1)
    names = [f"{number % 3_000}{'<&>' * 100}" for number in range(100_000)]
    stacks = [
        ";".join(f"{'&' * 150}{chance.randrange(30)} (/{'<' * 150}.py:{depth})" for depth in range(8))
        for _ in range(2_000)
    ]
    nothing: dict[str, Any] = {}
    batch = batch_with_arguments(names, [nothing] * 98_000 + [{"stack": stack, "state": "R"} for stack in stacks])
    events = batch.events.copy()
    events["kind"][98_000:] = Kind.INSTANT
    events["category"][98_000:] = strings.category("stack sample")
    events["kind"][:98_000:49] = Kind.STEP
    events["step"] = np.arange(len(events)) // 49
    write_journal(new_directory(tmp_path / "odd") / "journal", [msgspec.structs.replace(batch, events=events)])
    page = report_html(tmp_path / "odd")
    assert page.count("&lt;&amp;&gt;") > 10_000 and len(page.encode()) < MOST_BYTES


LITTLE_MEMORY = """
import resource, sys
from stepscope.analysis.explain import explain
explain(sys.argv[1])
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + (150 << 20),) * 2)
print(explain(sys.argv[2]).ranks[0].statistics.steps)
"""


def test_steps_of_a_long_window_leave_memory(tmp_path: Path) -> None:
    """The spans of all steps, which take 50 bytes each, are not in memory at once."""
    short = write_training(new_directory(tmp_path / "short"), 60_000, 600)
    long = write_training(new_directory(tmp_path / "long"), 4_000_000, 4_000)
    assert python("-c", LITTLE_MEMORY, short, long, cwd=ROOT).stdout == "4000\n"
