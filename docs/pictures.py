"""Makes the pictures of the README: what TensorBoard and Perfetto show of the demo. `python -m docs.pictures`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from stepscope.cli.main import main as stepscope
from tests.support.basics import perfetto_ui
from tests.support.viewers.browser import open_page, served
from tests.support.viewers.perfetto import query
from tests.support.viewers.tensorboard import open_tensorboard

HERE = Path(__file__).parent
SIZE = (1280, 600)
RENDERING = 5000
"""Milliseconds until a viewer has drawn."""


def tensorboard(logdir: Path) -> None:
    """TensorBoard with the plugin's overview of the first window."""
    with open_tensorboard(logdir) as page:
        page.set_viewport_size({"width": SIZE[0], "height": SIZE[1] + 60})
        page.goto(f"{page.url.partition('/data/')[0]}/#pytorch_profiler")
        page.frame_locator("iframe").get_by_text("Step Time Breakdown").wait_for()
        page.wait_for_timeout(RENDERING)
        page.screenshot(path=HERE / "tensorboard.png")


def perfetto(trace: Path) -> None:
    """Two steps of the second window."""
    steps = "select ts, ts + dur as end from slice where name in ('ProfilerStep#18', 'ProfilerStep#19') order by ts"
    ((first, last),) = query(trace, steps)
    with served(perfetto_ui(), {"/the-trace": trace}) as address, open_page() as page:
        page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
        shown = f"visStart={first['ts'] - 50_000}&visEnd={last['end'] + 50_000}&hideSidebar=true"
        page.goto(f"{address}/#!/?url={address}/the-trace&{shown}", wait_until="domcontentloaded")
        page.wait_for_function("() => window.app && window.app.trace && window.app.trace.engine", timeout=60_000)
        page.wait_for_timeout(RENDERING)
        page.screenshot(path=HERE / "perfetto.png")


def main() -> None:
    """Runs the demo and takes the pictures."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "demo"
        stepscope(["demo", "--out", str(made)])
        tensorboard(made / "tensorboard")
        perfetto(made / "stream" / "trace.json")


if __name__ == "__main__":
    main()
