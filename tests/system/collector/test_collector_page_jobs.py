"""Several jobs on the live page, in a real browser: one is chosen by keyboard or by address, and everything is of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tests.support.collecting import collecting, trained, training, until
from tests.system.collector.test_collector_page import TOKEN, quiet_page, sign_in, violations, visit

if TYPE_CHECKING:
    from playwright.sync_api import Page

LARGE, SMALL = "large x2", "small & odd? x1"


def shown_job(page: Page) -> list[str]:
    """What the address says."""
    return parse_qs(urlsplit(page.url).query).get("job", [])


def summary(page: Page, title: str, part: str = ".value") -> str:
    """A value of the summary, or what is said below it."""
    return page.locator("#summary div", has=page.get_by_text(title, exact=True)).locator(part).inner_text()


def is_shown(page: Page, ranks: list[str], windows: int) -> None:
    """Waits until these ranks are in the table, and so many windows in theirs."""
    until(lambda: page.locator("#rank-table tbody th").all_inner_texts() == ranks)
    until(lambda: page.locator("#window-table tbody tr").count() == windows)


def downloaded(page: Page, label: str) -> int:
    """Spans of the name `forward` in a trace that a button of the page gives."""
    with page.expect_download() as downloading:
        page.get_by_role("button", name=label, exact=True).click()
    events = json.loads(gzip.decompress(Path(downloading.value.path()).read_bytes()))
    return sum(event["name"] == "forward" for event in events if event.get("ph") == "X")


def test_a_job_is_chosen(tmp_path: Path) -> None:
    """By keyboard; tables, sums, chart and merged files are of it; going back, reloading and a link lead there as well."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=TOKEN) as collector, quiet_page() as page:
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        for rank in (0, 1):
            trained(collector.url, rank, token=TOKEN, name="large", world=2, steps=20)
        visit(page, collector.url)
        sign_in(page, TOKEN)
        is_shown(page, ["rank 0", "rank 1"], 2)
        jobs = page.get_by_role("combobox", name="Job")
        assert not jobs.is_visible(), "there is nothing to choose"
        trained(collector.url, 0, token=TOKEN, name="small & odd?", world=1, steps=10)
        is_shown(page, [f"rank 0 of {LARGE}", f"rank 1 of {LARGE}", f"rank 0 of {SMALL}"], 3)
        events = summary(page, "Events", ".quiet")

        jobs.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        until(lambda: shown_job(page) == [SMALL])
        is_shown(page, ["rank 0"], 1)
        assert jobs.evaluate("node => node === document.activeElement && node.selectedOptions[0].textContent") == (
            f"{SMALL} – 1 rank, none connected"
        )
        assert summary(page, "Ranks") == "1 of 1"
        chart = page.locator("#chart-text")
        until(lambda: "over one rank." in chart.inner_text())
        assert downloaded(page, "Chrome trace of window 0, all ranks") == 10
        page.get_by_role("button", name="Ranks of window 0").click()
        dialog = page.get_by_role("dialog")
        views = collector.get("/v1/ranks", {"Authorization": f"Bearer {TOKEN}"})
        ids = [view["id"] for view in views if view["job_id"] == SMALL]
        until(lambda: dialog.locator("tbody th").all_inner_texts() == ids)
        page.keyboard.press("Escape")

        jobs.select_option(label=f"{LARGE} – 2 ranks, none connected")
        is_shown(page, ["rank 0", "rank 1"], 2)
        assert downloaded(page, "Chrome trace of window 1, all ranks") == 20
        until(lambda: "over 2 ranks" in chart.inner_text())

        page.go_back()
        is_shown(page, ["rank 0"], 1)
        assert shown_job(page) == [SMALL] and summary(page, "Ranks") == "1 of 1"
        page.reload()
        is_shown(page, ["rank 0"], 1)
        page.get_by_role("combobox", name="Job").select_option(label="All 2 jobs")
        is_shown(page, [f"rank 0 of {LARGE}", f"rank 1 of {LARGE}", f"rank 0 of {SMALL}"], 3)
        assert shown_job(page) == [] and summary(page, "Events", ".quiet") == events
        assert not [address for address in (*addresses, page.url) if TOKEN in address]


def test_a_link_to_a_job_that_is_not_there_yet(tmp_path: Path) -> None:
    """It says so, offers the others, and shows the job when it comes; changes told are those of the job."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        trained(collector.url, 0, name="early", world=1)
        page.goto(f"{collector.url}/?job=late+x1")
        page.get_by_text("No rank of the job late x1 is here.").wait_for()
        jobs = page.get_by_role("combobox", name="Job")
        assert jobs.evaluate("node => node.selectedOptions[0].textContent") == "late x1 – not here"
        assert page.locator("#rank-table tbody tr").count() == 0
        with training(collector.url, 0, name="late", world=1, steps=10_000):
            page.get_by_role("button", name="rank 0", exact=True).wait_for()
            page.locator("#changes").get_by_text("rank 0 is connected").wait_for()
            until(lambda: "late x1 – 1 rank" == jobs.evaluate("node => node.selectedOptions[0].textContent"))
            page.get_by_text("The chart as a table").click()
            assert violations(page) == "[]"
        assert "early" not in page.locator("#changes").inner_text()
