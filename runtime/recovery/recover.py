"""Recovery: brings back what a run had recorded when its process died."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec
import numpy as np

from stepscope.runtime.clock import ClockAnchor
from stepscope.runtime.errors import FormatError, ProfilerStateError, RecoveredError
from stepscope.runtime.events import Block, EventBatch
from stepscope.runtime.formats import run_of
from stepscope.runtime.journal.frames import Damage
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import CapRecord
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.ledger import Ledger
from stepscope.runtime.output import SESSION_FILE
from stepscope.runtime.processes import is_running
from stepscope.runtime.recovery.journals import RECOVERED, Journals, below
from stepscope.runtime.recovery.kept import complete_windows
from stepscope.runtime.recovery.leftovers import Leftovers, UnfinishedWindow
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.run import Run, this_host
from stepscope.runtime.window import Window
from stepscope.runtime.windows import divide

_MAX_NOTE = 1 << 16


class SessionNote(msgspec.Struct, frozen=True):
    """What a running profiler keeps in its run's directory, in the file `session`."""

    directory: str
    pid: int
    start_time: int
    """Of the process, in clock ticks since boot."""
    profiler: int = 0
    """Number that the profiler's step marks bear; 0 = not said."""
    owner: int = -1
    """User to whom the note belongs, whatever it says itself."""
    keep_last: int = 0
    """Steps that it keeps; 0 = it is no flight recorder."""
    name: str = ""
    rank: int | None = None
    world_size: int | None = None


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What was brought back."""

    journal: Path
    """The new journal, complete and undamaged."""
    source: Path | None
    """The journal that the run left."""
    session: Path | None
    """The directory of its rings."""
    processes: int
    """Processes that had joined the session; what they recorded is counted below with the rest."""
    windows: int
    unfinished: int
    """Windows, of these, that the run had not closed."""
    events: int
    """Events of the run's journal."""
    from_rings: int
    """Events that were still in the rings."""
    open_spans: int
    """Spans that had not ended."""
    dropped: int
    """Events that did not fit the rings, reported nowhere before."""
    damage: Damage
    """What could not be read of the run's journal."""
    notes: tuple[str, ...] = ()
    """What else could not be used, and why."""

    def text(self) -> str:
        """The same in words, some lines."""
        session = self.session or "no session directory"
        lines = [
            f"recovered to {self.journal}",
            f"  {_count(self.windows, 'window')}, {self.unfinished} of them unfinished",
            f"  {_count(self.events, 'event')} from {self.source or 'no journal'}",
            f"  {_count(self.from_rings, 'event')} and {_count(self.open_spans, 'open span')} from {session}",
        ]
        lines += [f"  {_count(self.processes, 'process', 'es')} had joined"] if self.processes else []
        lines += [f"  {_count(self.dropped, 'event')} had not fitted the rings"] if self.dropped else []
        if self.damage:
            lost = ", ".join(
                f"{name} {value:,}" for name, value in msgspec.structs.asdict(self.damage).items() if value
            )
            lines.append(f"  not readable in the journal: {lost}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def recover(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    remove_session: bool = False,
) -> Recovery:
    """Writes one complete journal of what a run left: its journal, and what its rings and stacks still hold.

    Events are neither lost nor repeated: those in the rings that the journal has already are recognised. Spans that
    were open become events with `FLAG_OPEN` that last to the latest time known. Windows that were not closed are
    closed as incomplete. Memory is bounded by the largest ring; nothing in the files is believed unchecked.

    Args:
        directory: the run's directory, or one journal.
        out: the new journal; default `journal.recovered` in the run's directory. Replaced if it exists and the
            session directory, from which it was made, is still there.
        force: recover although the process still runs (what it records meanwhile may be missing), and replace a
            journal that was recovered when there was more to recover from.
        remove_session: delete the run's rings and its `session` file afterwards, which frees the memory they take.

    Raises:
        ProfilerStateError: if the process still runs.
        FormatError: if there is nothing to recover: no journal and no session directory, or a journal that is whole.
        RecoveredError: if the new journal exists and the session directory is gone.
        OSError: if files cannot be read.
        OutputError: if the new journal cannot be written.
    """
    place = Path(directory)
    given = place if place.is_file() else None
    place = place.parent if given else place
    notes: list[str] = []
    note = read_note(place / SESSION_FILE, notes)
    if note is not None and not force and is_running(note.pid, note.start_time):
        raise ProfilerStateError(
            f"process {note.pid} that writes {place} still runs; wait for its end, stop it, or force the recovery"
        )
    session = _open_session(note, notes)
    journals = Journals.of(place)
    notes += journals.unusable
    journal = given or journals.newest(note.pid if note else None)
    if given is None and (others := journals.others(journal)):
        notes.append(f"not used, name one to recover it: {others}")
    if journal is None and session is None:
        raise FormatError(
            f"nothing to recover in {place}: no journal, and no session directory. {' '.join([*notes, below(place)])}".strip()
        )
    ids = IdMap()
    parts = _parts(session, ids, notes)
    target = Path(out) if out is not None else place / RECOVERED
    if session is None and not force and target.exists():
        raise RecoveredError(
            f"{target} exists, and the session directory is gone: a new recovery could lose what it holds; "
            "name another file for the new one, or force its replacement"
        )
    writer = JournalWriter(target.with_name(f".{target.name}.{os.getpid()}"), max_bytes=1 << 62)
    reader = None if journal is None else JournalReader(journal, ids)
    try:
        run = _run(place, reader, note)
        writer.open(run)
        profiler = note.profiler if note else 0
        work = _Recovering(writer, run, Leftovers(parts, profiler), profiler)
        if note is not None and note.keep_last:
            following, said = complete_windows(place, rename=not is_running(note.pid, note.start_time))
            notes += said
            work.keep_last(note.keep_last, following)
        if reader is not None:
            work.copy(reader)
            if note is None and work.whole and reader.end is not None and not reader.damage:
                raise FormatError(f"nothing to recover in {place}: {reader.path} is whole, its run ended in order")
        work.add_leftovers()
        writer.write_metadata(dict(run.metadata()))
        writer.close()
        os.replace(writer.path, target)
    except BaseException:
        writer.path.unlink(missing_ok=True)
        raise
    finally:
        if reader is not None:
            reader.close()
        if session is not None and not remove_session:
            session.close()
    for files, _ in parts:
        notes += files.notes
    if session is not None:
        if remove_session and note is not None:
            try:
                session.remove(note.pid, note.start_time)
                (place / SESSION_FILE).unlink()
            except FormatError as error:
                notes.append(str(error))
    return Recovery(
        journal=target,
        source=journal,
        session=session.directory if session else None,
        processes=max(len(parts) - 1, 0),
        windows=work.windows,
        unfinished=work.unfinished,
        events=work.events,
        from_rings=work.from_rings,
        open_spans=work.open_spans,
        dropped=work.dropped,
        damage=reader.damage if reader else Damage(),
        notes=tuple(notes),
    )


class _Recovering:
    """Copies a journal and adds what is missing."""

    def __init__(self, writer: JournalWriter, run: Run, leftovers: Leftovers, profiler: int) -> None:
        self.windows = self.unfinished = self.events = self.from_rings = self.open_spans = self.dropped = 0
        self._writer = writer
        self._run = run
        self._leftovers = leftovers
        self._profiler = profiler
        self._open: dict[int, UnfinishedWindow] = {}
        self._last_index = -1
        self._last_end = 0
        self._keep_last = 0

    def keep_last(self, steps: int, following: int) -> None:
        """The run kept its last steps, and saved windows up to the index before `following`."""
        self._keep_last = steps
        self._last_index = following - 1

    @property
    def whole(self) -> bool:
        """Whether every window so far has its end."""
        return not self._open

    def copy(self, reader: JournalReader) -> None:
        for item in reader:
            if isinstance(item, EventBatch):
                self._writer.write_batch(item)
                self.events += len(item)
                self._last_index = max(self._last_index, item.window)
                window = self._open.setdefault(item.window, UnfinishedWindow(item.window))
                window.add(item, self._leftovers)
                self._profiler = self._profiler or window.profiler
            elif isinstance(item, Window):
                self._writer.write_window(item)
                self.windows += 1
                self._open.pop(item.index, None)
                self._last_index = max(self._last_index, item.index)
                self._last_end = max(self._last_end, item.end_ns)
            elif isinstance(item, ClockAnchor):
                self._writer.write_anchor(item)
            elif isinstance(item, Ledger):
                self._writer.write_ledger(item)
            elif isinstance(item, CapRecord):
                self._writer.write_cap(item)

    def add_leftovers(self) -> None:
        """Adds the events of the rings to the windows that were open, or to a new one, and closes these."""
        if not self._profiler:
            numbers = np.unique(self._leftovers.marks["id"])
            self._profiler = int(numbers[0]) if len(numbers) == 1 else 0
        marks = self._leftovers.marks[self._leftovers.marks["id"] == self._profiler]
        if not self._open:
            self._begin_window(marks)
        windows = sorted(self._open.values(), key=lambda window: window.start)
        last = max([self._leftovers.last_ns, *(window.last for window in windows)])
        for index, window in enumerate(windows):
            window.begin(marks, windows[index + 1].start if index + 1 < len(windows) else last + 1)
        by_index = {window.index: window for window in windows}
        for events, args, source in self._leftovers.pieces(self._profiler):
            for borders, part in divide([window.window for window in windows], events):
                self._writer.write_batch(by_index[borders.index].take(part, args, source))
        for window in windows:
            self._finish(window, last)

    def _begin_window(self, marks: Block) -> None:
        """The window that had begun, if any had: something was recorded after the last one's end."""
        first = self._leftovers.begin_after(self._last_end)
        if first is not None:
            window = UnfinishedWindow(self._last_index + 1)
            at = marks["ts"][(marks["ts"] >= self._last_end) & (marks["ts"] <= first)]
            window.start = int(at.max()) if len(at) else first
            begins = np.unique(marks["ts"])
            if self._keep_last and len(begins) > self._keep_last:
                # Rings may have more than was to be kept, but not all of it.
                window.start = max(window.start, int(begins[-1 - self._keep_last]))
            self._open[window.index] = window

    def _finish(self, window: UnfinishedWindow, last: int) -> None:
        added = window.added
        self.from_rings += added
        self.dropped += window.dropped
        spans = window.take(self._leftovers.open_spans(last), b"")
        self._writer.write_batch(spans)
        self._writer.write_batch(window.step_spans(self._run.pid))
        self.open_spans += len(spans)
        why = (
            f"the process ended inside this window; {added:,} events were recovered from its rings, and "
            f"{len(spans):,} spans had not ended"
        )
        self._writer.write_window(
            window.finish(self._run.name, self._run.anchor.wall(window.start), dict(self._run.metadata()), why)
        )
        self.windows += 1
        self.unfinished += 1


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
    )


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}{plural}"


def read_note(path: Path, notes: list[str]) -> SessionNote | None:
    """What a `session` file says, `None` if there is none; why it cannot be read is added to `notes`.

    Raises:
        OSError: if the system refuses.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        notes.append(f"{path} is a symbolic link, and was not followed")
        return None
    with os.fdopen(file, "rb") as stream:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            notes.append(f"{path} is not a regular file")
            return None
        try:
            note = msgspec.json.decode(stream.read(_MAX_NOTE), type=SessionNote)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            notes.append(f"{path} cannot be read: {error}")
            return None
    return msgspec.structs.replace(note, owner=about.st_uid)


def _parts(session: SessionFiles | None, ids: IdMap, notes: list[str]) -> list[tuple[SessionFiles, IdMap]]:
    """The directories of a session with the ids that are used in them; those of the owner are `ids`."""
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


def _open_session(note: SessionNote | None, notes: list[str]) -> SessionFiles | None:
    if note is None:
        return None
    try:
        return SessionFiles(Path(note.directory), note.owner)
    except (FormatError, OSError, ValueError) as error:
        notes.append(f"the session directory {note.directory} cannot be used: {error}")
        return None
