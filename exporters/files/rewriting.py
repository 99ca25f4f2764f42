"""Traces of killed runs, written anew from the recovered journal."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.output import numbered, output_error
from stepscope.exporters.parquet import ParquetExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.errors import FormatError
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.recovery.journals import is_own_file
from stepscope.runtime.session.note import TraceNote

_EXPORTERS: dict[str, Callable[..., Exporter]] = {
    "chrome": ChromeTraceExporter,
    "perfetto": PerfettoExporter,
    "parquet": ParquetExporter,
}
_HEAD_BYTES = 1 << 16
"""The id of the run is in the first bytes of its traces."""
_CHUNK = 1 << 20
_PACKET = b"\x0a"
"""Begins every packet of a `.pftrace`."""
_PARQUET = b"PAR1"
"""Begins a Parquet file, and ends it after its footer."""
_HEAD_PACKETS = 2
"""Packets of a `.pftrace` before the first event."""
_DESCRIPTION = b'{"ph": "M"'
"""Begins each line of a Chrome trace in array form before the first event."""


def rewrite_trace(note: TraceNote, place: Path, owner: int, journal: Path) -> list[Path]:
    """Writes a trace that a killed process left cut, from the journal of the same run, and replaces it when that is whole.

    Only the files that the note names are replaced, and only if they are of this run and have no event that the new ones
    lack.

    Args:
        note: what the run's note says of the trace; not believed.
        place: the run's directory.
        owner: user whose note it is.
        journal: of the whole run, complete.

    Returns:
        The files, complete; none if the trace was complete already.

    Raises:
        FileNotFoundError: the trace is not there any more.
        FormatError: it stays as it is; says why.
        OutputError: the new one could not be written; the trace is as it was.
    """
    cut, first = place.absolute() / note.file, place.absolute() / note.first
    last = numbered(first, note.number)
    if not os.path.lexists(cut) and cut != last and os.path.lexists(last):
        return []
    with JournalReader(journal) as reader:
        run_id = reader.run.id if reader.run is not None else ""
    old = [*(numbered(first, number) for number in range(note.number)), cut]
    for path in old:
        if not os.path.lexists(path):
            raise FileNotFoundError(path)
        if not is_own_file(path, owner):
            raise FormatError(f"{path} is no regular file of this user's")
        if not (_is_parquet_of(path, run_id) if note.format == "parquet" else _is_of(path, run_id)):
            raise FormatError(f"{path} is not the file that this run wrote")
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{first.name[:64]}-", dir=first.parent))
        try:
            return _replace(note, journal, made, old, first)
        finally:
            shutil.rmtree(made)
    except OSError as error:
        raise output_error(error, cut, "write the trace anew") from error


def _replace(note: TraceNote, journal: Path, made: Path, old: list[Path], first: Path) -> list[Path]:
    try:
        exporter = _EXPORTERS[note.format](made / first.name, **note.arguments)
    except (KeyError, TypeError, ValueError, ImportError) as error:
        raise FormatError(f"{old[-1]} cannot be written anew: {error}") from error
    with JournalReader(journal) as reader:
        anyio.run(replay_into, reader, exporter, run_of(reader, made), note.window)
        if harm := reader.damage.harm():
            raise FormatError(f"{old[-1]} is not written anew: parts of {journal} are damaged ({harm})")
    new: list[Path] = []
    while (path := made / numbered(first, len(new)).name).exists():
        new.append(path)
    if note.format != "parquet" and sum(map(_count, new)) < sum(map(_count, old)):
        raise FormatError(f"{old[-1]} has events that the journal lacks")
    targets = [first.with_name(path.name) for path in new]
    for further in targets[len(old) :]:
        if os.path.lexists(further):
            raise FormatError(f"{old[-1]} would go on in {further}, which exists")
    mode = stat.S_IMODE(old[-1].stat().st_mode)
    for path, target in zip(new, targets, strict=True):
        path.chmod(mode)
        path.replace(target)
    for path in old:
        if path not in targets:
            path.unlink()
    return targets


def _is_of(path: Path, run_id: str) -> bool:
    """Whether a file has the run's id, or only the head of a trace yet: the id comes with the first event."""
    head = _head(path)
    if run_id and run_id.encode() in head:
        return True
    if head[:1] == _PACKET:
        at: int | None = 0
        for _ in range(_HEAD_PACKETS):
            at = _packet_end(head, at) if at is not None else None
        return at == len(head)
    begin, *lines = head.split(b"\n")
    return begin in (b"", b"[") and all(line.startswith(_DESCRIPTION) for line in lines if line)


def _is_parquet_of(path: Path, run_id: str) -> bool:
    """Whether a Parquet file has the run's id in its footer. One that is cut has no footer, and could be of any run."""
    with path.open("rb") as file:
        begin = file.read(len(_PARQUET))
        file.seek(max(path.stat().st_size - _HEAD_BYTES, 0))
        tail = file.read()
    if begin != _PARQUET[: len(begin)]:
        return False
    whole = tail.endswith(_PARQUET) and len(tail) > len(_PARQUET)
    return not whole or bool(run_id and run_id.encode() in tail)


def _head(path: Path) -> bytes:
    """The first bytes of a file, inflated."""
    head = b""
    for piece in _pieces(path):
        head += piece
        if len(head) >= _HEAD_BYTES:
            break
    return head


def _count(path: Path) -> int:
    """Lines of a Chrome trace, or packets of a `.pftrace`: events and what describes them."""
    count = 0
    kind = rest = b""
    for piece in _pieces(path):
        kind = kind or piece[:1]
        if kind != _PACKET:
            count += piece.count(b"\n")
            continue
        data, at = rest + piece, 0
        while (found := _packet_end(data, at)) is not None and found <= len(data):
            count, at = count + 1, found
        rest = data[at:]
    return count


def _packet_end(data: bytes, at: int) -> int | None:
    """End of the packet that begins here; `None` if its length is incomplete."""
    length = shift = 0
    at += 1
    while at < len(data):
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + length
        shift += 7
    return None


def _pieces(path: Path) -> Iterator[bytes]:
    """The bytes of a file, inflated if it is gzip, up to its end or to where it was cut or damaged."""
    with path.open("rb") as file:
        inflate = zlib.decompressobj(wbits=31) if file.peek(2)[:2] == b"\x1f\x8b" else None
        while data := file.read(_CHUNK):
            if inflate is None:
                yield data
                continue
            while data and not inflate.eof:
                try:
                    yield inflate.decompress(data, _CHUNK)
                except zlib.error:
                    return
                data = inflate.unconsumed_tail
