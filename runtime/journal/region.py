"""Gives up what lies between two frames of a journal that stay where they are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection
from itertools import pairwise

import msgspec

from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import given_up
from stepscope.runtime.journal.given_up import GivenUp
from stepscope.runtime.journal.holes import UNABLE, clear, crc_of_zeros, punch
from stepscope.runtime.journal.walk import Found

LONGEST = 1 << 20
"""Bytes up to which frames that are given up become one; each such frame leaves a header behind."""
MOVED = frozenset(
    {
        fmt.FrameType.RUN,
        fmt.FrameType.STRINGS,
        fmt.FrameType.TRACKS,
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
_NUMBERS = 1 << 32


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
    gone: GivenUp
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


class Region:
    """Gives up what lies between two frames that stay where they are: runs, and records between them.

    The records move to the beginning, so that the runs around them become one. Where they go is nothing any more, and what is
    written there counts only when the run before is said to be shorter, which is one small write: who is killed leaves the
    one or the other.
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
        if not follows:
            self.close(None)  # the number that is missing is to show
        self._before = found.number
        run = self._runs[-1] if self._runs else None
        if gone is None:
            if run is not None:
                run.records.append(found)
        elif run is None or run.records or not follows or found.end - run.at > LONGEST:
            # One that shows a missing number is alone: those after it are the next run.
            self._runs.append(_Run(found.at, found.end, found.number, gone, found.spans, fresh, []))
            if not follows:
                self.close(found.number)
        else:
            run.end, run.number, run.gone, run.spans, run.fresh = found.end, found.number, run.gone + gone, True, True

    def close(self, number: int | None) -> None:
        """The region ends here; the frame before the next one has this number."""
        runs, self._runs, self._before = self._runs, [], number
        if len(runs) < 2 and not any(run.fresh for run in runs):
            return
        start = runs[0].at
        while runs:
            run = runs.pop(0)
            beginning = given_up.encode(run.gone.without(self._ended))
            if fmt.FRAME_HEADER.size + len(beginning) > run.size:
                start = run.end  # it would say no less than it holds
                continue
            # What is freed begins behind what it says now: it may have said that in another way.
            os.pwrite(self._fd, self._frame(run, beginning, run.size), run.at)
            if (following := self._drawn_in(run, runs)) is not None:
                runs.insert(0, following)
                continue
            self.made.append(Made(start, run.at, run.end))
            start = run.end
            self._punch(run.at + fmt.FRAME_HEADER.size + len(beginning), run.end)

    def _drawn_in(self, run: _Run, runs: list[_Run]) -> _Run | None:
        """Moves records behind a run into it, as many as have room there, and takes what lies behind and between them away.

        Returns:
            The run that follows the records then; `None` if none could be moved.
        """
        size = fmt.FRAME_HEADER.size
        tail = given_up.encode(GivenUp())
        count, nbytes, gone, beginning = 0, 0, run.gone, b""
        records: list[Found] = []
        for before, after in pairwise([run, *runs]):
            more = sum(record.end - record.at for record in before.records)
            both = gone + after.gone
            said = given_up.encode(both.without(self._ended))
            room = run.size - (size + len(said) + nbytes + more + size + len(tail))
            if room < 0 or not before.records or after.end - run.at > LONGEST:
                break
            count, nbytes, gone, beginning = count + 1, nbytes + more, both, said
            records += before.records
        if not count:
            return None
        last = runs[count - 1]
        at = run.at + size + len(beginning)
        made = _Run(at + nbytes, last.end, last.number, GivenUp(), spans=True, fresh=False, records=last.records)
        moved = [self._moved(record) for record in records]
        os.pwrite(self._fd, b"".join([*moved, self._frame(made, tail, made.size)]), at)
        os.pwrite(self._fd, self._frame(run, beginning, at - run.at), run.at)
        del runs[:count]
        return made

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
