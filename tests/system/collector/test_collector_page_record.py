"""Windows that are ordered on the live page, in a real browser, from processes that train."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.basics import ROOT
from tests.support.collecting import collecting, training, until
from tests.support.launch import launched
from tests.system.collector.test_collector_page import quiet_page, sign_in, violations

if TYPE_CHECKING:
    from playwright.sync_api import Locator

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
            until(lambda: recorded(tmp_path, 0) and recorded(tmp_path, 1))
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
