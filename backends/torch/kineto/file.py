"""Reading the JSON file that kineto writes, a slice at a time, so that no reader holds the GIL for long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepscope.runtime.errors import FormatError

_EVENTS = b'"traceEvents": ['
_BETWEEN = b"\n  },"
"""The separator of two events: strings hold no raw line break, and lines inside an event are indented further."""

MOST_EVENT = 64 << 20
"""Bytes of one event."""

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
    """µs since `base_ns`."""
    dur: int | float = 0.0
    id: int | str = 0
    args: msgspec.Raw = _NO_ARGS
    """JSON text, read by `arguments`."""


_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode


def arguments(event: KinetoEvent) -> dict[str, Any]:
    """The arguments of an event.

    Raises:
        msgspec.DecodeError: if they are no JSON object.
    """
    return _decode_arguments(event.args) if event.args is not _NO_ARGS else {}


def _escaped(line: re.Match[bytes]) -> bytes:
    return line[1] + _QUOTE.sub(rb'\\"', line[2]) + line[3]


class KinetoFile:
    """A kineto trace on disk."""

    def __init__(self, path: Path, slice_bytes: int = 1 << 19) -> None:
        """
        Args:
            path: the file.
            slice_bytes: read at a time. Decoding and converting half a MiB takes some ms.
        """
        self.path = path
        self._slice_bytes = slice_bytes
        self.base_ns = 0
        """Unix time in ns that the events' times count from; known once `slices` has begun."""
        self.skipped = 0
        """Events that could not be decoded."""
        self._decode = msgspec.json.Decoder(list[KinetoEvent]).decode
        self._decode_one = msgspec.json.Decoder(KinetoEvent).decode

    def slices(self) -> Iterator[list[KinetoEvent]]:
        """The events, in order, some thousand at a time.

        Raises:
            FormatError: if this is no such file.
            OSError: if it cannot be read.
        """
        with self.path.open("rb") as file:
            text = file.read(self._slice_bytes)
            while (at := text.find(_EVENTS)) < 0:
                more = file.read(self._slice_bytes)
                if not more:
                    raise FormatError(f"{self.path} is no trace of kineto: it has no traceEvents")
                text += more
            self._read_head(text[: at + len(_EVENTS)] + b"]}")
            yield from self._between_breaks(text[at + len(_EVENTS) :], lambda: file.read(self._slice_bytes))

    def _between_breaks(self, text: bytes, read: Callable[[], bytes]) -> Iterator[list[KinetoEvent]]:
        """The events of a file that is laid out as kineto does it, from the first one on."""
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

    def _read_head(self, text: bytes) -> None:
        try:
            self.base_ns = int(msgspec.json.decode(text).get("baseTimeNanoseconds", 0))
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError) as error:
            raise FormatError(f"{self.path} is no trace of kineto: {error}") from error

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
