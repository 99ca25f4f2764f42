"""The journals and notes of a directory, and which of its runs to recover."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError, ProfilerStateError
from stepscope.runtime.journal.format import FILE_HEADER
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.journal.segments import first_file, first_names, segment_paths
from stepscope.runtime.session.note import BUFFER_DIRECTORY, SESSION_FILE, WINDOWS, SessionNote, is_note, notes_in

_MAX_NAMED = 8
_NAME = re.compile(r"journal(-\d+)?")
"""Names that stepscope gives; another file whose name begins like that may be anybody's."""


class Journals(msgspec.Struct, frozen=True, kw_only=True):
    """The journals of a directory."""

    found: tuple[tuple[Path, RunRecord | None], ...]
    """Newest first, each with its run record; `None` = its first frame is damaged."""
    unusable: tuple[str, ...]
    """Problems of files that have the name of a journal and cannot be used as one."""

    @classmethod
    def of(cls, place: Path) -> Journals:
        """Reads the first frames of `journal`, `journal-2`, ... and their copies in a directory.

        Raises:
            OSError: if a file is removed meanwhile.
        """
        found: list[tuple[int, Path, RunRecord | None]] = []
        unusable: list[str] = []
        for name in first_names(path.name for path in place.glob("journal*")):
            path = place / name
            if path.exists() and not path.is_file():
                continue
            if path.is_symlink():
                unusable.append(f"{path} is a symbolic link, and was not followed; name the file that it leads to")
                continue
            try:
                record = run_record_of(path)
            except OSError as error:
                unusable.append(f"{path} cannot be read: {error.strerror or error}")
                continue
            except FormatError as error:
                if _NAME.fullmatch(name):
                    unusable.append(f"{path}: {error}")
                continue
            # Without its first frame, the time of the last write counts.
            created = record.created_ns if record else first_file(path).stat().st_mtime_ns
            found.append((created, path, record))
        found.sort(key=lambda entry: entry[:2], reverse=True)
        return cls(found=tuple((path, record) for _, path, record in found), unusable=tuple(unusable))

    def newest(self) -> Path | None:
        """The newest journal, if any: one that has a first frame, if there is such a one."""
        begun = [path for path, _ in self.found if not is_empty(path)]
        return next(iter(begun or [path for path, _ in self.found]), None)

    def others(self, chosen: Path | None) -> str:
        """Names of the other journals, newest first; empty if there are none."""
        return ", ".join(path.name for path, _ in self.found if path != chosen)


def is_empty(journal: Path) -> bool:
    """Whether nothing was written into a journal: its process was killed right after it had created the file."""
    paths = segment_paths(journal) or [journal]
    return sum(path.stat().st_size for path in paths) <= FILE_HEADER.size


def run_record_of(journal: Path) -> RunRecord | None:
    """The run record of a journal; `None` = its first frame is damaged.

    Raises:
        FormatError: if the file is no journal.
        OSError: if it cannot be read.
    """
    with JournalReader(journal) as reader:
        return reader.run


def suggest_journals(place: Path) -> str:
    """Text that names directories with journals one or two levels below; empty if there are none."""
    windows = sorted(path.name for path in (place / WINDOWS).glob("*.journal") if path.is_file())
    if windows:
        return f"name one of the {len(windows)} saved windows in {place / WINDOWS}, such as {windows[-1]}"
    paths = (*place.glob("*/journal*"), *place.glob("*/*/journal*"))
    directories = sorted({path.parent for path in paths if path.is_file() and Journals.of(path.parent).found})
    if not directories:
        return ""
    more = f" and {len(directories) - _MAX_NAMED} more" if len(directories) > _MAX_NAMED else ""
    named = ", ".join(map(str, directories[:_MAX_NAMED]))
    return f"name one of the directories in it that have a journal: {named}{more}"


_NO_JOURNALS = (".json", ".gz", ".pftrace", ".part")
"""Endings of outputs in a note that are no journals."""


class RecoveryTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a directory: its note, its journal, or both."""

    place: Path
    """The run's directory."""
    path: Path | None = None
    """Its note, if there is one."""
    note: SessionNote | None = None
    journal: Path | None = None
    notes: tuple[str, ...] = ()
    """Notes for the user, on other runs and journals."""
    missing: tuple[str, ...] = ()
    """Files that could not be read."""


def unfinished(place: Path, problems: list[str], *, force: bool = False) -> list[tuple[Path, SessionNote]]:
    """Notes of killed runs, newest first; with `force`, also of those that still run."""
    return [(path, note) for path, note in notes_in(place, problems) if force or not note.running]


def being_written(place: Path) -> set[str]:
    """Real paths of the files that living runs write, from the notes in this directory and below."""
    files: set[str] = set()
    for directory in {path.parent for path in place.rglob(f"{SESSION_FILE}*") if is_note(path)}:
        for _, note in notes_in(directory, []):
            files.update(map(_real, note.outputs if note.running else ()))
    return files


def choose(named: Path, *, force: bool) -> RecoveryTarget:
    """Chooses what to recover.

    Args:
        named: a journal, a note, or a directory, in which the run that was killed last is chosen.
        force: accept a run that still runs.

    Raises:
        ProfilerStateError: if the run still runs, without `force`.
        FormatError: if a named file is no journal.
    """
    place = named if named.is_dir() else named.parent
    if place == named.parent and place.name == BUFFER_DIRECTORY:
        place = place.parent  # the note of the run is there
    missing: list[str] = []
    notes = notes_in(place, missing)
    journals = Journals.of(place)
    journals_by_note = {path: _journals_of(note, place, journals) for path, note in notes}
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
        record = run_record_of(named)
        path, note = next((entry for entry in notes if _is_of(entry[1], named, record)), (None, None))
    if note is not None and note.running and not force:
        raise ProfilerStateError(
            f"process {note.pid} that writes {place} still runs; wait for its end, stop it, or force the recovery"
        )
    remarks = [
        f"process {other.pid} goes on writing to {place}: its run is left alone"
        for _, other in notes
        if other.running and other is not note
    ]
    if journal is None:
        journal = journals.newest() if path is None else next(iter(journals_by_note[path]), None)
        used = {journal, *(others[0] for others in journals_by_note.values() if others)}
        if rest := [other.name for other, _ in journals.found if other not in used and not is_empty(other)]:
            remarks.append(f"not used, name one to recover it: {', '.join(rest)}")
    return RecoveryTarget(
        place=place,
        path=path,
        note=note,
        journal=journal,
        notes=tuple(remarks),
        missing=(*missing, *journals.unusable),
    )


def _journals_of(note: SessionNote, place: Path, journals: Journals) -> list[Path]:
    """The journals of a note's run. First those in its directory, and of these first those whose full path the note has.

    Others may be copies. If the whole directory was copied, a journal in another place is that of the original.
    """
    named = set(map(_real, note.outputs))
    own = [path for path, record in reversed(journals.found) if _is_of(note, path, record)]
    here = [path for path in own if _real(path) in named]
    return list(dict.fromkeys([*here, *own, *_journals_elsewhere(note, place)]))


def _is_of(note: SessionNote, journal: Path, record: RunRecord | None) -> bool:
    """Whether the run of a note wrote a journal: by their ids, or by its name in the note if the journal's record is damaged.

    Process ids are not enough: runs of one process share it, and containers reuse it.
    """
    if record is None:
        return journal.name in map(os.path.basename, note.outputs)
    return record.id == note.run


def _journals_elsewhere(note: SessionNote, place: Path) -> list[Path]:
    """Journals of the run in other directories."""
    found: list[Path] = []
    for output in map(Path, note.outputs):
        if _real(output.parent) == _real(place) or output.name.endswith(_NO_JOURNALS):
            continue
        if is_own_file(first_file(output), note.owner):
            try:
                record = run_record_of(output)
            except (FormatError, OSError):
                continue
            if record is not None and _is_of(note, output, record):
                found.append(output)
    return found


def _real(name: str | Path) -> str:
    """A path without links; unchanged if it is invalid."""
    try:
        return os.path.realpath(name)
    except (OSError, ValueError):
        return str(name)


def is_own_file(path: Path, owner: int) -> bool:
    """Whether a file that a note names may be used: a regular file of the note's owner, who is the current user."""
    try:
        about = path.lstat()
    except (OSError, ValueError):
        return False
    return path.is_absolute() and stat.S_ISREG(about.st_mode) and about.st_uid == owner == os.geteuid()
