"""Recovery: completes the journal of a run whose process was killed."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import numpy as np

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import FormatError, ProfilerStateError, RecoveredError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.private_files import temporary_name
from stepscope.runtime.journal.format import FILE_HEADER
from stepscope.runtime.journal.frame_reader import Damage
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.index import IndexBuilder, JournalIndex
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import IndexRecord, RecoveredRecord
from stepscope.runtime.journal.replay import run_of
from stepscope.runtime.journal.segments import journal_of, segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.recovery.flight_files import name_unfinished_windows
from stepscope.runtime.recovery.journals import being_written, choose, suggest_journals
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.recovery.unsaved_events import UnfinishedWindow, UnsavedEvents
from stepscope.runtime.session.file_lock import lock
from stepscope.runtime.session.job import this_host
from stepscope.runtime.session.note import JOURNAL, SessionNote, is_recovered, notes_of, replace_note
from stepscope.runtime.session.system import is_running
from stepscope.runtime.windows.router import divide


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a recovery."""

    journal: Path
    """The completed journal."""
    source: Path | None
    """The run's own journal: the same file, unless the result was written to another one."""
    session: Path | None
    """The session directory, with the rings."""
    processes: int
    """Processes that had joined the session. The counts below include their events."""
    windows: int
    unfinished: int
    """Number of these windows that the run had not closed."""
    total: int
    """Events of the complete journal."""
    events: int
    """Events of the run's journal."""
    from_rings: int
    """Events from the rings."""
    open_spans: int
    """Spans that were open."""
    dropped: int
    """Events that did not fit the rings, and were not reported before."""
    damage: Damage
    """Unreadable parts of the run's journal."""
    notes: tuple[str, ...] = ()
    """Further notes for the user."""
    missing: tuple[str, ...] = ()
    """Files that could not be read: recorded events may be lost."""
    note: SessionNote | None = None
    """The note of the run."""
    gap: str = ""
    """Why events of other outputs may be missing; empty if at most the last moment is missing."""

    def text(self) -> str:
        session = self.session or "no session directory"
        count = "" if self.windows == 1 else f"{self.unfinished:,} of them "
        unfinished = f", {count}unfinished" if self.unfinished else ""
        lines = [
            f"{'completed' if self.journal == self.source else 'recovered to'} {self.journal}",
            f"  {human_count(self.windows, 'window')}{unfinished}",
            *([f"  {human_count(self.events, 'event')} from {self.source}"] if self.source else []),
            f"  {human_count(self.from_rings, 'event')} and {human_count(self.open_spans, 'open span')} from {session}",
        ]
        added = self.total - self.events - self.from_rings - self.open_spans
        gaps = ", and gaps where events were lost" if self.dropped else ""
        more = f"; {added:,} were added: spans of steps{gaps}" if added else ""
        lines.append(f"  {human_count(self.total, 'event')} in all{more}")
        lines += [f"  {human_count(self.processes, 'process', 'es')} had joined"] if self.processes else []
        lines += [f"  {human_count(self.dropped, 'event')} had not fitted the rings"] if self.dropped else []
        lines += [f"  not readable in the journal: {self.damage}"] if self.damage else []
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, *(f"  MISSING: {what}" for what in self.missing)])


def recover(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    remove_session: bool = False,
) -> Recovery:
    """Completes the journal of a run whose process died, with the events and open spans of its rings and stacks.

    Events are neither lost nor duplicated: events of the rings that the journal already has are recognised. Open spans become
    events with `FLAG_OPEN` that end at the latest known time. Open windows are closed as incomplete. Memory is bounded by the
    largest ring. All contents of files are checked.

    The journal is completed in place: a torn end is cut off, the rest is appended. A recovery after an interrupted one, or a
    second one while the session directory exists, begins where the run's own frames end.

    Args:
        directory: the run's directory, in which the run that was killed last is recovered; or one journal, or one note
            (`session`, `session-2`, ...).
        out: a file for a completed copy. The run's own journal is not changed. An existing file is replaced, a missing
            directory is created.
        force: recover although the process still runs (events that it records meanwhile may be missing); requires `out`.
        remove_session: delete the run's rings and its `session` file afterwards, to free their memory. This fails if another run
            of the process needs the rings.

    Raises:
        ProfilerStateError: if the process still runs, or the journal is being recovered.
        ValueError: if `force` is given without `out`.
        FormatError: if there is nothing to recover: neither journal nor session directory, or a complete journal.
        RecoveredError: if the journal was recovered, and the session directory was removed.
        OSError: if files cannot be read.
        OutputError: if the journal cannot be written.
    """
    if force and out is None:
        raise ValueError("force=True needs out=: the journal of a process that runs is copied, not changed")
    choice = choose(journal_of(Path(directory)), force=force)
    place, note, journal = choice.place, choice.note, choice.journal
    notes, missing = list(choice.notes), list(choice.missing)
    session = _open_session(note, missing)
    if journal is None and session is None:
        raise _nothing_to_recover(place, notes, missing)
    copy = None if out is None else Path(out)
    ids = IdMap()
    parts = _parts(session, ids, notes)
    reader: JournalReader | None = None
    with contextlib.ExitStack() as stack:
        for files, _ in parts:
            stack.callback(files.close)
        if journal is not None:
            reader = stack.enter_context(JournalReader(journal, ids))
            if copy is None:
                stack.enter_context(_alone(journal))
        run = _run(place, reader, note)
        profiler = note.profiler if note else 0
        work = _Recovering(run, ids, profiler)
        if note is not None and note.keep_last:
            living: set[str] = set() if note.running else being_written(place)
            next_index, renamed = name_unfinished_windows(place, note, living)
            notes += renamed
            work.keep_last = note.keep_last
            work.last_index = next_index - 1
        at_risk = session.at_risk() if session else 0
        if reader is None or reader.frames.sync_word is None:
            unsaved = UnsavedEvents(parts, profiler)
        else:
            work.find_unfinished(reader)
            if session is None and reader.recovered is not None:
                raise RecoveredError(f"{reader.path} was recovered already, and what was in memory has been freed")
            if note is None and work.whole and reader.end is not None and not reader.damage:
                raise FormatError(f"nothing to recover in {place}: {reader.path} is whole, its run ended in order")
            journal_lacks_events = work.journal_dropped or at_risk > 0 or bool(_unread(reader))
            unsaved = UnsavedEvents(parts, profiler, released=journal_lacks_events)
            work.read_unfinished(reader, unsaved)
        with _writer(reader, run, work, place / JOURNAL, copy) as writer:
            work.add(writer, unsaved)
            writer.write_metadata(dict(run.metadata()))
        at_risk -= work.released_found
        if at_risk > 0:
            missing.append(
                f"at most {human_count(at_risk, 'event')} that had left the rings while the journal was far behind "
                "(Options.ring_bytes), or that it had dropped"
            )
        missing += [problem for files, _ in parts for problem in files.notes]
        if note is not None and choice.path is not None and copy is None:
            _record(choice.path, note, notes)
        if session is not None and remove_session and note is not None and choice.path is not None:
            try:
                _remove(session, choice.path, note, unread=any(files.unread for files, _ in parts))
            except (FormatError, OSError) as error:
                notes.append(f"the session is not removed: {error}")
    return Recovery(
        journal=writer.path,
        source=journal,
        session=session.directory if session else None,
        processes=max(len(parts) - 1, 0),
        windows=work.windows,
        unfinished=work.unfinished,
        total=writer.written,
        events=work.events,
        from_rings=work.from_rings,
        open_spans=work.open_spans,
        dropped=work.dropped,
        damage=reader.damage if reader else Damage(),
        notes=tuple(notes),
        missing=tuple(missing + _unread(reader)),
        note=note,
        gap=_gap(reader, work, session, parts, at_risk),
    )


@contextlib.contextmanager
def _alone(journal: Path) -> Generator[None]:
    """Locks a journal against its writer and other recoveries, as far as its file system takes locks."""
    descriptors: list[int] = []
    try:
        # The writer may be in the middle of beginning a segment: then it has the lock of the last one or of the one before.
        for path in segment_paths(journal)[-2:] or [journal]:
            try:
                descriptors.append(lock(path, alone=True, write=True))
            except BlockingIOError as error:
                raise ProfilerStateError(
                    f"{journal} is being written or recovered by another process; wait for its end"
                ) from error
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                    raise
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextlib.contextmanager
def _writer(
    reader: JournalReader | None, run: Run, work: _Recovering, new: Path, copy: Path | None
) -> Generator[JournalWriter]:
    """Opens the journal, or a copy of it, to append to; a new file if there is no readable journal.

    The new file replaces a journal that the process had created and not begun to write.
    """
    usable = reader is not None and reader.frames.sync_word is not None
    target = copy
    if reader is not None and target is None and not usable and reader.frames.files.end <= FILE_HEADER.size:
        target = reader.path
    path = reader.path if reader is not None and usable else new
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        path = temporary_name(target)
    writer = JournalWriter(path, max_bytes=1 << 62)
    try:
        if reader is not None and reader.frames.sync_word is not None:
            frames, end = reader.frames, reader.end_position
            segment = frames.files.at(end[1]) if copy is None else frames.copy_to(path, end[1])
            writer.append_to(
                segment,
                reader.frames.sync_word,
                end,
                events=work.events,
                windows=work.windows,
                index=work.index_builder,
            )
        else:
            writer.open(run)
            writer.mark_recovered()
        yield writer
        writer.close()
        if target is not None:
            os.replace(path, target)
            writer.path = target
    except BaseException:
        writer.abandon()
        if target is not None or not usable:
            writer.path.unlink(missing_ok=True)
        raise


def _record(path: Path, note: SessionNote, notes: list[str]) -> None:
    """Writes into a note that its run was recovered."""
    try:
        replace_note(path, msgspec.structs.replace(note, recovered_ns=time.time_ns()))
    except OSError as error:
        notes.append(f"{path} cannot record that the run was recovered: {error.strerror or error}")


def _nothing_to_recover(place: Path, notes: list[str], missing: list[str]) -> FormatError:
    """The error for a directory without a readable journal or session directory."""
    if missing:
        return FormatError(f"nothing to recover in {place} can be read: {'; '.join([*missing, *notes])}")
    text = f"nothing to recover in {place}: no journal, and no session directory. {' '.join([*notes, suggest_journals(place)])}"
    return FormatError(text.strip())


def _remove(session: SessionFiles, path: Path, note: SessionNote, *, unread: bool) -> None:
    """Removes a session, and the notes of its runs: the profilers of a process share a session.

    Raises:
        FormatError: if another of its runs was not recovered, if it belongs to another process, or if it has unreadable files.
    """
    notes = notes_of(session.directory, note.pid, note.start_time, note.owner)
    others = [(other_path, other) for other_path, other in notes if other_path != path]
    for other_path, other in others:
        if not is_recovered(other):
            raise FormatError(f"it has events of {other_path.parent} ({other_path.name}), which were not recovered")
    session.remove(note.pid, note.start_time, unread=unread)
    for each in (path, *(other_path for other_path, _ in others)):
        each.unlink(missing_ok=True)


def _unread(reader: JournalReader | None) -> list[str]:
    """Problems of a damaged journal. A torn end is none: the rings have these events."""
    damage = Damage() if reader is None else reader.damage
    lost = damage.header or any((damage.lost_frames, damage.undecodable_frames, damage.skipped_bytes))
    return ["parts of the journal are damaged, see above"] if lost else []


def _gap(
    reader: JournalReader | None,
    work: _Recovering,
    session: SessionFiles | None,
    parts: list[tuple[SessionFiles, IdMap]],
    at_risk: int,
) -> str:
    """Why the new journal may lack events of other outputs of the run.

    Without a session, only the last moment of the run may be missing, which is no gap.
    """
    if work.keep_last:
        return "this journal has the last steps of a flight recorder, and not the windows that it had saved"
    if reader is None:
        return "the run kept no journal"
    if work.journal_dropped:
        return "the run's journal had not taken every event"
    if _unread(reader):
        return "parts of the run's journal are damaged"
    if session is not None and (at_risk > 0 or any(files.notes for files, _ in parts)):
        return "events are missing between the run's journal and what was in memory"
    return ""


class _Recovering:
    """Completes a journal with the missing events."""

    def __init__(self, run: Run, ids: IdMap, profiler: int) -> None:
        self.windows = self.unfinished = self.events = self.from_rings = self.open_spans = self.dropped = 0
        self.released_found = 0
        """Events that were found in released slots of rings, and that the journal lacked."""
        self.journal_dropped = False
        """Whether the run's journal dropped events: its queue was full, or it had reached its size limit."""
        self._run = run
        self._ids = ids
        self._profiler = profiler
        self._open: dict[int, UnfinishedWindow] = {}
        self.last_index = -1
        self._last_end = 0
        self._index: JournalIndex | None = None
        self.keep_last = 0
        """Steps that the run retained, as a flight recorder; 0 = it was none."""

    @property
    def index_builder(self) -> IndexBuilder | None:
        """Continues the index of the run's own frames."""
        return None if self._index is None else self._index.builder

    @property
    def whole(self) -> bool:
        """Whether every window so far has an end."""
        return not self._open

    def find_unfinished(self, reader: JournalReader) -> None:
        """Finds the windows without an end, among the run's own frames. Reads the index, and the headers of the frames after it."""
        self._index = index = reader.own_index()
        rows = list(index.windows())
        self.windows = len(rows)
        self.events = sum(row.events for row in rows) + sum(of.events.total() for of in index.builder.open.values())
        self.journal_dropped = index.builder.dropped
        self._open = {number: UnfinishedWindow(number) for number in index.builder.open}
        self.last_index = max([self.last_index, *(row.window for row in rows), *self._open])
        self._last_end = max([self._last_end, *(row.end_ns for row in rows)])
        # Its end, and damage after the index.
        reader.continue_at(index.begin, index)
        for item in reader.items(wanted=lambda _: False):
            if isinstance(item, RecoveredRecord):
                break

    def read_unfinished(self, reader: JournalReader, unsaved: UnsavedEvents) -> None:
        """Reads the events of windows without an end: step marks and gaps up to an index, and all events after it."""
        index = self._index
        assert index is not None
        with JournalReader(reader.path, self._ids) as again:
            past = _indexes_before(index, unsaved)
            for window in past[-1][1].open if past else ():
                unsaved.saved_until_ns = max(unsaved.saved_until_ns, window.last_ns)
                if (unfinished := self._open.get(window.window)) is not None:
                    unfinished.add_counts(window)
            for position, record in past:
                for batch in again.outlines(record, position) if self._open else ():
                    self._add_outline(batch, unsaved)
            if past:
                again.continue_at(past[-1][0], index)
            # Late frames are read, too: the rings may report the same losses as their gaps.
            for item in again.items(wanted=lambda of: of.window in self._open or of.last_ns >= unsaved.first_ns):
                if isinstance(item, RecoveredRecord):
                    break
                if not isinstance(item, EventBatch):
                    continue
                if (unfinished := self._open.get(item.window)) is not None:
                    unfinished.count(item)
                self._add_outline(item, unsaved)

    def _add_outline(self, batch: EventBatch, unsaved: UnsavedEvents) -> None:
        """Registers the step marks, gaps and spans of steps of a batch, and its events that are in the rings, too."""
        unsaved.note_gaps(batch.events)
        if (window := self._open.get(batch.window)) is not None:
            window.add(batch, unsaved)
            self._profiler = self._profiler or window.profiler

    def add(self, writer: JournalWriter, unsaved: UnsavedEvents) -> None:
        """Adds the events of the rings to the open windows, or to a new one, and closes these."""
        if not self._profiler:
            numbers = np.unique(unsaved.marks["id"])
            self._profiler = int(numbers[0]) if len(numbers) == 1 else 0
        marks = unsaved.marks[unsaved.marks["id"] == self._profiler]
        if not self._open:
            self._begin_window(unsaved, marks)
        windows = sorted(self._open.values(), key=lambda window: window.start)
        last = max([unsaved.last_ns, *(window.last for window in windows)])
        for index, window in enumerate(windows):
            window.begin(marks, windows[index + 1].start if index + 1 < len(windows) else last + 1)
        by_index = {window.index: window for window in windows}
        for events, args, source, released in unsaved.pieces(self._profiler):
            before = sum(window.added for window in windows)
            for borders, part in divide([window.window for window in windows], events):
                writer.write_batch(by_index[borders.index].add_unsaved(part, args, source))
            if released:
                self.released_found += sum(window.added for window in windows) - before
        for window in windows:
            self._finish(writer, unsaved, window, last)

    def _begin_window(self, unsaved: UnsavedEvents, marks: Block) -> None:
        """Begins a window, if events were recorded after the end of the last one."""
        first = unsaved.begin_after(self._last_end)
        if first is not None:
            window = UnfinishedWindow(self.last_index + 1)
            at = marks["ts"][(marks["ts"] >= self._last_end) & (marks["ts"] <= first)]
            window.start = int(at.max()) if len(at) else first
            begins = np.unique(marks["ts"])
            if self.keep_last and len(begins) > self.keep_last:
                # Rings may have events of older steps, but not all of them.
                window.start = max(window.start, int(begins[-1 - self.keep_last]))
            self._open[window.index] = window

    def _finish(self, writer: JournalWriter, unsaved: UnsavedEvents, window: UnfinishedWindow, last: int) -> None:
        added = window.added
        self.from_rings += added
        self.dropped += window.dropped
        spans = window.add_unsaved(unsaved.open_spans(last + 1), b"")  # as long as the last window
        writer.write_batch(spans)
        writer.write_batch(window.step_spans(self._run.pid))
        self.open_spans += len(spans)
        why = (
            f"the process ended inside this window; {added:,} events were recovered from its rings, and "
            f"{len(spans):,} spans had not ended"
        )
        writer.write_window(
            window.finish(self._run.name, self._run.anchor.wall(window.start), dict(self._run.metadata()), why)
        )
        self.windows += 1
        self.unfinished += 1


def _indexes_before(index: JournalIndex, unsaved: UnsavedEvents) -> list[tuple[int, IndexRecord]]:
    """The index frames, with their positions, up to the last one before which no event is in the rings that was not drained.

    Drained events are in the journal, unless it lacks events: then all of it is read. With two open windows, an event that crosses
    their border may be in the journal in part.
    """
    found = [] if unsaved.released else list(index.records)
    while found and not (found[-1][1].at_ns < unsaved.first_ns and len(found[-1][1].open) <= 1):
        found.pop()
    return found


def _run(place: Path, reader: JournalReader | None, note: SessionNote | None) -> Run:
    if reader is not None and reader.run is not None:
        return run_of(reader, place)
    return Run(
        name=(note.name if note else "") or place.name or "recovered",
        output_dir=place,
        pid=note.pid if note else 0,
        host=this_host(),
        rank=note.rank if note else None,
        world_size=note.world_size if note else None,
        anchor=ClockAnchor.read(),
        metadata=(lambda: reader.metadata) if reader is not None else dict,
        id=note.run if note else "",
    )


def _parts(session: SessionFiles | None, ids: IdMap, notes: list[str]) -> list[tuple[SessionFiles, IdMap]]:
    """The directories of a session, each with its ids; `ids` are those of the owner."""
    if session is None:
        return []
    session.load_ids(ids)
    parts = [(session, ids)]
    for files in session.parts():
        parts.append((files, IdMap()))
        files.load_ids(parts[-1][1])
        pid, start_time = map(int, files.directory.name.split("-")[:2])
        if is_running(pid, start_time):
            notes.append(f"process {pid}, which had joined, still runs: what it records meanwhile may be missing")
    return parts


def _open_session(note: SessionNote | None, missing: list[str]) -> SessionFiles | None:
    if note is None:
        return None
    try:
        return SessionFiles(Path(note.directory), note.owner)
    except (FormatError, OSError, ValueError) as error:
        problem = f"the session directory {note.directory} cannot be used: {error}; what no journal has is lost"
        if isinstance(error, FileNotFoundError):
            problem += " (/dev/shm goes with its machine or container; Options.session_dir names a place that lasts)"
        if (swept := note.swept) is not None:
            at = datetime.datetime.fromtimestamp(swept.at_ns / 1e9).astimezone().isoformat(" ", "seconds")
            count = (
                f"at most {human_count(swept.events, 'event')}" if swept.events >= 0 else "an unknown number of events"
            )
            problem = f"its session was swept by a later run at {at}, as {swept.why}: {count} that no journal has"
        missing.append(problem)
        return None
