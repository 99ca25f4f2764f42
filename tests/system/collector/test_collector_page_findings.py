"""Findings and the heat map on the live page, in a real browser: by mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np
import pytest

from stepscope.collector.app import Collector
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.views import LiveFinding
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream.step_summary import summary_of
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, SIGNALS, Phase
from tests.support.collecting import collecting, training, wait_until
from tests.system.collector.test_collector_page import cell, look_at, quiet_page, violations, visit
from tests.unit.collector.test_collector_live import START, run_of

if TYPE_CHECKING:
    from playwright.sync_api import Page


STEPS = 640
STEP_NS = 20_000_000
CHEAP = LiveFinding(
    id="input-bound",
    title="Data is loaded late.",
    evidence=["The loader takes 1 ms."],
    action="use more workers",
    gain="1 ms a step",
    cost=0.02,
    certainty="likely",
    ranks=[0, 1],
    steps=[],
)
COSTLY = msgspec.structs.replace(
    CHEAP,
    id="slow-rank",
    title="Rank 1 holds the others up.",
    evidence=["<b>Its steps</b> take 30 ms.", "Those of the others take 10 ms."],
    action="look at its host",
    gain="steps of 10 ms",
    cost=0.47,
    certainty="certain",
    ranks=[1],
)


def shown(tmp_path: Path, findings: list[LiveFinding], look: Callable[[str], None]) -> None:
    """Looks at the page of a collector with two ranks and these findings."""
    look_at(lambda: two_ranks(tmp_path, findings), lambda url, _: look(url))


def two_ranks(directory: Path, findings: list[LiveFinding]) -> Collector:
    """A collector with these findings, one of whose ranks waits for its data."""
    collector = Collector(CollectorSettings(directory=directory, port=0), lambda _: findings)
    for rank in (0, 1):
        facts: Any = np.zeros(STEPS, FACTS_DTYPE)
        facts["step"] = np.arange(STEPS)
        facts["begin"] = START + STEP_NS * facts["step"]
        facts["end"] = facts["begin"] + STEP_NS
        facts["phases"][:, int(Phase.DATA)] = rank * STEP_NS // 4
        for signal in SIGNALS:
            facts[signal] = np.nan  # it could not be read
        stream = Stream(f"{rank:032x}", run_of(rank))
        stream.add_summary(summary_of(facts, events=0, lost=0))
        collector.streams.add(stream)
    return collector


def test_the_most_costly_finding_comes_first(tmp_path: Path) -> None:
    """With what to try; its evidence stays open while snapshots come; its ranks are chosen by buttons."""

    def look(url: str) -> None:
        with quiet_page() as page:
            page.goto(url)
            found = page.get_by_role("list", name="Findings")
            found.get_by_text("Rank 1 holds the others up.").wait_for()
            text = found.inner_text()
            assert "It costs 47 % of the time (certain)." in text
            assert "Try: look at its host. Gain: steps of 10 ms." in text
            assert "Nothing" not in page.locator("#verdict").inner_text()
            assert page.locator(".verdict.bad").count() == 0, "a box without text"
            found.get_by_text("Evidence").click()
            page.wait_for_timeout(2500)
            evidence = found.locator("details")
            assert "<b>Its steps</b> take 30 ms." in evidence.inner_text()
            assert "steps of 2 ranks. Less costly: Data is loaded late." in evidence.inner_text()
            assert violations(page) == "[]"
            found.get_by_role("button", name="rank 1").click()
            assert page.get_by_label("Choose rank 1").is_checked()
            assert not page.get_by_label("Choose rank 0").is_checked()

    shown(tmp_path, [COSTLY, CHEAP], look)


def test_the_page_of_a_run_without_findings(tmp_path: Path) -> None:
    """Then the page says in how many steps."""

    def look(url: str) -> None:
        with quiet_page() as page:
            page.goto(url)
            page.get_by_text("Nothing stands out in up to").wait_for()

    shown(tmp_path, [], look)


def test_a_rank_has_died(tmp_path: Path) -> None:
    """The page names it, and does not say that nothing stands out."""

    def look(url: str, collector: Collector) -> None:
        collector.streams.ranks["job-1"].latest.seen -= 60
        with quiet_page() as page:
            page.goto(url)
            page.get_by_text("Died: rank 1. A connection was lost and no end came").wait_for()
            assert "Nothing" not in page.locator("#verdict").inner_text()

    look_at(lambda: two_ranks(tmp_path, []), look)


def test_counters_are_columns_where_there_are_some(tmp_path: Path) -> None:
    """The table can be sorted by them; one that no rank has is left out."""

    def look(url: str) -> None:
        with quiet_page() as page:
            page.goto(url)
            page.get_by_role("button", name="Input", exact=True).press("Enter")
            assert [cell(page, 1, "Input"), cell(page, 0, "Input")] == ["25 %", "0.0 %"]
            assert page.locator("#rank-table tbody th").all_inner_texts() == ["rank 1", "rank 0"]
            assert "CPU" not in page.locator("#rank-table thead").inner_text()

    shown(tmp_path, [], look)


def test_processor_time_and_memory_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the process that trains measures them."""
    monkeypatch.delenv("STEPSCOPE_SIGNALS")
    with collecting(tmp_path) as collector, quiet_page() as page, training(collector.url, 0, steps=10_000):
        page.goto(collector.url)
        page.get_by_role("button", name="Memory").wait_for()
        wait_until(lambda: cell(page, 0, "CPU").endswith("%") and cell(page, 0, "Memory").endswith("MiB"))


RANKS, MAP_STEPS = 8, 10
FIRST = 100
SLOW = 105
"""The step in which rank 3 does not wait for the others."""


def life(rank: int) -> Stream:
    """A rank that does nothing of its own in half of each step: it waits. Rank 0 comes two steps late."""
    first = FIRST + (2 if rank == 0 else 0)
    facts: Any = np.zeros(FIRST + MAP_STEPS - first, FACTS_DTYPE)
    facts["step"] = np.arange(first, FIRST + MAP_STEPS)
    facts["begin"] = START + STEP_NS * facts["step"]
    facts["end"] = facts["begin"] + STEP_NS
    waits = (facts["step"] != SLOW) | (rank != 3)
    facts["phases"][:, int(Phase.COMMUNICATION)] = waits * STEP_NS // 2
    stream = Stream(f"{rank:032x}", run_of(rank))
    stream.add_summary(summary_of(facts, events=0, lost=0))
    return stream


def map_shown(tmp_path: Path, look: Callable[[str], None], ranks: int = RANKS) -> None:
    """Looks at the page of a collector with some ranks."""

    def make() -> Collector:
        collector = Collector(CollectorSettings(directory=tmp_path, port=0))
        for rank in range(ranks):
            collector.streams.add(life(rank))
        return collector

    look_at(make, lambda url, _: look(url))


def asked_of(page: Page) -> list[dict[str, str]]:
    """The parameters of each request for a heat map."""
    asked: list[dict[str, str]] = []

    def note(url: str) -> None:
        if "/v1/heatmap?" in url:
            asked.append({name: value for name, (value,) in parse_qs(urlsplit(url).query).items()})

    page.on("request", lambda request: note(request.url))
    return asked


def see(page: Page, url: str) -> None:
    """Opens the page; returns when the heat map is there, and what is above it has its height."""
    visit(page, url)
    page.get_by_role("heading", name="Ranks and steps").wait_for()
    page.locator("#chart-text", has_text="Latest: ").wait_for()


def when(page: Page, look: Callable[[], bool]) -> None:
    """Waits until something was asked for. Events of the browser come only while it is waited for."""

    def looked() -> bool:
        page.wait_for_timeout(50)
        return look()

    wait_until(looked)


def at(page: Page, row: int, column: int, rows: int = RANKS, columns: int = MAP_STEPS) -> tuple[float, float]:
    """The middle of a cell."""
    box = page.locator("#heat-canvas").bounding_box()
    assert box is not None
    return box["x"] + box["width"] * (column + 0.5) / columns, box["y"] + box["height"] * (row + 0.5) / rows


PIXELS = """() => {
  const canvas = document.getElementById("heat-canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  return { width: canvas.width, height: canvas.height, data: [...data] };
}"""


def pixels(page: Page) -> list[list[list[int]]]:
    """RGBA of each cell, by row and column."""
    found = page.evaluate(PIXELS)
    width: int = found["width"]
    return [
        [found["data"][4 * (row * width + column) :][:4] for column in range(width)] for row in range(found["height"])
    ]


def test_cells_have_colours_and_words(tmp_path: Path) -> None:
    """In both themes; what is not known is transparent. The pointer and the arrow keys say what a cell is."""

    def look(url: str) -> None:
        with quiet_page() as page:
            page.emulate_media(color_scheme="light")
            see(page, url)
            cells = pixels(page)
            assert [len(cells), len(cells[0])] == [RANKS, MAP_STEPS]
            assert cells[0][0][3] == 0 and cells[0][2][3] == cells[1][0][3] == 255
            assert cells[1][0] == cells[7][9] != cells[3][5]
            red, _, blue, _ = cells[3][5]
            assert red > blue + 60, "slow steps are orange"
            page.emulate_media(color_scheme="dark")
            wait_until(lambda: pixels(page)[1][0] != cells[1][0])
            slow = re.compile(r"rank 3, step 105: 19\.\d ms of its own work, 2\.00 times the median\.$")
            page.locator("#heat-text").get_by_text(slow).wait_for()

            page.mouse.move(*at(page, 3, 5))
            tip = page.locator("#heat-tip")
            assert slow.match(tip.inner_text())
            page.mouse.move(*at(page, 0, 1))
            assert tip.inner_text() == "rank 0, step 101: nothing is known."
            page.mouse.move(1, 1)
            assert not tip.is_visible()

            page.locator("#heat-canvas").focus()
            for key in ("ArrowDown", "ArrowDown", "ArrowRight", "End", "ArrowLeft"):
                page.keyboard.press(key)
            live = page.locator("#heat-live").inner_text()
            assert live.startswith("rank 2, step 108: ") and live.endswith("of its own work, 1.00 times the median.")
            assert tip.inner_text() == live
            page.keyboard.press("Enter")
            assert page.get_by_label("Choose rank 2").is_checked()
            assert violations(page) == "[]"
            page.get_by_role("radio", name="whole steps").check(force=True)
            page.locator("#heat-text").get_by_text("ms, 1.00 times the median.").wait_for()

    map_shown(tmp_path, look)


def test_a_drag_zooms_and_a_click_chooses(tmp_path: Path) -> None:
    """The zoom is asked for, and is in the address; a button ends it. A row of several ranks is shown rank by rank first."""

    def look(url: str) -> None:
        with quiet_page() as page:
            asked = asked_of(page)
            see(page, url)
            page.get_by_text("640 ranks, 320 by 10 cells, a row for 2 ranks").wait_for()
            page.mouse.click(*at(page, 1, 0, rows=320))
            page.get_by_text("2 ranks, 2 by 10 cells").wait_for()
            assert (asked[-1]["from_rank"], asked[-1]["to_rank"], "from_step" in asked[-1]) == ("2", "3", False)
            page.mouse.click(*at(page, 1, 0, rows=2))
            assert page.get_by_label("Choose rank 3").is_checked()

            page.mouse.move(*at(page, 0, 4, rows=2))
            page.mouse.down()
            page.mouse.move(*at(page, 0, 6, rows=2), steps=4)
            page.mouse.up()
            page.get_by_text("2 ranks, 2 by 3 cells").wait_for()
            assert (asked[-1]["from_step"], asked[-1]["to_step"], asked[-1]["to_rank"]) == ("104", "106", "3")
            wait_until(lambda: "map=2-3%2C104-106" in page.evaluate("location.search"))
            visit(page, page.url)
            page.get_by_text("2 ranks, 2 by 3 cells").wait_for()
            page.get_by_role("button", name="Show all ranks and steps").click()
            page.get_by_text("640 ranks, 320 by 10 cells").wait_for()
            wait_until(lambda: "map=" not in page.evaluate("location.search"))

            page.locator("#heat-canvas").focus()
            page.keyboard.press("+")
            page.get_by_text("320 ranks, 320 by 5 cells").wait_for()
            page.keyboard.press("-")
            page.get_by_text("640 ranks, 320 by 10 cells").wait_for()

    map_shown(tmp_path, look, ranks=640)


def test_findings_are_requested_while_they_are_in_view(tmp_path: Path) -> None:
    """And every two seconds at most."""

    def look(url: str) -> None:
        with quiet_page() as page:
            asked = asked_of(page)
            see(page, url)
            page.wait_for_timeout(4500)
            assert 2 <= len(asked) <= 4
            page.set_viewport_size({"width": 1500, "height": 200})
            page.wait_for_timeout(1000)
            before = len(asked)
            page.wait_for_timeout(4000)
            assert len(asked) == before
            page.locator("#heat-canvas").scroll_into_view_if_needed()
            when(page, lambda: len(asked) > before)

    map_shown(tmp_path, look)
