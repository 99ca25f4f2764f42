"""Reading traces of kineto, a slice at a time, so that no reader holds the GIL for long: those that torch.profiler has just written,
and those that it or another program has saved, in any layout of JSON, compressed or not, written to the end or not."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from stepscope.runtime.errors import FormatError

_BETWEEN = b"\n  },"
"""The separator of two events of kineto's: strings hold no raw line break, and lines inside an event are indented further."""

MOST_EVENT = 64 << 20
"""Bytes of one event."""
MOST_HEAD = 64 << 20
"""Bytes before the list of events."""
_GZIP = b"\x1f\x8b"
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_KINETO = re.compile(rb'\s*\n  \{\n    "')
"""The next characters in a file that kineto itself wrote, rather than a program that read and wrote it again."""
_LAYOUT = 16
"""Bytes after the head that say which layout a file has."""
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_NEXT = re.compile(r"\s*,?\s*")
_value = json.JSONDecoder(strict=False).raw_decode

_NAME = re.compile(rb'^(    "name": ")(.*)(",?)$', re.MULTILINE)
_QUOTE = re.compile(rb'(?<!\\)"')
_NO_ARGS = msgspec.Raw(b"{}")


class KinetoEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of the file, in Chrome's trace format.

    Neither it nor what it holds counts for Python's garbage collector: a full collection, which many events would
    call for, stops a program that has imported torch for 0.1 s.
    """

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = 0.0
    """Time in µs since `base_ns`."""
    dur: int | float = 0.0
    id: int | str = 0
    args: msgspec.Raw = _NO_ARGS
    """JSON text, read by `arguments`."""


_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode


def arguments(event: KinetoEvent) -> dict[str, Any]:
    """The arguments of an event. Raises `msgspec.DecodeError` if they are no JSON object."""
    return _decode_arguments(event.args) if event.args is not _NO_ARGS else {}


def _escaped(line: re.Match[bytes]) -> bytes:
    return line[1] + _QUOTE.sub(rb'\\"', line[2]) + line[3]


class KinetoFile:
    """A kineto trace on disk.

    Attributes:
        base_ns: Unix time in ns that the events' times count from; known once `slices` has begun, at its end at the latest.
        skipped: events that could not be decoded.
        head: what the file says before its events.
        problem: why it was not read to its end; empty if it was.
    """

    def __init__(self, path: Path, slice_bytes: int = 1 << 19) -> None:
        """
        Args:
            path: the file.
            slice_bytes: read at a time. Decoding and converting half a MiB takes some ms.
        """
        self.path = path
        self._slice_bytes = slice_bytes
        self.base_ns = self.skipped = 0
        self.head: dict[str, Any] = {}
        self.problem = ""
        self._tail = b""
        self._decode = msgspec.json.Decoder(list[KinetoEvent]).decode
        self._decode_one = msgspec.json.Decoder(KinetoEvent).decode

    def read_head(self) -> None:
        """Reads what comes before the events.

        Raises:
            FormatError: if this is no trace.
            OSError: if it cannot be read.
        """
        self.problem = ""
        with self._open() as file:
            self._begin(file)

    def slices(self) -> Iterator[list[KinetoEvent]]:
        """The events, in order, some thousand at a time, as far as they can be read: see `problem`.

        Raises:
            FormatError: if this is no trace.
            OSError: if it cannot be read.
        """
        self.problem, self.skipped = "", 0
        with self._open() as file:
            text = self._begin(file)

            def more() -> bytes:
                piece = self._read(file)
                self._tail = (self._tail + piece)[-(1 << 16) :]
                return piece

            self._tail = text[-(1 << 16) :]
            if len(text) < _LAYOUT:
                text += more()
            inner = self._between_breaks if _KINETO.match(text) else self._any_layout
            try:
                yield from inner(text, more)
            except FormatError as error:
                self.problem = self.problem or str(error)
            except RecursionError:
                self.problem = f"{self.path} holds JSON that is nested too deep"
        if not self.base_ns and (found := _BASE.search(self._tail)):
            self._set_base(int(found[1]))

    def _open(self) -> io.BufferedIOBase:
        with self.path.open("rb") as file:
            compressed = file.read(2) == _GZIP
        return gzip.open(self.path) if compressed else self.path.open("rb")

    def _read(self, file: io.BufferedIOBase) -> bytes:
        """Reads a slice, or less at the end, or before the place at which unpacking fails."""
        pieces: list[bytes] = []
        size = 0
        while size < self._slice_bytes and not self.problem:
            try:
                # A larger read would lose what was unpacked before it failed.
                piece = file.read1(self._slice_bytes - size)
            except EOFError:
                self.problem = f"{self.path} is cut: its compressed data end in the middle"
                break
            except (zlib.error, gzip.BadGzipFile) as error:
                self.problem = f"{self.path} is damaged: {error}"
                break
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def _begin(self, file: io.BufferedIOBase) -> bytes:
        """Reads the head. Returns the part of the events that was read with it."""
        text = self._read(file)
        if not text.lstrip().startswith(b"{"):
            if self.problem:
                raise FormatError(self.problem)
            what = "is empty" if not text.strip() else "is no trace of torch.profiler: it is no JSON object"
            raise FormatError(f"{self.path} {what}")
        at = 0
        while True:
            for found in _LIST.finditer(text, at):
                try:
                    self.head = dict(msgspec.json.decode(_text(text[: found.end()]) + b"]}", type=dict[str, Any]))
                except (msgspec.DecodeError, RecursionError):
                    continue  # a text or an inner object that has this name as well
                self._set_base(self.head.get("baseTimeNanoseconds", 0))
                return text[found.end() :]
            at = max(0, len(text) - 64)
            more = self._read(file)
            if not more or len(text) > MOST_HEAD:
                raise FormatError(self.problem or self._no_events(text, whole=not more))
            text += more

    def _no_events(self, text: bytes, *, whole: bool) -> str:
        try:
            msgspec.json.decode(_text(text))
        except (msgspec.DecodeError, RecursionError) as error:
            if whole:
                return f"{self.path} is no JSON, or is cut before its events: {error}"
        return f"{self.path} is no trace of torch.profiler: it has no traceEvents"

    def _set_base(self, base: object) -> None:
        if not isinstance(base, int) or not 0 <= base < 1 << 62:
            raise FormatError(f"{self.path} is no trace of torch.profiler: baseTimeNanoseconds is {base!r:.40}")
        self.base_ns = base

    def _between_breaks(self, text: bytes, read: Callable[[], bytes]) -> Iterator[list[KinetoEvent]]:
        """Yields the events of a file in kineto's own layout, from the first one on."""
        while True:
            end = text.rfind(_BETWEEN)
            if end >= 0:
                yield self._events(text[: end + 4])
                text = text[end + len(_BETWEEN) :]
            more = read()
            if not more:
                break
            text += more
            if len(text) > MOST_EVENT:
                raise FormatError(f"{self.path} is no trace of kineto: an event has no end")
        # The last event, and what follows the list.
        end = text.rfind(b"\n  }\n  ]")
        if end >= 0:
            text = text[: end + 4]
        elif text.strip().startswith(b"]"):
            return
        else:
            raise FormatError(f"{self.path} ends inside an event: it was not written to the end")
        if text.strip():
            yield self._events(text)

    def _events(self, text: bytes) -> list[KinetoEvent]:
        try:
            return self._decode(b"[" + text + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._one_by_one(text)

    def _one_by_one(self, text: bytes) -> list[KinetoEvent]:
        """Saves what it can of a slice in which something is no JSON: kineto does not escape quotes in names, and the system cuts
        names of threads to 15 bytes, wherever that is."""
        events: list[KinetoEvent] = []
        for piece in text.decode(errors="replace").encode().split(_BETWEEN):
            whole = piece if piece.endswith(b"\n  }") else piece + b"\n  }"
            try:
                events.append(self._decode_one(_NAME.sub(_escaped, whole)))
            except msgspec.DecodeError:
                self.skipped += 1
        return events

    def _any_layout(self, text: bytes, read: Callable[[], bytes]) -> Iterator[list[KinetoEvent]]:
        """Yields the events of JSON in any layout: it searches for the end of each event."""
        while True:
            # One character for each byte: where JSON has its structure, there is nothing but ASCII.
            shown = text.decode("latin-1")
            pieces, at, ended = _pieces(shown)
            if pieces:
                yield self._decoded(shown, pieces)
                text = text[at:]
            if ended:
                return
            more = b"" if self.problem else read()
            if not more or len(text) > MOST_EVENT:
                raise FormatError(f"{self.path} is cut, or no JSON from some place on")
            text += more

    def _decoded(self, shown: str, pieces: list[tuple[int, int]]) -> list[KinetoEvent]:
        joined = ",".join(shown[start:end] for start, end in pieces).encode("latin-1")
        try:
            return self._decode(b"[" + joined + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [event for start, end in pieces if (event := self._one(shown[start:end])) is not None]

    def _one(self, shown: str) -> KinetoEvent | None:
        """An event of which something is not as it should be: perhaps an argument, as NaN is, that nobody asks for."""
        try:
            return self._decode_one(_text(shown.encode("latin-1")))
        except msgspec.DecodeError:
            pass
        try:
            found = {key: value for key, value in _value(shown)[0].items() if key != "args"}
            return self._decode_one(_text(json.dumps(found, ensure_ascii=False).encode("latin-1", "replace")))
        except (msgspec.DecodeError, ValueError, AttributeError):
            self.skipped += 1
            return None


def _text(data: bytes) -> bytes:
    """Decodes UTF-8, and replaces other bytes."""
    return data.decode(errors="replace").encode()


def _pieces(text: str) -> tuple[list[tuple[int, int]], int, bool]:
    """The places of the whole values at the begin of a list, the place after them, and whether the list ends there."""
    pieces: list[tuple[int, int]] = []
    at = 0
    while True:
        start = cast("re.Match[str]", _NEXT.match(text, at)).end()
        if text.startswith("]", start):
            return pieces, start, True
        try:
            _, end = _value(text, start)
        except ValueError:
            return pieces, at, False
        pieces.append((start, end))
        at = end
