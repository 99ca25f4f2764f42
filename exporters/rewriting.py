"""The replacing of a damaged trace by what is whole of it, in one step."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol, cast

import msgspec

from stepscope.exporters.output import GZIP_LEVEL, output_error
from stepscope.exporters.rotation import PART
from stepscope.exporters.salvage import Salvage


class Repair(msgspec.Struct, frozen=True):
    """What became of a file."""

    path: Path
    """The complete file."""
    lost: int
    """Bytes of unfinished or damaged events that were cut out; -1: the file was complete already."""


class Copy(Protocol):
    """Copies what is whole of a trace."""

    lost: int
    """Bytes that were left out so far."""

    @property
    def complete(self) -> bool:
        """Whether the file was as it should be."""
        ...

    def copy(self) -> None:
        """Writes the trace.

        Raises:
            FormatError: if it is none of ours.
        """
        ...


def rewrite(path: Path, copying: Callable[[Salvage, Callable[[bytes], object]], Copy]) -> Repair:
    """Copies what is whole of a trace to a new file, which takes its place; a complete one is only renamed, if at all.

    Args:
        path: the file; links are neither followed nor written through.
        copying: what copies it, given the file and where to write.

    Raises:
        FormatError: it is no trace of ours.
        OutputError: it cannot be read or replaced.
    """
    target = path.with_name(path.name.removesuffix(PART))
    made: Path | None = None
    try:
        source = Salvage(path)
        try:
            zipped = source.zipped or (source.empty and target.name.endswith(".gz"))
            # A name of its own: two recoveries may repair the same file.
            descriptor, name = tempfile.mkstemp(".repaired", f".{path.name[:200]}.", path.parent)
            made = Path(name)
            with _opened(descriptor, source.mode, zipped) as file:
                trace = copying(source, file.write)
                trace.copy()
        finally:
            source.close()
        if trace.complete:
            if path != target:
                path.replace(target)
        else:
            made.replace(target)
            if path != target:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise output_error(error, path, "repair") from error
    finally:
        if made is not None:
            made.unlink(missing_ok=True)
    return Repair(target, -1 if trace.complete else trace.lost)


def _opened(descriptor: int, mode: int, zipped: bool) -> IO[bytes]:
    """A new file, with these rights."""
    os.fchmod(descriptor, mode & 0o666)
    file = os.fdopen(descriptor, "wb")
    return cast(IO[bytes], _OwnedGzip(file)) if zipped else file


class _OwnedGzip(gzip.GzipFile):
    """Closes the file below as well."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(fileobj=file, mode="wb", compresslevel=GZIP_LEVEL)
        self._below = file

    def close(self) -> None:
        super().close()
        self._below.close()
