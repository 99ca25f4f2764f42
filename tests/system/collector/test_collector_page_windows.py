"""Windows of all ranks on the live page, in a real browser: of several jobs and starts, downloaded and opened."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.basics import require
from tests.support.collecting import collecting, trained, until
from tests.support.pftrace import Trace
from tests.system.collector.test_collector_page import TOKEN, quiet_page, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Route

VIEWER = """<!doctype html><title>viewer</title><script>
addEventListener("message", (message) => {
  if (message.data === "PING") message.source.postMessage("PONG", message.origin);
  else {
    const { title, buffer } = message.data.perfetto;
    window.got = { title, bytes: [...new Uint8Array(buffer)] };
  }
});
</script>"""
"""What Perfetto's page does of all this: it answers when it is there, and takes a trace."""


def test_windows_of_several_jobs_and_starts(tmp_path: Path) -> None:
    """Each job has its rows, each start of a rank its own; merged files hold one job, also with a token."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=TOKEN) as collector, quiet_page() as page:
        for _ in range(2):
            trained(collector.url, 0, token=TOKEN, steps=20)
        trained(collector.url, 0, token=TOKEN, name="a job ~ of * all", world=2, steps=10)
        page.goto(collector.url)
        sign_in(page, TOKEN)
        table = page.locator("#window-table tbody tr")
        until(lambda: table.count() == 3)
        page.get_by_role("button", name="rank 0 of job", exact=True).wait_for()
        page.get_by_role("button", name="rank 0 of a job ~ of * all x2").wait_for()
        for of, steps in (("window 1 of job", 20), ("window 0 of a job ~ of * all x2", 10)):
            with page.expect_download() as downloading:
                page.get_by_role("button", name=f"Chrome trace of {of}, all ranks").click()
            events = json.loads(gzip.decompress(Path(downloading.value.path()).read_bytes()))
            assert sum(event["name"] == "forward" for event in events if event.get("ph") == "X") == steps
        page.get_by_role("button", name="Ranks of window 1 of job").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Table of names of job-0, start 2, window 1").wait_for()
        assert dialog.locator("tbody th").all_inner_texts() == ["job-0, start 1", "job-0, start 2"]
        page.keyboard.press("Escape")
        page.get_by_role("button", name="rank 0 of job", exact=True).click()
        dialog.get_by_text("Start 2").wait_for()
        assert dialog.get_by_text("Start 1").count() == 1


def test_a_window_of_all_ranks_is_opened_in_perfetto(tmp_path: Path) -> None:
    """One click hands the merged trace to Perfetto's page, in the browser."""
    require("perfetto")

    def viewer(route: Route) -> None:
        route.fulfill(body=VIEWER, content_type="text/html")

    with collecting(tmp_path) as collector, quiet_page() as page:
        for rank in (0, 1):
            trained(collector.url, rank, world=2)
        page.context.route("https://ui.perfetto.dev/**", viewer)
        page.goto(collector.url)
        with page.expect_popup() as opening:
            page.get_by_role("button", name="Open window 1, all ranks, in ui.perfetto.dev").click()
        opened = opening.value
        opened.wait_for_function("() => window.got")
        got = opened.evaluate("() => window.got")
        page.locator("#windows-status").get_by_text("opened in Perfetto").wait_for()
        assert got["title"] == "window 1, all ranks"
        slices = Trace(bytes(got["bytes"])).slices()
        assert sum(one.name == "forward" for one in slices) == 20
        assert len({one.track for one in slices if one.name == "forward"}) == 2
