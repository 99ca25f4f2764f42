"""A source of events that another profiler wrote to files: traces of torch's profiler, read as they come."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from stepscope.backends.torch.kineto.blocks import KinetoConverter, nest
from stepscope.backends.torch.kineto.file import KinetoFile
from stepscope.backends.torch.kineto.tracks import KinetoTracks
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events.clock import ClockAnchor, ClockMapping, set_between
from stepscope.runtime.events.record import Block, join_blocks
from stepscope.runtime.recording.recorder import scratch_directory
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import SimpleQueue

Item = tuple[int, Path, int] | int | None
"""A file (its descriptor, its name, when it came), a time that the watermark may go to, or the end."""


class ChromeFilesBackend:
    """Takes the files that torch's profiler writes, and delivers what is in them.

    A file belongs to the window that is open when `add` is called: reading it is done on a thread, and the window
    waits for that. Times of a file are Unix time, so they are as exact as the wall clock is steady.
    """

    thread_bound = False

    def __init__(self, name: str = "chrome_files") -> None:
        self.name = name
        self._sink: Sink | None = None
        self._anchor = ClockAnchor(0, 0, 0)
        self._tracks = KinetoTracks()
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._abandoned = False
        self._error_ns = 0
        self._files = 0
        self._problems: Counter[str] = Counter()

    def open(self, sink: Sink) -> None:
        self._sink, self._abandoned = sink, False
        self._anchor = ClockAnchor.read()

    def add(self, path: Path) -> None:
        """Takes a file; it may be deleted afterwards. Any thread; before `open` and after `aclose` it is left out.

        Raises:
            OSError: if it cannot be opened.
        """
        if self._sink is None:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._files += 1
        self._queue.put((descriptor, Path(path), ClockAnchor.read().monotonic_ns))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stepscope chrome files", daemon=True)
            start(self._thread)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._thread is not None:
            self._queue.put(at)
        elif self._sink is not None:
            self._sink.watermark(at)

    async def aclose(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            try:
                await asyncio.to_thread(thread.join)
            finally:
                self._abandoned = True
        self._sink = None

    def report(self) -> BackendReport:
        notes = tuple(f"{what} ({count} times)" if count > 1 else what for what, count in self._problems.items())
        if not self._files:
            notes = ("no file came", *notes)
        clock = f"Unix time of the files, mapped to CLOCK_MONOTONIC within {self._error_ns} ns"
        return BackendReport(mode="files", clock=clock, notes=notes)

    def _run(self) -> None:
        sink = self._sink
        while (item := self._queue.get()) is not None and sink is not None:
            try:
                if isinstance(item, int):
                    sink.watermark(item)
                else:
                    self._read(sink, *item)
            except ClosedError:
                self._problems["the profiler was closed before a file was delivered"] += 1
                return

    def _read(self, sink: Sink, descriptor: int, path: Path, at: int) -> None:
        plain: Path | None = None
        try:
            # By its descriptor: the program may have deleted it since.
            file = Path(f"/proc/self/fd/{descriptor}")
            if path.name.endswith(".gz"):
                handle, name = tempfile.mkstemp(".json", "stepscope-trace-", scratch_directory())
                plain = Path(name)
                with gzip.open(file) as packed, os.fdopen(handle, "wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
                file = plain
            self._deliver(sink, KinetoFile(file), at)
        except ClosedError:
            raise
        except Exception as error:
            self._problems[f"{path.name} could not be read: {error}"] += 1
            sink.dropped(1, "source", at)
        finally:
            os.close(descriptor)
            if plain is not None:
                plain.unlink(missing_ok=True)

    def _deliver(self, sink: Sink, file: KinetoFile, at: int) -> None:
        now = ClockAnchor.read()
        if set_by := set_between(self._anchor, now):
            self._problems[
                f"the wall clock was set by {set_by / 1e9:+,.1f} s meanwhile: times in files may be off"
            ] += 1
        pairs = [(a.wall_ns, a.monotonic_ns, a.error_ns) for a in (self._anchor, now)]
        mapping = ClockMapping.fit(pairs)
        self._error_ns = max(self._error_ns, mapping.error_ns)
        converter: KinetoConverter | None = None
        blocks: list[Block] = []
        heap = bytearray()
        for events in file.slices():
            converter = converter or KinetoConverter(self._tracks, file.base_ns, mapping, {})
            block, arguments = converter.convert(events)
            block = block.copy()
            block["args_at"] += len(heap)
            blocks.append(block)
            heap += arguments
            if self._abandoned:
                return
            time.sleep(0)  # whoever waits for the GIL gets it
        if converter is not None and converter.unknown:
            self._problems["events of an unknown kind were left out"] += converter.unknown
        if file.skipped:
            sink.dropped(file.skipped, "source", at)
        if blocks:
            whole = join_blocks(blocks)
            whole["track"] = self._tracks.rows()[whole["track"]]
            nest(whole)
            sink.deliver(whole, bytes(heap))
