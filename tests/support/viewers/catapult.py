"""The Catapult trace viewer, in the copy that the TensorBoard plugin ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.basics import require, webcomponents
from tests.support.viewers.browser import open_page, served

_LOADED = """() => {
    const view = document.querySelector('tr-ui-timeline-view');
    return view && view.model && !view.model.bounds.isEmpty;
}"""

_MODEL = """() => {
    const model = document.querySelector('tr-ui-timeline-view').model;
    const processes = model.getAllProcesses();
    return {
        processes: processes.map((p) => [p.pid, p.name || '']),
        threads: model.getAllThreads().map((t) => [t.parent.pid, t.tid, t.name || '', t.sliceGroup.length]),
        counters: processes.flatMap((p) => Object.values(p.counters).map(
            (c) => [c.name, c.series.length ? c.series[0].samples.length : 0])),
        flows: model.flowEvents.length,
        warnings: model.importWarnings.map((w) => w.message),
    };
}"""


def load(trace: Path) -> dict[str, Any]:
    """Loads a JSON trace; what the viewer's model holds: processes, threads, counters, flows and import warnings."""
    static = Path(str(require("torch_tb_profiler").__file__)).parent / "static"
    scripts = {"webcomponentsjs": webcomponents()}
    with served(static) as address, open_page(scripts) as page:
        page.goto(f"{address}/trace_embedding.html")
        page.wait_for_function("() => window.tr && document.querySelector('tr-ui-timeline-view')", timeout=30_000)
        page.evaluate("(data) => window.postMessage({name: 'trace', data}, '*')", trace.read_text())
        page.wait_for_function(_LOADED, timeout=60_000)
        model: dict[str, Any] = page.evaluate(_MODEL)
    return model
