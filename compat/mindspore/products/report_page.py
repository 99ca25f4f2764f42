"""The report of stepscope on a window, to be read in a browser."""

from __future__ import annotations

from pathlib import Path

from stepscope.analysis.page.render import report_html
from stepscope.compat.mindspore.output_files import write_text
from stepscope.compat.mindspore.products.base import Product
from stepscope.runtime.windows.window import Window


class ReportPage(Product):
    """Writes `report.html`: what `stepscope report` says of the window, with all its steps, which it reads from the journal once more."""

    name = "report"

    def __init__(self, directory: Path, journal: Path, peak_flops: float | None) -> None:
        self._path = directory / "report.html"
        self._journal, self._peak_flops = journal, peak_flops

    async def finish(self, window: Window) -> tuple[Path, ...]:
        return (write_text(self._path, report_html(self._journal, window.index, peak_flops=self._peak_flops)),)
