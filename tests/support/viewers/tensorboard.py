"""TensorBoard with its PyTorch profiler plugin: the plugin's own loader, and the page."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.basics import require, webcomponents
from tests.support.viewers.browser import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

STUB = Path(__file__).with_name("google_charts.js")


def load_run(directory: Path) -> Any:
    """The plugin's `Run` of a directory, with a profile per worker and span, loaded as TensorBoard does it."""
    require("torch_tb_profiler")
    io: Any = require("torch_tb_profiler.io")
    loader: Any = require("torch_tb_profiler.profiler.loader")
    with io.Cache() as cache:
        return loader.RunLoader("run", str(directory), cache).load()


def average_step(profile: Any) -> dict[str, float]:
    """Microseconds of the average step by what they were spent on, as the overview shows them."""
    return {row["name"]: row["value"] for row in profile.overview["performance"][0]["children"]}


def operators(profile: Any) -> dict[str, dict[str, Any]]:
    """The operator view's rows by name."""
    return {row["name"]: row for row in profile.operation_table_by_name["data"]}


@contextmanager
def open_tensorboard(logdir: Path) -> Generator[Page]:
    """The plugin's page over a directory of runs, loaded, with charts drawn as tables."""
    require("torch_tb_profiler")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert server.stderr is not None
        address = next(word for line in server.stderr for word in line.split() if word.startswith("http://127.0.0.1:"))
        _wait_for_runs(address)
        with open_page({"gstatic.com/charts": STUB, "webcomponentsjs": webcomponents()}) as page:
            page.goto(f"{address}data/plugin/pytorch_profiler/index.html")
            yield page
    finally:
        server.terminate()
        server.communicate()


def switch_view(page: Page | Frame, now: str, then: str) -> None:
    """Chooses another view in the page's list of views."""
    page.get_by_role("button", name=now, exact=True).click()
    page.get_by_role("option", name=then, exact=True).click()


def _wait_for_runs(address: str) -> None:
    """Asks for the list of runs until the plugin has read them; its own page polls likewise."""
    text = ""
    for _ in range(600):
        with urllib.request.urlopen(f"{address}data/plugin/pytorch_profiler/runs") as answer:
            text = answer.read().decode()
        if '"loading": false' in text and '"runs": []' not in text:
            return
        time.sleep(0.1)
    raise AssertionError(f"TensorBoard did not load any run: {text}")
