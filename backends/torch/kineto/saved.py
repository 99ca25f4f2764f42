"""Reading traces that torch.profiler has saved: in any layout of JSON, compressed or not, written to the end or not."""

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

from stepscope.backends.torch.kineto.file import MOST_EVENT, KinetoEvent, KinetoFile
from stepscope.backends.torch.kineto.tracks import KinetoTracks
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import tracks
from stepscope.runtime.events.tracks import TrackKind

MOST_HEAD = 64 << 20
"""Bytes before the list of events."""
_GZIP = b"\x1f\x8b"
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_KINETO = re.compile(rb'\s*\n  \{\n    "')
"""The next characters in a file that kineto itself wrote, rather than a program that read and wrote it again."""
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_NEXT = re.compile(r"\s*,?\s*")
_value = json.JSONDecoder(strict=False).raw_decode


class SavedTrace(KinetoFile):
    """A trace on disk.

    Attributes:
        head: what the file says before its events.
        problem: why it was not read to its end; empty if it was.
    """

    def __init__(self, path: Path, slice_bytes: int = 1 << 19) -> None:
        super().__init__(path, slice_bytes)
        self.head: dict[str, Any] = {}
        self.problem = ""
        self._tail = b""

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
        """A slice, or what there is of it before the end, or before the place from which on nothing can be unpacked."""
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
        """Reads the head; returns what was read of the events with it."""
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

    def _any_layout(self, text: bytes, read: Callable[[], bytes]) -> Iterator[list[KinetoEvent]]:
        """Events of JSON that any program may have written: each is looked for the end of."""
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
    """UTF-8, whatever else there was."""
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


class SavedTracks(KinetoTracks):
    """Rows of a trace that was read."""

    def __init__(self) -> None:
        super().__init__()
        self._parents: dict[int | str, int] = {}

    def is_device(self, pid: int | str) -> bool:
        """True if this is no process, but a device."""
        return self._labels.get(pid, "").startswith("GPU")

    @property
    def process(self) -> int:
        """Number of the process that was recorded; 0 if nothing says it."""
        return next((pid for pid, label in self._labels.items() if label == "CPU" and isinstance(pid, int)), 0)

    def _make(self, pid: int | str, tid: int | str) -> int:
        process, thread = (number if isinstance(number, int) and abs(number) < 1 << 63 else 0 for number in (pid, tid))
        device = self.is_device(pid)
        if pid not in self._parents:
            label = self._labels.get(pid, "CPU")
            name = self._programs.get(pid) if label == "CPU" else label
            self._parents[pid] = tracks.read(TrackKind.PROCESS, process, 0, name or f"process {pid}")
        name = self._names.get((pid, tid)) or f"{'stream' if device else 'thread'} {tid}"
        kind = TrackKind.STREAM if device else TrackKind.THREAD
        return tracks.read(kind, process, thread, name, self._parents[pid])
