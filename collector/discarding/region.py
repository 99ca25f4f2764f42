"""Gives up what lies between two frames of a journal that stay where they are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable

import msgspec

from stepscope.collector.discarding.holes import UNABLE, clear, crc_of_zeros, punch
from stepscope.collector.discarding.walk import Found
from stepscope.runtime.journal import discarded_frames
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discarded_frames import GivenUp

LONGEST = 1 << 20
"""Bytes up to which frames that are given up become one; each such frame leaves a header behind."""
MOVED = frozenset(
    {
        fmt.FrameType.RUN,
        fmt.FrameType.CLOCK,
        fmt.FrameType.METADATA,
        fmt.FrameType.WINDOW_OPENED,
        fmt.FrameType.WINDOW_CLOSED,
        fmt.FrameType.LEDGER,
        fmt.FrameType.CAP,
        fmt.FrameType.CLOCK_SYNC,
    }
)
"""Records: where they are does not matter, but for events that follow."""
SPAN = 4 * LONGEST
"""Bytes from which on a region ends where it can: what becomes of the records behind them is another one's business."""
_NUMBERS = 1 << 32
_NOTHING = discarded_frames.encode(GivenUp())


class Made(msgspec.Struct, frozen=True):
    """A stretch of a journal in which other frames begin and end than before; no events are there."""

    at: int
    last: int
    """Where the last frame begins that stands for what was given up."""
    end: int


class _Run(msgspec.Struct):
    """Frames next to each other of which nothing is left but what they were."""

    at: int
    end: int
    number: int
    """Of the last one."""
    gone: list[GivenUp]
    """What each of them was."""
    spans: bool
    """Whether it stands for all frames since the one before it."""
    fresh: bool
    """Whether it is not written as one frame yet."""
    records: list[Found] = []
    """That follow it."""

    @property
    def size(self) -> int:
        """Bytes from one frame to the next."""
        return self.end - self.at

    @property
    def record_bytes(self) -> int:
        """Bytes of the records that follow it."""
        return sum(record.end - record.at for record in self.records)


class Region:
    """Gives up what lies between two frames that stay where they are: runs, and records between them.

    The records move to the beginning, so that the runs around them become one. Where they go is nothing any more, and what is
    written there counts only when the run before is said to be shorter, which is one small write: who is killed leaves the
    one or the other. Whatever lies there, a region takes a time that is in proportion to its bytes, and ends by itself after
    `SPAN`, so that little is kept in memory.
    """

    def __init__(self, fd: int, sync: bytes, ended: Collection[int], before: int | None) -> None:
        """Args: the file; the mark of its frames; as of `discard`; number of the frame before, `None` if it is not known."""
        self._fd, self._sync, self._ended, self._before = fd, sync, ended, before
        self.made: list[Made] = []
        self._runs: list[_Run] = []

    @property
    def open(self) -> bool:
        """Whether there is a run."""
        return bool(self._runs)

    def add(self, found: Found, gone: GivenUp | None, *, fresh: bool = False) -> None:
        """The next frame: gone, or a record, which stays, if nothing is said of it."""
        follows = found.spans or self._before is not None and found.number == (self._before + 1) % _NUMBERS
        run = self._runs[-1] if self._runs else None
        longer = gone is not None and run is not None and follows and not run.records and found.end - run.at <= LONGEST
        if not follows:
            self.close(None)  # the number that is missing is to show
        elif not longer and self._runs and found.end - self._runs[0].at > SPAN:
            self.close(self._before)
        self._before = found.number
        if gone is None:
            if self._runs:
                self._runs[-1].records.append(found)
        elif longer and run is not None:
            run.end, run.number, run.spans, run.fresh = found.end, found.number, True, True
            run.gone.append(gone)
        else:
            # One that shows a missing number is alone: those after it are the next run.
            self._runs.append(_Run(found.at, found.end, found.number, [gone], found.spans, fresh, []))
            if not follows:
                self.close(found.number)

    def close(self, number: int | None) -> None:
        """The region ends here; the frame before the next one has this number."""
        runs, self._runs, self._before = self._runs, [], number
        if len(runs) < 2 and not any(run.fresh for run in runs):
            return
        start, at = runs[0].at, 0
        while at < len(runs):
            run = runs[at]
            beginning = self._said([run])
            if fmt.FRAME_HEADER.size + len(beginning) > run.size:
                start, at = run.end, at + 1  # it would say no less than it holds
                continue
            # What is freed begins behind what it says now: it may have said that in another way.
            os.pwrite(self._fd, self._frame(run, beginning, run.size), run.at)
            if count := self._draw_in(runs, at):
                at += count
                continue
            if run.fresh or start != run.at:
                self.made.append(Made(start, run.at, run.end))
            self._punch(run.at + fmt.FRAME_HEADER.size + len(beginning), run.end)
            start, at = run.end, at + 1

    def _draw_in(self, runs: list[_Run], at: int) -> int:
        """Moves records behind a run into it, as many as have room there, and takes what lies behind and between them away.

        Returns:
            Behind how many runs they were: the last of the runs that follow these is what follows the records then. 0 if none
            could be moved.
        """
        count, beginning = self._room(runs, at)
        if not count:
            return 0
        run, last = runs[at], runs[at + count]
        records = [record for before in runs[at : at + count] for record in before.records]
        begin = run.at + fmt.FRAME_HEADER.size + len(beginning)
        moved = [self._moved(record) for record in records]
        made = _Run(
            begin + sum(map(len, moved)), last.end, last.number, [], spans=True, fresh=False, records=last.records
        )
        os.pwrite(self._fd, b"".join([*moved, self._frame(made, _NOTHING, made.size)]), begin)
        os.pwrite(self._fd, self._frame(run, beginning, begin - run.at), run.at)
        runs[at + count] = made
        return count

    def _room(self, runs: list[_Run], at: int) -> tuple[int, bytes]:
        """Behind how many runs the records have room in the first of them, and what that one says then.

        It is found in steps that grow and shrink again: to try all, one after the other, would take the square of the time.
        """
        count, said = 0, b""
        step, grows = 1, True
        while step:
            more = count + step
            some = runs[at : at + more + 1]
            fits = len(some) > more and some[-1].end - some[0].at <= LONGEST and all(run.records for run in some[:-1])
            if fits:
                beginning = self._said(some)
                needed = 2 * fmt.FRAME_HEADER.size + len(beginning) + len(_NOTHING)
                fits = needed + sum(run.record_bytes for run in some[:-1]) <= some[0].size
                if fits:
                    count, said = more, beginning
            grows = grows and fits
            step = 2 * step if grows else step // 2
        return count, said

    def _said(self, runs: Iterable[_Run]) -> bytes:
        """What a frame begins with that stands for these."""
        return discarded_frames.encode(
            discarded_frames.merge(gone for run in runs for gone in run.gone).without(self._ended)
        )

    def _moved(self, record: Found) -> bytes:
        """A record as it stands where frames before it are gone."""
        frame = os.pread(self._fd, record.end - record.at, record.at)
        _, kind, flags, _, number, length, crc, _ = fmt.FRAME_HEADER.unpack_from(frame)
        return self._header(kind, flags | fmt.SPANS, number, length, crc) + frame[fmt.FRAME_HEADER.size :]

    def _frame(self, run: _Run, beginning: bytes, size: int) -> bytes:
        """What stands for a run, of so many bytes, without the zeros at its end."""
        length = size - fmt.FRAME_HEADER.size
        crc = crc_of_zeros(length - len(beginning), zlib.crc32(beginning))
        flags = fmt.SPANS if run.spans else 0
        return self._header(fmt.FrameType.GIVEN_UP, flags, run.number, length, crc) + beginning

    def _header(self, kind: int, flags: int, number: int, length: int, crc: int) -> bytes:
        head = fmt.FRAME_HEADER.pack(self._sync, kind, flags, 0, number, length, crc, 0)[:-4]
        return head + zlib.crc32(head).to_bytes(4, "little")

    def _punch(self, at: int, end: int) -> None:
        try:
            punch(self._fd, at, end - at)
        except OSError as error:
            if error.errno in UNABLE:
                clear(self._fd, at, end - at)  # the frame says that it is empty
            raise
