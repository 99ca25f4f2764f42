"""Makes the picture of docs/usage.md: a training step of the demo in Perfetto. `python -m docs.pictures`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from stepscope.cli.main import main as stepscope
from tests.support.basics import perfetto_ui
from tests.support.viewers.browser import open_page, served
from tests.support.viewers.perfetto import query

HERE = Path(__file__).parent
SIZE = (1280, 450)
RENDERING = 5000
"""Milliseconds until the viewer has drawn."""


def perfetto(trace: Path) -> None:
    """The shortest step, which nothing else on the machine has disturbed."""
    steps = "select ts, ts + dur as end from slice where name like 'ProfilerStep#%' order by dur limit 1"
    ((step,),) = query(trace, steps)
    with served(perfetto_ui(), {"/the-trace": trace}) as address, open_page() as page:
        page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
        shown = f"visStart={step['ts'] - 20_000}&visEnd={step['end'] + 20_000}&hideSidebar=true"
        page.goto(f"{address}/#!/?url={address}/the-trace&{shown}", wait_until="domcontentloaded")
        page.wait_for_function("() => window.app && window.app.trace && window.app.trace.engine", timeout=60_000)
        page.wait_for_timeout(RENDERING)
        page.screenshot(path=HERE / "perfetto.png")


def main() -> None:
    """Runs the demo and takes the picture."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "demo"
        stepscope(["demo", "--mode", "stream", "--out", str(made)])
        perfetto(made / "stream" / "trace.json")


if __name__ == "__main__":
    main()
