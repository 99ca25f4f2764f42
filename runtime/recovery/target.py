"""What is recovered when a directory, a journal or a note is named: which run, which journal, and where it goes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError, ProfilerStateError
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.recovery.journals import Journals, run_in
from stepscope.runtime.session.note import JOURNAL, SESSION_FILE, SessionNote, is_note, notes_in

_NO_JOURNALS = (".json", ".gz", ".pftrace", ".part")
"""Endings of files that a note names and that are no journals."""


class RecoveryTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a directory, or what is left of one."""

    place: Path
    """The run's directory."""
    path: Path | None = None
    """Its note, if it left one."""
    note: SessionNote | None = None
    journal: Path | None = None
    target: Path
    """Where a journal goes where there is none that can be read."""
    said: tuple[str, ...] = ()
    """What else there is."""
    missing: tuple[str, ...] = ()
    """What should have been read and could not be."""


def unfinished(place: Path, problems: list[str], *, force: bool = False) -> list[tuple[Path, SessionNote]]:
    """Notes of runs whose process was killed, newest first; with `force`, also of those that run still."""
    return [(path, note) for path, note in notes_in(place, problems) if force or not note.running]


def being_written(place: Path) -> set[str]:
    """Files that runs which go on write, by what their notes in this directory and below say; their real names."""
    files: set[str] = set()
    for directory in {path.parent for path in place.rglob(f"{SESSION_FILE}*") if is_note(path)}:
        for _, note in notes_in(directory, []):
            files.update(map(_real, note.outputs if note.running else ()))
    return files


def choose(named: Path, *, force: bool) -> RecoveryTarget:
    """What to recover.

    Args:
        named: a run's directory, of whose runs the one that was killed last is chosen; a journal; or a note.
        force: also a run whose process goes on.

    Raises:
        ProfilerStateError: if that is so, and not forced.
        FormatError: if a file is named that is no journal.
        OSError: if the directory cannot be read.
    """
    place = named if named.is_dir() else named.parent
    missing: list[str] = []
    notes = notes_in(place, missing)
    journals = Journals.of(place)
    wrote = {path: _wrote(note, place, notes, journals) for path, note in notes}
    path: Path | None = None
    note: SessionNote | None = None
    journal: Path | None = None
    if named.is_dir():
        dead = [entry for entry in notes if force or not entry[1].running]
        path, note = next(iter(dead or notes), (None, None))
    elif is_note(named):
        path, note = next((entry for entry in notes if entry[0].name == named.name), (None, None))
    else:
        journal = named
        path, note = next((entry for entry in notes if _is_of(entry[1], named, run_in(named), notes)), (None, None))
    if note is not None and note.running and not force:
        raise ProfilerStateError(
            f"process {note.pid} that writes {place} still runs; wait for its end, stop it, or force the recovery"
        )
    said = [
        f"process {other.pid} goes on writing to {place}: its run is left alone"
        for _, other in notes
        if other.running and other is not note
    ]
    if journal is None:
        journal = journals.newest() if path is None else next(iter(wrote[path]), None)
        taken = {journal, *(others[0] for others in wrote.values() if others)}
        if rest := [other.name for other, _ in journals.found if other not in taken]:
            said.append(f"not used, name one to recover it: {', '.join(rest)}")
    return RecoveryTarget(
        place=place,
        path=path,
        note=note,
        journal=journal,
        target=place / JOURNAL,
        said=tuple(said),
        missing=(*missing, *journals.unusable),
    )


def _wrote(note: SessionNote, place: Path, notes: list[tuple[Path, SessionNote]], journals: Journals) -> list[Path]:
    """The journals that the run of a note wrote: in its directory first, of these the ones that it names by their place.

    Others may be copies; but where the whole directory was copied, the journal elsewhere is that of the original.
    """
    named = set(map(_real, note.outputs))
    mine = [path for path, record in journals.found if _is_of(note, path, record, notes)]
    if note.run:
        mine.reverse()
    here = [path for path in mine if _real(path) in named]
    return list(dict.fromkeys([*here, *mine, *_elsewhere(note, place, notes)]))


def _is_of(note: SessionNote, journal: Path, record: RunRecord | None, notes: list[tuple[Path, SessionNote]]) -> bool:
    """Whether the run of a note wrote a journal.

    Their ids say it. Where one has none, as earlier versions gave none, the note names the journal; or neither it nor
    another names it, the note names no journal at all, and the process is the same. Process ids alone say little: runs of
    one process, and of one container after the other, share theirs.
    """
    if record is not None and (record.id or note.run):
        return record.id == note.run
    if any(journal.name in _names(other) for _, other in notes):
        return journal.name in _names(note)
    return not note.keep_last and not _names(note) and (record is None or record.pid == note.pid)


def _names(note: SessionNote) -> set[str]:
    """File names of its outputs that may be journals: the directory may have been moved since."""
    return {os.path.basename(output) for output in note.outputs if not output.endswith(_NO_JOURNALS)}


def _elsewhere(note: SessionNote, place: Path, notes: list[tuple[Path, SessionNote]]) -> list[Path]:
    """Journals that the run kept outside of its directory."""
    found: list[Path] = []
    for output in map(Path, note.outputs):
        if _real(output.parent) == _real(place) or output.name.endswith(_NO_JOURNALS):
            continue
        if ours(output, note.owner):
            try:
                record = run_in(output)
            except (FormatError, OSError):
                continue
            if record is not None and record.pid == note.pid and _is_of(note, output, record, notes):
                found.append(output)
    return found


def _real(name: str | Path) -> str:
    """A file's name without links; as it stands if it can be none."""
    try:
        return os.path.realpath(name)
    except (OSError, ValueError):
        return str(name)


def ours(path: Path, owner: int) -> bool:
    """Whether a file that a note names may be used: a regular file, no link, of who wrote the note and asks."""
    try:
        about = path.lstat()
    except (OSError, ValueError):
        return False
    return path.is_absolute() and stat.S_ISREG(about.st_mode) and about.st_uid == owner == os.geteuid()
