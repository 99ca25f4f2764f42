"""The heat map of the live page, in a real browser: by mouse and by keyboard."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from stepscope.collector.app import Collector
from stepscope.collector.live.stream import Stream
from stepscope.collector.settings import CollectorSettings
from tests.support.collecting import until
from tests.system.collector.test_collector_page import quiet_page, violations, visit
from tests.unit.collector.test_collector_live import SECOND, START, run_of, steps

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

RANKS, STEPS = 8, 10
FIRST = 100
MEDIAN, DOUBLE = 128, 160


def answer(query: dict[str, list[str]], ranks_per_row: int = 1) -> dict[str, Any]:
    """What a collector answers of ranks whose steps take as long as the median, but step 105 of rank 3 twice as long; of rank 0
    nothing is known."""

    def number(name: str, usual: int) -> int:
        return int(query[name][0]) if name in query else usual

    ranks = range(number("from_rank", 0), min(number("to_rank", RANKS), RANKS))
    numbers = range(number("from_step", FIRST), min(number("to_step", FIRST + STEPS), FIRST + STEPS))
    rows = ranks[::ranks_per_row]
    values = [
        DOUBLE if row <= 3 < row + ranks_per_row and step == 105 else 0 if row + ranks_per_row == 1 else MEDIAN
        for row in rows
        for step in numbers
    ]
    return {
        "job_id": None,
        "first_step": numbers[0],
        "steps_per_column": 1,
        "columns": len(numbers),
        "rows": [f"job-{rank}" for rank in rows],
        "ranks_per_row": ranks_per_row,
        "ranks": len(ranks),
        "value": query["value"][0],
        "median_ms": [20.0] * len(numbers),
        "values": base64.b64encode(bytes(values)).decode(),
    }


def answering(page: Page, ranks_per_row: int = 1) -> list[dict[str, list[str]]]:
    """Answers for the collector; the parameters of each request."""
    asked: list[dict[str, list[str]]] = []

    def fulfil(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        asked.append(query)
        route.fulfill(json=answer(query, 1 if "from_rank" in query else ranks_per_row))

    page.route("**/v1/heatmap?*", fulfil)
    return asked


def when(page: Page, look: Callable[[], bool]) -> None:
    """Waits until something was asked for. Requests are answered only while the browser is waited for."""

    def looked() -> bool:
        page.wait_for_timeout(50)
        return look()

    until(looked)


def shown(tmp_path: Path, look: Callable[[str], None]) -> None:
    """Looks at the page of a collector with some ranks, on a thread."""
    asyncio.run(_serve(tmp_path, look))


async def _serve(tmp_path: Path, look: Callable[[str], None]) -> None:
    collector = Collector(CollectorSettings(directory=tmp_path, port=0))
    for number in range(RANKS):
        stream = Stream(f"{number:032x}", run_of(number))
        stream.steps.add(steps([SECOND // 50] * STEPS), 0, START, START + 100 * SECOND)
        collector.streams.add(stream)
    async with collector.serving() as url:
        await asyncio.to_thread(look, url)


def at(page: Page, row: int, column: int, columns: int = STEPS, rows: int = RANKS) -> tuple[float, float]:
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
            answering(page)
            page.emulate_media(color_scheme="light")
            visit(page, url)
            page.get_by_role("heading", name="Ranks and steps").wait_for()
            page.get_by_text("Latest: ").wait_for()  # the chart above has its height
            cells = pixels(page)
            assert [len(cells), len(cells[0])] == [RANKS, STEPS]
            assert cells[0][0][3] == 0 and cells[1][0][3] == 255
            assert cells[1][0] == cells[7][9] != cells[3][5]
            red, _, blue, _ = cells[3][5]
            assert red > blue + 60, "what is slow is orange"
            page.emulate_media(color_scheme="dark")
            until(lambda: pixels(page)[1][0] != cells[1][0])
            page.get_by_text("The highest: rank 3, step 105: 40.0 ms, 2.00 times the median.").wait_for()

            page.mouse.move(*at(page, 3, 5))
            tip = page.locator("#heat-tip")
            assert tip.inner_text() == "rank 3, step 105: 40.0 ms, 2.00 times the median."
            page.mouse.move(*at(page, 0, 2))
            assert tip.inner_text() == "rank 0, step 102: nothing is known."
            page.mouse.move(1, 1)
            assert not tip.is_visible()

            page.locator("#heat-canvas").focus()
            for key in ("ArrowDown", "ArrowDown", "ArrowRight", "End", "ArrowLeft"):
                page.keyboard.press(key)
            live = page.locator("#heat-live")
            assert live.inner_text() == "rank 2, step 108: 20.0 ms, 1.00 times the median."
            assert tip.inner_text() == live.inner_text()
            page.keyboard.press("Enter")
            assert page.get_by_label("Choose rank 2").is_checked()
            assert violations(page) == "[]"

    shown(tmp_path, look)


def test_a_drag_zooms_and_a_click_chooses(tmp_path: Path) -> None:
    """The zoom is asked for, and is in the address; a button ends it. A row of several ranks is shown rank by rank first."""

    def look(url: str) -> None:
        with quiet_page() as page:
            asked = answering(page, ranks_per_row=2)
            visit(page, url)
            page.get_by_role("heading", name="Ranks and steps").wait_for()
            page.get_by_text("Latest: ").wait_for()  # the chart above has its height
            page.get_by_text("a row for 2 ranks").wait_for()
            page.mouse.click(*at(page, 1, 0, rows=4))
            when(page, lambda: "from_rank" in asked[-1])
            assert (asked[-1]["from_rank"], asked[-1]["to_rank"], "from_step" in asked[-1]) == (["2"], ["4"], False)
            page.get_by_text("2 ranks, 2 by 10 cells").wait_for()
            page.mouse.click(*at(page, 1, 0, rows=2))
            assert page.get_by_label("Choose rank 3").is_checked()

            page.mouse.move(*at(page, 0, 4, rows=2))
            page.mouse.down()
            page.mouse.move(*at(page, 0, 6, rows=2), steps=4)
            page.mouse.up()
            when(page, lambda: "from_step" in asked[-1])
            assert (asked[-1]["from_step"], asked[-1]["to_step"], asked[-1]["to_rank"]) == (["104"], ["107"], ["4"])
            page.get_by_text("2 ranks, 2 by 3 cells").wait_for()
            until(lambda: "map=2-4%2C104-107" in page.evaluate("location.search"))
            visit(page, page.url)
            page.get_by_text("2 ranks, 2 by 3 cells").wait_for()
            page.get_by_role("button", name="Show all ranks and steps").click()
            when(page, lambda: "from_rank" not in asked[-1] and "from_step" not in asked[-1])
            until(lambda: "map=" not in page.evaluate("location.search"))
            page.get_by_role("radio", name="own time").check(force=True)
            when(page, lambda: asked[-1]["value"] == ["own"])

    shown(tmp_path, look)


def test_it_is_asked_for_while_it_is_in_view(tmp_path: Path) -> None:
    """And every two seconds at most."""

    def look(url: str) -> None:
        with quiet_page() as page:
            asked = answering(page)
            visit(page, url)
            page.get_by_role("heading", name="Ranks and steps").wait_for()
            page.get_by_text("Latest: ").wait_for()  # the chart above has its height
            page.wait_for_timeout(4500)
            assert 2 <= len(asked) <= 4
            page.set_viewport_size({"width": 1500, "height": 200})
            page.wait_for_timeout(1000)
            before = len(asked)
            page.wait_for_timeout(4000)
            assert len(asked) == before
            page.locator("#heat-canvas").scroll_into_view_if_needed()
            page.wait_for_timeout(3500)
            assert len(asked) > before

    shown(tmp_path, look)


def test_a_collector_without_a_heat_map(tmp_path: Path) -> None:
    """The section is hidden, and nothing else is missing."""

    def look(url: str) -> None:
        with quiet_page() as page:
            problem = json.dumps({"title": "Not Found", "status": 404})
            page.route("**/v1/heatmap?*", lambda route: route.fulfill(status=404, body=problem))
            with page.expect_request("**/v1/heatmap?*"):
                page.goto(url)
            page.get_by_role("button", name="rank 7", exact=True).wait_for()
            page.get_by_text("live", exact=True).wait_for()
            assert not page.get_by_role("heading", name="Ranks and steps").is_visible()

    shown(tmp_path, look)
