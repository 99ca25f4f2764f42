"""The fan-out: queues each batch and each end of a window for all exporters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

QUIET_S = 4.0
"""Seconds that closing waits for exporters before it logs which ones. Those to the network give up by themselves before that."""


class Fanout:
    """The exporter workers of one pipeline. Used on the pipeline's loop; any thread may read accounts."""

    def __init__(self, exporters: Sequence[Exporter], run: Run, max_bytes: int, drop_oldest: bool) -> None:
        """Args: the exporters; the run; limit of each queue in bytes; whether a full queue drops the oldest batches."""
        self.workers = [ExporterWorker(exporter, run, max_bytes, self.outputs, drop_oldest) for exporter in exporters]
        self.offered = 0
        """Number of events that were offered to each exporter."""
        self._name = run.name

    def start(self, enter: Callable[[], object]) -> None:
        """Starts the exporters, each on its own thread, where `enter` is called first."""
        for worker in self.workers:
            worker.start(enter)

    def offer(self, batch: EventBatch) -> None:
        """Queues a batch for all exporters, unless it is empty."""
        count = len(batch.events)
        if count:
            self.offered += count
            for worker in self.workers:
                worker.offer(batch)

    def close_window(self, window: Window) -> None:
        for worker in self.workers:
            worker.close_window(window)

    def discard_window(self, index: int) -> None:
        for worker in self.workers:
            worker.discard_window(index)

    def unwritten(self) -> int:
        """Number of closed windows that not even the fastest exporter has written."""
        return min((worker.windows_waiting for worker in self.workers), default=0)

    def outputs(self, window: int) -> dict[str, OutputLedger]:
        """Current accounts of a window at each exporter that still has them."""
        ledgers = ((worker.name, worker.ledger(window)) for worker in self.workers)
        return {name: ledger for name, ledger in ledgers if ledger is not None}

    async def drained(self) -> None:
        """Returns when all exporters are idle."""
        for worker in self.workers:
            await worker.drained()

    @property
    def ended(self) -> bool:
        return all(worker.ended for worker in self.workers)

    async def wait(self) -> None:
        for worker in self.workers:
            await worker.wait()

    async def finish(self, seconds: Callable[[], float]) -> None:
        """Lets the exporters finish their queues and close. If that is slow, logs which ones it waits for, and the remaining seconds, after
        which the caller cancels this.
        """
        for worker in self.workers:
            worker.finish()
        with anyio.move_on_after(QUIET_S) as soon:
            await self.wait()
        if soon.cancelled_caught and not self.ended:
            late = ", ".join(worker.name for worker in self.workers if not worker.ended)
            log.warning("closing %r: waiting for %s, %.1f s at most", self._name, late, max(seconds(), 0.0))
            await self.wait()

    def cancel(self) -> None:
        """Cancels the exporters, as the deadline has passed."""
        for worker in self.workers:
            worker.cancel()

    def abandon(self) -> None:
        """Drops and counts all events that were not written."""
        for worker in self.workers:
            worker.abandon()
