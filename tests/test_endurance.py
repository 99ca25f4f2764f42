"""The long runs run, at the smallest size: nothing is lost or left, and the picture is one."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from benchmarks.endurance import command
from benchmarks.endurance.cycles import Kind
from benchmarks.endurance.plot import Line, svg
from benchmarks.endurance.watch import slope


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a small run has seen."""
    path = tmp_path_factory.mktemp("endurance") / "report.json"
    arguments = ["--spans", "60000", "--rate", "20000", "--cycles", "20", "--no-limits", "--report", str(path)]
    assert command.main(arguments) == 0
    return path


def test_nothing_is_lost_or_left(report: Path) -> None:
    """Every span is at both outputs, and after closing no thread, no descriptor and no file remains."""
    seen = msgspec.json.decode(report.read_bytes(), type=command.Report)
    assert not command.problems(seen)
    assert seen.long.end.spans == 60_000 and len(seen.long.end.outputs) == 2
    assert all(exported >= 60_000 for _, exported, _, _ in seen.long.end.outputs.values())
    assert seen.long.samples and seen.long.last is not None
    assert seen.long.last.descriptors < seen.long.samples[-1].descriptors
    assert {cycles.kind for cycles in seen.cycles} == set(Kind)


def test_the_page_is_made_of_what_was_seen(report: Path, tmp_path: Path) -> None:
    """Without measuring again."""
    page, picture = tmp_path / "page.md", tmp_path / "memory.svg"
    assert command.main(["--from", str(report), "--markdown", str(page), "--plot", str(picture)]) == 0
    assert "**60,000 spans**" in page.read_text() and "![Memory over the run](memory.svg)" in page.read_text()
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_a_loss_is_a_problem(report: Path) -> None:
    """One event that no account names is told."""
    seen = msgspec.json.decode(report.read_bytes(), type=command.Report)
    offered, exported, _, _ = seen.long.end.outputs["journal"]
    seen.long.end.outputs["journal"] = (offered, exported - 1, {}, 0)
    seen.long.left.append("stepscope-1-x")
    assert command.problems(seen) == ["1 events lost without a count", "left in /dev/shm: stepscope-1-x"]


def test_slope_and_plot() -> None:
    """A line's slope is its own; names are escaped, and many points are thinned."""
    line = [(float(x), 3.0 * x + 1) for x in range(1000)]
    assert slope(line) == pytest.approx(3.0) and slope([]) == 0.0
    drawn = svg("a < b", "x", "y", [Line("l & m", line)])
    assert ElementTree.fromstring(drawn) is not None and "l &amp; m" in drawn and len(drawn) < 8000
