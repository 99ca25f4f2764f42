"""Completes Chrome traces of ours that were cut off, by a kill or a full disk, or damaged since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stepscope.exporters.plainjson import dumps
from stepscope.exporters.rewriting import Copy, Repair, rewrite
from stepscope.exporters.rotation import PART
from stepscope.exporters.salvage import Salvage
from stepscope.runtime.errors import FormatError

SEPARATOR = b",\n"
"""Ends every event but the last, and is nowhere else: line breaks in texts are escaped."""

EVENTS_KEY = b'"traceEvents": ['
_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_KEYS = {"ph", "pid"}
_ENDS = (b"]", b"]}")
_FIRST_EVENT = b'{"ph": "M", "name": "process_name", "pid": '
_FIRST_KEY = b'"schemaVersion": 1'

_events = msgspec.json.Decoder(list[dict[str, Any]])
_event = msgspec.json.Decoder(dict[str, Any])


def repair_chrome(path: Path) -> Repair:
    """Makes valid JSON of a trace that was cut or damaged anywhere, with every whole event.

    It ends with an event `cut off` then. The file is replaced in one step; `x.json.part` becomes `x.json`. A complete
    file is only renamed, if at all. Links are neither followed nor written through. Memory is bounded.

    Args:
        path: a file of `ChromeTraceExporter` or `TensorBoardExporter`, plain or gzip, whatever its name; an empty one,
            as a killed process leaves it, becomes a trace without events.

    Raises:
        FormatError: it is not such a file.
        OutputError: it cannot be read or replaced.
    """
    return rewrite(path, lambda source, write: _Trace(source, write))


def _next_line(piece: bytes, at: int) -> tuple[int, bytes]:
    end = piece.find(b"\n", at) + 1 or len(piece)
    return end, piece[at:end]


class _Trace(Copy):
    """Copies what is whole of a trace, line by line: each holds one event or one key of the object form."""

    def __init__(self, source: Salvage, write: Callable[[bytes], object]) -> None:
        self.lost = 0
        self._source = source
        self._write = write
        self._first = b""
        self._in_events = False
        self._ended = False
        self._disordered = False
        self._ours = False
        self._any = False
        self._last = b""

    @property
    def complete(self) -> bool:
        """Whether the file was as it should be."""
        return self._ended and not self._disordered and not self.lost and self._source.intact

    def copy(self) -> None:
        """Writes the trace.

        Raises:
            FormatError: if it is none of ours.
        """
        for piece in self._source.lines():
            at = 0
            while at < len(piece) and not self._in_events:
                at, line = _next_line(piece, at)
                self._take(line)
            # The usual case, checked at once: events, but for the last line.
            end = max(piece.rfind(SEPARATOR), at)
            events = piece[at:end]
            if events and not self._ended and self._all_whole(events):
                self._put(events, events[events.rfind(b"\n") + 1 :])
                at = end + len(SEPARATOR)
            while at < len(piece):
                at, line = _next_line(piece, at)
                self._take(line)
        self.lost += self._source.lost
        self._finish()

    def _all_whole(self, events: bytes) -> bool:
        """Whether these are events and nothing else."""
        try:
            return all(_KEYS <= event.keys() for event in _events.decode(b"[" + events + b"]"))
        except _NO_JSON:
            return False

    def _take(self, line: bytes) -> None:
        text = line.rstrip(b",\n")
        if not self._first:
            self._begin(line)
        elif not self._in_events and not self._is_event(text):
            self._take_key(text)
        elif self._in_events and text in _ENDS and line.endswith(b"\n"):
            self._disordered = self._disordered or self._ended
            self._ended = True
        elif self._is_event(text):
            if not self._in_events:  # the line that says so is damaged
                self._disordered = True
                self._begin_events()
            self._disordered = self._disordered or self._ended
            self._ended = False
            self._put(text, text)
        elif text in (b"[", b"{") or text.endswith(EVENTS_KEY):
            self._disordered = True  # another trace begins
        else:
            self._lose(line)

    def _begin(self, line: bytes) -> None:
        if line not in (b"[\n", b"{\n", b"[", b"{") and b"\0" not in line:
            raise FormatError(f"{self._source.path} is not a Chrome trace")
        self._first = b"{" if line.startswith(b"{") else b"["
        self._in_events = self._first == b"["
        self._write(self._first + b"\n")
        self.lost += len(line) if b"\0" in line else 0

    def _take_key(self, text: bytes) -> None:
        if text == EVENTS_KEY:
            self._begin_events()
            return
        try:
            keys = _event.decode(b"{" + text + b"}")
        except _NO_JSON:
            keys = {}
        if not keys:
            self._lose(text or b"\n")
        else:
            self._check(text)
            self._write(text + SEPARATOR)

    def _begin_events(self) -> None:
        self._in_events = True
        self._write(EVENTS_KEY + b"\n")

    def _is_event(self, text: bytes) -> bool:
        try:
            return _KEYS <= _event.decode(text).keys()
        except _NO_JSON:
            return False

    def _lose(self, line: bytes) -> None:
        self._check(line)
        self.lost += len(line)

    def _check(self, line: bytes) -> None:
        """Of a file that holds no whole event yet, the first line must be what an exporter writes, as far as it goes."""
        begins = _FIRST_EVENT if self._in_events else _FIRST_KEY
        self._ours = self._ours or self._any or line.startswith(begins[: len(line)]) or b"\0" in line
        if not self._ours:
            raise FormatError(f"{self._source.path} holds no whole event of a trace of stepscope")

    def _put(self, events: bytes, last: bytes) -> None:
        self._write(SEPARATOR + events if self._any else events)
        self._any = True
        self._last = last

    def _finish(self) -> None:
        if self.complete:
            return
        if not self._first:
            if not self._source.empty and self._source.intact:
                raise FormatError(f"{self._source.path} is not a Chrome trace")
            # Only an object is written under a temporary name.
            self._first = b"{" if self._source.path.name.endswith(PART) else b"["
            self._write(self._first + b"\n")
        if not self._in_events and self._first == b"{":
            self._begin_events()
        if self._any:
            self._write(SEPARATOR + self._cut_off())
        self._write(b"\n]\n" if self._first == b"[" else b"\n]}\n")

    def _cut_off(self) -> bytes:
        try:
            event: dict[str, Any] = _event.decode(self._last)
        except _NO_JSON:
            event = {}  # spread over several lines: none of ours, but whole
        where = {key: event.get(key, 0) for key in ("pid", "tid", "ts")}
        said = {"ph": "i", "s": "p", "cat": "stepscope", "name": "cut off", **where, "args": {"bytes lost": self.lost}}
        return dumps(said).encode()
