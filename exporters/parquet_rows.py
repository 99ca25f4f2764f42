"""Events as rows of an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.exporters.plainjson import dumps
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind
from stepscope.runtime.events.tracks import Track, TrackKind
from stepscope.runtime.export.run import Run

MAX_SEEN = 1 << 14
"""Arguments of a block that are kept to be found again, for they repeat."""

MOST_LOOKED_UP = 1 << 20
"""Ids below this are looked up in a table."""

DEEPEST = 8
"""Rows between one and its process, of which more are not followed: a damaged file may have a circle."""

WINDOW = "window"
"""The kind of a row that is a window."""

COLUMNS: dict[str, tuple[str, str]] = {
    "rank": ("int64", "rank of the process in its job; null without one"),
    "host": ("text", "name of the machine"),
    "window": ("int64", "number of the recorded window, from 0"),
    "step": ("int32", "step in which the event began; null outside of steps"),
    "ts": ("int64", "begin, in ns of Unix time"),
    "dur": ("int64", "duration in ns, of spans and gaps"),
    "self_dur": (
        "int64",
        "of spans: ns not spent in child spans; null for steps, which enclose spans without being a parent",
    ),
    "value": ("float64", "of counters and memory events"),
    "kind": (
        "text",
        "span, instant, counter, flow_start, flow_step, flow_end, async_begin, async_end, memory, metadata, step, gap, window",
    ),
    "category": ("text", "such as user_annotation, cpu_op, kernel"),
    "name": ("text", "name of the event; steps are ProfilerStep#<number>"),
    "process": ("text", "name of the process; that of the run itself is called as the run"),
    "thread": ("text", "name of the thread, asyncio task or device stream"),
    "pid": ("int64", "number of the process, or of the device of a stream"),
    "tid": ("int64", "number of the thread or stream"),
    "id": (
        "uint64",
        "of spans: unique in the process; of flows and async events: what links them; null if there is none",
    ),
    "parent": ("uint64", "id of the enclosing span; null if there is none"),
    "cut": ("bool", "of spans: whether it was cut at the border of what was recorded"),
    "open": ("bool", "of spans: whether it had not ended when it was written"),
    "error": ("bool", "of spans: whether it was left by an exception"),
    "args": ("json", "arguments as a JSON object; null without any"),
    "source": ("text", "backend that made the event; recorder: the program itself"),
    "error_ns": ("int64", "how far ts may be off the collector's clock; null: unknown, or not merged"),
}
"""Type and meaning of each column."""

DIVERSE = {"ts", "dur", "self_dur", "value", "id", "parent", "cut", "open", "error"}
"""Columns whose values hardly repeat, or are bits: a dictionary of these costs more than it saves."""
STATISTICS = ("rank", "window", "step", "ts", "dur", "name")
"""Columns by which readers leave out groups of rows."""

_VALUED = (int(Kind.COUNTER), int(Kind.MEMORY))


class Told(msgspec.Struct, frozen=True):
    """A window that is to be a row."""

    number: int
    start_ns: int
    end_ns: int
    about: str
    """JSON."""


class ParquetRows:
    """Makes tables of blocks; `ParquetExporter` says what the columns are."""

    def __init__(self, arrow: Any) -> None:
        """Args: the module pyarrow."""
        self._arrow = arrow
        self._keys: dict[int, str] = {}
        self.schema: Any = self._schema()

    def _schema(self) -> Any:
        arrow = self._arrow
        text = arrow.dictionary(arrow.int32(), arrow.string())
        types = {
            "text": text,
            "json": arrow.string(),
            "bool": arrow.bool_(),
            "int32": arrow.int32(),
            "int64": arrow.int64(),
            "uint64": arrow.uint64(),
            "float64": arrow.float64(),
        }
        return arrow.schema(
            [
                arrow.field(name, types[type], metadata={"description": description})
                for name, (type, description) in COLUMNS.items()
            ]
        )

    def table(self, events: Block, batch: EventBatch, run: Run) -> Any:
        """The rows of some events of a batch, of a run."""
        arrow = self._arrow
        spans = events["kind"] == int(Kind.SPAN)
        # Steps are spans without an id: nothing has them for a parent.
        timed = spans & (events["flags"] & int(Flag.NUMBERED) == 0)
        valued = np.isin(events["kind"], _VALUED)
        process, thread, pid, tid = self._rows_of(events["track"], run)
        error = run.metadata().get("aligned clock")
        bound = cast(Mapping[str, Any], error).get("bound_ns") if isinstance(error, Mapping) else None
        known = isinstance(bound, float) and bound < 2**62
        number = len(events)
        offset = run.anchor.wall_ns - run.anchor.monotonic_ns

        def column(values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> Any:
            return arrow.array(values, mask=None if known is None else ~known)

        def same(value: Any, kind: Any) -> Any:
            return arrow.repeat(arrow.scalar(value, kind), number)

        def one(text: str) -> Any:
            return arrow.DictionaryArray.from_arrays(np.zeros(number, np.int32), [text])

        columns = [
            same(run.rank, arrow.int64()),
            one(run.host),
            same(batch.window, arrow.int64()),
            column(events["step"].copy(), events["step"] >= 0),
            column(events["ts"] + offset),
            column(events["dur"].copy()),
            column(events["self_dur"].copy(), timed),
            column(events["value"].copy(), valued),
            self._dictionary(events["kind"], _kind),
            self._dictionary(events["category"], strings.text),
            self._names(events),
            process,
            thread,
            column(pid),
            column(tid),
            column(events["id"].copy(), (events["id"] > 0) & (events["kind"] != int(Kind.STEP))),
            column(events["parent"].copy(), events["parent"] > 0),
            *(column(events["flags"] & int(flag) != 0, spans) for flag in (Flag.CLIPPED, Flag.OPEN, Flag.ERROR)),
            self._arguments(events, batch.args),
            one(batch.source),
            same(round(cast(float, bound)) if known else None, arrow.int64()),
        ]
        return arrow.Table.from_arrays(columns, schema=self.schema)

    def windows(self, told: Sequence[Told], run: Run) -> Any:
        """The rows of some windows of a run. All but the columns below are null."""
        offset = run.anchor.wall_ns - run.anchor.monotonic_ns
        known: dict[str, list[Any]] = {
            "rank": [run.rank] * len(told),
            "host": [_storable(run.host)] * len(told),
            "window": [one.number for one in told],
            "ts": [_number(one.start_ns + offset) for one in told],
            "dur": [_number(one.end_ns - one.start_ns) for one in told],
            "kind": [WINDOW] * len(told),
            "name": [f"window {one.number}" for one in told],
            "pid": [run.pid] * len(told),
            "process": [_storable(run.name)] * len(told),
            "args": [one.about for one in told],
        }
        columns = [
            self._arrow.array(known[field.name], field.type)
            if field.name in known
            else self._arrow.nulls(len(told), field.type)
            for field in self.schema
        ]
        return self._arrow.Table.from_arrays(columns, schema=self.schema)

    def _names(self, events: Block) -> Any:
        numbered = events["flags"] & int(Flag.NUMBERED) != 0
        if not numbered.any():
            return self._dictionary(events["name"], strings.text)
        keys = events["name"].astype(np.int64)
        # The step makes another name; 0 stands for none.
        keys |= np.where(numbered, events["step"].astype(np.int64) + 1, 0) << 32

        def text(key: int) -> str:
            name = strings.text(key & 0xFFFFFFFF)
            return f"{name}#{(key >> 32) - 1}" if key >> 32 else name

        return self._dictionary(keys, text)

    def _dictionary(self, keys: NDArray[Any], text: Callable[[int], str]) -> Any:
        unique, indices = _distinct(keys)
        return self._indexed(indices, [_storable(text(key)) for key in unique.tolist()])

    def _rows_of(self, used: NDArray[np.uint32], run: Run) -> tuple[Any, Any, NDArray[np.int64], NDArray[np.int64]]:
        unique, where = _distinct(used)
        known = [tracks.get(number) for number in unique.tolist()]
        threads = ["" if track is None else _storable(track.name) for track in known]
        processes = [_storable(_process(track, run)) for track in known]
        pids = np.array([0 if track is None else track.pid for track in known], np.int64)[where]
        tids = np.array([0 if track is None else track.tid for track in known], np.int64)[where]
        return self._indexed(where, processes), self._indexed(where, threads), pids, tids

    def _indexed(self, indices: NDArray[np.int32], texts: list[str]) -> Any:
        return self._arrow.DictionaryArray.from_arrays(indices, texts)

    def _arguments(self, events: Block, heap: bytes) -> Any:
        inline = events["flags"] & int(Flag.ARG_INLINE) != 0
        given = np.flatnonzero((events["args_len"] > 0) | inline)
        texts: list[str | None] = [None] * len(events)
        seen: dict[bytes, str] = {}
        rows = zip(given.tolist(), *(events[key][given].tolist() for key in ("args_at", "args_len")), strict=True)
        for index, at, length in rows:
            if inline[index]:
                texts[index] = f"{{{self._key(at)}: {length}}}"
                continue
            raw = heap[at : at + length]
            text = seen.get(raw)
            if text is None:
                text = dumps(_core.decode_arguments(heap, at, length))
                if len(seen) < MAX_SEEN:
                    seen[raw] = text
            texts[index] = text
        return self._arrow.array(texts, self._arrow.string())

    def _key(self, name: int) -> str:
        if name not in self._keys:
            self._keys[name] = json.dumps(strings.text(name), ensure_ascii=False)
        return self._keys[name]


def _distinct(keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The different keys in order, and for each key which of these it is. Small keys, as ids are, need no sorting."""
    if not len(keys) or not 0 <= int(keys.max()) < MOST_LOOKED_UP or int(keys.min()) < 0:
        unique, indices = np.unique(keys, return_inverse=True)
        return unique, indices.astype(np.int32)
    found = np.zeros(int(keys.max()) + 1, np.bool_)
    found[keys] = True
    unique = np.flatnonzero(found)
    place = np.zeros(len(found), np.int32)
    place[unique] = np.arange(len(unique), dtype=np.int32)
    return unique, place[keys]


def _process(track: Track | None, run: Run) -> str:
    """Name of the process that a row belongs to, however many rows lie between."""
    above, left = track, DEEPEST
    while above is not None and above.kind != TrackKind.PROCESS and left:
        above, left = tracks.get(above.parent), left - 1
    if track is None or above is None or above.kind != TrackKind.PROCESS or above.pid != track.pid:
        return ""
    return run.name if above.pid == run.pid else above.name


def _kind(kind: int) -> str:
    try:
        return Kind(kind).name.lower()
    except ValueError:
        return f"kind {kind}"


def _number(value: int) -> int:
    return max(-(1 << 63), min(value, (1 << 63) - 1))


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode()
