"""The parallel layout of a run that `stepscope.mindspore` did not record."""

from __future__ import annotations

from pathlib import Path

from stepscope.backends.parallel_layout import DECLARED, of_torch
from stepscope.compat.mindspore.output_files import write_json
from stepscope.compat.mindspore.products.base import Product
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window


class ParallelLayoutFile(Product):
    """Writes `parallel_strategy_<rank>.json` if the job has several ranks. Sizes and groups are there as far as the program declared
    them or a framework knew them: several ranks alone do not say that they are data-parallel.
    """

    name = "parallel layout"

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = directory / f"parallel_strategy_{rank}.json"
        self._rank = rank
        self._run: Run | None = None

    async def open(self, run: Run) -> None:
        self._run = run

    async def finish(self, window: Window) -> tuple[Path, ...]:
        run = self._run
        if run is None or run.world_size is None or run.world_size < 2:
            return ()
        facts = {
            "rank_id": self._rank,
            "rank_size": run.world_size,
            "job": run.job,
            "host": run.host,
            "layout": window.metadata.get(DECLARED) or of_torch(window.metadata),
        }
        return (write_json(self._path, plain(facts)),)
