"""Exports, converts and delivers a finished kineto trace off the training thread."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np

from stepscope.backends.scratch import make_scratch, remove_scratch
from stepscope.backends.torch.kineto.blocks import KinetoConverter, KinetoTracks, nest
from stepscope.backends.torch.kineto.file import KinetoFile
from stepscope.backends.torch.kineto.symbols import save_without_gil
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events.clock import ClockAnchor, ClockMapping, set_between
from stepscope.runtime.events.intervals import ends
from stepscope.runtime.events.nesting import cut_frames
from stepscope.runtime.events.record import Block, join_blocks
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.job_thread import JobThread
from stepscope.runtime.threads.native_threads import RLock


class SharedResult:
    """A result of kineto with several users, each on a thread of its own. The last `release` frees it."""

    def __init__(self, result: Any, users: int = 1) -> None:
        """Args: torch's `_ProfilerResult`; how often `release` will be called."""
        self._result: Any = result
        self._users = users
        self._counting = locks.reentrant()
        # Not one of `locks`, as it is held while a file is written. Reentrant: a handler may export what is being exported.
        self._saving = RLock()
        self._copy: Path | None = None

    @property
    def raw(self) -> Any:
        """torch's own object; `None` once it was freed."""
        return self._result

    def add_user(self) -> None:
        """Adds a user, who will call `release`."""
        with self._counting:
            self._users += 1

    def save(self, path: str) -> bool:
        """Writes kineto's trace, any number of times.

        Returns:
            False if all Python threads had to stand still meanwhile.

        Raises:
            Exception: what torch raises if it cannot.
        """
        with self._saving:
            if self._copy is not None:
                shutil.copyfile(self._copy, path)
                return True
            alone = save_without_gil(self._result, path)
            if not alone:
                self._result.save(path)
            if self._users > 1:
                whole = make_scratch("stepscope-kineto-", ".json")
                shutil.copyfile(path, whole)
                self._copy = whole  # last: it is whole, whatever interrupted this
            return alone

    def flops(self) -> dict[int, int]:
        """torch's estimates of floating-point operations, by the events' correlation ids."""
        return {event.correlation_id(): flops for event in self._result.events() if (flops := event.flops())}

    def release(self) -> None:
        """Removes a user; the last one frees the result."""
        with self._counting:
            self._users -= 1
            if self._users:
                return
        self._result = None
        copy, self._copy = self._copy, None
        if copy is not None:
            remove_scratch(copy)


BLOCK = 1 << 15
"""Events delivered at a time, about."""
LAST_S = 0.15
"""How long closing that was cancelled waits for what is converted to be delivered."""
PROGRESS_INTERVAL_S = 0.1
"""Between two statements that the work advances."""
TOO_LATE = "had been converted when the profiler was closed; raise Options.close_timeout"
NOT_BEGUN = "was not looked into when the profiler was closed, so that nobody knows how many events it had"
_PIECE = 1 << 20
"""Bytes of a file that are looked at in one go."""


class FinishedTrace(msgspec.Struct, frozen=True):
    """A stopped recording on its way to the sink."""

    result: SharedResult
    """torch's result; to be released once."""
    until: int
    """Everything before this time is in it, or was never recorded."""
    anchors: tuple[ClockAnchor, ...]
    """Both clocks, read while it was recorded."""
    flops: bool
    since: int
    """Begin, in ns of our clock."""
    left_out: frozenset[tuple[int, str]]
    """Categories of events, by the system's numbers of their threads, that are not converted."""
    name: str = "torch's recording"
    """The trace's name in messages."""


Keeper = Callable[[FinishedTrace], None]
"""Gets each recording once it was saved. Releases its result, then or later."""


class KinetoWorker:
    """A thread that turns traces into blocks, one after the other, in order."""

    def __init__(self, sink: Sink, keeper: Keeper | None = None) -> None:
        self._sink = sink
        self._keeper = keeper
        self._tracks = KinetoTracks()
        self._unfinished: deque[FinishedTrace] = deque()
        self._closing = False
        self._abandoned = False
        self._jobs = JobThread("stepscope-kineto")
        self._advanced_at = 0.0
        self.problems: Counter[str] = Counter()
        """Failures and their counts."""
        self.clock_error_ns = 0
        """The largest error of the times of a trace."""

    def put(self, item: FinishedTrace | int) -> None:
        """Takes a trace, or a time to which the watermark may go once the traces before it are delivered."""
        if isinstance(item, int) and self._jobs.idle:
            self._sink.watermark(item)
            return
        if isinstance(item, FinishedTrace):
            self._unfinished.append(item)
        self._jobs.submit(partial(self._hand_over, item))

    async def aclose(self) -> None:
        """Finishes what is waiting. When cancelled it delivers what is converted, and counts what is left as dropped."""
        if self._closing:
            return
        self._closing = True
        try:
            await asyncio.to_thread(self._jobs.wait)
        except anyio.get_cancelled_exc_class():
            for trace in list(self._unfinished):
                self._sink.missing(trace.since, trace.until, f"not all of {trace.name} {TOO_LATE}")
            self._abandoned = True
            with anyio.move_on_after(LAST_S, shield=True):
                await asyncio.to_thread(self._jobs.wait)
            raise
        finally:
            self._abandoned = True

    def _hand_over(self, item: FinishedTrace | int) -> None:
        try:
            if isinstance(item, int):
                self._sink.watermark(item)
                return
            if self._abandoned:
                item.result.release()
                self.problems[f"a recording of torch {NOT_BEGUN}"] += 1
            else:
                self._finish(item)
            self._unfinished.popleft()
        except ClosedError:
            self.problems["the profiler was closed before a trace was delivered"] += 1

    def _advance(self) -> None:
        """The work goes on: windows that wait for it, and closing, wait on."""
        now = time.monotonic()
        if now - self._advanced_at > PROGRESS_INTERVAL_S:
            self._advanced_at = now
            with suppress(ClosedError):
                self._sink.advancing()

    def _finish(self, trace: FinishedTrace) -> None:
        path: Path | None = None
        released = False
        if self._keeper is not None:
            trace.result.add_user()  # before it is saved, so that the keeper can save it again
        try:
            path = make_scratch("stepscope-kineto-", ".json")
            if not self._save(trace, path):
                self.problems["exporting a trace stopped all Python threads for that time"] += 1
            flops = trace.result.flops() if trace.flops else {}
            self._let_go(trace)
            released = True
            self._deliver(KinetoFile(path), trace, flops)
        except ClosedError:
            raise
        except Exception as error:
            self._lose(trace, f"{trace.name} was lost: {error}")
            self._drop(0 if path is None else _events_in(path), "source", trace)
        finally:
            if not released:
                trace.result.release()
            if path is not None:
                remove_scratch(path)

    def _lose(self, trace: FinishedTrace, why: str) -> None:
        self.problems[why] += 1
        self._sink.missing(trace.since, trace.until, why)

    def _drop(self, count: int, reason: str, trace: FinishedTrace) -> None:
        if count <= 0:  # the mark of an event may be in a text as well, or missing in an event that cannot be read
            return
        try:
            self._sink.dropped(count, reason, max(trace.since, trace.until - 1))
        except ClosedError:
            self.problems[
                f"{count:,} events of torch had not been converted when the profiler was closed; raise Options.close_timeout"
            ] += 1

    def _save(self, trace: FinishedTrace, path: Path) -> bool:
        """Has torch write the trace, which takes some µs for an event, and looks at the file grow."""
        saving = BackgroundCall(trace.result.save, str(path), name="stepscope-kineto-save", elsewhere=True).start()
        written = -1
        while not saving.finished:
            with suppress(TimeoutError):
                saving.result(PROGRESS_INTERVAL_S)
            size = sum(file.stat().st_size for file in (path, Path(f"{path}.tmp")) if file.exists())
            if size != written:
                written = size
                self._advance()
        return saving.result()

    def _let_go(self, trace: FinishedTrace) -> None:
        try:
            if self._keeper is not None:
                self._keeper(trace)
        except Exception as error:
            self.problems[f"the keeper of torch's recordings raised {type(error).__name__}: {error}"] += 1
            trace.result.release()
        finally:
            trace.result.release()

    def _deliver(self, file: KinetoFile, trace: FinishedTrace, flops: dict[int, int]) -> None:
        if set_by := set_between(trace.anchors[0], trace.anchors[-1]):
            self.problems[
                f"the wall clock was set by {set_by / 1e9:+,.1f} s while torch recorded: times may be off"
            ] += 1
        mapping = ClockMapping.fit([(a.wall_ns, a.monotonic_ns, a.error_ns) for a in trace.anchors])
        converter: KinetoConverter | None = None
        parts: list[tuple[Block, bytes]] = []
        read = 0
        for events in file.slices():
            if self._abandoned:
                self._drop(_events_in(file.path) - read - file.skipped, "closed", trace)
                break
            if converter is None:
                converter = KinetoConverter(self._tracks, file.base_ns, mapping, flops, trace.left_out)
            parts.append(converter.convert(events))
            read += len(events)
            self._advance()
            time.sleep(0)  # whoever waits for the GIL gets it
        self._drop(file.skipped, "source", trace)
        if file.problem:
            self._drop(_events_in(file.path) - read - file.skipped, "source", trace)
            self._lose(trace, f"a part of {trace.name} was lost: {file.problem}")
        if converter is None:
            return
        if converter.unknown:
            self.problems["events of kineto that are of no known kind were left out"] += converter.unknown
        self.clock_error_ns = max(self.clock_error_ns, mapping.error_ns)
        self._send(parts, trace)

    def _send(self, parts: list[tuple[Block, bytes]], trace: FinishedTrace) -> None:
        if not parts:
            return
        whole = join_blocks(events for events, _ in parts)
        whole["track"] = self._tracks.rows()[whole["track"]]
        cut_frames(whole)
        nest(whole)
        start = at = 0
        heap = bytearray()
        for events, args in parts:
            here = whole[at : at + len(events)]
            here["args_at"] += len(heap)
            heap += args
            at += len(events)
            if at - start >= BLOCK or at == len(whole):
                self._deliver_block(whole[start:at], bytes(heap), trace)
                start, heap = at, bytearray()

    def _deliver_block(self, events: Block, args: bytes, trace: FinishedTrace) -> None:
        """Delivers what a device did after the end of the recording, which it was launched in, as such. Where there is a device,
        kineto also has calls and kernels of before the recording, and calls of after it, which are nobody's."""
        events = events[ends(events) >= trace.since]
        until = trace.until
        late = np.flatnonzero(ends(events) > until)
        behind = late[self._tracks.of_device(events["track"][late])]
        if len(behind):
            self._sink.deliver(events[behind], args, launched_before=until)
            events = np.delete(events, behind)
        events = events[events["ts"] < until]
        if len(events):
            self._sink.deliver(events, args)


def notes_of(problems: Counter[str]) -> list[str]:
    """A note for each failure, with how often it came."""
    return [text if n == 1 else f"{text} ({n} times)" for text, n in problems.items()]


def _events_in(path: Path) -> int:
    """Events of a trace that could not be read, piece by piece, as it may be larger than memory."""
    mark, count, rest = b'"ph": ', 0, b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            text = rest + piece
            count += text.count(mark)
            rest = text[-(len(mark) - 1) :]
    return count


class ChromeFilesBackend:
    """Takes the files that torch's profiler writes, and delivers what is in them.

    A file belongs to the window that is open when `add` is called: reading it is done on a thread, and the window
    waits for that. Times of a file are Unix time, so they are as exact as the wall clock is steady.
    """

    thread_bound = False

    def __init__(self, name: str = "chrome_files") -> None:
        self.name = name
        self._worker: KinetoWorker | None = None
        self._open = False
        self._anchor = ClockAnchor(0, 0, 0)
        self._since = 0
        """Time at which the latest file came, or at which it was opened."""
        self._files = 0

    def open(self, sink: Sink) -> None:
        self._worker, self._anchor, self._open = KinetoWorker(sink), ClockAnchor.read(), True
        self._since = self._anchor.monotonic_ns

    def add(self, path: Path) -> None:
        """Takes a file; it may be deleted afterwards. Any thread; before `open` and after `aclose` it is left out.
        Raises `OSError` if it cannot be opened."""
        worker = self._worker
        if worker is None or not self._open:
            return
        file, now = _File(path), ClockAnchor.read()
        since, self._since = self._since, now.monotonic_ns
        self._files += 1
        worker.put(
            FinishedTrace(file, now.monotonic_ns, (self._anchor, now), False, since, frozenset(), Path(path).name)
        )

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._worker is not None:
            self._worker.put(at)

    async def aclose(self) -> None:
        self._open = False
        if self._worker is not None:
            await self._worker.aclose()

    def report(self) -> BackendReport:
        notes = () if self._files else ("no file came",)
        error_ns = 0
        if self._worker is not None:
            notes, error_ns = (*notes, *notes_of(self._worker.problems)), self._worker.clock_error_ns
        clock = f"Unix time of the files, mapped to CLOCK_MONOTONIC within {error_ns} ns"
        return BackendReport(mode="files", clock=clock, notes=notes)


class _File(SharedResult):
    """A file, in the place of a result of torch's profiler. Kept by its descriptor: the program may have deleted it since."""

    def __init__(self, path: Path) -> None:
        super().__init__(None)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open = gzip.open if str(path).endswith(".gz") else open

    def save(self, path: str) -> bool:
        with self._open(f"/proc/self/fd/{self._descriptor}", "rb") as file, open(path, "wb") as copy:
            shutil.copyfileobj(file, copy)
        return True

    def release(self) -> None:
        os.close(self._descriptor)
