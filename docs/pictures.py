"""Makes the pictures of the documentation: `python -m docs.pictures [answer | charts | collector | perfetto | tensorboard]`.

`answer` is a job of which one rank is slow, in the terminal and as a report; `collector` the live page of the demo's cluster;
`perfetto` and `tensorboard` are a training step of the demo, `charts` the steps of a loop in TensorBoard. Pages that have light and dark colours
are taken in both, and drawings have both.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

from stepscope import span, trace
from stepscope.analysis.explain import explain
from stepscope.analysis.terminal import show
from stepscope.cli.main import main as stepscope
from stepscope.exporters import Exporter, StepScalarExporter, tensorboard_trace_handler
from tests.support.basics import perfetto_ui
from tests.support.viewers.browser import open_page, served
from tests.support.viewers.perfetto import query
from tests.support.viewers.tensorboard import open_tensorboard, switch_view

HERE = Path(__file__).parent
PLANTED = HERE.parent / "tests" / "planted" / "programs" / "speech_commands_ddp.py"
WIDTH = 88
"""Columns of the terminal in the picture."""
SIZE = (1280, 450)
REPORT_HEIGHT = 1000
TENSORBOARD_HEIGHT = 640
CHARTS_HEIGHT = 600
CHARTS_STEPS = 600
RENDERING = 5000
"""Milliseconds until the viewer has drawn."""
SHOW_STEP = """() => {
    const view = document.querySelector('tr-ui-timeline-view');
    const viewport = view.trackView.viewport;
    const main = view.model.getAllThreads().find((thread) => thread.name === 'MainThread');
    const steps = main.sliceGroup.slices.filter((slice) => slice.title.startsWith('ProfilerStep#'));
    const step = steps.reduce((shortest, other) => (other.duration < shortest.duration ? other : shortest));
    const data = main.sliceGroup.slices.find((slice) => slice.title.includes('DataLoader') && slice.start >= step.start);
    const shown = viewport.currentDisplayTransform.clone();
    shown.xSetWorldBounds(step.start - 0.3, step.end + 0.3, viewport.modelTrackContainer.canvas.width);
    viewport.setDisplayTransformImmediately(shown);
    viewport.trackForEvent(step).scrollIntoView();
    view.brushingStateController.changeSelectionFromTimeline(new tr.model.EventSet([data]));
}"""
"""Zooms TensorBoard's trace view to the shortest step, and selects its wait for data."""


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
        page.wait_for_function("() => !document.body.innerText.includes('Loading...')", timeout=60_000)
        page.screenshot(path=HERE / "perfetto.png")
        page.evaluate("() => window.app.commands.runCommand('dev.perfetto.ToggleTheme')")
        page.wait_for_timeout(RENDERING)
        page.screenshot(path=HERE / "perfetto-dark.png")


def answer() -> None:
    """A job of three ranks of which one is slow: what `explain` says of it, and the report."""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        script = shutil.copy(PLANTED, directory)
        run = [sys.executable, "-m", "stepscope", "run", "--quiet", "--out", "runs/ddp", Path(script).name]
        launch = ["-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "3"]
        subprocess.run([sys.executable, *launch, *run], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
        show(explain("runs/ddp"), console)
        stepscope(["report", "runs/ddp", "-o", "report.html"])
        report(Path(directory))
    (HERE / "answer.svg").write_text(svg_of(console), encoding="utf-8")


def svg_of(console: Console) -> str:
    """The output of a recording console as SVG, in light colours, and in dark ones where the reader prefers these."""
    light, dark = (
        console.export_svg(title="stepscope explain runs/ddp", theme=theme, clear=False, unique_id="answer")
        for theme in (DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME)
    )
    rules = re.findall(r"\.answer-r\d+ \{.*?\}", dark)
    rules += [f".rich-terminal > rect {{ fill: {SVG_EXPORT_THEME.background_color.hex} }}"]
    rules += [f".answer-title {{ fill: {SVG_EXPORT_THEME.foreground_color.hex} }}"]
    # A picture that loads nothing: its fonts are the reader's.
    light = re.sub(r"@font-face \{.*?\}\s*", "", light, flags=re.DOTALL)
    light = light.replace("rgba(255,255,255,0.35)", "gray")
    return light.replace("</style>", f"@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}\n    </style>")


def report(directory: Path) -> None:
    """The beginning of a report."""
    with served(directory) as address, open_page() as page:
        page.set_viewport_size({"width": SIZE[0], "height": REPORT_HEIGHT})
        page.goto(f"{address}/report.html")
        page.emulate_media(color_scheme="light")
        page.screenshot(path=HERE / "report.png")
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=HERE / "report-dark.png")


def collector() -> None:
    """Four ranks and a collector, before anything is killed."""
    command = [
        sys.executable,
        "-m",
        "tools.demo_cluster",
        "--steps",
        "1500",
        "--picture",
        str(HERE / "collector.png"),
    ]
    subprocess.run(command, check=True)


def tensorboard(logdir: Path) -> None:
    """The shortest step in the trace view, which is light only; the plugin's other views draw with Google Charts, from the network."""
    with open_tensorboard(logdir) as page:
        page.set_viewport_size({"width": SIZE[0], "height": TENSORBOARD_HEIGHT})
        page.goto(page.url.partition("data/plugin")[0] + "#pytorch_profiler")
        page.wait_for_timeout(RENDERING)
        switch_view(page.frames[-1], "Overview", "Trace")
        page.wait_for_timeout(RENDERING)
        page.frames[-1].evaluate(SHOW_STEP)
        page.wait_for_timeout(RENDERING)
        page.screenshot(path=HERE / "tensorboard.png")


def charts() -> None:
    """Times of steps on TensorBoard's own page, of a loop whose data come slower and slower after a while."""
    with tempfile.TemporaryDirectory() as directory:
        _slow_down(Path(directory))
        with open_tensorboard(Path(directory)) as page:
            address = page.url.partition("data/plugin")[0]
            page.set_viewport_size({"width": SIZE[0], "height": CHARTS_HEIGHT})
            for dark in (False, True):
                shown = f"darkMode={str(dark).lower()}&smoothing=0&tagFilter=mean|data"
                page.goto(f"{address}?{shown}#timeseries")
                page.wait_for_timeout(RENDERING)
                if not dark:
                    page.get_by_text("Ignore outliers in chart scaling").click()
                    page.locator("button", has_text="Settings").click()
                page.wait_for_timeout(RENDERING)
                page.screenshot(path=HERE / f"tensorboard-charts{'-dark' if dark else ''}.png")


def _slow_down(directory: Path) -> None:
    # The plugin's page, which opens first, needs a trace.
    exporters: list[Exporter] = [StepScalarExporter(directory), tensorboard_trace_handler(directory)]
    with trace(output_dir=directory / "run", exporters=exporters) as profiler:
        for step in range(CHARTS_STEPS):
            with span("next batch", category="data"):
                time.sleep(0.01 + max(step - CHARTS_STEPS // 2, 0) * 0.0002)
            with span("forward", category="forward"):
                time.sleep(0.02)
            profiler.step()


def demo(picture: Callable[[Path], None], output: str) -> None:
    """A picture of what the demo's training writes."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "demo"
        stepscope(["demo", "--epochs", "2", "--out", str(made)])
        picture(made / output)


PICTURES: dict[str, Callable[[], None]] = {
    "answer": answer,
    "charts": charts,
    "collector": collector,
    "perfetto": functools.partial(demo, perfetto, "trace.json"),
    "tensorboard": functools.partial(demo, tensorboard, "tensorboard"),
}


def main() -> None:
    """Runs the programs and takes the pictures."""
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
