"""The fanout: gives every batch and every end of a window to all exporters, each of which takes it at its own speed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

SILENT = 1.0
"""Seconds for which closing waits for exporters without a word."""


class Fanout:
    """The exporter workers of one pipeline; on the pipeline's loop, but for accounts."""

    def __init__(self, exporters: list[Exporter], run: Run, max_bytes: int, drop_oldest: bool) -> None:
        """Args: the exporters; the run; limit of each queue in bytes; whether a full one drops what it has."""
        self.workers = [
            ExporterWorker(exporter, run, max_bytes, clock.now, self.outputs, drop_oldest) for exporter in exporters
        ]
        self.batches = 0
        self.offered = 0
        """Events that were offered to each exporter."""
        self._name = run.name

    def start(self, enter: Callable[[], object]) -> None:
        """Starts the exporters, each on a thread of its own, where `enter` is called first."""
        for worker in self.workers:
            worker.start(enter)

    def offer(self, batch: EventBatch) -> None:
        """Queues a batch for all; an empty one is nothing."""
        if len(batch):
            self.batches += 1
            self.offered += len(batch)
            for worker in self.workers:
                worker.offer(batch)

    def close_window(self, window: Window) -> None:
        """Queues the end of a window."""
        for worker in self.workers:
            worker.close_window(window)

    def discard_window(self, index: int) -> None:
        """Queues the deletion of a window."""
        for worker in self.workers:
            worker.discard_window(index)

    def behind(self) -> bool:
        """Whether an exporter has much to do and gets on with it: what is not urgent is better held back."""
        return any(worker.behind() for worker in self.workers)

    def unwritten(self) -> int:
        """Windows that are closed and that not even the fastest exporter has written."""
        return min((worker.windows_waiting for worker in self.workers), default=0)

    def outputs(self, window: int) -> dict[str, OutputLedger]:
        """Accounts of a window at each exporter that keeps them still, as they are now."""
        return {worker.name: worker.ledger(window) for worker in self.workers if worker.keeps(window)}

    async def drained(self) -> None:
        """Returns when no exporter has anything left to do."""
        for worker in self.workers:
            await worker.drained()

    @property
    def ended(self) -> bool:
        """Whether every exporter is closed."""
        return all(worker.ended for worker in self.workers)

    async def wait(self) -> None:
        """Returns when every exporter is closed."""
        for worker in self.workers:
            await worker.wait()

    async def finish(self, seconds: Callable[[], float]) -> None:
        """Lets the exporters end what they have, and close; says whom it waits for if that takes long.

        Args:
            seconds: how long there is still, by which it is cancelled from outside.
        """
        for worker in self.workers:
            worker.finish()
        with anyio.move_on_after(SILENT) as soon:
            await self.wait()
        if soon.cancelled_caught and not self.ended:
            late = ", ".join(worker.name for worker in self.workers if not worker.ended)
            log.warning("closing %r: waiting for %s, %.1f s at most", self._name, late, max(seconds(), 0.0))
            await self.wait()

    def cancel(self) -> None:
        """The deadline has passed."""
        for worker in self.workers:
            worker.cancel()

    def abandon(self) -> None:
        """Nothing more is waited for; what was not written is counted."""
        for worker in self.workers:
            worker.abandon()
