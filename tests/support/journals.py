"""Journals made for tests: as the writer makes them, and by hand as another process or a vandal would."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.exporters.specimens import run_in, window_of
from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Flag, Kind, empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.reader import JournalItem, JournalReader
from stepscope.runtime.journal.writer import JournalWriter

Described = tuple[Any, ...]
"""One event in words: names instead of ids, arguments decoded."""


def batch_with_arguments(
    names: Sequence[str], arguments: Sequence[dict[str, Any]], *, window: int = 0, start_ns: int = 1_000
) -> EventBatch:
    """A batch of one span for each name, each with its arguments."""
    block = empty_block(len(names))
    heap = bytearray()
    for index, (name, values) in enumerate(zip(names, arguments, strict=True)):
        encoded = _core.encode_arguments(values)
        block[index]["name"] = strings.intern(name)
        block[index]["args_at"] = len(heap)
        block[index]["args_len"] = len(encoded)
        heap += encoded
    block["kind"] = int(Kind.SPAN)
    block["ts"] = start_ns + np.arange(len(names)) * 10
    block["dur"] = 5
    block["id"] = np.arange(len(names)) + start_ns
    block["category"] = strings.category("user_annotation")
    block.flags.writeable = False
    return EventBatch("recorder", window, block, bytes(heap))


def frame_numbers(journal: Path) -> list[int]:
    """Of the frames of a journal, as they follow each other."""
    return [number for number, _, _ in _frames(journal)]


def frames_of(journal: Path) -> list[tuple[int, bytes]]:
    """Type and payload of each frame of a journal."""
    return [(kind, payload) for _, kind, payload in _frames(journal)]


def _frames(journal: Path) -> Iterator[tuple[int, int, bytes]]:
    reader = FrameReader(journal, follow=False)
    try:
        while (frame := reader.next()) is not None:
            yield reader.position[0] - 1, frame[0], bytes(frame[2])
    finally:
        reader.close()


def described(batch: EventBatch) -> list[Described]:
    """The events of a batch in words, to compare batches whose ids or heaps differ."""
    rows: list[Described] = []
    for event in batch.events:
        at, length = int(event["args_at"]), int(event["args_len"])
        if event["flags"] & int(Flag.ARG_INLINE):
            values: dict[str, Any] = {strings.text(at): length}
        else:
            values = _core.decode_arguments(batch.args, at, length) if length else {}
        rest = tuple(int(event[field]) for field in ("ts", "dur", "self_dur", "id", "parent", "step", "kind", "flags"))
        name, category = strings.text(int(event["name"])), strings.text(int(event["category"]))
        rows.append((batch.source, batch.window, name, category, repr(values), *rest))
    return rows


def write_journal(path: Path, batches: Sequence[EventBatch], **settings: Any) -> Path:
    """A whole journal of these batches, each window closed after its last one."""
    writer = JournalWriter(path, **settings)
    writer.open(run_in(path.parent))
    writer.write_metadata({"model": "résumé"})
    last = {batch.window: index for index, batch in enumerate(batches)}
    for index, batch in enumerate(batches):
        writer.write_batch(batch)
        if last[batch.window] == index:
            writer.write_window(window_of(batch.window, batch))
    writer.close()
    return writer.path


def read_journal(path: Path) -> tuple[list[JournalItem], Damage]:
    """All items of a journal, and its damage."""
    with JournalReader(path) as reader:
        return list(reader), reader.damage


def events_of(path: Path) -> list[Described]:
    """All events of a journal in words."""
    items, _ = read_journal(path)
    return [row for item in items if isinstance(item, EventBatch) for row in described(item)]


def events_payloads(batch: EventBatch) -> list[tuple[int, bytes]]:
    """Flags and payload of each frame that a journal gets of a batch."""
    source, sync = fmt.source_bytes(batch.source), b"sync"
    data, _, _ = _core.encode_frames(
        np.ascontiguousarray(batch.events), batch.args, sync, int(fmt.FrameType.EVENTS), 0, batch.window, source
    )
    return [(flags, bytes(payload)) for _, flags, _, payload in fmt.frames_in(data, sync)]


class HandMade:
    """A journal put together frame by frame."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sync = fmt.new_sync_word()
        self._number = 0
        path.write_bytes(fmt.encode_file_header(self.sync))

    def frame(self, kind: int, payload: bytes, flags: int = 0) -> HandMade:
        """Appends a frame with a right checksum around any payload."""
        with open(self.path, "ab") as file:
            for part in fmt.encode_frame(self.sync, kind, self._number, [payload], flags):
                file.write(part)
        self._number += 1
        return self

    def record(self, kind: int, record: object) -> HandMade:
        """Appends a control frame."""
        return self.frame(kind, msgspec.msgpack.encode(record))

    def events(self, block: Any, args: bytes = b"", *, window: int = 0) -> HandMade:
        """Appends an events frame."""
        ((flags, payload),) = events_payloads(EventBatch("x", window, block, args))
        return self.frame(fmt.FrameType.EVENTS, payload, flags)


def frame_borders(data: bytes) -> list[int]:
    """Offsets at which the frames of a whole journal end, the end of the file's header first."""
    header = fmt.decode_file_header(data)
    assert header is not None
    borders = [header.nbytes]
    while borders[-1] < len(data):
        found = fmt.decode_frame_header(data, borders[-1], header.sync)
        assert found is not None
        borders.append(borders[-1] + fmt.FRAME_HEADER.size + found[3])
    return borders


def replace_file(path: Path, data: bytes) -> Path:
    """Writes other bytes in place of a file's."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return path
