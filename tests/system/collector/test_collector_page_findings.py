"""Findings on the live page, in a real browser: in words, with their ranks, and not disturbed by what comes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.collecting import CollectorProcess, collecting, trained
from tests.system.collector.test_collector_page import cell, quiet_page, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHEAP = {
    "id": "input",
    "title": "Data is loaded late",
    "evidence": ["the loader takes 1 ms"],
    "action": "use more workers",
    "gain": "1 ms a step",
    "cost": 0.02,
    "certainty": "likely",
    "ranks": [0, 1],
    "steps": [],
}
COSTLY = {
    **CHEAP,
    "id": "straggler",
    "title": "Rank 1 holds the others up",
    "evidence": ["<b>its steps</b> take 30 ms", "those of the others take 10 ms"],
    "action": "look at its host",
    "gain": "steps of 10 ms",
    "cost": 0.47,
    "certainty": "certain",
    "ranks": [1],
}


def telling(page: Page, collector: CollectorProcess, findings: list[Any], **counters: float) -> None:
    """Has the collector's live events tell of verdicts, and of counters of rank 1."""
    job, ranks = collector.get("/v1/job"), collector.get("/v1/ranks")
    job["verdicts"] = [{"job_id": "job x2", "at_ns": 0, "steps": 640, "ranks": 2, "findings": findings}]
    for view in ranks:
        none = dict.fromkeys(("cpu_share", "resident_bytes", "data_share", "communication_share"))
        view |= none | (counters if view["rank"] == 1 else {})
    snapshot = {"number": 1, "at_ns": 0, "full": True, "job": job, "jobs": None, "changed": [], "gone": []}
    body = f"event: snapshot\ndata: {json.dumps({**snapshot, 'ranks': ranks})}\n\n"
    page.route("**/v1/events", lambda route: route.fulfill(body=body, content_type="text/event-stream"))


def test_the_most_costly_finding_comes_first(tmp_path: Path) -> None:
    """With what to try; its evidence stays open while snapshots come; its ranks are chosen by buttons."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        for rank in (0, 1):
            trained(collector.url, rank, world=2)
        telling(page, collector, [CHEAP, COSTLY])
        page.goto(collector.url)
        found = page.get_by_role("list", name="Findings")
        found.get_by_text("Rank 1 holds the others up.").wait_for()
        text = found.inner_text()
        assert "costs 47 % of the time" in text and "Try: look at its host" in text
        assert "by chance" not in page.locator("#verdict").inner_text()
        found.get_by_text("Evidence").click()
        page.wait_for_timeout(2500)  # the page asks again each time that the answer ends
        evidence = found.locator("details")
        assert "<b>its steps</b> take 30 ms" in evidence.inner_text()
        assert "From 640 steps of 2 ranks. Less costly: Data is loaded late." in evidence.inner_text()
        assert found.get_by_role("listitem").count() == 3, "one finding, with two lines of evidence"
        assert violations(page) == "[]"
        found.get_by_role("button", name="rank 1").click()
        assert page.get_by_label("Choose rank 1").is_checked()
        assert not page.get_by_label("Choose rank 0").is_checked()


def test_nothing_is_found(tmp_path: Path) -> None:
    """Then the page says of how many steps."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        for rank in (0, 1):
            trained(collector.url, rank, world=2)
        telling(page, collector, [])
        page.goto(collector.url)
        page.get_by_text("No rank is slower than by chance. 640 steps were judged.").wait_for()


def test_counters_are_columns_where_there_are_some(tmp_path: Path) -> None:
    """Of no rank without: then the table is as wide as before."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        for rank in (0, 1):
            trained(collector.url, rank, world=2)
        telling(page, collector, [], cpu_share=0.914, resident_bytes=3 << 30)
        page.goto(collector.url)
        page.get_by_role("button", name="CPU").press("Enter")
        assert [cell(page, 1, "CPU"), cell(page, 1, "Memory"), cell(page, 0, "CPU")] == ["91 %", "3.00 GiB", "–"]
        assert page.locator("#rank-table tbody th").all_inner_texts() == ["rank 1", "rank 0"]
        titles = page.locator("#rank-table thead th").all_inner_texts()
        assert "Input" not in titles and "Comm." not in titles
