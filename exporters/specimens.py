"""Specimens: the runs, batches and windows that exporters are tried with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime import _core
from stepscope.runtime.accounting.ledger import Ledger, OutputLedger, SourceLedger
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block, Flag, Kind, empty_block
from stepscope.runtime.session.job import this_host
from stepscope.runtime.windows.window import Step

ODD_NAMES = (
    "",
    " ",
    'quotes " and \\ backslashes \\" \\\\',
    "controls \0\x01\x1f\x7f\r\n\t\b\f",
    "separators \u2028\u2029\u0085",
    "lone surrogates \ud800 \udfff",
    "emoji 🧪👩‍👩‍👧 and e\u0301",
    "</script><script>alert(1)</script>",
    "%s %n {0} ${x}",
    "]}],",
    "x" * (1 << 20),
    "é" * 5000,
)
"""Names that broke an exporter somewhere."""

ARGUMENTS: Mapping[str, Any] = {
    "int": -(1 << 63),
    "unsigned": (1 << 64) - 1,
    "float": 0.1,
    "nan": math.nan,
    "infinite": -math.inf,
    "true": True,
    "nothing": None,
    "text": 'a "quoted" \0 \ud800 🧪',
    "list": [1, "two", [3.0, None]],
    "mapping": {"key": {"nested": "value"}},
    "": "an empty key",
    'key with " and \n': 1,
}
"""One argument of every type."""


def run_in(directory: Path, name: str = "conformance") -> Run:
    """A run that writes to a directory."""
    return Run(
        name=name,
        output_dir=directory,
        pid=1234,
        host=this_host(),
        rank=None,
        world_size=None,
        anchor=ClockAnchor.read(),
        metadata=lambda: {"model": "résumé", "nested": {"list": [1, 2.5, None, True]}},
    )


def spans(names: Iterable[str], *, start_ns: int | None = None) -> Block:
    """One span for each name, on one track, 1 us long and 2 us apart."""
    ids = [strings.intern(name) for name in names]
    block = empty_block(len(ids))
    start = clock.now() if start_ns is None else start_ns
    block["kind"] = int(Kind.SPAN)
    block["name"] = ids
    block["ts"] = [start + 2000 * index for index in range(len(ids))]
    block["dur"] = 1000
    block["self_dur"] = 1000
    block["id"] = range(1, len(ids) + 1)
    block["category"] = strings.category("user_annotation")
    block["track"] = tracks.new(tracks.TrackKind.THREAD, 1234, 1, "MainThread")
    block["step"] = 0
    return block


def batch_of(events: Block, args: bytes = b"", *, window: int = 0, source: str = "recorder") -> EventBatch:
    """A batch as exporters get it: read-only."""
    events.flags.writeable = False
    return EventBatch(source, window, events, args)


def window_of(index: int, batch: EventBatch) -> Window:
    """A finished window that holds the events of a batch."""
    times = batch.events["ts"] if len(batch) else [0]
    start, end = int(min(times)), int(max(times)) + 1000
    return Window(
        index=index,
        profiler="conformance",
        start_ns=start,
        end_ns=end,
        steps=(Step(0, start, end),),
        complete=True,
        diagnostics=("a note",),
        ledger=Ledger(
            {batch.source: SourceLedger(len(batch) + 3, len(batch), {"overflow": 3})},
            {"memory": OutputLedger(len(batch), len(batch), {})},
            {"names_cut": 1},
        ),
        metadata={"learning rate": 0.1},
    )


def every_kind() -> EventBatch:
    """A batch with every kind and flag of event, and every type of argument."""
    counters = (math.nan, math.inf, -math.inf, 1e308, -0.0)
    durations = (-5, 0, 1 << 60, 1)
    names = [f"kind {kind.name}" for kind in Kind] + [f"flag {flag.name}" for flag in Flag]
    block = spans([*names, *["counter"] * len(counters), *["times"] * len(durations)])
    heap = _core.encode_arguments(dict(ARGUMENTS))
    block["kind"][: len(Kind)] = [int(kind) for kind in Kind]
    block["args_len"][: len(Kind)] = len(heap)
    block["flags"][len(Kind) : len(names)] = [int(flag) for flag in Flag]
    inline = names.index(f"flag {Flag.ARG_INLINE.name}")
    block["args_at"][inline], block["args_len"][inline] = strings.intern("Sequence number"), 0xFFFFFFFF
    block["kind"][len(names) : -len(durations)] = int(Kind.COUNTER)
    block["value"][len(names) : -len(durations)] = counters
    block["dur"][-len(durations) :] = durations
    block["track"][-1] = 0
    return batch_of(block, heap)
