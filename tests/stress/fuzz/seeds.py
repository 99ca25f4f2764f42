"""Seeds: small inputs of each target that make sense, for a fuzzer to begin with."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from stepscope.exporters.specimens import ARGUMENTS, every_kind
from stepscope.exporters.stream import protocol
from stepscope.runtime import _core
from stepscope.runtime.events.record import EventBatch, empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.segments import segment_paths
from tests.support.journals import batch_with_arguments, events_payloads, frame_borders, write_journal
from tests.support.streams import SYNC, frames, hello
from tests.support.window_streams import END, Frame, closed, of_size, run_of, windows

RECORD = struct.Struct("<BBH")
"""Before each frame of a stream: its type, its flags, bytes of its payload."""


def seeds(target: str) -> list[bytes]:
    """Some inputs of a target; the order is always the same."""
    with tempfile.TemporaryDirectory() as place:
        return _of(target, Path(place))


def _of(target: str, place: Path) -> list[bytes]:
    batch = every_kind()
    events, heap = batch.events.tobytes(), batch.args
    if target in ("journal", "journal_frames"):
        made = [write_journal(place / name, [batch] * count).read_bytes() for name, count in (("a", 1), ("b", 3))]
        return made if target == "journal" else [_records(data) for data in made]
    if target == "arguments":
        encoded = _core.encode_arguments(dict(ARGUMENTS))
        return [struct.pack("<II", 0, len(encoded)) + encoded]
    if target == "session":
        head = struct.pack("<IIIq32xQQQ40xQQ", 64, 1, 1, 1, 8, 8, 8, 0, 0).ljust(4084, b"\0")
        names = b"".join(struct.pack("<II", number, 3) + b"abc" for number in range(1, 5))
        table = b"".join(struct.pack("<qqIIII", 1, 1, 2, 0, 1024, number) for number in range(1, 4))
        stack = struct.pack("<IIIIQQQ24x", 1, 1, 2, 0, 2, 0, 1) + struct.pack("<qqQIHH", 5, 0, 7, 1024, 1, 0) * 3
        stored = _records(write_journal(place / "kept", [batch]).read_bytes())
        window = write_journal(place / "window", [batch]).read_bytes()
        return [b"\xff\xfe".join([head + events[:1024], stack, names, table, stored, window])]
    if target == "session_note":
        note = b'{"directory": "@/files", "pid": 1, "start_time": 1, "profiler": 1, "keep_last": 2, "outputs": ["@/x"]}'
        return [note, b"\1\x7f\x7f" + bytes(29) + b"precious\n../precious", b"\xff" * 32 + b"../../elsewhere"]
    if target == "evicted":
        return _windows(place)
    if target == "merged":
        journal = _records(write_journal(place / "one", [batch]).read_bytes())
        return [journal + journal]
    if target == "otlp_answers":
        return [b"\x0a\x07\x08\x05\x12\x03why", b"Wed, 21 Oct 2015 07:28:00 GMT", b"120", b'{"message": "too much"}']
    if target.startswith("collector") or target == "compressed_events":
        return _streamed(target, place)
    return [events + heap, events[:64], b""]


def _streamed(target: str, place: Path) -> list[bytes]:
    data = frames(0, 3)
    if target == "collector_messages":
        headers = (protocol.Frames(0, 3, 0, 20), protocol.Frames(1, 2, 0, 20), protocol.Frames(1 << 33, 1, 0, 20))
        return [hello(), protocol.encode(protocol.Ping(5)), *(protocol.encode(header, data) for header in headers)]
    if target == "collector_file":
        second = fmt.encode_file_header(SYNC, 1, 20 + len(data)) + frames(3, 2)
        return [fmt.encode_file_header(SYNC) + data + b"\xff\xfe\xfd" + second, fmt.encode_file_header(SYNC)]
    ((_, packed),) = events_payloads(every_kind())
    ((_, small),) = events_payloads(EventBatch("", 0, empty_block(3), b""))
    return [packed, small[fmt.EVENTS_HEADER.size :], of_size(empty_block(3), 0, 500)[2]]


def _windows(place: Path) -> list[bytes]:
    """Streams of some windows in segments, with and without an index, behind a byte that says how many are protected."""
    batches = [batch_with_arguments(["x"], [{}], window=number, start_ns=1000 * (number + 1)) for number in range(6)]
    written = segment_paths(write_journal(place / "windows", batches, segment_bytes=1))
    streams = [
        [_raw([run_of(), *windows(range(at, at + 3), 4096, frames=2)]) for at in (0, 3, 6)],
        [_raw([run_of(), *windows(range(2), 8192), END])],
        [_raw([run_of(), *windows(range(3), 128, ended=False)]), _raw([run_of(), closed(2, 4, 2), END])],
        [_records(path.read_bytes()) for path in written[:4]],
    ]
    return [bytes([number]) + b"\xff\xfe\xfd".join(segments) for number, segments in enumerate(streams)]


def _raw(frames: list[Frame]) -> bytes:
    return b"".join(RECORD.pack(kind, flags, len(payload)) + payload for kind, flags, payload in frames)


def _records(journal: bytes) -> bytes:
    borders = frame_borders(journal)
    made = b""
    for at, end in zip(borders, borders[1:], strict=False):
        payload = journal[at + 24 : end][:60_000]
        made += RECORD.pack(journal[at + 4], journal[at + 5], len(payload)) + payload
    return made
