"""Events as rows of an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import msgspec
import numpy as np

from stepscope.exporters.files.trace_file import dumps
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind
from stepscope.runtime.events.tracks import Track, TrackKind
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import readable

MAX_SEEN = 1 << 14
"""Arguments of a table that are kept to be found again, for they repeat."""

BAD_ARGUMENTS = '{"bad arguments": true}'
"""Arguments that lie outside of their heap."""

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
    "args": (
        "json",
        'arguments as a JSON object; null without any; `{"bad arguments": true}` where a backend made a mistake',
    ),
    "source": ("text", "backend that made the event; recorder: the program itself"),
    "error_ns": ("int64", "how far ts may be off the collector's clock; null: unknown, or not merged"),
}
"""Type and meaning of each column."""

ALWAYS = {"host", "window", "ts", "dur", "kind", "name", "process", "pid"}
"""Columns without nulls, of which nothing says where they are."""
DIFFERENCES = {"ts", "dur", "self_dur", "id"}
"""Columns that are written as differences of few bits: to compress their values takes two to three times as long."""
DICTIONARIES = {*(name for name, (kind, _) in COLUMNS.items() if kind in ("text", "json")), "pid", "tid"}
"""Columns whose values repeat in any order. A dictionary of others costs more than to compress them."""
COMPRESSION = {
    **dict.fromkeys(
        DIFFERENCES - {"id"} | DICTIONARIES - {"name", "thread", "args"} | {"cut", "open", "error"}, "none"
    ),
    "args": "zstd",
}
"""Where it is not lz4: a dictionary, differences or bits leave little to compress. For each page pyarrow makes a context of zstd, which
takes longer than to compress the page; only texts are worth it."""
STATISTICS = ("rank", "window", "step", "ts", "dur")
"""Columns by which readers leave out groups of rows."""

_WIDE = ("ts", "dur", "self_dur", "value", "id", "parent", "pid", "tid")
_NARROW = ("step", "kind", "category", "name", "track")
_BITS = (
    "has step",
    "has self_dur",
    "has value",
    "has id",
    "has parent",
    "has arguments",
    "is span",
    "cut",
    "open",
    "error",
)
"""The columns of `_core.arrow_columns`: of 8 bytes a value, of 4 bytes, and of bits."""


class WindowRow(msgspec.Struct, frozen=True):
    """A window that is to be a row."""

    number: int
    start_ns: int
    end_ns: int
    about: str
    """Facts about the window, as JSON."""


class ParquetRows:
    """Makes tables of blocks; `ParquetExporter` says what the columns are."""

    def __init__(self, arrow: Any) -> None:
        """Args: the module pyarrow."""
        self._arrow = arrow
        self._keys: dict[int, str] = {}
        self._made: dict[str, tuple[str | int | None, Any]] = {}
        """Columns of one value, by their names."""
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
                arrow.field(name, types[type], nullable=name not in ALWAYS, metadata={"description": description})
                for name, (type, description) in COLUMNS.items()
            ]
        )

    def table(self, batches: Sequence[EventBatch], run: Run) -> Any:
        """The rows of batches of one source and window, of a run; at least one."""
        arrow, number = self._arrow, sum(map(len, batches))
        source, window = batches[0].source, batches[0].window
        room = -(-number // 64) * 64
        sizes = [8 * room] * len(_WIDE) + [4 * room] * len(_NARROW) + [room // 8] * len(_BITS)
        ends = list(accumulate(sizes))
        buffer = arrow.allocate_buffer(ends[-1])
        ahead = run.anchor.wall_ns - run.anchor.monotonic_ns
        present, keys = _core.arrow_columns([batch.events for batch in batches], ahead, buffer)
        parts = {
            name: buffer.slice(end - size, size)
            for name, size, end in zip((*_WIDE, *_NARROW, *_BITS), sizes, ends, strict=True)
        }
        set_bits: dict[str, int] = dict(zip(_BITS, present, strict=True))

        def column(name: str, validity: str | None = None) -> Any:
            nulls = 0 if validity is None else number - set_bits[validity]
            kind = arrow.int32() if name in _NARROW else self.schema.field(name).type
            return arrow.Array.from_buffers(
                kind, number, [parts[validity or ""] if nulls else None, parts[name]], nulls
            )

        def texts(name: str, its: list[str]) -> Any:
            return arrow.DictionaryArray.from_arrays(column(name), arrow.array(its, arrow.string()), safe=False)

        kinds, categories, names, used = keys
        tracks_used = [tracks.get(track) for track in used]
        bound = _bound(run)
        columns = [
            self._same("rank", run.rank, number),
            self._same("host", run.host, number),
            self._same("window", window, number),
            column("step", "has step"),
            column("ts"),
            column("dur"),
            column("self_dur", "has self_dur"),
            column("value", "has value"),
            texts("kind", [_kind(kind) for kind in kinds]),
            texts("category", [readable(strings.text(category)) for category in categories]),
            texts("name", [readable(_name(name)) for name in names]),
            texts("track", [readable(_process(row, run)) for row in tracks_used]),
            texts("track", ["" if row is None else readable(row.name) for row in tracks_used]),
            column("pid"),
            column("tid"),
            column("id", "has id"),
            column("parent", "has parent"),
            *(column(flag, "is span") for flag in ("cut", "open", "error")),
            self._arguments(batches) if set_bits["has arguments"] else self._same("args", None, number),
            self._same("source", source, number),
            self._same("error_ns", bound, number),
        ]
        return arrow.Table.from_arrays(columns, schema=self.schema)

    def windows(self, rows: Sequence[WindowRow], run: Run) -> Any:
        """The rows of some windows of a run. All but the columns below are null."""
        offset = run.anchor.wall_ns - run.anchor.monotonic_ns
        values: dict[str, list[Any]] = {
            "rank": [run.rank] * len(rows),
            "host": [readable(run.host)] * len(rows),
            "window": [one.number for one in rows],
            "ts": [_number(one.start_ns + offset) for one in rows],
            "dur": [_number(one.end_ns - one.start_ns) for one in rows],
            "kind": [WINDOW] * len(rows),
            "name": [f"window {one.number}" for one in rows],
            "pid": [run.pid] * len(rows),
            "process": [readable(run.name)] * len(rows),
            "args": [one.about for one in rows],
        }
        columns = [
            self._arrow.array(values[field.name], field.type)
            if field.name in values
            else self._arrow.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return self._arrow.Table.from_arrays(columns, schema=self.schema)

    def _same(self, name: str, value: str | int | None, number: int) -> Any:
        """A column that has one value, as often as needed."""
        made = self._made.get(name)
        if made is None or made[0] != value or len(made[1]) < number:
            made = self._made[name] = value, self._repeated(value, self.schema.field(name).type, number)
        return made[1].slice(0, number)

    def _repeated(self, value: str | int | None, kind: Any, number: int) -> Any:
        arrow = self._arrow
        if isinstance(value, str):
            return arrow.DictionaryArray.from_arrays(np.zeros(number, np.int32), [value])
        return arrow.repeat(arrow.scalar(value, kind), number)

    def _arguments(self, batches: Sequence[EventBatch]) -> Any:
        texts: list[str | None] = []
        seen: dict[bytes, str] = {}
        for batch in batches:
            texts += self._texts(batch.events, batch.args, seen)
        return self._arrow.array(texts, self._arrow.string())

    def _texts(self, events: Block, heap: bytes, seen: dict[bytes, str]) -> list[str | None]:
        inline = events["flags"] & int(Flag.ARG_INLINE) != 0
        with_arguments = np.flatnonzero((events["args_len"] > 0) | inline)
        texts: list[str | None] = [None] * len(events)
        rows = zip(
            with_arguments.tolist(),
            *(events[key][with_arguments].tolist() for key in ("args_at", "args_len")),
            strict=True,
        )
        for index, at, length in rows:
            if inline[index]:
                texts[index] = f"{{{self._key(at)}: {length}}}"
                continue
            raw = heap[at : at + length]
            if len(raw) < length:  # a backend's mistake: as in Chrome JSON
                texts[index] = BAD_ARGUMENTS
                continue
            text = seen.get(raw)
            if text is None:
                text = dumps(_core.decode_arguments(heap, at, length))
                if len(seen) < MAX_SEEN:
                    seen[raw] = text
            texts[index] = text
        return texts

    def _key(self, name: int) -> str:
        if name not in self._keys:
            self._keys[name] = json.dumps(strings.text(name), ensure_ascii=False)
        return self._keys[name]


def _bound(run: Run) -> int | None:
    """The largest error of the run's times by the collector's clock, in ns; `None`: unknown, or not merged."""
    clock = run.metadata().get("aligned clock")
    bound = cast(Mapping[str, Any], clock).get("bound_ns") if isinstance(clock, Mapping) else None
    return round(bound) if isinstance(bound, float) and bound < 2**62 else None


def _name(key: int) -> str:
    step = key >> 32
    name = strings.text(key & 0xFFFFFFFF)
    return f"{name}#{step - 1}" if step else name


def _process(track: Track | None, run: Run) -> str:
    """Name of the process that a row belongs to, however many rows lie between."""
    above, levels = track, DEEPEST
    while above is not None and above.kind != TrackKind.PROCESS and levels:
        above, levels = tracks.get(above.parent), levels - 1
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
