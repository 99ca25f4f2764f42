"""Delivers later what a run left: its spool, its recovered journal, or any journal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stepscope.exporters.collector import protocol
from stepscope.exporters.collector.backlog import MERGED, Backlog
from stepscope.exporters.collector.connecting import Connecting
from stepscope.exporters.collector.left_journal import Head, left_journal
from stepscope.exporters.collector.piece import Piece, Segment, events_in
from stepscope.exporters.collector.spool import DIRECTORY, LOCK, NOTE, SUFFIX, StreamNote, remove
from stepscope.runtime.errors import FormatError, OutputError, ProfilerStateError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.session.file_lock import is_held

_MAX_NOTE = 1 << 20
_MAX_NAMED = 8


class Parcel(msgspec.Struct, frozen=True):
    """A stream, or the rest of one, that lies in files."""

    hello: protocol.Hello
    pieces: list[Piece]
    events: int
    what: str
    """In words, for messages."""
    spool: Path | None = None
    """The directory that is not needed any more once it is delivered."""
    files: Mapping[Path, int] = {}
    """The segments in it, and the bytes that each had when it was looked at: what came later is not delivered with it."""
    damaged: str = ""
    """Why files are left out, and stay where they are; empty if none are."""

    def close(self) -> None:
        """Closes the files. Idempotent."""
        for piece in self.pieces:
            if piece.segment is not None:
                piece.segment.close()


def parcels(place: Path, *, force: bool = False) -> list[Parcel]:
    """What there is to deliver of a run's directory, of a spool or of one journal.

    A stream whose process ended in order goes on where the collector has nothing. Of one that was killed the run's own
    journal, which as a rule has more than the stream, is recovered and sent as a stream that takes the other's place; what is
    in the spool is sent first unless the journal is known to have all of it. Without a journal of that run, what is in the
    spool is sent.

    Args:
        place: the directory or file.
        force: take a process for dead of which that cannot be told from here, as it is another machine's.

    Raises:
        ProfilerStateError: if the process still runs, or may do so.
        FormatError: if there is nothing to deliver, or a file is damaged.
        OSError: if files cannot be read.
    """
    if not place.is_dir() and (place.parent / NOTE).exists() and place.suffix == SUFFIX:
        place = place.parent
    if not place.is_dir():
        return [_whole_journal(place, "", f"the journal {place}")]
    if (place / NOTE).exists():
        found = [place]
    else:
        found = sorted(path.parent for path in place.glob(f"{DIRECTORY}/*/{NOTE}"))
    if not found:
        named = _below(place) or "name a journal to send that"
        raise FormatError(f"nothing to deliver in {place}: it has no {DIRECTORY}/*/{NOTE}; {named}")
    made: list[Parcel] = []
    try:
        for directory in found:
            made += _of_stream(directory, force)
    except BaseException:
        for parcel in made:
            parcel.close()
        raise
    return made


async def deliver(
    parcel: Parcel, connecting: Callable[[Backlog, Callable[[], protocol.Hello]], Connecting], patience: float
) -> None:
    """Sends a parcel; returns when the other end has all of it. May be repeated: nothing is written twice.

    Args:
        parcel: what to send.
        connecting: makes the connection that sends a backlog, and says which stream it is.
        patience: seconds without any progress after which it is given up.

    Raises:
        OutputError: if the other end refuses it, or there is no progress.
    """
    backlog = Backlog.of(parcel.pieces)
    link = connecting(backlog, lambda: msgspec.structs.replace(parcel.hello, oldest=backlog.oldest))
    link.start(insists=False)
    try:
        while True:
            before = len(backlog)
            try:
                async with asyncio.timeout(patience):
                    if await link.progressed(before):
                        continue
            except TimeoutError:
                pass
            break
        if len(backlog) or not link.statistics().connections:
            statistics = link.statistics()
            late = f"nothing was confirmed for {patience:g} s"
            error = statistics.last_error if statistics.refused else late
            if not statistics.refused and statistics.last_error not in ("", link.told):  # else the log says it
                error += f": {statistics.last_error}"
            raise OutputError(f"{link.where} does not take {parcel.what}: {error}")
        await link.close()
    finally:
        link.abort()
    if parcel.spool is not None:
        _remove(parcel.spool, parcel.files)


def _of_stream(directory: Path, force: bool) -> list[Parcel]:
    note = _note(directory)
    _refuse_living(directory, note, force)
    segments = sorted(directory.glob(f"*{SUFFIX}"))
    files = {path: path.stat().st_size for path in segments}
    pieces, ended, damaged = _rest(segments, note.sync)
    made: list[Parcel] = []
    if pieces:
        hello = protocol.Hello(note.stream, note.sync, pieces[0].first, note.run)
        spool = None if damaged else directory
        what = f"the rest of a stream in {directory}"
        made.append(Parcel(hello, pieces, _events(pieces), what, spool, files, damaged))
    try:
        journal = None if ended else left_journal(directory, note)
        if journal is not None:
            what = f"the journal of {directory.parent.parent}, whose process was killed"
            whole = msgspec.structs.replace(
                _whole_journal(journal, note.stream, what), spool=None if damaged else directory, files=files
            )
            if made and not damaged and _has_all(whole.pieces, pieces):
                made.pop().close()
            made = [*(msgspec.structs.replace(rest, spool=None) for rest in made), whole]
    except BaseException:
        for parcel in made:
            parcel.close()
        raise
    if not made:
        _remove(directory, files)
    return made


def _refuse_living(directory: Path, note: StreamNote, force: bool) -> None:
    """Leaves a spool alone in which a process may still write.

    Raises:
        ProfilerStateError: if that is so.
    """
    if note.closed:
        return
    process, held = note.process, is_held(directory / LOCK)
    if held or process.is_local and not process.is_dead:
        raise ProfilerStateError(f"{process} that sends {directory} itself still runs; wait for its end")
    known = process.is_local or process.shares_kernel and held is False
    if not known and not force:
        raise ProfilerStateError(
            f"{process} that sends {directory} itself may still run: it is not of this machine, and its lock tells nothing "
            "here; run this there, or with --force if you know that it has ended"
        )


def _remove(directory: Path, files: Mapping[Path, int]) -> None:
    """Deletes the segments that are as they were when they were looked at, and the spool if it has no others."""
    for path, size in files.items():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == size:
                path.unlink()
    if not any(directory.glob(f"*{SUFFIX}")):
        remove(directory, [])


def _has_all(journal: Sequence[Piece], rest: Sequence[Piece]) -> bool:
    """Whether a recovered journal has everything that the stream had: that is known only if the spool has all of the stream.

    A journal may have less: it met its limit, or its disk was full.
    """
    return rest[0].first == 0 and not _by_window(rest) - _by_window(journal)


def _note(directory: Path) -> StreamNote:
    file = os.open(directory / NOTE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FormatError(f"{directory / NOTE} is not a regular file")
        try:
            return msgspec.json.decode(stream.read(_MAX_NOTE), type=StreamNote)
        except msgspec.MsgspecError as error:
            raise FormatError(f"{directory / NOTE} does not say whose frames these are: {error}") from error


def _whole_journal(path: Path, supersedes: str, what: str) -> Parcel:
    """A journal as a stream of its own, the same one each time."""
    opened: list[Segment] = []
    reader = FrameReader(path, follow=False)
    try:
        head = Head.of(path)
        if head is None:
            raise FormatError(f"{path} does not say whose journal it is; `stepscope recover` it first")
        pieces, ended = _pieces(opened, reader, reader.position[0])
        if not ended:
            raise FormatError(f"{path} is not complete; `stepscope recover` it first")
    except BaseException:
        for segment in opened:
            segment.close()
        raise
    finally:
        reader.close()
    hello = protocol.Hello(head.stream, head.sync, 0, protocol.short(head.run), supersedes)
    return Parcel(hello, pieces, _events(pieces), what)


def _rest(segments: Sequence[Path], sync: bytes) -> tuple[list[Piece], bool, str]:
    """The pieces of a spool, whether the last frame ends the journal, and why files are left out, if some are.

    Raises:
        FormatError: if not even its first file can be used.
    """
    pieces: list[Piece] = []
    ended = False
    for path in segments:
        if path.stat().st_size <= fmt.FILE_HEADER.size:
            continue
        opened: list[Segment] = []
        reader = FrameReader(path, follow=False)
        try:
            first = int(path.stem) if path.stem.isdecimal() else -1
            if reader.sync_word != sync or first < 0 or pieces and first != pieces[-1].next:
                raise FormatError(f"{path} does not belong where it is")
            more, ended = _pieces(opened, reader, first)
            pieces += more
        except FormatError as error:
            for segment in opened:
                segment.close()
            if not pieces:
                raise
            return pieces, False, str(error)
        finally:
            reader.close()
    return pieces, ended, ""


def _pieces(opened: list[Segment], reader: FrameReader, expected: int) -> tuple[list[Piece], bool]:
    """The pieces of a journal from frame `expected` on, and whether the last frame ends the journal. Adds the files that it opens."""
    pieces: list[Piece] = []
    ended = False
    for kind, payload, number, at, end in _frames(reader):
        if number != expected & 0xFFFFFFFF:
            raise FormatError(f"{reader.path} is damaged: frame {expected} is missing")
        file = reader.files.at(end)
        if not opened or opened[-1].path != str(file.path):
            opened.append(_opened(file.path))
        segment, at, end = opened[-1], file.offset(at), file.offset(end)
        last = pieces[-1] if pieces else None
        adjacent = last is not None and last.segment is segment and last.at + last.size == at
        if last is not None and adjacent and last.size + end - at <= MERGED:
            last.count += 1
            last.size += end - at
            last.events.update(events_in(kind, payload))
        else:
            pieces.append(Piece(expected, 1, end - at, events_in(kind, payload), None, segment, at))
        expected += 1
        ended = kind == fmt.FrameType.END
    return pieces, ended


def _frames(reader: FrameReader) -> Iterator[tuple[int, bytes, int, int, int]]:
    """(type, payload, number, where it begins, where it ends) of the whole frames."""
    while (frame := reader.next()) is not None:
        next, end = reader.position
        kind, _, payload = frame
        yield kind, payload, (next - 1) & 0xFFFFFFFF, end - len(payload) - fmt.FRAME_HEADER.size, end


def _opened(path: Path) -> Segment:
    return Segment(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), str(path))


def _events(pieces: Sequence[Piece]) -> int:
    return _by_window(pieces).total()


def _by_window(pieces: Sequence[Piece]) -> Counter[int]:
    total: Counter[int] = Counter()
    for piece in pieces:
        total.update(piece.events)
    return total


def _below(place: Path) -> str:
    """Names the directories in this one, one or two levels down, that have a spool; empty if none has."""
    paths = (path for levels in ("*", "*/*") for path in place.glob(f"{levels}/{DIRECTORY}/*/{NOTE}"))
    having = sorted({path.parents[2] for path in paths})
    if not having:
        return ""
    more = f" and {len(having) - _MAX_NAMED} more" if len(having) > _MAX_NAMED else ""
    return f"name one of the directories in it that have one: {', '.join(map(str, having[:_MAX_NAMED]))}{more}"
