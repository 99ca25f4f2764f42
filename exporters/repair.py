"""Completes Chrome traces of ours that were cut off, by a kill or a full disk."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from stepscope.exporters.output import GZIP_LEVEL, output_error
from stepscope.exporters.plainjson import dumps
from stepscope.exporters.rotation import PART
from stepscope.runtime.errors import FormatError

CHUNK = 1 << 20
SEPARATOR = b",\n"
"""Ends every event but the last, and is nowhere else: line breaks in texts are escaped."""


class Repair(msgspec.Struct, frozen=True):
    """What became of a file."""

    path: Path
    """The complete file."""
    lost: int
    """Bytes of an unfinished event that were cut off; -1: the file was complete already."""


def repair_chrome(path: Path) -> Repair:
    """Makes valid JSON of a trace that ends anywhere. It ends with an event `cut off` then.

    The file is replaced in one step; `x.json.part` becomes `x.json`. A complete file is only renamed, if at all.

    Args:
        path: a file of `ChromeTraceExporter` or `TensorBoardExporter`, plain or gzip.

    Raises:
        FormatError: it is not such a file, or holds no whole event.
        OutputError: it cannot be read or replaced.
    """
    target = path.with_name(path.name.removesuffix(PART))
    made = path.with_name(path.name + ".repaired")
    zipped = target.name.endswith(".gz")
    try:
        source = _Source(path, zipped)
        with _open(made, zipped) as file:
            whole = source.copy_to(file)
            end, lost = _end(path, source.first, whole, source.rest)
            file.write(end)
        if lost < 0 and source.complete:
            path.replace(target)
        else:
            made.replace(target)
            lost = max(lost, 0)
            if path != target:
                path.unlink()
    except OSError as error:
        raise output_error(error, path, "repair") from error
    finally:
        made.unlink(missing_ok=True)
    return Repair(target, lost)


def _open(path: Path, zipped: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "wb", GZIP_LEVEL)) if zipped else path.open("wb")


class _Source:
    """Reads a file that may have been cut."""

    def __init__(self, path: Path, zipped: bool) -> None:
        self.first = b""
        """First byte: tells the form."""
        self.rest = b""
        """What follows the last whole event."""
        self.complete = True
        """Whether the file's own end was reached, which gzip knows."""
        self._path = path
        self._inflate = zlib.decompressobj(wbits=31) if zipped else None

    def copy_to(self, file: IO[bytes]) -> bytes:
        """Copies all events but the last whole one, which is returned."""
        last = b""
        for chunk in self._chunks():
            self.first = self.first or chunk[:1]
            whole, found, self.rest = (self.rest + chunk).rpartition(SEPARATOR)
            if not found:
                continue
            before, _, last = (last + SEPARATOR * bool(last) + whole).rpartition(SEPARATOR)
            if before:
                file.write(before + SEPARATOR)
        return last

    def _chunks(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while data := file.read(CHUNK):
                try:
                    yield self._inflate.decompress(data) if self._inflate else data
                except zlib.error as error:
                    raise FormatError(f"{self._path} is not gzip: {error}") from error
        self.complete = self._inflate is None or self._inflate.eof


def _end(path: Path, first: bytes, last: bytes, rest: bytes) -> tuple[bytes, int]:
    """What the last whole event and the rest become, and how many bytes are lost; -1 if the end was there."""
    close = {b"[": b"]", b"{": b"]}"}.get(first)
    if close is None:
        raise FormatError(f"{path} is not a Chrome trace")
    if rest.endswith(b"\n" + close + b"\n"):
        return last + SEPARATOR + rest, -1
    text = last.removeprefix(b"[\n").rpartition(b'"traceEvents": [\n')[2]
    try:
        event: Any = json.loads(text)
        where = {key: event[key] for key in ("pid", "tid", "ts")}
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} holds no whole event of a trace of stepscope") from error
    said = {"ph": "i", "s": "p", "cat": "stepscope", "name": "cut off", **where, "args": {"bytes lost": len(rest)}}
    return last + SEPARATOR + dumps(said).encode() + b"\n" + close + b"\n", len(rest)
