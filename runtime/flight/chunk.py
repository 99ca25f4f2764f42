"""A chunk of the flight recorder's retained events: frames in a file of the session directory, or in memory if that fails."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.append_file import AppendFile


class Chunk:
    """Frames of events that are discarded together.

    The file is a journal without names and tracks, as the session directory has these in other files. If the file is deleted,
    this process can still read it; a killed process loses it.

    Args:
        path: file to create in the session directory; `None` for memory.

    Raises:
        OSError: if the file cannot be created or written.
    """

    def __init__(self, path: Path | None) -> None:
        self.size = 0
        """Size in bytes."""
        self.last = 0
        """Latest end of an event, in ns."""
        self._sync = fmt.new_sync_word()
        self._frames = 0
        self._heap: bytearray | None = bytearray() if path is None else None
        self._file = None if path is None else AppendFile(path)
        self._path = Path() if self._file is None else self._file.path
        self._reading = -1
        try:
            if path is not None:
                self._reading = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._put([fmt.encode_file_header(self._sync)])
        except OSError:
            self.remove()
            raise

    @property
    def in_file(self) -> bool:
        """Whether it survives a kill of the process."""
        return self._heap is None

    def append(self, payload: list[fmt.Bytes]) -> tuple[int, int]:
        """Adds a frame of events. Returns its position and length.

        Raises:
            OutputError: if the file cannot be written. It is unchanged then.
        """
        frame = fmt.encode_frame(self._sync, fmt.FrameType.EVENTS, self._frames, payload)
        at = self.size
        self._put(frame)
        self._frames += 1
        return at, self.size - at

    def read(self, at: int, length: int) -> bytes | None:
        """Returns the payload of a frame; `None` if the file was changed."""
        if self._heap is not None:
            frame = bytes(self._heap[at : at + length])
        else:
            try:
                frame = os.pread(self._reading, length, at)
            except OSError:
                return None
        return fmt.decode_frame(frame, self._sync)

    def remove(self) -> None:
        """Deletes the file and releases the memory. Idempotent."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Releases the memory without deleting the file: in a forked child it belongs to the parent."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
        self._heap = bytearray()

    def _put(self, parts: list[fmt.Bytes]) -> None:
        if self._file is not None:
            self._file.write(parts, sync=False)
        else:
            assert self._heap is not None
            for part in parts:
                self._heap += part
        self.size += sum(len(part) for part in parts)
