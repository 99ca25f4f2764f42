"""The recordings of some directories, each event and each round trip once: copies are left out, and parts put together."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from stepscope.collector.clocks import server_clock
from stepscope.collector.runs.recording import (
    MAX_SYNCS,
    Recording,
    UnreadableJournal,
    Wanted,
    journals_in,
    recordings_in,
    stream_of,
)
from stepscope.exporters.stream.protocol import identity
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import read_index, scan
from stepscope.runtime.journal.records import ClockSync, RunRecord, decode_record
from stepscope.runtime.journal.segments import Segment, first_names
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.session.note import JOURNAL

CHUNK = 1 << 20


class Gathered(msgspec.Struct, frozen=True):
    """The recordings of some sources."""

    recordings: list[Recording]
    unreadable: list[UnreadableJournal]
    notes: list[str]
    """Sentences about recordings that were put together or left out."""


def gather(sources: Sequence[Path], room: Callable[[], Path], wanted: Wanted | None = None) -> Gathered:
    """The recordings of journals and of directories, without copies, with round trips to collectors' clocks only.

    Args:
        sources: those.
        room: gives a directory, which must stay as long as the recordings are used, for streams of which no source has all.
        wanted: which windows' rows stay in memory, as for `Recording.of`.

    Raises:
        OSError: if a directory cannot be read, or what is put together not be written.
    """
    joined = join(sources, room)
    newest, earlier = _used_again(sources)
    found, unreadable = recordings_in([*sources, *newest, *joined.journals], {*joined.parts, *earlier}, wanted)
    unknown = _remove_unknown_clocks(found)  # a directory of which only copies are left out has clocks, too
    recordings, copies = without_copies(found)
    notes = [*joined.notes, *copies, *unknown]
    notes += [f"{path} is of an earlier run: name it to read it" for path in earlier]
    return Gathered(recordings, [*joined.unreadable, *unreadable], notes)


def _used_again(sources: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Of directories that several runs have written to: the newest journal of each, unless that is its first, and the others."""
    newest: list[Path] = []
    earlier: list[Path] = []
    for path in (path for source in sources if source.is_dir() for path in journals_in(source)):
        if path.name == JOURNAL and not stream_of(path):
            if len(first_names(name for name in os.listdir(path.parent) if name.startswith(JOURNAL))) == 1:
                continue  # none of them is opened, as there may be thousands of ranks
            by_age = [each for each, _ in Journals.of(path.parent).found]
            newest += [each for each in by_age[:1] if each != path]
            earlier += [each for each in by_age[1:] if each not in sources]
    return newest, earlier


def _remove_unknown_clocks(recordings: Sequence[Recording]) -> list[str]:
    """Takes out round trips to clocks that no collector had; says how many.

    Clocks of directories that do not name theirs are known because their streams have round trips to them.
    """
    named = {one.directory: server_clock.read_clock_names(one.directory) for one in recordings if one.stream}
    checked = [one for one in recordings if one.stream and named[one.directory] is not None]
    if not checked:
        return []
    names = {name for several in named.values() if several is not None for name in several}
    unchecked = {id(one) for one in recordings} - {id(one) for one in checked}
    names |= {sync.clock for one in recordings if id(one) in unchecked for sync in one.syncs}
    ignored = streams = 0
    for one in checked:
        counted = [sync for sync in one.syncs if sync.clock in names]
        if len(counted) < len(one.syncs):
            ignored += len(one.syncs) - len(counted)
            streams += 1
            one.syncs = counted
    if not ignored:
        return []
    return [
        f"{ignored:,} round trips of {streams:,} streams name a clock that none of these collectors had, and do not count"
    ]


def without_copies(recordings: Sequence[Recording]) -> tuple[list[Recording], list[str]]:
    """Leaves out copies of recordings. Their round trips are added to the recordings that stay.

    Of several files of one stream, as several collectors leave them when one takes it over, the one with most events stays. So it is
    with recordings of one run that overlap in time, such as its own journal and its stream.

    Returns:
        The recordings that stay, in their order, and a sentence for each recording that is left out though it has something else.
    """
    notes: list[str] = []
    by_run = dict[RunRecord, list[Recording]]()
    for recording in sorted(recordings, key=_most):
        stay = by_run.setdefault(recording.process, [])
        other = next((one for one in stay if _is_copy(one, recording)), None)
        if other is None:
            stay.append(recording)
            continue
        if not covers(other, recording):
            notes.append(
                f"{recording.path} has other events of the run in {other.path}: only those of that one are here, not the "
                f"{recording.events:,} of the first"
            )
        if recording.syncs:  # the round trips of a process hold for all its recordings
            other.syncs = _united((*other.syncs, *recording.syncs))
    staying = {id(one) for stay in by_run.values() for one in stay}
    return [recording for recording in recordings if id(recording) in staying], notes


def _is_copy(one: Recording, other: Recording) -> bool:
    """Whether two recordings of one run are of the same stream, or overlap in time."""
    if one.stream and one.stream == other.stream:
        return True
    return (one.first_ns < other.last_ns and other.first_ns < one.last_ns) or covers(one, other)


def _most(recording: Recording) -> tuple[int, bool, str]:
    return -recording.events, not recording.ended, recording.id


def covers(one: Recording, other: Recording) -> bool:
    """Whether all that is in `other` is in `one`, which is of the same run."""
    rows, others = one.all_rows(), other.all_rows()
    at = np.searchsorted(rows["window"], others["window"])
    if at.max(initial=-1) >= len(rows) or (rows["window"][at] != others["window"]).any():
        return False
    if (rows["events"][at] < others["events"]).any():
        return False
    return not other.events or (one.first_ns <= other.first_ns and other.last_ns <= one.last_ns)


def _united(syncs: Iterable[ClockSync]) -> list[ClockSync]:
    return list({(sync.clock, sync.sent, sync.returned): sync for sync in syncs}.values())[:MAX_SYNCS]


class Joined(msgspec.Struct, frozen=True):
    """Journals that were put together."""

    journals: list[Path]
    """Journals, each at the path at which a collector would store it."""
    parts: set[Path]
    """Journals that are parts of these, and journals that are left out."""
    notes: list[str]
    """Sentences: the changes that were made."""
    unreadable: list[UnreadableJournal]
    """Journals that are left out."""

    def leave_out(self, path: Path, why: str) -> None:
        """Leaves out a journal that is wrong. The others of its stream are read without it."""
        self.parts.add(path)
        self.unreadable.append(UnreadableJournal(str(path), why))


class _Part(msgspec.Struct, frozen=True):
    path: Path
    sync: bytes
    segment: Segment
    """Number of its first segment."""
    first: int
    """Number of its first frame."""
    next: int
    """Number of the frame that follows its last."""
    end: int
    """End of its complete frames."""
    run: RunRecord | None
    """Identity of the run in its first frame, if that is a run record."""


def join(sources: Sequence[Path], room: Callable[[], Path]) -> Joined:
    """Puts together the streams of which no directory has all.

    That is so when a collector takes a stream over from another one, and what the other one took is no longer there to be
    read from the beginning.

    Args:
        sources: directories of collectors; others have no such streams.
        room: gives a directory for what is put together, if anything is.

    Raises:
        OSError: if a directory cannot be read, or the result not be written.
    """
    copies: dict[str, list[Path]] = {}
    for source in sources:
        for path in journals_in(source) if source.is_dir() else [source]:
            if stream := stream_of(path):
                copies.setdefault(stream, []).append(path)
    joined = Joined([], set(), [], [])
    place: Path | None = None
    for stream, paths in copies.items():
        found = list(filter(None, map(_read_part, paths))) if len(paths) > 1 else []
        _leave_out_other_runs(stream, found, joined)
        if len(_in_order(found)) < 2:
            continue
        if place is None:
            place = room()
            for directory in sources:
                for name in (server_clock.read_clock_names(directory) or ()) if directory.is_dir() else ():
                    server_clock.add_clock_name(place, name)
        target = place / "streams" / stream / "journal"
        target.parent.mkdir(parents=True)
        parts = _write_possible(target, stream, found, joined)
        if len(parts) < 2:
            continue
        joined.parts.update(part.path for part in parts)
        joined.journals.append(target)
        joined.notes.append(
            f"parts of stream {stream} were put together: {', '.join(str(part.path) for part in parts)}"
        )
    return joined


def _leave_out_other_runs(stream: str, parts: list[_Part], joined: Joined) -> None:
    """Takes out the parts that say that they are of another run than most with the same sync word, or than the earliest."""
    ordered = sorted(parts, key=lambda part: part.first)
    like = [part for part in ordered if part.sync == ordered[0].sync and part.run is not None]
    usual = Counter(part.run for part in like).most_common(1)
    for part in [part for part in like if part.run != usual[0][0]]:
        parts.remove(part)
        joined.leave_out(part.path, f"this part of stream {stream} says that it is of another run than the others")


def _in_order(parts: Sequence[_Part]) -> list[_Part]:
    """Parts of which each continues the one before; only the first one, if it has everything."""
    chain: list[_Part] = []
    for part in sorted(parts, key=lambda part: (part.first, -part.next)):
        if not chain or part.sync == chain[0].sync and part.next > chain[-1].next:
            chain.append(part)
    return chain


def _read_part(path: Path) -> _Part | None:
    try:
        reader = FrameReader(path, follow=False)
    except (FormatError, OSError):
        return None
    try:
        frame = reader.peek()
        if reader.sync_word is None or frame is None:
            return None
        first = reader.head[1]
        record = decode_record(frame[0], frame[2]) if frame[0] == fmt.FrameType.RUN else None
        run = identity(record) if isinstance(record, RunRecord) else None
        index = read_index(reader) or scan(reader)
        return _Part(path, reader.sync_word, reader.files.at(reader.files.begin), first, *index.end, run)
    except OSError:
        return None
    finally:
        reader.close()


def _write_possible(target: Path, stream: str, parts: list[_Part], joined: Joined) -> list[_Part]:
    """Puts parts together, without those that claim a position that no file has. Returns those that count; of less than two nothing is
    written."""
    while len(counting := _in_order(parts)) > 1:
        try:
            _write(target, counting)
            break
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EFBIG):
                raise
            target.unlink(missing_ok=True)
        farthest = max(counting, key=lambda part: part.end)
        why = f"this part of stream {stream} claims a position that no file has: {farthest.end:,}"
        joined.leave_out(farthest.path, why)
        parts.remove(farthest)
    return counting


def _write(target: Path, parts: Sequence[_Part]) -> None:
    with open(target, "xb") as file:
        segment, next = parts[0].segment, 0
        file.write(fmt.encode_file_header(parts[0].sync, segment.number, segment.begin))
        for part in parts:
            reader = FrameReader(part.path, follow=False)
            try:
                at = _begins(reader, part, next)
                while at < part.end:
                    # Frames keep their positions, which indexes name. Gaps show by the numbers: a segment may have been
                    # deleted.
                    file.seek(max(segment.offset(at), file.tell()))
                    chunk = reader.files.pread(min(CHUNK, part.end - at), at)
                    file.write(chunk)
                    at = at + len(chunk) if chunk else reader.files.next_begin(at) or part.end
            finally:
                reader.close()
            next = part.next


def _begins(reader: FrameReader, part: _Part, number: int) -> int:
    """Position of the first frame that begins at this position or later."""
    while reader.skip():
        at, its, _ = reader.head
        if its >= number:
            return at
    return part.end
