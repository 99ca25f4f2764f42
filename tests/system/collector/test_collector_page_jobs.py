"""Jobs, windows and orders on the live page, in a real browser; the address shows the same to others."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.support.basics import ROOT, require
from tests.support.collecting import CollectorProcess, collecting, trained, training, wait_until
from tests.support.launch import launched
from tests.support.pftrace import Trace
from tests.system.collector.test_collector_page import PLOTS, TOKEN, quiet_page, sign_in, violations, visit, zoom

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route


LARGE, SMALL = "large x2", "small & odd? x1"


def shown_job(page: Page) -> list[str]:
    """The job in the address."""
    return parse_qs(urlsplit(page.url).query).get("job", [])


def summary(page: Page, title: str, part: str = ".value") -> str:
    """A value of the summary, or the note below it."""
    return page.locator("#summary div", has=page.get_by_text(title, exact=True)).locator(part).inner_text()


def is_shown(page: Page, ranks: list[str], windows: int) -> None:
    """Waits until these ranks are in the table, and so many windows in theirs."""
    wait_until(lambda: page.locator("#rank-table tbody th").all_inner_texts() == ranks)
    wait_until(lambda: page.locator("#window-table tbody tr").count() == windows)


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
        wait_until(lambda: shown_job(page) == [SMALL])
        is_shown(page, ["rank 0"], 1)
        assert jobs.evaluate("node => node === document.activeElement && node.selectedOptions[0].textContent") == (
            f"{SMALL} – 1 rank, none connected"
        )
        assert summary(page, "Ranks") == "1 of 1"
        chart = page.locator("#chart-text")
        wait_until(lambda: "over one rank." in chart.inner_text())
        assert downloaded(page, "Chrome trace of window 0, all ranks") == 10
        page.get_by_role("button", name="Ranks of window 0").click()
        dialog = page.get_by_role("dialog")
        views = collector.get("/v1/ranks", {"Authorization": f"Bearer {TOKEN}"})
        ids = [view["id"] for view in views if view["job_id"] == SMALL]
        wait_until(lambda: dialog.locator("tbody th").all_inner_texts() == ids)
        page.keyboard.press("Escape")

        jobs.select_option(label=f"{LARGE} – 2 ranks, none connected")
        is_shown(page, ["rank 0", "rank 1"], 2)
        assert downloaded(page, "Chrome trace of window 1, all ranks") == 20
        wait_until(lambda: "over 2 ranks" in chart.inner_text())

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
    """It says so, offers the others, and shows the job when it comes; the changes are those of the job."""
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
            wait_until(lambda: "late x1 – 1 rank" == jobs.evaluate("node => node.selectedOptions[0].textContent"))
            page.get_by_text("The chart as a table").click()
            assert violations(page) == "[]"
        assert "early" not in page.locator("#changes").inner_text()


SCALE = "[plots.at(-1).scales.x.min, plots.at(-1).scales.x.max]"


def parameters(page: Page) -> dict[str, str]:
    """The parameters of the address."""
    return {name: value for name, (value,) in parse_qs(str(page.evaluate("location.search")).removeprefix("?")).items()}


def has_times(collector: CollectorProcess, job: str) -> bool:
    """Whether there is enough of a job to zoom."""
    return len(collector.get(f"/v1/steps?job={job}")["times"]) > 6


def test_an_address_shows_the_same_to_others(tmp_path: Path) -> None:
    """Time range, zoom, filter, order and the chosen ranks; a button ends the zoom."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        with training(collector.url, 0, steps=10_000), training(collector.url, 1, steps=10_000):
            wait_until(lambda: len(collector.get("/v1/steps")["times"]) > 6)
        trained(collector.url, 2)
        page.add_init_script(PLOTS)
        visit(page, collector.url)
        page.get_by_role("radio", name="whole run").check(force=True)
        page.get_by_role("button", name="Step time").press("Enter")
        page.get_by_role("button", name="Step time").press("Enter")
        page.get_by_label("Show").fill("rank")
        page.get_by_label("Choose rank 1").check()
        zoom(page)
        wait_until(lambda: "t" in parameters(page))
        found = parameters(page)
        assert {**found, "t": ""} == {"range": "all", "sort": "-Step time", "filter": "rank", "ranks": "job-1", "t": ""}

        other = page.context.new_page()
        other.add_init_script(PLOTS)
        other.goto(page.url)
        wait_until(lambda: other.evaluate("plots.length > 0"))
        wait_until(
            lambda: [round(end, 3) for end in other.evaluate(SCALE)] == [float(end) for end in found["t"].split("-")]
        )
        assert other.get_by_role("radio", name="whole run").is_checked()
        assert other.locator("th[aria-sort=descending]").inner_text().startswith("Step time")
        assert other.get_by_label("Show").input_value() == "rank"
        assert other.get_by_label("Choose rank 1").is_checked()
        other.get_by_role("button", name="Reset zoom").click()
        wait_until(lambda: "t" not in parameters(other))
        first, last = other.evaluate(SCALE)
        assert first < float(found["t"].split("-")[0]) and last > float(found["t"].split("-")[1])
        assert not other.get_by_role("button", name="Reset zoom").is_visible()
        other.get_by_role("button", name="Clear choice (1)").click()
        wait_until(lambda: "ranks" not in parameters(other))
        assert not other.get_by_label("Choose rank 1").is_checked()


def test_another_job_is_shown_without_the_zoom_of_the_one_before(tmp_path: Path) -> None:
    """Going back leads to the job with its zoom."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        for name in ("one", "two"):
            with training(collector.url, 0, name=name, world=1, steps=10_000):
                wait_until(partial(has_times, collector, f"{name}+x1"))
        page.add_init_script(PLOTS)
        visit(page, f"{collector.url}/?job=one+x1")
        zoom(page)
        wait_until(lambda: "t" in parameters(page))
        zoomed = parameters(page)
        page.get_by_role("combobox", name="Job").select_option(label="two x1 – 1 rank, none connected")
        wait_until(lambda: parameters(page) == {"job": "two x1"})
        assert not page.get_by_role("button", name="Reset zoom").is_visible()
        page.go_back()
        wait_until(lambda: parameters(page) == zoomed)
        page.get_by_role("button", name="Reset zoom").wait_for()


VIEWER = """<!doctype html><title>viewer</title><script>
addEventListener("message", (message) => {
  if (message.data === "PING") message.source.postMessage("PONG", message.origin);
  else {
    const { title, buffer } = message.data.perfetto;
    window.got = { title, bytes: [...new Uint8Array(buffer)] };
  }
});
</script>"""
"""A stand-in for Perfetto's page: it answers when it is there, and takes a trace."""


def test_windows_of_several_jobs_and_starts(tmp_path: Path) -> None:
    """Each job has its rows, each start of a rank its own; merged files hold one job, also with a token."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=TOKEN) as collector, quiet_page() as page:
        for _ in range(2):
            trained(collector.url, 0, token=TOKEN, steps=20)
        trained(collector.url, 0, token=TOKEN, name="a job ~ of * all", world=2, steps=10)
        page.goto(collector.url)
        sign_in(page, TOKEN)
        table = page.locator("#window-table tbody tr")
        wait_until(lambda: table.count() == 3)
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


SCOPES = ("ingest", "read", "control")


RANK = """
import os, sys, time
import stepscope as sc
directory, url, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
def ready(window):
    steps = [step.number for step in window.steps]
    open(f"{directory}/windows-{rank}", "a").write(f"{steps[0]} {steps[-1]}\\n")
with sc.trace(control=sc.Control(collector=True), exporters=[sc.CollectorExporter(url)], rank=rank, name="job",
              output_dir=directory + "/run", on_trace_ready=ready) as profiler:
    while not os.path.exists(directory + "/stop"):
        with sc.span("work"):
            time.sleep(0.005)
        profiler.step()
"""
"""Writes the first and the last step of each window that it has recorded."""


@contextmanager
def ranks_at(url: str, directory: Path, count: int, token: str) -> Generator[None]:
    """Ranks that train until the end of the block, and take orders."""
    with ExitStack() as stack:
        for rank in range(count):
            command = [sys.executable, "-c", RANK, str(directory), url, str(rank)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "STEPSCOPE_TOKEN": token}
            stack.enter_context(launched(command, cwd=ROOT, env=environment))
        yield
        (directory / "stop").touch()


def recorded(directory: Path, rank: int) -> list[tuple[int, int]]:
    """First and last steps of the windows that a rank has recorded."""
    path = directory / f"windows-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(first), int(last)) for first, last in (line.split() for line in lines)]


def answers(dialog: Locator) -> list[list[str]]:
    """Rank, and whether it records, of each row."""
    return [
        [row.locator("th").inner_text(), row.locator("td").nth(2).inner_text()]
        for row in dialog.locator("tbody tr").all()
    ]


def test_the_chosen_ranks_record(tmp_path: Path) -> None:
    """Once the dialog has a token that may order, which the page forgets; the answer of each rank is shown."""
    options: list[str] = []
    for scope in SCOPES:
        path = tmp_path / scope
        path.write_text(f"a-token-to-{scope}")
        path.chmod(0o600)
        options += [f"--{scope}-token-file", str(path)]
    with collecting(tmp_path / "c", *options) as collector, quiet_page() as page:
        with ranks_at(collector.url, tmp_path, 3, "a-token-to-ingest"):
            page.goto(collector.url)
            sign_in(page, "a-token-to-read")
            for rank in (0, 1):
                page.get_by_label(f"Choose rank {rank}").check()
            page.get_by_role("button", name="Record steps …").click()
            dialog = page.get_by_role("dialog")
            assert dialog.get_by_label("Ranks", exact=True).input_value() == "0-1"
            dialog.get_by_label("Steps", exact=True).fill("3")
            page.keyboard.press("Enter")
            dialog.get_by_text("it lacks the scope 'control'").wait_for()
            assert violations(page) == "[]"
            token = dialog.get_by_label("Token for this request only")
            token.fill("a-token-of-nobody")
            page.keyboard.press("Enter")
            dialog.get_by_text("The collector does not know that token.").wait_for()
            token.fill("a-token-to-control")
            with page.expect_request(lambda request: request.method == "POST") as sent:
                page.keyboard.press("Enter")
            order: Any = sent.value.post_data_json
            assert order["overlap"] == "queue"  # the dialog offers no other way past a window
            dialog.get_by_text("All ranks record (2 of 2), steps").wait_for()
            assert answers(dialog) == [["rank 0", "yes"], ["rank 1", "yes"]]
            assert token.input_value() == ""
            wait_until(lambda: recorded(tmp_path, 0) and recorded(tmp_path, 1))
            ((first, last),) = recorded(tmp_path, 0)
            assert last == first + 2 and recorded(tmp_path, 1) == [(first, last)]
            assert page.evaluate("Object.values(sessionStorage)") == ["a-token-to-read"]

            page.keyboard.press("Escape")
            page.get_by_role("button", name="Clear choice (2)").click()
            page.get_by_role("button", name="Record steps …").click()
            assert dialog.get_by_label("Ranks", exact=True).input_value() == ""
            dialog.get_by_label("Ranks", exact=True).fill("7")
            page.keyboard.press("Enter")
            dialog.get_by_label("Token for this request only").fill("a-token-to-control")
            page.keyboard.press("Enter")
            dialog.get_by_text("not connected: rank 7").wait_for()
            assert not recorded(tmp_path, 2)


def test_ranks_that_take_no_orders(tmp_path: Path) -> None:
    """The dialog says what they lack."""
    with collecting(tmp_path) as collector, quiet_page() as page, training(collector.url, 0, steps=10_000):
        page.goto(collector.url)
        page.get_by_role("button", name="Record steps …").press("Enter")
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Record", exact=True).press("Enter")
        dialog.get_by_text("Control(collector=True)").wait_for()
