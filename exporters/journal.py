"""The journal exporter: the crash-safe default output. `docs/journal-format.md` describes the file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import anyio

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime.clock import ClockAnchor
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.journal.writer import Fsync, JournalWriter


class JournalExporter:
    """Appends everything to one checksummed file that can be read at any moment, also after `kill -9`.

    What an `export` that returned was given has reached the kernel. Writing happens on a worker thread: a slow
    disk holds up this exporter and nothing else.

    Args:
        path: file to write; default: `journal` in the run's directory. A file that exists, another run's, is left
            alone: the name gets `-2`, `-3`, ... then, and `path` says which.
        max_bytes: size at which events are left out, with a marker and a count.
        fsync: when to wait for the disk, which only a loss of power makes worthwhile.
        compress: trade time for size: frames are compressed where that makes them smaller.

    Raises:
        ValueError: for a limit below 64 KiB or an unknown `fsync`.
    """

    name = "journal"
    is_journal = True

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int = 8 << 30,
        fsync: Fsync = "never",
        compress: bool = False,
    ) -> None:
        self._default_name = path is None
        self._writer = JournalWriter(Path(path or "journal"), max_bytes=max_bytes, fsync=fsync, compress=compress)
        self._run: Run | None = None
        self._metadata: dict[str, Any] = {}
        self._finishing = threading.Lock()

    @property
    def path(self) -> Path:
        """The file written to; final after `open`."""
        return self._writer.path

    def path_of(self, window: int) -> Path | None:
        """The file, which holds every window."""
        return self.path

    @property
    def dropped_cap(self) -> int:
        """Events left out because of `max_bytes`."""
        return self._writer.dropped

    async def open(self, run: Run) -> None:
        if self._default_name:
            self._writer.path = run.output_dir / "journal"
        await anyio.to_thread.run_sync(self._writer.open, run)
        self._run = run

    async def export(self, batch: EventBatch) -> None:
        metadata = self._news()

        def write() -> None:
            if metadata is not None:
                self._writer.write_metadata(metadata)
            self._writer.write_batch(batch)

        await anyio.to_thread.run_sync(write)

    async def close_window(self, window: Window) -> None:
        metadata = self._news()

        def write() -> None:
            if metadata is not None:
                self._writer.write_metadata(metadata)
            self._writer.write_anchor(ClockAnchor.read())
            self._writer.write_window(window)

        await anyio.to_thread.run_sync(write)

    async def aclose(self) -> None:
        # A cancelled call may still be writing on its thread; the writer's lock puts this behind it. If this one is
        # cancelled too, the journal lacks at most its end mark, and another call may try again.
        if self._run is not None:
            await anyio.to_thread.run_sync(self._finish, dict(self._run.metadata()))

    def _news(self) -> dict[str, Any] | None:
        """The run's metadata if it has changed since the last look: a crash may come before the window's end."""
        if self._run is None:
            raise ClosedError("the journal was not opened")
        metadata = dict(self._run.metadata())
        if metadata == self._metadata:
            return None
        self._metadata = metadata
        return metadata

    def _finish(self, metadata: dict[str, Any]) -> None:
        # Two threads may be here: that of a cancelled `aclose`, and that of the next one.
        with self._finishing:
            if not self._writer.is_open:
                return
            try:
                self._writer.write_metadata(metadata)
                self._writer.write_anchor(ClockAnchor.read())
            finally:
                self._writer.close()
