"""What a dead flight recorder kept: the blocks of its last steps, and windows that it was just saving."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.flight.saved import WINDOWS
from stepscope.runtime.flight.segment import PREFIX
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frames import FrameReader
from stepscope.runtime.recovery.ring_file import RingContent
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.note import SessionNote

MAX_FILES = 1 << 14
MAX_BYTES = 64 << 20
"""Of one file; the recorder begins a new one long before. A hole of a terabyte would be searched for frames."""
PART = ".journal.part"
"""Ends the name of a window's journal while it is written."""


def kept_blocks(session: SessionFiles, profiler: int) -> Iterator[RingContent]:
    """The blocks that a profiler kept, oldest first; those of every profiler if its number, 0, is not known.

    Frames that are damaged are passed over, and said in the session's notes.
    """
    wanted = f"{PREFIX}{profiler}-" if profiler else PREFIX
    for name in sorted(os.listdir(session.directory))[:MAX_FILES]:
        if not name.startswith(wanted):
            continue
        try:
            if (session.directory / name).lstat().st_size > MAX_BYTES:
                raise FormatError("larger than what is kept in one file")
            frames = FrameReader(session.directory / name, follow=False)
        except (FormatError, OSError) as error:
            session.notes.append(f"{session.directory}/{name}: {error}")
            continue
        try:
            while (frame := frames.next()) is not None:
                kind, flags, payload = frame
                decoded = fmt.decode_events(payload, flags) if kind == fmt.FrameType.EVENTS else None
                if decoded is None:
                    frames.count_undecodable()
                    continue
                header, events, args = decoded
                known = (events["kind"] > 0) & (events["kind"] <= int(max(Kind)))
                yield RingContent(events[known], args, empty_block(), header.source)
            if frames.damage:
                session.notes.append(f"{session.directory}/{name}: parts of it are damaged")
        finally:
            frames.close()


def complete_windows(run: Path, note: SessionNote, living: set[str]) -> tuple[int, list[str]]:
    """Gives journals of windows that the run was saving a name of their own: what they hold can be read up to its end.

    Args:
        run: directory of the run.
        note: the run's, which names these journals; while it goes on itself, none gets a name.
        living: files that other runs still write.

    Returns:
        The first index that no window of the run has, and what there is to say.
    """
    notes: list[str] = []
    following = 0
    directory = run / WINDOWS
    noted = {os.path.basename(output) for output in note.outputs}
    if not directory.is_dir() or directory.is_symlink():
        return following, notes
    for name in sorted(os.listdir(directory))[:MAX_FILES]:
        index = name[:6]
        if not (index.isascii() and index.isdecimal()) or ".journal" not in name:
            continue
        following = max(following, int(index) + 1)
        saving = name.endswith(PART) and name in noted and not note.running
        if saving and os.path.realpath(directory / name) not in living:
            target = directory / f"{name.removesuffix(PART)}-unfinished.journal"
            if target.exists():
                continue
            os.replace(directory / name, target)
            notes.append(f"{target} was being saved when the process died; what it holds can be converted")
    return following, notes
