"""Files of a flight recorder whose process was killed: the blocks of the last steps, and windows that were being saved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.recovery.ring_file import RingContent
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.directory import KEPT_PREFIX
from stepscope.runtime.session.note import WINDOWS, SessionNote

MAX_FILES = 1 << 14
MAX_BYTES = 64 << 20
"""Limit of one file. The recorder writes smaller ones; a sparse file of a terabyte would take long to search for frames."""
PART = ".journal.part"
"""Suffix of a window's journal while it is being written."""


def retained_blocks(session: SessionFiles, profiler: int) -> Iterator[RingContent]:
    """The retained blocks of a profiler, oldest first; those of all profilers if its number is 0, that is, unknown.

    Skips damaged frames, and adds a note to the session's notes.
    """
    wanted = f"{KEPT_PREFIX}{profiler}-" if profiler else KEPT_PREFIX
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
                decoded = fmt.decode_rows(payload, flags) if kind == fmt.FrameType.EVENTS else None
                if decoded is None:
                    frames.count_undecodable()
                    continue
                header, events, args = decoded
                valid = (events["kind"] > 0) & (events["kind"] <= int(max(Kind)))
                yield RingContent(events[valid], args, empty_block(), header.source)
            if frames.damage:
                session.notes.append(f"{session.directory}/{name}: parts of it are damaged")
        finally:
            frames.close()


def name_unfinished_windows(run: Path, note: SessionNote, living: set[str]) -> tuple[int, list[str]]:
    """Renames the journals of windows that were being saved to `*-unfinished.journal`: they can be read up to their end. One that is
    empty is deleted.

    Args:
        run: directory of the run.
        note: note of the run, which names these journals; while the run is alive, none is renamed.
        living: files that living runs write.

    Returns:
        The first free window index, and notes for the user.
    """
    notes: list[str] = []
    next_index = 0
    directory = run / WINDOWS
    noted = {os.path.basename(output) for output in note.outputs}
    if not directory.is_dir() or directory.is_symlink():
        return next_index, notes
    for name in sorted(os.listdir(directory))[:MAX_FILES]:
        index = name[:6]
        if not (index.isascii() and index.isdecimal()) or ".journal" not in name:
            continue
        next_index = max(next_index, int(index) + 1)
        was_saving = name.endswith(PART) and name in noted and not note.running
        if was_saving and os.path.realpath(directory / name) not in living:
            if (directory / name).lstat().st_size <= fmt.FILE_HEADER.size:  # nothing was written of it
                (directory / name).unlink()
                continue
            target = directory / f"{name.removesuffix(PART)}-unfinished.journal"
            if target.exists():
                continue
            os.replace(directory / name, target)
            notes.append(f"{target} was being saved when the process died; what it holds can be converted")
    return next_index, notes
