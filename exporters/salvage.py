"""What can still be read of a trace file, plain or gzip, whatever happened to it."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stepscope.runtime.errors import FormatError

CHUNK: Final = 1 << 20
GZIP = b"\x1f\x8b"
MAX_LINE: Final = 64 << 20
"""Bytes of one event; a longer line is damage."""


class Salvage:
    """The whole lines of a file, in pieces. Memory is bounded by the longest line.

    What was never written, and so takes no space on the disk, is passed over: a file may claim any size.

    Args:
        path: a regular file; links are not followed.

    Raises:
        FormatError: if it is something else.
        OSError: if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        """Bytes that were passed over, and those of a last line without an end."""
        self.intact = True
        """Whether nothing was passed over, and gzip's checksum is right."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise FormatError(f"{path} is a symbolic link; name the file itself") from error
            raise
        about = os.fstat(self._file)
        self.mode = stat.S_IMODE(about.st_mode)
        self.empty = about.st_size == 0
        if not stat.S_ISREG(about.st_mode):
            self.close()
            raise FormatError(f"{path} is not a regular file")
        self.zipped = not self.empty and GZIP.startswith(os.pread(self._file, 2, 0))
        """Whether it is gzip, by its content."""

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def lines(self) -> Iterator[bytes]:
        """Pieces of whole lines, each ended by a line break but perhaps the last."""
        rest: list[bytes] = []
        held = 0
        for data in self.pieces():
            whole, ended, tail = data.rpartition(b"\n")
            if ended:
                yield b"".join([*rest, whole, ended])
                rest, held = [], 0
            rest.append(tail)
            held += len(tail)
            if held > MAX_LINE:
                self._pass_over(held)
                rest, held = [b"\0"], 0  # what follows on this line is no event
        if held:
            yield b"".join(rest)

    def pieces(self) -> Iterator[bytes]:
        """What the file holds, inflated; where something was passed over, there is a NUL in its place."""
        return self._inflated() if self.zipped else self._raw()

    def _raw(self) -> Iterator[bytes]:
        at, size = 0, os.fstat(self._file).st_size
        while at < size:
            try:
                begin = os.lseek(self._file, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                begin = size  # a hole up to the end
            if begin > at:
                self._pass_over(begin - at)
                yield b"\0"
                at = begin
                continue
            data = os.pread(self._file, CHUNK, at)
            if not data:
                return
            at += len(data)
            yield data

    def _inflated(self) -> Iterator[bytes]:
        inflate = zlib.decompressobj(wbits=31)
        for data in self._raw():
            while data:
                if inflate.eof:
                    if not data.startswith(GZIP[: len(data)]):
                        self._pass_over(len(data))
                        break
                    inflate = zlib.decompressobj(wbits=31)
                before = inflate.copy()
                try:
                    yield from _bounded(inflate, data)
                except zlib.error:
                    yield _up_to_the_error(before, data)
                    self.intact = False
                    return
                data = inflate.unused_data
        self.intact = self.intact and inflate.eof

    def _pass_over(self, size: int) -> None:
        self.lost += size
        self.intact = False


def _bounded(inflate: Any, data: bytes) -> Iterator[bytes]:
    """Inflates in pieces, by an object of zlib: a few bytes may become many."""
    while data and not inflate.eof:
        yield inflate.decompress(data, CHUNK)
        data = inflate.unconsumed_tail


def _up_to_the_error(inflate: Any, data: bytes) -> bytes:
    """What comes out of data whose inflation fails somewhere, up to the byte where it fails."""
    made: list[bytes] = []
    step = 4096
    while step:
        before = inflate.copy()
        try:
            made.append(inflate.decompress(data[:step]))
            data = data[step:]
        except zlib.error:
            inflate = before
            step //= 8
    return b"".join(made)
