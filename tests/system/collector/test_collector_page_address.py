"""What the live page shows is in its address, in a real browser: a colleague who opens it sees the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from tests.support.collecting import CollectorProcess, collecting, trained, training, until
from tests.system.collector.test_collector_page import PLOTS, quiet_page, visit, zoom

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCALE = "[plots.at(-1).scales.x.min, plots.at(-1).scales.x.max]"


def parameters(page: Page) -> dict[str, str]:
    """What the address says."""
    return {name: value for name, (value,) in parse_qs(str(page.evaluate("location.search")).removeprefix("?")).items()}


def has_times(collector: CollectorProcess, job: str) -> bool:
    """Whether there is enough of a job to zoom."""
    return len(collector.get(f"/v1/steps?job={job}")["times"]) > 6


def test_an_address_shows_the_same_to_others(tmp_path: Path) -> None:
    """Time range, zoom, filter, order and the chosen ranks; a button ends the zoom."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        with training(collector.url, 0, steps=10_000), training(collector.url, 1, steps=10_000):
            until(lambda: len(collector.get("/v1/steps")["times"]) > 6)
        trained(collector.url, 2)
        page.add_init_script(PLOTS)
        visit(page, collector.url)
        page.get_by_role("radio", name="whole run").check(force=True)
        page.get_by_role("button", name="Step time").press("Enter")
        page.get_by_role("button", name="Step time").press("Enter")
        page.get_by_label("Show").fill("rank")
        page.get_by_label("Choose rank 1").check()
        zoom(page)
        until(lambda: "t" in parameters(page))
        found = parameters(page)
        assert {**found, "t": ""} == {"range": "all", "sort": "-Step time", "filter": "rank", "ranks": "job-1", "t": ""}

        other = page.context.new_page()
        other.add_init_script(PLOTS)
        other.goto(page.url)
        until(lambda: other.evaluate("plots.length > 0"))
        until(lambda: [round(end, 3) for end in other.evaluate(SCALE)] == [float(end) for end in found["t"].split("-")])
        assert other.get_by_role("radio", name="whole run").is_checked()
        assert other.locator("th[aria-sort=descending]").inner_text().startswith("Step time")
        assert other.get_by_label("Show").input_value() == "rank"
        assert other.get_by_label("Choose rank 1").is_checked()
        other.get_by_role("button", name="Reset zoom").click()
        until(lambda: "t" not in parameters(other))
        first, last = other.evaluate(SCALE)
        assert first < float(found["t"].split("-")[0]) and last > float(found["t"].split("-")[1])
        assert not other.get_by_role("button", name="Reset zoom").is_visible()
        other.get_by_role("button", name="Clear choice (1)").click()
        until(lambda: "ranks" not in parameters(other))
        assert not other.get_by_label("Choose rank 1").is_checked()


def test_another_job_is_shown_without_the_zoom_of_the_one_before(tmp_path: Path) -> None:
    """Going back leads to the job with its zoom."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        for name in ("one", "two"):
            with training(collector.url, 0, name=name, world=1, steps=10_000):
                until(partial(has_times, collector, f"{name}+x1"))
        page.add_init_script(PLOTS)
        visit(page, f"{collector.url}/?job=one+x1")
        zoom(page)
        until(lambda: "t" in parameters(page))
        zoomed = parameters(page)
        page.get_by_role("combobox", name="Job").select_option(label="two x1 – 1 rank, none connected")
        until(lambda: parameters(page) == {"job": "two x1"})
        assert not page.get_by_role("button", name="Reset zoom").is_visible()
        page.go_back()
        until(lambda: parameters(page) == zoomed)
        page.get_by_role("button", name="Reset zoom").wait_for()
