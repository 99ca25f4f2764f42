"""One trace file while it is written, of any format that grows by pieces; and JSON text of values from anywhere."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.exporters.files.output import OutputFile
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.record import Block, Flag
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.export.run import Run
from stepscope.runtime.session.note import TraceNote
from stepscope.runtime.windows.window import Window

_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=msgspec.structs.asdict)


def dumps(value: Any) -> str:
    """JSON text on one line, with a space after commas and colons, and every character as it is. `json_values.plain` reduces what
    JSON does not hold, such as NaN.

    Perfetto shows escapes such as \\u00e9 in names of processes and threads as they stand.
    """
    try:
        text = _encoder.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError):  # a lone surrogate is a ValueError
        return json.dumps(plain(value, items=None), allow_nan=False, ensure_ascii=False)
    return text


def dumps_records(value: Any) -> str:
    """Compact JSON text of our own structs, and of dicts and lists of whole numbers and text, in a twentieth of the time of `dumps`,
    which it calls for what these do not hold. NaN must not occur."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # a lone surrogate is a ValueError
        return dumps(value)


SLICE = 4096
"""Events that are encoded at a time: about a quarter of a millisecond of the loop's time. More of them become so large that
malloc has it from the system each time, whose new pages cost Chrome JSON a third of its speed."""

SMALLEST_SLICE = 16
SLICE_DIVISOR = 1 << 14
"""Events of a slice of a file with a size limit: the limit divided by this, so that a slice has about a percent of the file."""
MIN_END_BYTES = 16_384
END_SHARE = 1 / 64
"""Room below the size limit that events leave free, at least and as a share of the limit: for the last slice, marks and the end."""
MAX_SLICE_ARGUMENT_BYTES = 4096
"""Arguments of the events of a slice of a file with a size limit; of a single event they may be more."""


class TraceFile(ABC):
    """A trace being written, from its first event to its end.

    Args:
        path: where the complete file will be.
        run: owner of the trace.
        output: the file, whose head is written already.
        limit: size in bytes, which only an event with very large arguments exceeds.
    """

    groups = False
    """Whether small writes to `output` may be put together (`begin_group`): what follows them can be read if they are lost."""

    def __init__(self, path: Path, run: Run, output: OutputFile, limit: int | None) -> None:
        self.path = path
        """Path of the complete file."""
        self._run = run
        self.output = output
        self._noted = output.path
        self._limit = limit
        self._slice = SLICE if limit is None else min(max(limit // SLICE_DIVISOR, SMALLEST_SLICE), SLICE)
        self._last = run.anchor.monotonic_ns
        self._opened = self._ended = self._failed = False
        self._unfinished = self._lost_reported = 0

    @property
    def written(self) -> int:
        """Events written, those included of which a part is yet to be written."""
        return self.output.events

    def take_lost(self, window: int | None) -> Iterable[Lost]:
        """Returns the losses since the last call.

        Args:
            window: of these events; `None`: of several.
        """
        deleted = self.output.deleted
        lost = self.written if deleted else self._unfinished + self.output.refused
        if lost <= self._lost_reported:
            return ()
        news = Lost(lost - self._lost_reported, "deleted" if deleted else "error", window)
        self._lost_reported = lost
        return (news,)

    @property
    def full(self) -> bool:
        """Whether it has events, and the size limit leaves no room for more."""
        if self._limit is None or not self.written:
            return False
        return self.output.size >= self._limit - max(MIN_END_BYTES, round(self._limit * END_SHARE))

    @property
    def over(self) -> bool:
        """Whether the size limit leaves no room for marks either."""
        return self._limit is not None and self.output.size >= self._limit

    def add(self, events: Block, args: bytes, window: int) -> int:
        """Writes events of a window.

        Returns:
            How many were written: fewer than were given when the file is full.

        Raises:
            OutputError: if the system refused; the file ends with the last whole slice then.
        """
        done = 0
        if len(events) and not self._opened:
            self._open(int(events["ts"].min()))
        while done < len(events) and not self.full:
            some = events[done : self._slice_end(events, done)]
            self._last = max(self._last, int(some["ts"].max()))
            self._write(some, args, window)
            done += len(some)
        return done

    def _slice_end(self, events: Block, begin: int) -> int:
        """The end of the next slice: with a size limit, one whose arguments fit the room at the end of the file."""
        end = min(begin + self._slice, len(events))
        if self._limit is None:
            return end
        some = events[begin:end]
        nbytes = np.cumsum(np.where(some["flags"] & int(Flag.ARG_INLINE), 0, some["args_len"]))
        return begin + max(int(np.searchsorted(nbytes, MAX_SLICE_ARGUMENT_BYTES, side="right")), 1)

    def write_pending(self) -> None:  # noqa: B027 - most formats write each event at once
        """Writes the rest of events of which a part is still pending.

        Raises:
            OutputError: if the system refused.
        """

    def count_unfinished(self) -> int:
        """Events of which a part is still pending, so that no reader shows them yet."""
        return 0

    def abandon_unfinished(self) -> None:
        """Counts events as lost that cannot be written any more."""
        self._unfinished = self.count_unfinished()

    def mark(self, name: str, at: int, args: Mapping[str, Any]) -> None:
        """Writes an instant event of the whole process, such as the end of a window.

        Args:
            name: what is shown.
            at: monotonic time in ns.
            args: JSON-like values.
        """
        self._open(at)
        self._last = max(self._last, at)
        self.output.check_deleted()
        self.output.write(self._instant(name, at, args))

    async def finish(self, args: Mapping[str, Any], at: int | None = None) -> None:
        """Writes the end, closes the file and gives it its name; goes on where a cancelled call was.

        Args:
            args: JSON-like values for the last event, which is called `stepscope`.
            at: its monotonic time in ns; by default that of the last event before it.

        Raises:
            OutputError: if the system refused. A file that grew under another name keeps that then: it has no end.
        """
        if not self._ended:
            if at is not None:
                self._last = max(self._last, at)
            self._ended = True
            try:
                self._open(self._last)
                end = self._end(args)
                if self._limit is not None and len(end) > MIN_END_BYTES:
                    end = self._end({"left out": "more than the size limit allows"})
                self.output.tail = b""
                self.output.write(end)
            except OutputError:
                self._failed = True
                await self.output.close()
                raise
        if self._failed:
            return  # it was reported when it failed
        try:
            await self.output.close()
        except OutputError:
            self._failed = True
            raise
        if self.output.path != self.path:
            self.output.rename(self.path)
        self._run.note_output(self._noted, False)

    def _open(self, at: int) -> None:
        """Writes what the file says of its run, at the time of the first event: a viewer shows no time before that."""
        if not self._opened:
            self.output.write(self._opening(at))
            self._opened = True

    @abstractmethod
    def _opening(self, at: int) -> bytes:
        """Metadata of the run in the file, at a monotonic time in ns."""

    @abstractmethod
    def _write(self, events: Block, args: bytes, window: int) -> None:
        """Writes these events."""

    @abstractmethod
    def _instant(self, name: str, at: int, args: Mapping[str, Any]) -> bytes:
        """An instant event of the process."""

    def _end(self, args: Mapping[str, Any]) -> bytes:
        """The last event, and what follows it."""
        return self._instant("stepscope", self._last, args)


async def begin(path: Path, run: Run, note: TraceNote, *, gzip: bool, tail: bytes = b"") -> OutputFile:
    """Creates a file for a trace, and notes in the run's directory how it is written anew if the process is killed.

    Args:
        path: where it is written.
        run: owner of the trace.
        note: how it is written.
        gzip: whether to compress.
        tail: what is to follow the last piece at any time, see `OutputFile`.

    Raises:
        OutputError: if that cannot be done.
    """
    run.note_output(path, True, note)
    return await OutputFile.create(path, gzip=gzip, tail=tail)


async def write_head(output: OutputFile, head: bytes) -> None:
    """Writes what a file begins with.

    Raises:
        OutputError: if the system refused; the file is closed then.
    """
    try:
        output.write(head)
    except OutputError:
        await output.close()
        raise


def about_run(run: Run) -> dict[str, Any]:
    """Metadata of the run at the end of a file: facts that were added, and its accounts."""
    return {"run": run.name, "metadata": dict(run.metadata()), "ledger": run.ledger()}


def about_window(window: Window) -> dict[str, Any]:
    """Metadata of a window in a file: its steps, lost events, and why it may be empty or partial."""
    return {
        "window": window.index,
        "profiler": window.profiler,
        "steps": [step.number for step in window.steps],
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "wall_start_ns": window.wall_start_ns,
        "complete": window.complete,
        "diagnostics": window.diagnostics,
        "ledger": window.ledger,
        "metadata": window.metadata,
    }
