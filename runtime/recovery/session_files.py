"""Reads the files of a session directory: rings, open spans, names, tracks.

The layouts are those of `core/rings/ring.c`, `stack.c`, `strings.c` and `track.c`. Nothing in the files is trusted: links are not
followed, sizes are bounded, every count is checked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, empty_block, join_blocks
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.records import TrackRecord
from stepscope.runtime.recovery.ring_file import RingContent, read_ring, waiting_in, written
from stepscope.runtime.session.directory import PART, is_session_of, remove_files

MAX_PARTS = 1 << 16
MAX_RINGS = 4096
MAX_STACKS = 1 << 16
MAX_STRINGS_BYTES = 1 << 30
MAX_TRACKS_BYTES = 32 << 20
MAX_CONTROL_BYTES = 1 << 16

_CONTROL_FILE = "control"
_CONTROL = struct.Struct("<8s16x2048xQ")
"""Magic; upper bound of events that are neither in a ring nor in a journal."""
_CONTROL_MAGIC = b"SSCTRL1\0"

_RING = re.compile(r"ring-\d{1,9}", re.ASCII)

_TRACK = struct.Struct("<qqIIII")
_STRING = struct.Struct("<II")
_STACK_FRAMES = 126
_DEEP = 128
"""A stack's depth is the number of frames in use, plus this for each open span without a frame."""
_FRAME_DEAD, _FRAME_EARLY = 1, 8
_FRAME_DTYPE = np.dtype(
    [
        ("ts", "<i8"), ("child", "<i8"), ("id", "<u8"), ("name", "<u4"), ("category", "<u2"), ("flags", "u1"),
        ("period", "u1"),
    ]
)  # fmt: skip
_STACK_DTYPE = np.dtype(
    [
        ("used", "<u4"), ("track", "<u4"), ("depth", "<u4"), ("index", "<u4"), ("pushes", "<u8"), ("parent", "<u8"),
        ("owner", "<u8"), ("zero", "<u8", 3), ("frames", _FRAME_DTYPE, _STACK_FRAMES),
    ]
)  # fmt: skip
assert _STACK_DTYPE.itemsize == 4096


class SessionFiles:
    """One session directory.

    Args:
        directory: its path.
        owner: user id of the required owner; default: the current user.
        within: the session that contains it, for the directory of a joined process. It has no descriptor of its own then.

    Raises:
        FormatError: if it is no private directory of that user.
        OSError: if it cannot be read.
    """

    def __init__(self, directory: Path, owner: int | None = None, *, within: SessionFiles | None = None) -> None:
        self.directory = directory
        self.notes: list[str] = []
        """Problems of files that could not be used."""
        self.unread = False
        """Whether some of these files exist: perhaps they can be read later."""
        self.process_name = ""
        """Name of the process's own track, once known."""
        self.process_track = 0
        """The number of that track there."""
        self._read_to = {"strings": 0, "tracks": 0}
        self._owner = os.getuid() if owner is None else owner
        self._within = within
        self._fd = -1
        if not directory.is_absolute():
            raise FormatError(f"{directory} is not an absolute name")
        if within is not None:
            with self._opened():
                return
        self._fd = self._open_directory(directory, None)
        with contextlib.suppress(OSError):  # against a sweep meanwhile; some file systems have no locks
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """Closes it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def _opened(self) -> Generator[int]:
        """Provides a descriptor of the directory for the duration of a `with` block: that of a joined process is opened each time, so
        that thousands of them need none.

        Raises:
            FormatError: if it is no private directory of the owner.
            OSError: if it cannot be opened, or was closed.
        """
        if self._within is None:
            yield self._fd
            return
        with self._within._opened() as above:
            fd = self._open_directory(self.directory.name, above)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_directory(self, name: str | Path, above: int | None) -> int:
        refusal = f"{self.directory} is not a session directory of this user"
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise FormatError(refusal) from error
            raise
        found = os.fstat(fd)
        if found.st_uid != self._owner or os.getuid() not in (self._owner, 0) or found.st_mode & 0o022:
            os.close(fd)
            raise FormatError(refusal)
        return fd

    def load_ids(self, ids: IdMap) -> None:
        """Reads the names and tracks of the process that were added since the last call."""
        ids.add_strings(self._strings())
        data = self._read_new("tracks", MAX_TRACKS_BYTES)
        whole = len(data) // _TRACK.size * _TRACK.size
        self._read_to["tracks"] += whole
        records: list[TrackRecord] = []
        for pid, tid, kind, parent, name, number in _TRACK.iter_unpack(data[:whole]):
            records.append(TrackRecord(number, kind & 0xFF, pid, tid, parent, strings.text(ids.name(name))))
            if kind == TrackKind.PROCESS:
                # The last one counts: a forked process has those of its parents before.
                self.process_name, self.process_track = records[-1].name, number
        if records:
            ids.add_tracks(records)

    def rings(self, counted: Mapping[int, int] | None = None, *, released: bool = True) -> Iterator[RingContent]:
        """The rings, one after the other.

        Args:
            counted: by ring number, the serial number below which lost events are counted elsewhere.
            released: whether to read all released slots, not only the latest.
        """
        names = self._ring_names()
        for name in names:
            number = int(name.removeprefix("ring-"))
            try:
                file = self._open(name)
                try:
                    if name == names[-1] and not any(os.pread(file, 8, 0)):
                        continue  # the process was killed while it made the ring: the magic is written last
                    content = read_ring(file, number, (counted or {}).get(number, 0), released=released)
                finally:
                    os.close(file)
            except FormatError as error:
                self.notes.append(f"{self.directory}/{name}: {error}")
            else:
                yield content

    def ring_count(self) -> int:
        """Number of ring files. Raises `OSError` if the directory cannot be read, such as without free descriptors."""
        return len(self._ring_names())

    def at_risk(self) -> int:
        """Upper bound of events that are neither in a ring nor in a journal, from the control page.

        Their slots were released before a journal had them, or a journal dropped them and was killed before it counted them. Some
        of these events may still be in the rings.
        """
        data = self._read(_CONTROL_FILE, MAX_CONTROL_BYTES) if _CONTROL_FILE in self._names() else b""
        if len(data) < _CONTROL.size:
            return 0
        magic, at_risk = _CONTROL.unpack_from(data)
        return at_risk if magic == _CONTROL_MAGIC and at_risk < 1 << 62 else 0

    def waiting(self) -> int:
        """Upper bound of events of the rings that no journal has, including lost ones."""
        count = 0
        for name in self._ring_names():
            with contextlib.suppress(FormatError):
                file = self._open(name)
                try:
                    count += waiting_in(file)
                finally:
                    os.close(file)
        return count

    def parts(self) -> list[SessionFiles]:
        found: list[SessionFiles] = []
        for name in sorted(self._names()):
            if PART.fullmatch(name) and len(found) < MAX_PARTS:
                try:
                    found.append(SessionFiles(self.directory / name, self._owner, within=self))
                except (FormatError, OSError) as error:
                    self.unread = True
                    self.notes.append(f"{self.directory}/{name}: {error}")
        return found

    def open_spans(self, until: int) -> Block:
        """Open spans, as events with `FLAG_OPEN` that end at the time `until`."""
        data = self._read("stacks", MAX_STACKS * _STACK_DTYPE.itemsize)
        stacks = np.frombuffer(data[: len(data) // _STACK_DTYPE.itemsize * _STACK_DTYPE.itemsize], _STACK_DTYPE)
        rows: list[Block] = []
        for stack in stacks[(stacks["used"] != 0) & (stacks["depth"] > 0)]:
            frames: Any = stack["frames"][: min(int(stack["depth"]) % _DEEP, _STACK_FRAMES)]
            begin = frames["ts"]
            frames = frames[(frames["flags"] & _FRAME_DEAD == 0) & (begin > 0) & (begin <= until) & (frames["id"] != 0)]
            # A frame that was being moved when the process was killed is duplicated.
            frames = frames[np.append(True, frames["id"][1:] != frames["id"][:-1])[: len(frames)]]
            begin = frames["ts"]
            # The child time of a frame is that of ended children, and that of the frame above.
            above = np.append(begin[1:], until)
            row = empty_block(len(frames))
            row["ts"], row["dur"] = begin, until - begin
            row["self_dur"] = np.clip(until - begin - frames["child"] - (until - above), 0, None)
            row["id"] = frames["id"]
            row["parent"] = np.append(stack["parent"], frames["id"])[: len(frames)]
            row["name"], row["category"], row["track"] = frames["name"], frames["category"], stack["track"]
            row["kind"], row["flags"] = int(Kind.SPAN), int(Flag.OPEN)
            row["flags"][frames["flags"] & _FRAME_EARLY != 0] |= int(Flag.CLIPPED)
            rows.append(row)
        return join_blocks(rows)

    def remove(self, pid: int, start_time: int, *, unread: bool) -> None:
        """Deletes the files of a session of this process and closes it; also the directory, if nothing else is in it.

        Raises:
            FormatError: if it is the session of another process, or none, or if files could not be read.
            OSError: if it cannot be deleted.
        """
        try:
            content = self._read("process.json", 4096)
            if not is_session_of(content, pid, start_time):
                raise FormatError(f"{self.directory} is not the session of process {pid}, and is left alone")
            if unread:
                raise FormatError(f"files in {self.directory} could not be read; delete it when nobody wants them")
            with self._opened() as directory:
                try:
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise FormatError(
                        f"{self.directory} is in use, by another recovery or its process: not removed"
                    ) from error
                remove_files(directory)
        finally:
            self.close()
        self.directory.rmdir()

    def _ring_names(self) -> list[str]:
        return sorted(name for name in self._names() if _RING.fullmatch(name))[:MAX_RINGS]

    def _names(self) -> list[str]:
        """Its file names; none, with a note, if another directory has its path now."""
        try:
            with self._opened() as directory:
                return os.listdir(directory)
        except FileNotFoundError:
            return []  # a joined process removes its directory when it ends
        except FormatError as error:
            self.unread = True
            self.notes += [] if str(error) in self.notes else [str(error)]
            return []

    def _strings(self) -> Iterator[tuple[int, str]]:
        data = self._read_new("strings", MAX_STRINGS_BYTES)
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

    def _open(self, name: str) -> int:
        """Opens a regular file. Raises `FormatError` if it is no regular file, or cannot be opened."""
        try:
            with self._opened() as directory:
                file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except FormatError:
            self.unread = True
            raise
        except OSError as error:
            self.unread |= error.errno != errno.ENOENT
            raise FormatError(error.strerror or str(error)) from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            self.unread = True
            os.close(file)
            raise FormatError("not a regular file")
        return file

    def _read_new(self, name: str, limit: int) -> bytes:
        """Reads a file from where the last call ended, up to `limit` bytes of the whole."""
        return self._read(name, limit, self._read_to[name])

    def _read(self, name: str, limit: int, at: int = 0) -> bytes:
        """Reads bytes `at` to `limit` of a file. If that fails, adds a note and returns nothing."""
        try:
            file = self._open(name)
        except FormatError as error:
            note = f"{self.directory}/{name}: {error}"
            if note not in self.notes:
                self.notes.append(note)
            return b""
        with os.fdopen(file, "rb", buffering=0) as stream:
            stream.seek(at)
            data = stream.read(max(min(limit - at + 1, written(file)), 0)) or b""
        if len(data) > limit - at:
            self.notes.append(f"{self.directory}/{name}: only the first {limit} bytes were read")
        return data[: limit - at]
