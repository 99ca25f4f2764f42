"""The journal that a killed run left, complete: whose spool it is decides which one."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from stepscope.exporters.collector.protocol import identity
from stepscope.exporters.collector.spool import StreamNote
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import RunRecord, decode_record
from stepscope.runtime.journal.segments import first_file
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.recovery.target import RecoveryTarget, choose
from stepscope.runtime.session.note import notes_in


class Head(msgspec.Struct, frozen=True):
    """What the beginning of a journal says."""

    run: RunRecord
    sync: bytes
    stream: str
    """The id of the stream that it is when it is delivered: the same each time."""

    @classmethod
    def of(cls, path: Path) -> Head | None:
        """Reads it; `None` if the first frame does not say whose journal it is.

        Raises:
            FormatError: if it is no journal.
            OSError: if it cannot be read.
        """
        reader = FrameReader(path, follow=False)
        try:
            first, sync = reader.peek(), reader.sync_word
        finally:
            reader.close()
        if first is None or first[0] != fmt.FrameType.RUN or sync is None:
            return None
        run = decode_record(first[0], first[2])
        if not isinstance(run, RunRecord):
            return None
        return cls(run, sync, hashlib.sha256(sync + first[2]).hexdigest()[:32])


def left_journal(directory: Path, note: StreamNote) -> Path | None:
    """The complete journal of the run whose spool this is, recovered if need be; `None` if it left none.

    A journal that was recovered is taken as it is, so that a delivery which was interrupted goes on.

    Args:
        directory: the spool.
        note: whose it is.

    Raises:
        ProfilerStateError: if the journal's process still runs.
        OSError: if files cannot be read, or the journal cannot be completed.
    """
    found = _choice(directory.parent.parent, note)
    if found is None:
        return None
    named, choice = found
    if choice.note is None or not choice.note.recovered_ns:
        # It may be complete: the process died after it was closed, or nothing of the process is left in memory.
        with contextlib.suppress(FormatError):
            recover(named)
    return choice.journal


def _choice(place: Path, note: StreamNote) -> tuple[Path, RecoveryTarget] | None:
    """What `recover` is told for the journal of this run, and what it takes then."""
    process = note.pid, note.start_time
    left = [path for path, one in notes_in(place, []) if (one.pid, one.start_time) == process]
    for named in (*left, *(path for path, _ in Journals.of(place).found if _head(path, note) is not None)):
        choice = choose(named, force=False)
        if choice.journal is not None and _head(choice.journal, note) is not None:
            return named, choice
    return None


def _head(path: Path, note: StreamNote) -> Head | None:
    """The beginning of a journal of the run whose spool this is; `None` if it is none of that run."""
    first = first_file(path)
    if first.is_symlink() or not first.is_file():
        return None
    try:
        head = Head.of(path)
    except (FormatError, OSError):
        return None
    return head if head is not None and identity(head.run) == identity(note.run) else None
