"""The script of a `ScriptedBackend`: events, and when they are delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Kind, empty_block

Moment = Literal["open", "warmup", "start", "stop", "aclose"]
"""When an item of the script is played. Two windows that follow each other directly are a stop and a start."""


class Span(msgspec.Struct, frozen=True):
    """A span; times in ns, `start` relative to the start of the recording that it is played in."""

    name: str
    start: int
    dur: int
    category: str = "user_annotation"
    track: str | int = "scripted"
    """Name of a thread's track, made when it is first used, or the id of any track."""
    arguments: Mapping[str, Any] = {}
    self_dur: int | None = None
    """Time not spent in child spans; all of it if not given."""
    id: int = 0
    parent: int = 0
    flags: int = 0


class Instant(msgspec.Struct, frozen=True):
    """Something that happened at `start`."""

    name: str
    start: int
    category: str = "user_annotation"
    track: str | int = "scripted"
    arguments: Mapping[str, Any] = {}


class Counter(msgspec.Struct, frozen=True):
    """A counter's value at `start`."""

    name: str
    start: int
    value: float
    category: str = "user_annotation"
    track: str | int = "scripted"


class Deliver(msgspec.Struct, frozen=True):
    """Delivers one block, its events in the order given, which may be any."""

    events: Sequence[Span | Instant | Counter]
    on: Moment = "stop"
    recording: int | None = None
    """Number of the recording, from 0, that this is played in; `None` is every one."""
    delay: float = 0.0
    """Seconds after the moment; what is still to come when the backend is closed is delivered then."""
    late: bool = False
    """True breaks the promise: the watermark does not wait for the delay."""
    watermark: int | None = None
    """Stated with the block, relative to the start of the recording."""


class Watermark(msgspec.Struct, frozen=True):
    """States that everything before `start` was delivered."""

    start: int
    on: Moment = "stop"
    recording: int | None = None


class Lose(msgspec.Struct, frozen=True):
    """Reports `count` events lost around `start`."""

    count: int
    start: int = 0
    reason: str = "source"
    on: Moment = "stop"
    recording: int | None = None


class Raise(msgspec.Struct, frozen=True):
    """Raises out of `open` (on="open"), `transition` ("warmup", "start", "stop") or `aclose`."""

    error: BaseException
    on: Moment
    recording: int | None = None


Item = Deliver | Watermark | Lose | Raise


def make_block(
    events: Sequence[Span | Instant | Counter], origin: int, track: Callable[[str], int]
) -> tuple[Block, bytes]:
    """The events as a block in the order given, and their arguments.

    Args:
        events: what to encode.
        origin: added to every `start`, in ns.
        track: gives the id of a named track.
    """
    block: Any = empty_block(len(events))
    args = bytearray()
    for record, item in zip(block, events, strict=True):
        record["ts"] = origin + item.start
        record["name"] = strings.intern(item.name)
        record["category"] = strings.category(item.category)
        record["track"] = track(item.track) if isinstance(item.track, str) else item.track
        if isinstance(item, Counter):
            record["kind"], record["value"] = Kind.COUNTER, item.value
            continue
        if isinstance(item, Span):
            record["kind"], record["dur"] = Kind.SPAN, item.dur
            record["self_dur"] = item.dur if item.self_dur is None else item.self_dur
            record["id"], record["parent"], record["flags"] = item.id, item.parent, item.flags
        else:
            record["kind"] = Kind.INSTANT
        if item.arguments:
            encoded = _core.encode_arguments(item.arguments)
            record["args_at"], record["args_len"] = len(args), len(encoded)
            args += encoded
    return block, bytes(args)
