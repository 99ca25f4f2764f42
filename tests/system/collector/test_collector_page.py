"""The live page in a real browser, over processes that train."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.live.stream import Stream
from stepscope.collector.page import PATHS
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.journal.format import FrameType
from stepscope.runtime.journal.records import WindowRecord
from tests.support.basics import ROOT, axe
from tests.support.collecting import collecting, trained, training, wait_until
from tests.support.viewers.browser import open_page
from tests.unit.collector.test_collector_live import SECOND, START, record_frame, run_of, steps

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOKEN = "a-token-of-this-test"
MOST_BYTES = 300 << 10


@contextmanager
def quiet_page() -> Generator[Page]:
    """A page that says nothing on its console, and asks nobody but this machine."""
    messages: list[str] = []
    with open_page() as page:
        page.on(
            "console",
            lambda message: (
                messages.append(f"{message.text} {message.location['url']}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("requestfailed", lambda request: messages.append(f"{request.url}: {request.failure}"))
        yield page
        # The browser asks for the icon again when the address changes, and gives that up if it changes once more.
        assert [
            text for text in messages if "/v1/" not in text and "/page/icon.svg: net::ERR_ABORTED" not in text
        ] == []


def visit(page: Page, url: str) -> None:
    """Opens an address for the first time; returns when the page's files are there. The icon comes last, after the others."""
    with page.expect_event("requestfinished", lambda request: str(request.url).endswith("/page/icon.svg")):
        page.goto(url)


def cell(page: Page, rank: int, column: str) -> str:
    """A cell of the table of ranks."""
    titles = page.locator("#rank-table thead th").all_inner_texts()
    at = next(number for number, title in enumerate(titles) if title.startswith(column))
    row = page.locator("#rank-table tbody tr", has=page.get_by_role("button", name=f"rank {rank}", exact=True))
    return row.locator("th, td").nth(at).inner_text()


def zoom(page: Page) -> None:
    """Drags over a part of the chart, of which the page was opened with `PLOTS`."""
    wait_until(lambda: page.evaluate("plots.length > 0 && plots.at(-1).data[0].length > 6"))
    box = page.locator("#plot .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=5)
    page.mouse.up()


def sign_in(page: Page, token: str) -> None:
    """Gives the page the token that it asks for."""
    page.get_by_role("textbox", name="Token").fill(token)
    page.keyboard.press("Enter")


def look_at(make: Callable[[], Collector], look: Callable[[str, Collector], None]) -> None:
    """Looks at the page of a collector of this process, on a thread."""

    async def serve() -> None:
        collector = make()
        async with collector.serving() as url:
            await asyncio.to_thread(look, url, collector)

    asyncio.run(serve())


def violations(page: Page) -> str:
    """Accessibility violations that axe-core finds, in JSON."""
    if page.evaluate("typeof axe") == "undefined":
        # By its debugger, for the page's own policy lets no script in but its own.
        debugger: Any = page.context.new_cdp_session(page)
        debugger.send("Runtime.evaluate", {"expression": axe().read_text()})
    check = """axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})
        .then(found => JSON.stringify(found.violations, null, 1))"""
    return str(page.evaluate(check))


def test_the_page_is_small_and_needs_no_internet() -> None:
    """All files together, and no address of elsewhere that would be loaded."""
    files = [
        path for path in (ROOT / "collector" / "page").iterdir() if path.suffix in (".html", ".js", ".css", ".svg")
    ]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert len(PATHS) == len(files)
    html = (ROOT / "collector" / "page" / "index.html").read_text()
    assert "://" not in html and "style=" not in html and "onclick" not in html


def test_the_page_follows_the_ranks(tmp_path: Path) -> None:
    """Values are those of the collector; the slow rank is named; a death, a restart and an end are shown."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        page.goto(collector.url)
        page.get_by_text("Waiting for the first rank.").wait_for()
        running = [
            training(collector.url, rank, steps=10_000, seconds=s, world=4) for rank, s in enumerate((0.01, 0.01, 0.05))
        ]
        with running[0] as first, running[1], running[2]:
            page.get_by_role("list", name="Findings").get_by_text("The steps of rank 2 take").wait_for()
            wait_until(lambda: "slow" in cell(page, 2, "Step time"))
            page.get_by_text("Not seen yet: rank 3").wait_for()
            page.locator("#legend").get_by_text("rank 2 (slow)").wait_for()
            assert page.locator("#plot canvas").count() == 1
            description = page.locator("#chart-text")
            wait_until(lambda: description.inner_text().startswith("Latest: "))
            assert "3 ranks" in description.inner_text()
            # The page is never further behind than two seconds' steps: 0.01 s each, at the least.
            wait_until(lambda: collector.ranks()[0]["step"] is not None)
            step = collector.ranks()[0]["step"]
            page.wait_for_timeout(2000)
            assert int(cell(page, 0, "Step").replace(",", "")) >= step
            first.send_signal(signal.SIGKILL)
            first.wait()
            page.locator("#changes").get_by_text("rank 0 is silent").wait_for()
            with training(collector.url, 0, steps=10_000, world=4):
                page.locator("#changes").get_by_text("rank 0 was started again").wait_for()
                assert cell(page, 0, "Starts") == "2"
        trained(collector.url, 3, world=4)
        page.locator("#changes").get_by_text("rank 3 ended").wait_for()
        assert cell(page, 3, "State") == "ended"


def test_the_page_comes_back_with_the_collector(tmp_path: Path) -> None:
    """It says that the collector is away, and goes on by itself."""
    with quiet_page() as page:
        with collecting(tmp_path) as collector:
            trained(collector.url, 0)
            port = collector.url.rpartition(":")[2]
            visit(page, collector.url)
            page.get_by_text("live", exact=True).wait_for()
            collector.process.kill()
            collector.process.wait()
            page.get_by_text("trying again").wait_for()
        with collecting(tmp_path, "--port", port):
            page.get_by_text("live", exact=True).wait_for()
            wait_until(lambda: cell(page, 0, "State") == "ended")


def test_windows_tables_and_downloads_with_a_token(tmp_path: Path) -> None:
    """The token is asked for once and is in no address; a window's files and table are a few keys away."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=TOKEN) as collector, quiet_page() as page:
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        trained(collector.url, 0, token=TOKEN)
        visit(page, collector.url)
        sign_in(page, "wrong")
        page.get_by_text("That is not the token.").wait_for()
        sign_in(page, TOKEN)
        page.get_by_role("button", name="Ranks of window 1").press("Enter")
        dialog = page.get_by_role("dialog")
        with page.expect_download() as downloading:
            dialog.get_by_role("button", name="Chrome trace of job-0, window 1").press("Enter")
        assert downloading.value.suggested_filename == "rank0-window1.json.gz"
        assert Path(downloading.value.path()).stat().st_size > 100
        dialog.get_by_role("button", name="Table of names of job-0, window 1").press("Enter")
        dialog.get_by_role("rowheader", name="forward").wait_for()
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        page.get_by_role("button", name="rank 0", exact=True).press("Enter")
        dialog.get_by_text("Start 1").wait_for()
        with page.expect_download() as downloading:
            dialog.get_by_role("button", name="Journal of start 1").press("Enter")
        stream = collector.get("/v1/ranks", {"Authorization": f"Bearer {TOKEN}"})[0]["stream"]
        journal = tmp_path / "streams" / stream / "journal"
        assert Path(downloading.value.path()).read_bytes() == journal.read_bytes()
        page.reload()
        page.get_by_text("live", exact=True).wait_for()
        assert not page.get_by_role("textbox", name="Token").is_visible()
        assert not [address for address in addresses if TOKEN in address]
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_a_token_that_may_not_read_is_asked_for_again(tmp_path: Path) -> None:
    """With what it lacks; so is one that was removed while the page was open. The page by itself only reads."""
    files = {"--ingest-token-file": tmp_path / "ingest", "--read-token-file": tmp_path / "read"}
    for path in files.values():
        path.write_text(f"{TOKEN}-{path.name}")
        path.chmod(0o600)
    options = [text for option, path in files.items() for text in (option, str(path))]
    with collecting(tmp_path / "c", *options) as collector, quiet_page() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.method))
        visit(page, collector.url)
        sign_in(page, f"{TOKEN}-ingest")
        page.get_by_text("it lacks the scope 'read' (--read-token-file)").wait_for()
        sign_in(page, f"{TOKEN}-read")
        page.get_by_text("live", exact=True).wait_for()
        assert set(asked) == {"GET"}
        files["--read-token-file"].write_text(f"{TOKEN}-next")
        page.get_by_text("That is not the token.").wait_for()
        sign_in(page, f"{TOKEN}-next")
        page.get_by_text("live", exact=True).wait_for()


def test_insecure_is_shown(tmp_path: Path) -> None:
    """The page warns that others can read it, too, and such a collector takes no orders: the page offers none."""
    with collecting(tmp_path, "--host", "0.0.0.0", "--insecure") as collector, quiet_page() as page:
        url = collector.url.replace("0.0.0.0", "127.0.0.1")
        trained(url, 0)
        page.goto(url)
        page.get_by_role("note").get_by_text("--insecure").wait_for()
        page.get_by_role("button", name="rank 0", exact=True).wait_for()
        assert not page.get_by_role("button", name="Record steps …").is_visible()
    with collecting(tmp_path) as collector, quiet_page() as page:
        page.goto(collector.url)
        page.get_by_text("live", exact=True).wait_for()
        assert page.get_by_role("note").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(tmp_path: Path, scheme: Any) -> None:
    """axe-core finds nothing, in the page and in its dialog; everything is reached by keyboard alone."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        trained(collector.url, 0, world=2)
        with training(collector.url, 1, steps=10_000, seconds=0.05, world=2) as killed:
            collector.when(lambda ranks: 1 in ranks and ranks[1]["windows"])
            killed.kill()
        page.emulate_media(color_scheme=scheme)
        page.goto(collector.url)
        page.get_by_role("button", name="Ranks of window 0").wait_for()
        page.get_by_text("The chart as a table").click()
        assert violations(page) == "[]"
        page.get_by_role("button", name="Ranks of window 0").click()
        page.get_by_role("button", name="Table of names of job-0of2, window 0").wait_for()
        assert violations(page) == "[]"
        page.keyboard.press("Escape")
        page.locator("body").click(position={"x": 1, "y": 1})
        reached: list[str] = []
        for _ in range(60):
            page.keyboard.press("Tab")
            name = "document.activeElement.ariaLabel || document.activeElement.innerText || document.activeElement.id"
            reached.append(str(page.evaluate(name)).split("\n")[0])
        for name in (
            "Skip to the ranks",
            "filter",
            "rank 0",
            "State",
            "Ranks of window 0",
            "OpenAPI",
            "The chart as a table",
        ):
            assert any(name in one for one in reached), (name, reached)
        page.get_by_role("button", name="State").press("Enter")
        assert page.locator("th[aria-sort]").inner_text().startswith("State")
        page.get_by_label("Show").fill("ended")
        page.get_by_text("1 of 2").wait_for()


def a_thousand(directory: Path) -> Collector:
    """A collector of as many ranks, on a host whose name is code."""
    collector = Collector(CollectorSettings(directory=directory, port=0))
    host = "<img src=x onerror=alert(1)>"
    window = WindowRecord(
        index=0, start_ns=START, end_ns=START + SECOND, steps=b"\0" * 48, complete=True, ledger=Ledger()
    )
    for number in range(1000):
        run = run_of(number)
        stream = Stream(f"{number:032x}", type(run)(name="job", anchor=run.anchor, rank=number, host=host))
        stream.steps.add_events(steps([SECOND // 100] * 64), 0, START, START + 100 * SECOND)
        stream.add_frames([record_frame(FrameType.WINDOW_CLOSED, window)], 0, 1)
        collector.streams.add(stream)
    return collector


def test_a_thousand_ranks_and_names_that_are_code(tmp_path: Path) -> None:
    """Rows that are seen are there and follow, where the focus is they stay; what comes from the network is text."""
    look_at(lambda: a_thousand(tmp_path), _look_at_a_thousand)


def _look_at_a_thousand(url: str, collector: Collector) -> None:
    with quiet_page() as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.goto(url)
        page.get_by_role("button", name="rank 0", exact=True).wait_for()
        rows = page.locator("#rank-table tbody tr")
        page.get_by_role("button", name="rank 0", exact=True).focus()
        table = page.get_by_role("region", name="Table of ranks")
        table.evaluate("node => node.scrollTo(0, node.scrollHeight)")
        page.get_by_role("button", name="rank 999", exact=True).wait_for()
        assert rows.count() < 100 and page.get_by_role("table").first.get_attribute("aria-rowcount") == "1001"
        assert page.locator("tr[data-id=job-999]").get_attribute("aria-rowindex") == "1001"
        assert "onerror" in cell(page, 999, "Host")
        stream = collector.streams.ranks["job-999"].latest
        stream.steps.add_events(steps([SECOND], number=4242), 0, START, START + 100 * SECOND)
        wait_until(lambda: cell(page, 999, "Step") == "4,242")
        focused = "document.activeElement.innerText"
        assert page.evaluate(focused) == "rank 0", "its row is there, seen or not"
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == "rank 1", "the next row is reached from there"
        page.get_by_label("Show").fill("999")
        page.get_by_text("1 of 1,000").wait_for()
        page.get_by_label("Choose rank 999").check()
        page.locator("#legend").get_by_text("rank 999").wait_for()
        page.get_by_role("button", name="Ranks of window 0").press("Enter")
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Table of names of job-0, window 0").wait_for()
        assert dialog.get_by_role("table").get_attribute("aria-rowcount") == "1001"
        dialog.get_by_role("region", name="Details").evaluate("node => node.scrollTo(0, node.scrollHeight)")
        dialog.get_by_role("button", name="Table of names of job-999, window 0").wait_for()
        assert dialog.locator("tbody tr").count() < 100


PLOTS = """
const made = [];
let real;
Object.defineProperty(window, "uPlot", {
  get: () => real && new Proxy(real, { construct(target, given) { const one = new target(...given); made.push(one); return one; } }),
  set: (value) => { real = value; },
  configurable: true,
});
window.plots = made;
"""


def test_a_zoom_of_the_chart_stays(tmp_path: Path) -> None:
    """New step times come every second; a double click shows all of them again."""
    with (
        collecting(tmp_path) as collector,
        quiet_page() as page,
        training(collector.url, 0, steps=10_000, seconds=0.01),
    ):
        wait_until(lambda: len(collector.get("/v1/steps")["times"]) > 6)
        page.add_init_script(PLOTS)
        page.goto(collector.url)
        zoom(page)
        scale = "({min: plots.at(-1).scales.x.min, max: plots.at(-1).scales.x.max, last: plots.at(-1).data[0].at(-1)})"
        zoomed = page.evaluate(scale)
        assert zoomed["max"] < zoomed["last"]
        wait_until(lambda: page.evaluate(scale)["last"] > zoomed["last"] + 1)
        now = page.evaluate(scale)
        assert (now["min"], now["max"]) == (zoomed["min"], zoomed["max"])
        page.locator("#plot .u-over").dblclick()
        wait_until(lambda: page.evaluate(scale)["max"] > zoomed["last"])
        page.locator("#plot").focus()
        page.keyboard.press("+")
        inner = page.evaluate(scale)
        assert zoomed["last"] - 60 < inner["min"] < inner["max"] < inner["last"]
        assert page.locator("#chart-live").inner_text().startswith("The chart shows ")
        page.keyboard.press("Home")
        left = page.evaluate(scale)
        assert left["min"] < inner["min"] and abs(left["max"] - left["min"] - (inner["max"] - inner["min"])) < 0.01
        page.keyboard.press("ArrowRight")
        assert left["min"] < page.evaluate(scale)["min"]
        page.keyboard.press("-")
        page.keyboard.press("-")
        wait_until(lambda: page.evaluate(scale)["max"] > inner["last"])
        assert not page.get_by_role("heading", name="Ranks and steps").is_visible(), "one rank has no heat map"


def test_the_axes_of_the_chart_are_readable(tmp_path: Path) -> None:
    """Without a step there are no times of steps, and no second is written twice."""
    with collecting(tmp_path) as collector, quiet_page() as page:
        page.add_init_script(PLOTS)
        page.goto(collector.url)
        labels = "(axis) => plots.at(-1)?.axes[axis]._values ?? null"
        wait_until(lambda: page.evaluate(labels, 1) is not None)
        assert set(page.evaluate(labels, 1)) == {""}
        with training(collector.url, 0, steps=10_000, seconds=0.01):
            wait_until(lambda: len(collector.get("/v1/steps")["times"]) > 3)
            wait_until(lambda: "0" in page.evaluate(labels, 1))
            times = [text for text in page.evaluate(labels, 0) if text]
            assert len(times) == len(set(times))
