"""What is recovered when a directory, a journal or a note is named: which run, which journal, and where it goes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError, ProfilerStateError
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.session_note import SESSION_FILE, SessionNote, is_note, notes_in, recovered_of


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a directory, or what is left of one."""

    place: Path
    """The run's directory."""
    path: Path | None = None
    """Its note, if it left one."""
    note: SessionNote | None = None
    journal: Path | None = None
    target: Path
    """Where the recovered journal goes, unless told otherwise."""
    said: tuple[str, ...] = ()
    """What else there is."""
    missing: tuple[str, ...] = ()
    """What should have been read and could not be."""


def unfinished(place: Path, problems: list[str], *, force: bool = False) -> list[tuple[Path, SessionNote]]:
    """Notes of runs whose process was killed, newest first; with `force`, also of those that run still."""
    return [(path, note) for path, note in notes_in(place, problems) if force or not note.running]


def being_written(place: Path) -> set[str]:
    """Files that runs which go on write, by what their notes in this directory and below say."""
    files: set[str] = set()
    for directory in {path.parent for path in place.rglob(f"{SESSION_FILE}*") if is_note(path)}:
        files.update(output for _, note in notes_in(directory, []) if note.running for output in note.outputs)
    return files


def choose(named: Path, *, force: bool) -> Choice:
    """What to recover.

    Args:
        named: a run's directory, of whose runs the one that was killed last is chosen; a journal; or a note.
        force: also a run whose process goes on.

    Raises:
        ProfilerStateError: if that is so, and not forced.
        OSError: if the directory cannot be read.
    """
    place = named if named.is_dir() else named.parent
    missing: list[str] = []
    notes = notes_in(place, missing)
    journals = Journals.of(place)
    path: Path | None = None
    note: SessionNote | None = None
    given = None
    if named.is_dir():
        dead = [entry for entry in notes if force or not entry[1].running]
        path, note = next(iter(dead or notes), (None, None))
    elif is_note(named):
        path, note = next((entry for entry in notes if entry[0].name == named.name), (None, None))
    else:
        given = named
        path, note = next((entry for entry in notes if _wrote(entry[1], given, notes, journals)), (None, None))
    if note is not None and note.running and not force:
        raise ProfilerStateError(
            f"process {note.pid} that writes {place} still runs; wait for its end, stop it, or force the recovery"
        )
    said = [
        f"process {other.pid} goes on writing to {place}: its run is left alone"
        for _, other in notes
        if other.running and other is not note
    ]
    journal = given
    if journal is None and note is not None:
        mine = [candidate for candidate, _ in journals.found if _wrote(note, candidate, notes, journals)]
        journal = next(iter([*(elsewhere for elsewhere in _elsewhere(note, place)), *mine]), None)
    elif journal is None:
        journal = journals.newest()
    rest = [
        other.name for other, _ in journals.found if given is None and other != journal and not _claimed(other, notes)
    ]
    if rest:
        said.append(f"not used, name one to recover it: {', '.join(rest)}")
    return Choice(
        place=place,
        path=path,
        note=note,
        journal=journal,
        target=recovered_of(path or place / SESSION_FILE),
        said=tuple(said),
        missing=(*missing, *journals.unusable),
    )


def _names(note: SessionNote) -> set[str]:
    """File names of its outputs: the directory may have been moved since."""
    return {os.path.basename(output) for output in note.outputs}


def _claimed(journal: Path, notes: list[tuple[Path, SessionNote]]) -> bool:
    return any(journal.name in _names(note) for _, note in notes)


def _wrote(note: SessionNote, journal: Path, notes: list[tuple[Path, SessionNote]], journals: Journals) -> bool:
    """Whether the run of a note wrote a journal: it says so, or nobody does and the process is the same."""
    if _claimed(journal, notes):
        return journal.name in _names(note)
    writer = dict(journals.found).get(journal)
    return writer is None or writer == note.pid


def _elsewhere(note: SessionNote, place: Path) -> list[Path]:
    """Journals that the run kept outside of its directory."""
    found: list[Path] = []
    for output in map(Path, note.outputs):
        if output.parent != place and ours(output, note.owner) and not output.name.endswith((".json", ".gz", ".part")):
            try:
                with JournalReader(output) as reader:
                    found += [output] if reader.run is not None and reader.run.pid == note.pid else []
            except (FormatError, OSError):
                continue
    return found


def ours(path: Path, owner: int) -> bool:
    """Whether a file that a note names may be used: a regular file, no link, of who wrote the note and asks."""
    try:
        about = path.lstat()
    except (OSError, ValueError):
        return False
    return path.is_absolute() and stat.S_ISREG(about.st_mode) and about.st_uid == owner == os.geteuid()
