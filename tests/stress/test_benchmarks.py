"""The benchmarks run, at the smallest size; what they measure is not looked at."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from benchmarks.catalog import ROWS
from benchmarks.harness import document, release_plot, releases
from benchmarks.harness.command import chosen, main, run
from benchmarks.harness.report import Report
from benchmarks.harness.row import Row, Tool
from benchmarks.harness.scale import SMOKE
from stepscope.runtime.version import VERSION
from tests.support.basics import missing, require
from tests.support.messages import refused


def _only(rows: Sequence[Row], *tools: Tool) -> list[Row]:
    return [
        msgspec.structs.replace(row, contenders=tuple(c for c in row.contenders if c.tool in tools)) for row in rows
    ]


def _failures(report: Report) -> list[str]:
    return [f"{o.key} {m.label}: {m.why_not}" for o in report.outcomes for m in o.measured if m.why_not]


@pytest.mark.timeout(1200)
def test_every_row_of_ours_can_be_measured() -> None:
    """A row that does not run any more would go missing from the table."""
    require("torch")
    if shutil.which("nats-server") is None:
        missing("nats-server", "Install it (on Debian: apt-get install nats-server).")
    report = run(_only(ROWS, Tool.STEPSCOPE), SMOKE)
    assert not _failures(report)
    assert [outcome.key for outcome in report.outcomes if outcome.own and outcome.own.samples] == [
        row.key for row in ROWS
    ]


def test_peers_are_measured_in_processes_of_their_own() -> None:
    """Other tools are measured as their own users run them, without stepscope in the process."""
    require("torch")
    require("viztracer")
    report = run(_only(chosen(["idle.none", "json.file"]), Tool.TORCH, Tool.VIZTRACER), SMOKE)
    assert not _failures(report)
    assert all(peer.samples for outcome in report.outcomes for peer in outcome.peers)


def test_results_are_written_as_json_and_markdown(tmp_path: Path) -> None:
    """A run leaves every sample in JSON, and the table in its place in a page, again and again."""
    page, samples = tmp_path / "page.md", tmp_path / "samples.json"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*document.markers("measured")))
    arguments = ["--scale", "smoke", "--only", "idle.waiting", "--json", str(samples), "--markdown", str(page)]
    for _ in range(2):
        assert main(arguments) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert text.count("profiler between windows") == 1 and "old" not in text
    assert msgspec.json.decode(samples.read_bytes())["outcomes"][0]["key"] == "idle.waiting"


def test_a_page_without_a_place_for_the_table_is_left_alone(tmp_path: Path) -> None:
    """A page without the markers is never overwritten."""
    page = tmp_path / "page.md"
    page.write_text("by hand")
    with refused(ValueError, page):
        main(["--scale", "smoke", "--only", "idle.waiting", "--markdown", str(page)])
    assert page.read_text() == "by hand"


def test_an_unknown_row_is_refused_by_name() -> None:
    """The error of a misspelt row names all rows."""
    with refused(ValueError, "spam", "span.recording"):
        chosen(["spam"])


def test_results_of_releases_are_saved_and_shown(tmp_path: Path) -> None:
    """The page has the table that the files make; a release is read as it was written, and newer ones come last."""
    text = releases.PAGE.read_text(encoding="utf-8")
    begin, end = document.markers("releases")
    stored = releases.releases()
    assert text.partition(begin)[2].partition(end)[0].strip() == releases.section(stored), "make docs"
    assert release_plot.PLOT.read_text(encoding="utf-8") == release_plot.svg(stored), "make docs"
    newer = [msgspec.structs.replace(stored[-1], version=version) for version in ("0.10.0", "0.9.1")]
    for release in newer:
        release.write(tmp_path)
    assert releases.releases(tmp_path) == newer[::-1]
    assert releases.section(newer[::-1]).count("| row | what | 0.9.1 | 0.10.0 |") == 1
    rows = len(newer[0].rows)
    drawn = ElementTree.fromstring(release_plot.svg(newer[::-1]))
    bars = [bar.get("class") for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == ["bar", "bar newest"] * rows


def test_a_release_has_the_figures_of_stepscope() -> None:
    """Those that were measured, by row."""
    report = run(_only(chosen(["idle.waiting"]), Tool.STEPSCOPE), SMOKE)
    release = releases.Release.of(report)
    row = release.rows["idle.waiting"]
    assert release.version == VERSION and row.lowest <= row.median <= row.highest
