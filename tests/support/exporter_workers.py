"""Workers of exporters that run, and their items."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window
from tests.support.blocks import instant_block


def run_facts(path: Path) -> Run:
    """A run in a directory."""
    return Run(
        name="test", output_dir=path, pid=1, host="host", rank=None, world_size=None,
        anchor=clock.ClockAnchor.read(), metadata=dict,
    )  # fmt: skip


def batch(window: int = 0, events: int = 10) -> EventBatch:
    """Some instants of a window."""
    return EventBatch("recorder", window, instant_block(*range(events)), b"")


def closed(index: int = 0) -> Window:
    """A window that is over."""
    return Window(index=index, profiler="test", start_ns=0, end_ns=100, steps=(), complete=True)


@asynccontextmanager
async def running(exporter: Exporter, path: Path, max_bytes: int = 1 << 20) -> AsyncGenerator[ExporterWorker]:
    """A worker whose task runs, and ends with the block."""
    worker = ExporterWorker(exporter, run_facts(path), max_bytes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        yield worker
        worker.finish()


def ledger_of(worker: ExporterWorker, window: int = 0) -> OutputLedger:
    """The accounts of a recent window."""
    found = worker.ledger(window)
    assert found is not None
    return found
