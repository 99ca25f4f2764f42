"""The files of a session directory, read after their process has died: rings, open spans, names, tracks.

The layouts are those of `core/ring.c`, `stack.c`, `strings.c` and `track.c`. Nothing in the files is believed: links
are not followed, sizes are bounded, every count is checked against what is there.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime import _core, strings
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import EVENT_DTYPE, NO_STEP, Block, Flag, Kind, empty_block, join_blocks
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.records import TrackRecord
from stepscope.runtime.session import PART, is_session_of, remove_files
from stepscope.runtime.spool import FILES as SPOOL_FILES
from stepscope.runtime.tracks import TrackKind

MAX_PARTS = 1 << 16
MAX_RINGS = 4096
MAX_SLOTS = 1 << 24
MAX_STACKS = 1 << 16
MAX_STRINGS_BYTES = 1 << 30
MAX_TRACKS_BYTES = 32 << 20
MAX_SPOOLED = 1 << 20
"""Events of one frame of the spool; a drain takes fewer."""
MAX_SPOOLED_ARGS = 256 << 20

_RING_HEADER = 4096
_RING_FIELDS = struct.Struct("<8sIIIIq32xQQQQ32xQQ8xQ")
"""Magic, version, slots, track, alive, thread, head, reserve, produced, sampled, tail, serial of the next event, and how
many of the sampled were told of."""
_RING_MAGIC = b"SSRING1\0"
_RING_VERSION = 1
_MORE = 255
_MORE_BYTES = 62

_MOST_UNWRITTEN = 4 << 20
"""Bytes of a ring that may be missing from its file, as on a file system that was full."""

_SPOOL_HEAD = struct.Struct("<8sII")
"""Magic, events, bytes of arguments."""
_SPOOL_MAGIC = b"SSSPOOL\0"

_TRACK = struct.Struct("<qqIIII")
_STRING = struct.Struct("<II")
_STACK_FRAMES = 126
_FRAME_DEAD = 1
_FRAME_DTYPE = np.dtype(
    [("ts", "<i8"), ("child", "<i8"), ("id", "<u8"), ("name", "<u4"), ("category", "<u2"), ("flags", "<u2")]
)
_STACK_DTYPE = np.dtype(
    [
        ("used", "<u4"), ("track", "<u4"), ("depth", "<u4"), ("index", "<u4"), ("pushes", "<u8"), ("parent", "<u8"),
        ("owner", "<u8"), ("zero", "<u8", 3), ("frames", _FRAME_DTYPE, _STACK_FRAMES),
    ]
)  # fmt: skip
assert _STACK_DTYPE.itemsize == 4096


class RingContent(msgspec.Struct, frozen=True):
    """What a ring file still holds."""

    events: Block
    """Oldest first; those that were taken out already and not overwritten since too. Ids are the dead process's."""
    args: bytearray
    gaps: Block
    """Where events were dropped and that was not reported yet: `id` says how many. `ts` 0: after the last event."""
    source: str = "recorder"
    sampled: bool = False
    """Whether the last of the gaps is what sampling left out."""


class SessionFiles:
    """One session directory.

    Args:
        directory: its name.
        owner: user to whom it must belong; default: whoever asks.

    Raises:
        FormatError: if it is no directory of that user's alone.
        OSError: if it cannot be read.
    """

    def __init__(self, directory: Path, owner: int | None = None) -> None:
        self.directory = directory
        self.notes: list[str] = []
        """Files that could not be used, and why."""
        self.process_name = ""
        """Of the process's own track, once that is known."""
        self._read_to = {"strings": 0, "tracks": 0}
        owner = os.getuid() if owner is None else owner
        if not directory.is_absolute():
            raise FormatError(f"{directory} is not an absolute name")
        try:
            # Held open, so that nobody puts another in its place meanwhile.
            self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise FormatError(f"{directory} is not a session directory of this user") from error
            raise
        found = os.fstat(self._fd)
        if found.st_uid != owner or os.getuid() not in (owner, 0) or found.st_mode & 0o022:
            self.close()
            raise FormatError(f"{directory} is not a session directory of this user")

    def close(self) -> None:
        """Closes it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def load_ids(self, ids: IdMap) -> None:
        """Learns the names and tracks of the process: those that were added since the last call."""
        ids.add_strings(self._strings())
        data = self._news("tracks", MAX_TRACKS_BYTES)
        whole = len(data) // _TRACK.size * _TRACK.size
        self._read_to["tracks"] += whole
        records: list[TrackRecord] = []
        for pid, tid, kind, parent, name, number in _TRACK.iter_unpack(data[:whole]):
            records.append(TrackRecord(number, kind & 0xFF, pid, tid, parent, strings.text(ids.name(name))))
            if kind == TrackKind.PROCESS:
                self.process_name = records[-1].name  # the last one: those of its parents were copied before
        if records:
            ids.add_tracks(records)

    def rings(self) -> Iterator[RingContent]:
        """The rings, one after the other."""
        for name in sorted(os.listdir(self._fd))[: MAX_RINGS + 16]:
            if name.startswith("ring-"):
                try:
                    content = self._ring(name)
                except FormatError as error:
                    self.notes.append(f"{self.directory}/{name}: {error}")
                else:
                    yield content

    def spooled(self) -> Iterator[RingContent]:
        """What had been drained, and was perhaps not yet in the journal, in pieces."""
        for name in SPOOL_FILES:
            try:
                file = self._open(name)
            except FormatError as error:
                self.notes.append(f"{self.directory}/{name}: {error}")
                continue
            try:
                at = 0
                while (head := os.pread(file, _SPOOL_HEAD.size, at)) and len(head) == _SPOOL_HEAD.size:
                    magic, count, args_bytes = _SPOOL_HEAD.unpack(head)
                    size = count * EVENT_DTYPE.itemsize + args_bytes
                    believed = magic == _SPOOL_MAGIC and count <= MAX_SPOOLED and args_bytes <= MAX_SPOOLED_ARGS
                    if not believed or at + _SPOOL_HEAD.size + size > os.fstat(file).st_size:
                        # The last frame was not finished: then the rings still have what it was to hold.
                        break
                    body = os.pread(file, size, at + _SPOOL_HEAD.size)
                    at += _SPOOL_HEAD.size + size
                    events = np.frombuffer(bytearray(body[: count * EVENT_DTYPE.itemsize]), EVENT_DTYPE)
                    known = (events["kind"] > 0) & (events["kind"] <= max(Kind))
                    args = bytearray(body[count * EVENT_DTYPE.itemsize :])
                    yield RingContent(events[known], args, empty_block())
            finally:
                os.close(file)

    def parts(self) -> list[SessionFiles]:
        """The directories of processes that had joined."""
        found: list[SessionFiles] = []
        for name in sorted(os.listdir(self.directory)):
            if PART.fullmatch(name) and len(found) < MAX_PARTS:
                try:
                    found.append(SessionFiles(self.directory / name))
                except (FormatError, OSError) as error:
                    self.notes.append(f"{self.directory}/{name}: {error}")
        return found

    def open_spans(self, until: int) -> Block:
        """Spans that had begun and not ended, as events with `FLAG_OPEN` and `dur` up to the time `until`."""
        data = self._read("stacks", MAX_STACKS * _STACK_DTYPE.itemsize)
        stacks = np.frombuffer(data[: len(data) // _STACK_DTYPE.itemsize * _STACK_DTYPE.itemsize], _STACK_DTYPE)
        rows: list[Block] = []
        for stack in stacks[(stacks["used"] != 0) & (stacks["depth"] > 0)]:
            depth = min(int(stack["depth"]), _STACK_FRAMES)
            frames: Any = stack["frames"][:depth]
            begin = frames["ts"]
            # What runs in a frame is what ended in it and the frame above it.
            above = np.append(begin[1:], until)
            row = empty_block(depth)
            row["ts"], row["dur"] = begin, until - begin
            row["self_dur"] = np.clip(until - begin - frames["child"] - np.maximum(until - above, 0), 0, None)
            row["id"] = frames["id"]
            row["parent"] = np.concatenate(([stack["parent"]], frames["id"][:-1]))
            row["name"], row["category"], row["track"] = frames["name"], frames["category"], stack["track"]
            row["kind"], row["flags"] = int(Kind.SPAN), int(Flag.OPEN)
            rows.append(
                row[(frames["flags"] & _FRAME_DEAD == 0) & (begin > 0) & (begin <= until) & (frames["id"] != 0)]
            )
        return join_blocks(rows)

    def last_begin(self) -> int:
        """When the latest span that is open began, in ns; 0 if none is."""
        spans = self.open_spans(np.iinfo(np.int64).max >> 1)
        return int(spans["ts"].max()) if len(spans) else 0

    def remove(self, pid: int, start_time: int) -> None:
        """Deletes the files of a session and closes it; also the directory, if nothing else is in it.

        Args:
            pid: of the process whose session it must be.
            start_time: of that process.

        Raises:
            FormatError: if it is the session of another process, or none.
            OSError: if that is not possible.
        """
        try:
            said = self._read("process.json", 4096)
            if not is_session_of(said, pid, start_time):
                raise FormatError(f"{self.directory} is not the session of process {pid}, and is left alone")
            remove_files(self._fd)
        finally:
            self.close()
        self.directory.rmdir()

    def _strings(self) -> Iterator[tuple[int, str]]:
        data = self._news("strings", MAX_STRINGS_BYTES)
        at = 0
        while at + _STRING.size <= len(data):
            number, length = _STRING.unpack_from(data, at)
            if number == 0 or length > _core.MAX_NAME:
                self.notes.append(f"{self.directory}/strings: unreadable from byte {self._read_to['strings']} on")
                self._read_to["strings"] = MAX_STRINGS_BYTES
                return
            after = at + _STRING.size + length
            if after > len(data):
                return
            self._read_to["strings"] += after - at
            yield number, data[at + _STRING.size : after].decode(errors="replace")
            at = after

    def _ring(self, name: str) -> RingContent:
        """Reads a ring. Raises `FormatError` if it is none."""
        file = self._open(name)
        try:
            head = os.pread(file, _RING_HEADER, 0)
            if len(head) < _RING_HEADER:
                raise FormatError("too short for a ring")
            magic, version, slots, track, _, _, end, reserve, produced, sampled, tail, serial, told = (
                _RING_FIELDS.unpack_from(head)
            )
            size = os.fstat(file).st_size
            if magic != _RING_MAGIC or version != _RING_VERSION:
                raise FormatError("not a ring of this version")
            if not 0 < slots <= MAX_SLOTS or slots & (slots - 1) or size < _RING_HEADER + slots * EVENT_DTYPE.itemsize:
                raise FormatError(f"{size} bytes do not hold {slots} slots")
            # What lies further back was overwritten, or may have been just when the process died.
            first = max(max(reserve, end) - slots, 0)
            if not first <= end < 1 << 62 or end - first > slots:
                raise FormatError("its counters contradict each other")
            if (end - first) * EVENT_DTYPE.itemsize > _written(file):
                raise FormatError("its counters claim more than was ever written")
            raw = _read_slots(file, slots, first, end)
        finally:
            os.close(file)
        if len(raw) != (end - first) * EVENT_DTYPE.itemsize:
            raise FormatError("it ends early")
        content = _ring_content(raw, first, track, produced, min(max(tail, first), end), serial)
        return content if told >= sampled else _with_sampled(content, track, sampled - told)

    def _open(self, name: str) -> int:
        """A descriptor of a regular file. Raises `FormatError` if it is none, or cannot be opened."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError as error:
            raise FormatError(error.strerror or str(error)) from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FormatError("not a regular file")
        return file

    def _news(self, name: str, limit: int) -> bytes:
        """What follows the part of a file that was read, up to `limit` bytes of the whole."""
        return self._read(name, limit, self._read_to[name])

    def _read(self, name: str, limit: int, at: int = 0) -> bytes:
        """Bytes `at` to `limit` of a file; nothing, with a note, if it cannot be read."""
        try:
            file = self._open(name)
        except FormatError as error:
            note = f"{self.directory}/{name}: {error}"
            if note not in self.notes:
                self.notes.append(note)
            return b""
        with os.fdopen(file, "rb", buffering=0) as stream:
            stream.seek(at)
            data = stream.read(max(min(limit - at + 1, _written(file)), 0)) or b""
        if len(data) > limit - at:
            self.notes.append(f"{self.directory}/{name}: only the first {limit} bytes were read")
        return data[: limit - at]


def _written(file: int) -> int:
    """Bytes of a file that take space, and some more: one that is sparse claims any size, and holds nothing there."""
    return os.fstat(file).st_blocks * 512 + _MOST_UNWRITTEN


def _read_slots(file: int, slots: int, first: int, end: int) -> bytearray:
    """Slots `first` to `end`, in order."""
    data = bytearray()
    while first < end:
        index = first & (slots - 1)
        count = min(end - first, slots - index)
        part = os.pread(file, count * EVENT_DTYPE.itemsize, _RING_HEADER + index * EVENT_DTYPE.itemsize)
        data += part
        if len(part) < count * EVENT_DTYPE.itemsize:
            break
        first += count
    return data


def _with_sampled(content: RingContent, track: int, count: int) -> RingContent:
    gap = empty_block(1)
    gap["id"], gap["track"], gap["kind"] = count & 0xFFFFFFFFFFFF, track, int(Kind.GAP)
    return msgspec.structs.replace(content, gaps=join_blocks([content.gaps, gap]), sampled=True)


def _ring_content(raw: bytearray, first: int, track: int, produced: int, tail: int, serial: int) -> RingContent:
    slots: Block = np.frombuffer(raw, EVENT_DTYPE)
    more: Any = slots["kind"] == _MORE
    # Arguments follow their event, in order and without holes: all of them together are the heap.
    heap = bytearray(np.frombuffer(raw, np.uint8).reshape(-1, EVENT_DTYPE.itemsize)[more, :_MORE_BYTES].tobytes())
    before = np.cumsum(more) - more
    where = np.flatnonzero(~more)
    events: Block = slots[where].copy()
    following = np.append(where[1:], len(slots)) - where - 1
    held = (events["args_len"] > 0) & (events["flags"] & int(Flag.ARG_INLINE) == 0)
    events["args_len"][held & (events["args_len"] > following * _MORE_BYTES)] = 0
    events["args_at"][held] = (before[where] * _MORE_BYTES)[held]
    serials = events["step"].astype(np.int64) & 0xFFFFFFFF
    marks = events["kind"] == int(Kind.STEP)
    events["step"] = np.where(marks, events["dur"].astype(np.int32), NO_STEP)
    events["dur"][marks] = 0
    events["args_at"][marks] = 0
    # Slots that never came to the file (`ring_back`), or are damaged, hold no event: their numbers are missing.
    known = (events["kind"] > 0) & (events["kind"] <= max(Kind))
    waiting = known & (where + first >= tail)
    gaps = _gaps(events[waiting], serials[waiting], track, produced, serial)
    return RingContent(events[known], heap, gaps)


def _gaps(waiting: Block, serials: Any, track: int, produced: int, serial: int) -> Block:
    """Where numbers are missing among the events that were not drained, events were dropped."""
    expected = np.append([serial & 0xFFFFFFFF], (serials + 1) & 0xFFFFFFFF)
    missing = (np.append(serials, [produced & 0xFFFFFFFF]) - expected) & 0xFFFFFFFF
    # A ring cannot lose as many as half the numbers there are: such a distance is a damaged number.
    at = np.flatnonzero((missing > 0) & (missing < 1 << 31))
    block = empty_block(len(at))
    ends = np.append([0], waiting["ts"] + waiting["dur"]) if len(waiting) else np.zeros(1, np.int64)
    begins = np.append(waiting["ts"], ends[-1:])
    block["ts"] = np.where(ends[at] > 0, np.minimum(ends[at], begins[at]), begins[at])
    block["dur"] = begins[at] - block["ts"]
    block["id"], block["track"], block["kind"] = missing[at], track, int(Kind.GAP)
    return block
