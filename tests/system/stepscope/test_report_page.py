"""The report page in a real browser, of programs that ran."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.runtime.display.text_table import printable
from tests.support.basics import ROOT, axe
from tests.support.commands import python, stepscope
from tests.support.viewers.browser import open_page, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOST_BYTES = 1 << 20
HOSTILE = ROOT / "tests" / "support" / "programs" / "hostile_names.py"
SIGNALS = {"STEPSCOPE_SIGNALS": "steps,stacks,collections"}

BUSY = """
import sys
import time
import stepscope as sc

out, rank, world, steps, spans = sys.argv[1], *map(int, sys.argv[2:])
pause = 0.005 if steps < 1000 else 0.0
names = [f"module{number // 30}.layer{number}.operator" for number in range(spans * 15)]


def load(seconds):
    time.sleep(seconds)


def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def train(first):
    for number in range(first, first + spans):
        with sc.span(names[number % len(names)], category="operator"):
            pass


with sc.trace(output_dir=out, rank=rank if world > 1 else None, world_size=world if world > 1 else None) as profiler:
    for step in range(steps):
        with sc.span("batch", category="data"):
            load(10 * pause if step == steps - 5 else 3 * pause if rank == 2 else pause)
        compute(pause)
        train(step * spans)
        profiler.step()
"""


def recorded(directory: Path, *, rank: int = 0, world: int = 1, steps: int = 60, spans: int = 20) -> None:
    """Runs a loop: a data phase, spans of many names, one step that is slow."""
    done = python("-c", BUSY, directory, rank, world, steps, spans, cwd=directory.parent, env=SIGNALS)
    assert done.returncode == 0, done.stderr


def reported(run: Path, target: Path) -> Path:
    """Writes the page."""
    done = stepscope("report", run, "-o", target, cwd=target.parent)
    assert done.returncode == 0, done.stderr
    assert "open it in a browser" in done.stdout
    return target


@contextmanager
def shown(path: Path, *, width: int = 1200, scheme: Any = "light") -> Generator[Page]:
    """The page in a browser that asked for nothing but it, and had nothing to complain of."""
    messages: list[str] = []
    asked: list[str] = []
    with served(path.parent) as address, open_page() as page:
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: messages.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{address}/{path.name}")
        yield page
        assert messages == []
        assert [url for url in asked if not url.startswith("data:")] == [f"{address}/{path.name}"]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a loop with one slow step."""
    directory = tmp_path_factory.mktemp("loop")
    recorded(directory / "run")
    return reported(directory / "run", directory / "report.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose names are code, quotes, controls and halves of characters."""
    directory = tmp_path_factory.mktemp("hostile")
    done = python(HOSTILE, directory / "run", cwd=directory, env=SIGNALS)
    assert done.returncode == 0, done.stderr
    return reported(directory / "run", directory / "report.html")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a job of three ranks."""
    directory = tmp_path_factory.mktemp("ranks")
    for rank in range(3):
        recorded(directory / "run", rank=rank, world=3)
    return reported(directory / "run", directory / "report.html")


def first_column(page: Page) -> list[str]:
    """Names that the table of spans shows, from the top."""
    return page.locator(".spans tbody tr:not([hidden]) th").all_inner_texts()


def test_names_are_text(hostile: Path) -> None:
    """Nothing that a name says happens; each is there as it can be read."""
    text = hostile.read_bytes().decode("utf-8")
    assert not [c for c in text if c != "\n" and not c.isprintable()]
    room: dict[str, Any] = {}
    exec(HOSTILE.read_text().split("NAMES = ")[1].split("\n]\n")[0].join(("NAMES = ", "\n]")), room)
    with shown(hostile) as page:
        assert page.title() == "run: stepscope report"
        assert page.locator("img, b:not(.tip b, .frame b), body style").count() == 0
        assert page.evaluate("getComputedStyle(document.body).display") == "block"
        named = first_column(page)
        for name in room["NAMES"]:
            wanted = printable(name).strip() or "(no name)"
            assert any(each == wanted or each.endswith("…") and wanted.startswith(each[:-1]) for each in named), wanted
        frames = page.locator(".flame button")
        for name in frames.evaluate_all("all => all.map((one) => one.ariaLabel)"):
            assert name.isprintable()
        frames.last.hover()
        assert "%" in page.locator(".frame").inner_text()
        page.locator("input.find").fill("document.title")
        page.locator("p.found").get_by_text("of the samples").wait_for()


def test_a_hundred_thousand_events(tmp_path: Path) -> None:
    """One file of less than 1 MiB; more steps than there are bars share them."""
    recorded(tmp_path / "run", steps=2_500, spans=40)
    path = reported(tmp_path / "run", tmp_path / "page.html")
    assert path.stat().st_size <= MOST_BYTES
    with shown(path) as page:
        page.get_by_text("2,500 steps in 1,000 bars").wait_for()
        assert int(page.locator("dl.tiles strong").first.inner_text().replace(",", "")) == 2_500
        assert len(first_column(page)) == 500
        page.get_by_text("The 500 names with the most self time, of 6").wait_for()
        page.locator(".steps .surface").hover(position={"x": 400, "y": 100})
        page.locator(".tip b").get_by_text("mean").wait_for()


def test_the_answer_is_first(loop: Path) -> None:
    """The verdict is the page's heading; what its parts take adds up to the step."""
    with shown(loop) as page:
        assert page.get_by_role("heading", level=1).count() == 1
        shares = page.locator(".parts tbody td:last-child").all_inner_texts()
        assert round(sum(float(each.split()[0]) for each in shares), 6) == 100.0
        assert page.locator(".parts tfoot td:last-child").inner_text() == "100.0 %"
        assert "data" in page.locator(".parts tbody th").first.inner_text()
        page.get_by_text("none dropped").wait_for()


def test_steps(loop: Path) -> None:
    """The slow step is marked; pointer and arrow keys tell where a step's time went."""
    with shown(loop) as page:
        marks = page.locator(".steps path.slow").get_attribute("d") or ""
        assert marks.count("M") >= 1
        chart = page.locator(".steps")
        chart.locator(".surface").hover(position={"x": 300, "y": 100})
        chart.locator(".tip").get_by_text("Step ").wait_for()
        slider = page.get_by_role("slider", name="Time of each step")
        slider.focus()
        page.keyboard.press("End")
        for _ in range(4):
            page.keyboard.press("ArrowLeft")
        assert slider.get_attribute("aria-valuenow") == "55"
        tip = chart.locator(".tip").inner_text()
        assert tip.startswith("Step 55: ") and "data" in tip and "+" in tip
        assert (slider.get_attribute("aria-valuetext") or "").startswith("Step 55")
        page.keyboard.press("Escape")
        chart.locator(".tip").wait_for(state="hidden")
        memory = page.get_by_role("slider", name="Resident memory")
        memory.focus()
        page.keyboard.press("Home")
        assert "MB" in page.locator(".memory .tip").inner_text()


def test_the_table_sorts_and_filters(loop: Path) -> None:
    """By any column and back; a filter keeps what has its text."""
    with shown(loop) as page:
        assert first_column(page)[0] == "batch", "the most self time first"
        head = page.locator(".spans thead")
        head.get_by_role("button", name="Name").click()
        by_name = [name.lower() for name in first_column(page)]
        assert by_name == sorted(by_name) and len(by_name) > 15
        assert head.locator("th[aria-sort=ascending]").inner_text().startswith("Name")
        head.get_by_role("button", name="Count").click()
        head.get_by_role("button", name="Count").click()
        counts = [int(each.replace(",", "")) for each in page.locator(".spans tbody td:nth-child(3)").all_inner_texts()]
        assert counts == sorted(counts)
        page.get_by_label("Filter").fill("LAYER1")
        page.get_by_text(f"111 of {len(counts)}").wait_for()
        assert all("layer1" in name for name in first_column(page))


def test_the_flame_graph_zooms(loop: Path) -> None:
    """A click or Enter makes a frame as wide as the graph; Escape goes back; a search says how much it found."""
    with shown(loop) as page:
        flame = page.locator(".flame")
        whole = flame.bounding_box()
        frame = flame.get_by_role("button", name="load,")
        before = frame.bounding_box()
        assert whole is not None and before is not None
        narrower = before["width"] < whole["width"] - 5  # unless all samples are in it
        frame.click()
        after = frame.bounding_box()
        assert after is not None and after["width"] > whole["width"] - 5
        assert "load" in page.locator(".frame").inner_text() and "of each step" in page.locator(".frame").inner_text()
        page.keyboard.press("ArrowUp")
        assert "<module>" in str(page.evaluate("document.activeElement.ariaLabel"))
        page.keyboard.press("Enter")
        narrow = frame.bounding_box()
        assert narrow is not None and (narrow["width"] < whole["width"] - 5) == narrower
        frame.click()
        page.keyboard.press("Escape")
        back = frame.bounding_box()
        assert back is not None and (back["width"] < whole["width"] - 5) == narrower
        page.get_by_role("button", name="Show all").click()
        assert page.get_by_role("button", name="Show all").is_disabled()
        page.get_by_label("Find").fill("LOAD")
        page.get_by_role("status").filter(has_text="of the samples").wait_for()
        assert flame.locator("button.hit").count() >= 1


def test_ranks(ranks: Path) -> None:
    """A table of all; the one that is chosen is shown below."""
    with shown(ranks) as page:
        table = page.get_by_role("region", name="Table of ranks")
        assert [each.split()[0:2] for each in table.locator("tbody th").all_inner_texts()] == [
            ["rank", str(n)] for n in range(3)
        ]
        table.get_by_role("button", name="data").click()
        assert table.locator("tbody th").first.inner_text().startswith("rank 2")
        assert page.locator(".process:visible").count() == 1
        page.get_by_label("Shown below").select_option(index=2)
        page.locator("#process-2").get_by_role("slider", name="Time of each step").wait_for()
        assert page.locator("#process-2 .steps path.part").count() >= 2
        assert page.locator("#process-0").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["hostile", "ranks"])
def test_accessibility(request: pytest.FixtureRequest, which: str, scheme: Any) -> None:
    """axe-core finds nothing, also while the page is used."""
    check = """axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})
        .then(found => JSON.stringify(found.violations, null, 1))"""
    with shown(request.getfixturevalue(which), scheme=scheme) as page:
        debugger: Any = page.context.new_cdp_session(page)
        # By the debugger, for the page's own policy lets no other script in.
        debugger.send("Runtime.evaluate", {"expression": axe().read_text()})
        assert page.evaluate(check) == "[]"
        page.locator("input.find:visible").fill("module")
        page.locator(".flame:visible button").nth(1).click()
        page.locator(".steps:visible .surface").hover(position={"x": 200, "y": 100})
        assert page.evaluate(check) == "[]"


def test_by_keyboard_alone(ranks: Path) -> None:
    """Everything that can be used is reached."""
    with shown(ranks) as page:
        reached: list[str] = []
        for _ in range(40):
            page.keyboard.press("Tab")
            name = "document.activeElement.ariaLabel || document.activeElement.innerText || document.activeElement.className"
            reached.append(str(page.evaluate(name)).split("\n")[0])
        for name in ("Skip to the answer", "Median step", "Time of each step", "all samples", "find", "filter", "Self"):
            assert any(name in one for one in reached), (name, reached)


def wider(page: Page) -> int:
    """Pixels by which a page is wider than its window, once it is laid out: a machine under load takes its time for that."""
    pixels = 1
    for _ in range(50):
        pixels = int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
        if pixels == 0:
            break
        page.wait_for_timeout(100)
    assert pixels == 0, page.evaluate(WIDE)
    return pixels


WIDE = """
[...document.querySelectorAll("*")].filter(each => !each.closest(".scroll") && each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(each => [each.tagName, each.className, each.id, Math.round(each.getBoundingClientRect().right), each.textContent.slice(0, 80)])
"""
"""The elements that reach beyond the window, but for those that can be scrolled."""


def test_phone_and_paper(hostile: Path, ranks: Path) -> None:
    """Nothing is wider than a phone or a sheet, whatever a name's length."""
    for path in (hostile, ranks):
        with shown(path, width=375) as page:
            assert wider(page) == 0
        with shown(path, width=720, scheme="dark") as page:
            page.emulate_media(media="print")
            assert wider(page) == 0
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            assert page.locator("input:visible").count() == 0


def test_a_page_replaces_a_page_only(tmp_path: Path, loop: Path) -> None:
    """A page replaces a page, and nothing else; directories are made; without `-o` it is `report.html`."""
    run = loop.parent / "run"
    target = tmp_path / "new" / "page.html"
    for _ in range(2):
        assert stepscope("report", run, "-o", target, cwd=tmp_path).returncode == 0
    assert stepscope("report", run, cwd=tmp_path).returncode == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    before = (run / "journal").read_bytes()
    wrong = stepscope("report", run, "-o", run / "journal", cwd=tmp_path)
    assert wrong.returncode == 2 and "is no page" in wrong.stderr
    assert (run / "journal").read_bytes() == before
    assert stepscope("report", run, "-o", tmp_path, cwd=tmp_path).returncode == 2
    missing = stepscope("report", tmp_path / "nothing", cwd=tmp_path)
    assert missing.returncode == 1 and missing.stderr.startswith("stepscope report: ")
