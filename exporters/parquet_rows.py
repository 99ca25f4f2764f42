"""Events as rows of an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.exporters.plainjson import dumps
from stepscope.runtime import _core, strings, tracks
from stepscope.runtime.events import Block, EventBatch, Flag, Kind
from stepscope.runtime.run import Run

MAX_SEEN = 1 << 14
"""Arguments of a block that are kept to be found again, for they repeat."""

WINDOW = "window"
"""The kind of a row that is a window."""

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
        fields = {
            "rank": arrow.int64(),
            "host": text,
            "window": arrow.int64(),
            "step": arrow.int32(),
            "ts": arrow.int64(),
            "dur": arrow.int64(),
            "self_dur": arrow.int64(),
            "value": arrow.float64(),
            "kind": text,
            "category": text,
            "name": text,
            "process": text,
            "thread": text,
            "pid": arrow.int64(),
            "tid": arrow.int64(),
            "id": arrow.uint64(),
            "parent": arrow.uint64(),
            "args": arrow.string(),
            "source": text,
            "error_ns": arrow.int64(),
        }
        return arrow.schema(list(fields.items()))

    def table(self, events: Block, batch: EventBatch, run: Run) -> Any:
        """The rows of some events of a batch, of a run."""
        arrow = self._arrow
        spans = events["kind"] == int(Kind.SPAN)
        valued = np.isin(events["kind"], _VALUED)
        process, thread, pid, tid = self._rows_of(events["track"])
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
            column(events["self_dur"].copy(), spans),
            column(events["value"].copy(), valued),
            self._dictionary(events["kind"].astype(np.int64), _kind),
            self._dictionary(events["category"].astype(np.int64), strings.text),
            self._names(events),
            process,
            thread,
            column(pid),
            column(tid),
            column(events["id"].copy()),
            column(events["parent"].copy(), events["parent"] > 0),
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
        keys = events["name"].astype(np.int64)
        # The step makes another name; 0 stands for none.
        keys |= np.where(numbered, events["step"].astype(np.int64) + 1, 0) << 32

        def text(key: int) -> str:
            name = strings.text(key & 0xFFFFFFFF)
            return f"{name}#{(key >> 32) - 1}" if key >> 32 else name

        return self._dictionary(keys, text)

    def _dictionary(self, keys: NDArray[np.int64], text: Callable[[int], str]) -> Any:
        unique, indices = np.unique(keys, return_inverse=True)
        texts = [_storable(text(key)) for key in unique.tolist()]
        return self._arrow.DictionaryArray.from_arrays(indices.astype(np.int32), texts)

    def _rows_of(self, used: NDArray[np.uint32]) -> tuple[Any, Any, NDArray[np.int64], NDArray[np.int64]]:
        unique, indices = np.unique(used, return_inverse=True)
        known = [tracks.get(number) for number in unique.tolist()]
        parents = [None if track is None else tracks.get(track.parent) for track in known]
        threads = ["" if track is None else _storable(track.name) for track in known]
        processes = [
            "" if track is None or parent is None or parent.pid != track.pid else _storable(parent.name)
            for track, parent in zip(known, parents, strict=True)
        ]
        pids = np.array([0 if track is None else track.pid for track in known], np.int64)[indices]
        tids = np.array([0 if track is None else track.tid for track in known], np.int64)[indices]
        where = indices.astype(np.int32)
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


def _kind(kind: int) -> str:
    try:
        return Kind(kind).name.lower()
    except ValueError:
        return f"kind {kind}"


def _number(value: int) -> int:
    return max(-(1 << 63), min(value, (1 << 63) - 1))


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode()
