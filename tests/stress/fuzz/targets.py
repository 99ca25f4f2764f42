"""Fuzz targets: each takes any bytes, and fails if a decoder crashes, raises what it should not, or writes no JSON."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from stepscope.collector.files.disk import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.files.stream_file import StreamFile
from stepscope.collector.merge.outputs import write_merged
from stepscope.collector.retention.policy import StoragePolicy
from stepscope.collector.retention.storage import Storage
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.specimens import run_in
from stepscope.exporters.stream import protocol
from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError, StepscopeError
from stepscope.runtime.events.intervals import ends
from stepscope.runtime.events.record import EVENT_DTYPE, EventBatch, join_blocks
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import run_record
from stepscope.runtime.journal.segments import segment_path
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.recovery.unsaved_events import UnsavedEvents
from tests.support.journals import events_payloads

PLACE = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
RUN = run_in(Path("/"))
SYNC = b"\xf5abc"
RUN_RECORD = run_record(RUN, 0)
_RECORD = struct.Struct("<BBH")
_SIZE = EVENT_DTYPE.itemsize


def journal(data: bytes) -> None:
    """A file of any bytes."""
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        path = Path(place) / "journal"
        path.write_bytes(data)
        _read(path)


def journal_frames(data: bytes) -> None:
    """A journal of whole frames, with any types, flags and payloads: checksums do not keep anything out here."""
    journal(_framed(data))


def _framed(data: bytes, *, kinds: int = 15, first: int = 0) -> bytes:
    """Frames of any of so many types, flags and payloads; the first one has this number."""
    parts = [fmt.encode_file_header(SYNC)]
    at, number = 0, first
    while at + _RECORD.size <= len(data):
        kind, flags, length = _RECORD.unpack_from(data, at)
        payload = data[at + _RECORD.size : at + _RECORD.size + length]
        at += _RECORD.size + length
        parts += map(bytes, fmt.encode_frame(SYNC, kind % kinds, number, [payload], flags))
        number += 1
    return b"".join(parts)


def _read(path: Path) -> None:
    try:
        with JournalReader(path) as reader:
            for item in reader:
                if isinstance(item, EventBatch):
                    chrome(item.events.tobytes() + item.args, len(item))
    except FormatError:
        return


def session(data: bytes) -> None:
    """A session directory whose files hold any bytes, behind headers that are believed; stored steps have right checksums."""
    pieces = data.split(b"\xff\xfe", 5)
    pieces += [b""] * (6 - len(pieces))
    ring, stacks, strings, tracks, stored, window = pieces
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        head = bytearray(b"SSRING1\0" + struct.pack("<I", 1) + ring[:4096].ljust(4096, b"\0"))[:4096]
        (slots,) = struct.unpack_from("<I", head, 12)
        struct.pack_into("<I", head, 12, 1 << (slots % 8 + 6))
        files = {
            "ring-00000": bytes(head) + ring[4096:].ljust(64 << 13, b"\0"),
            "stacks": stacks.ljust(4096, b"\0"),
            "strings": strings,
            "tracks": tracks,
            "kept-1-00000": _framed(stored),
            "kept-1-00001": stored,
        }
        for name, content in files.items():
            (Path(place) / name).write_bytes(content)
        run = Path(place) / "run"
        (run / "windows").mkdir(parents=True)
        (run / "windows" / "000001-slow.journal.part").write_bytes(window)
        ids = IdMap()
        opened = SessionFiles(Path(place))
        opened.load_ids(ids)
        leftovers = UnsavedEvents([(opened, ids)])
        for events, args, _, _ in leftovers.pieces(0):
            chrome(events.tobytes() + args, len(events))
        leftovers.open_spans(1 << 40)
        opened.close()
        for keeps in (0, 3):
            note = {"directory": place, "pid": 0, "start_time": 0, "profiler": 1, "keep_last": keeps}
            (run / "session").write_bytes(msgspec.json.encode(note))
            _read(recover(run).journal)


def session_note(data: bytes) -> None:
    """A note of any bytes, `@` in it being where it is: the files that it names are read, and nothing but its run is changed."""
    with tempfile.TemporaryDirectory(dir=PLACE) as name:
        place = Path(name)
        for directory in ("run", "files", "elsewhere"):
            (place / directory).mkdir()
        (place / "files" / "kept-1-00000").write_bytes(_framed(data))
        (place / "files" / "strings").write_bytes(struct.pack("<II", 1, 3) + b"abc")
        (place / "elsewhere" / "precious").write_bytes(data)
        before = _tree(place, "run")
        for note in (data.replace(b"@", name.encode()), _note(data, place)):
            (place / "run" / "session").write_bytes(note)
            with contextlib.suppress(StepscopeError, OSError):
                _read(recover(place / "run", place / "run" / "copy", force=True).journal)
            assert _tree(place, "run") == before


def _note(data: bytes, place: Path) -> bytes:
    """A note that is one, whose values any bytes choose."""
    numbers = [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, 32, 8)]
    names = data[32:].decode("latin-1").split("\n")
    chosen = [str(place / name) for name in ("files", "elsewhere", "run", "missing", "elsewhere/precious")]
    directory = chosen[numbers[0] % len(chosen)] if data[:1] < b"\x80" else str(place / "files" / names[0])
    pid, start_time, profiler, keep_last = numbers
    return msgspec.json.encode(
        {
            "directory": directory,
            "pid": pid if data[1:2] > b"\x40" else 0,
            "start_time": start_time,
            "profiler": profiler % 3,
            "keep_last": keep_last % 1000 if data[2:3] > b"\x40" else keep_last,
            "outputs": [str(place / "elsewhere" / name) for name in names[:4]],
        }
    )


def _tree(place: Path, but: str) -> dict[str, bytes]:
    paths = [path for path in sorted(place.rglob("*")) if path.is_file() and (place / but) not in path.parents]
    return {str(path): path.read_bytes() for path in paths}


def arguments(data: bytes) -> None:
    """A heap of any bytes, and a range of it that may lie beyond."""
    if len(data) < 8:
        return
    at, length = struct.unpack_from("<II", data)
    for begin, size in ((at, length), (at % (len(data) + 1), length % (len(data) + 1)), (0, len(data) - 8)):
        try:
            _core.decode_arguments(data[8:], begin, size)
        except ValueError as error:
            assert "outside" in str(error), error


def chrome(data: bytes, count: int | None = None) -> None:
    """Events of any bytes, and the rest as their heap: what the encoder makes of it is JSON."""
    count = len(data) // _SIZE * 3 // 4 if count is None else count
    events, heap = data[: count * _SIZE], data[count * _SIZE :]
    for dialect in ("kineto", "tensorboard"):
        lines = _core.encode_chrome(events, heap, 0, dialect)
        msgspec.json.decode(b"[" + lines.removesuffix(b",\n") + b"]")


def perfetto(data: bytes) -> None:
    """Blocks of events of any bytes, one after the other, with all the bytes as their heap: packets come out."""
    encoder = _core.PerfettoEncoder(1, 1)
    pieces: list[bytes] = []
    for window in range(3):
        block = data[window * len(data) // 3 :]
        pieces.append(encoder.encode(block[: len(block) // _SIZE * _SIZE], data, window))
    pieces.append(encoder.release())
    made = b"".join(pieces)
    at = 0
    while at < len(made):
        assert made[at] == 0x0A
        length = shift = 0
        while True:
            at += 1
            length |= (made[at] & 0x7F) << shift
            shift += 7
            if made[at] < 0x80:
                break
        at += 1 + length
    assert at == len(made)


def aggregates(data: bytes) -> None:
    """Events of any bytes in the running tables."""
    block = data[: len(data) // _SIZE * _SIZE]
    table, other = _core.Aggregates(), _core.Aggregates()
    table.update(block)
    other.update(block[: len(block) // 2 // _SIZE * _SIZE])
    table.merge(other)
    for rows in (table.rows, table.instant_rows, table.counter_rows, table.counts):
        rows()


def blocks(data: bytes) -> None:
    """Events of any bytes, cut up, joined, and written to a journal's payload and back."""
    block = np.frombuffer(bytearray(data[: len(data) // _SIZE * _SIZE]), EVENT_DTYPE)
    heap = data[len(block) * _SIZE :]
    assert join_blocks([block[:1], block[1:1], block[1:]]).tobytes() == block.tobytes()
    ends(block)
    for flags, payload in events_payloads(EventBatch("any", 0, block, heap)):
        decoded = fmt.decode_columns(payload, flags, IdMap())
        assert decoded is not None and len(decoded[1]) == len(block)
    rows = fmt.decode_rows(b"".join(map(bytes, fmt.encode_rows("any", 0, block, heap))), 0)
    assert rows is not None and rows[1].tobytes() == block.tobytes()


def collector_messages(data: bytes) -> None:
    """A message of any bytes to a collector that has some frames: it is refused whole, or its frames are the next ones."""
    try:
        header, payload = protocol.decode(data)
    except FormatError:
        return
    assert protocol.decode(protocol.encode(header, payload))[0] == header
    if isinstance(header, protocol.Frames):
        with tempfile.TemporaryDirectory(dir=PLACE) as place:
            file = StreamFile(Path(place), SYNC, RUN_RECORD)
            try:
                new_frames = file.check(header, payload)
                file.write(new_frames)
                assert file.next == (header.first + header.count if new_frames.frames else 0)
            except FormatError:
                assert file.next == 0
            file.close()
            again = StreamFile(Path(place), SYNC, RUN_RECORD)
            assert again.next == file.next
            again.close()


def collector_file(data: bytes) -> None:
    """Two segments of any bytes: they are refused as they are, or the stream goes on with the frame that follows."""
    segments = data.split(b"\xff\xfe\xfd", 1)
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        path = Path(place)
        for at, content in enumerate(segments):
            segment_path(path / "journal", at).write_bytes(content)
        try:
            file = StreamFile(path, SYNC, RUN_RECORD)
        except FormatError:
            assert segment_path(path / "journal", len(segments) - 1).read_bytes() == segments[-1]
            return
        next = file.next
        frame = b"".join(map(bytes, fmt.encode_frame(SYNC, 99, next, [b"more"])))
        try:
            file.write(file.check(protocol.Frames(next, 1, 7, fmt.MAX_POSITION - 1), memoryview(frame)))
        except FormatError:
            file.close()
            return  # its last segment has a higher number
        file.close()
        assert segment_path(path / "journal", 7).read_bytes().endswith(frame)
        again = StreamFile(path, SYNC, RUN_RECORD)
        assert again.next == next + 1
        again.close()


def evicted(data: bytes) -> None:
    """A stream of whole frames, of any kind, in segments, at a collector that has little room: what may be evicted is, in steps, and
    nothing that is in the frames is a fault."""
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        store = Store(CollectorSettings(directory=Path(place)))
        path = store.path("0" * 32)
        path.parent.mkdir()
        begin, number = fmt.FILE_HEADER.size, 0
        for at, part in enumerate(data[1:].split(b"\xff\xfe\xfd", 3)):
            frames = _framed(part, kinds=18, first=number)[fmt.FILE_HEADER.size :]
            segment_path(path, at).write_bytes(fmt.encode_file_header(SYNC, at, begin) + frames)
            begin, number = begin + len(frames), number + len(part)
        full = disk_use(store.directory).total
        storage = Storage(store, StoragePolicy(max_bytes=full, newest=data[0] % 3 if data else 0, slowest=1))
        for wanted in (full // 8, full // 2, full):
            deleted = storage.enforce(wanted).deleted
            assert not storage.unreadable, storage.unreadable
            if deleted:
                return
            with contextlib.suppress(FormatError):
                Recording.of(path, "")


def merged(data: bytes) -> None:
    """Two journals of whole frames, of any kind: they are merged into a journal, or a message says why not."""
    half = len(data) // 2
    with tempfile.TemporaryDirectory(dir=PLACE) as name:
        place = Path(name)
        for rank, frames in enumerate((data[:half], data[half:])):
            (place / f"rank{rank}").mkdir()
            (place / f"rank{rank}" / "journal").write_bytes(_framed(frames))
        with contextlib.suppress(FormatError):
            asyncio.run(write_merged([place / "rank0", place / "rank1"], place / "out.journal"))
            _read(place / "out.journal")


def otlp(data: bytes) -> None:
    """Events of any bytes, sent by OTLP: requests come out that a receiver can parse, and nothing is lost uncounted."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from stepscope.exporters.network.outcomes import Outcomes
    from stepscope.exporters.otlp.encoding import Conversion
    from stepscope.exporters.otlp.options import OtlpOptions

    count = len(data) // _SIZE * 3 // 4
    events = np.frombuffer(bytearray(data[: count * _SIZE]), EVENT_DTYPE)
    outcomes = Outcomes()
    conversion = Conversion(RUN, OtlpOptions(spans_per_second=None, leave_out=()), outcomes)
    carried = 0
    for requests in (conversion.add(EventBatch("any", 0, events, data[count * _SIZE :])), conversion.close()):
        for request in requests:
            carried += request.events
            if request.signal == "traces":
                ExportTraceServiceRequest.FromString(request.encode())
    assert carried + sum(sum(result.dropped.values()) for result in outcomes.drain()) == count


def otlp_answers(data: bytes) -> None:
    """An answer of any bytes by an OTLP receiver: what it rejects is a number, what it says can be shown."""
    from stepscope.exporters.network.backoff import parse_retry_after
    from stepscope.exporters.otlp.options import Signal
    from stepscope.exporters.otlp.sender import count_rejected, excerpt

    signals: tuple[Signal, ...] = ("traces", "metrics")
    for signal in signals:
        found = count_rejected(signal, data)
        assert found is None or found >= 0
    text = data.decode("latin-1")
    assert len(excerpt(text)) <= 202 and excerpt(text).isprintable()
    wait = parse_retry_after(text, 0.0)
    assert wait is None or wait >= 0


def compressed_events(data: bytes) -> None:
    """Events whose body is any bytes, marked as columns: there are as many events as were announced, or none."""
    for flags in (fmt.COLUMNS, fmt.COLUMNS | fmt.ZSTD):
        for payload in (data, fmt.EVENTS_HEADER.pack(0, 0, 0, 3, 5, 0) + data):
            decoded = fmt.decode_columns(payload, flags, IdMap())
            assert decoded is None or len(decoded[1]) == decoded[0].count
            unnamed = fmt.decode_unnamed(payload, flags)
            assert decoded is None or unnamed is None or len(unnamed[0]) == decoded[0].count


TARGETS: dict[str, Callable[[bytes], None]] = {
    "journal": journal,
    "journal_frames": journal_frames,
    "session": session,
    "arguments": arguments,
    "chrome": chrome,
    "perfetto": perfetto,
    "aggregates": aggregates,
    "blocks": blocks,
    "collector_messages": collector_messages,
    "collector_file": collector_file,
    "compressed_events": compressed_events,
    "session_note": session_note,
    "evicted": evicted,
    "merged": merged,
    "otlp": otlp,
    "otlp_answers": otlp_answers,
}

NEEDS = {
    "otlp": ("opentelemetry.proto",),
    "otlp_answers": ("opentelemetry.proto", "aiohttp"),
}
"""Modules that are not there wherever stepscope is, by target."""
