"""Completes Chrome traces of ours that were cut off, by a kill or a full disk."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        with made.open("wb") as file:
            deflate = zlib.compressobj(GZIP_LEVEL, wbits=31) if zipped else None
            head, last, rest = b"", b"", b""
            for chunk in _chunks(path, zipped):
                whole, found, rest = (rest + chunk).rpartition(SEPARATOR)
                if not found:
                    continue
                piece = last + (SEPARATOR if last else b"") + whole
                before, _, last = piece.rpartition(SEPARATOR)
                if before:
                    before += SEPARATOR
                    head = head or before[:1]
                    file.write(deflate.compress(before) if deflate else before)
            first = (head or last or rest)[:1]
            end = _end(path, first, last, rest)
            if end is not None:
                file.write(deflate.compress(end) + deflate.flush() if deflate else end)
        if end is None:
            made.unlink()
            path.replace(target)
            return Repair(target, -1)
        os.replace(made, target)
        if path != target:
            path.unlink()
    except OSError as error:
        made.unlink(missing_ok=True)
        raise output_error(error, path, "repair") from error
    except FormatError:
        made.unlink(missing_ok=True)
        raise
    return Repair(target, len(rest))


def _chunks(path: Path, zipped: bool) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=31) if zipped else None
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            try:
                yield inflate.decompress(data) if inflate else data
            except zlib.error as error:
                raise FormatError(f"{path} is not gzip: {error}") from error


def _end(path: Path, first: bytes, last: bytes, rest: bytes) -> bytes | None:
    """What follows the events before the last whole one; `None` if the file is complete."""
    close = {b"[": b"]", b"{": b"]}"}.get(first)
    if close is None:
        raise FormatError(f"{path} is not a Chrome trace")
    if rest.rstrip().endswith(b"\n" + close):
        return None
    text = last.removeprefix(b"[\n").rpartition(b'"traceEvents": [\n')[2]
    try:
        event: Any = json.loads(text)
        where = {key: event[key] for key in ("pid", "tid", "ts")}
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} holds no whole event of a trace of stepscope") from error
    said = {"ph": "i", "s": "p", "cat": "stepscope", "name": "cut off", **where, "args": {"bytes lost": len(rest)}}
    return last + SEPARATOR + dumps(said).encode() + b"\n" + close + b"\n"
