"""Journals of long trainings, made at once: what `stepscope explain` and `report` are measured on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

OPERATORS = (
    "aten::linear",
    "aten::addmm",
    "aten::relu",
    "aten::layer_norm",
    "aten::softmax",
    "aten::mul",
    "aten::copy_",
)
SIGNALS = ("cpu_ns", "run_queue_ns", "resident_bytes", "page_faults", "preemptions", "written_bytes")
NS_A_SAMPLE = 50_000_000
"""Between two samples of the stack: 20 a second."""


def write_training(directory: Path, events: int, steps: int, step_ns: int = 20_000_000, batch: int = 8_192) -> Path:
    """A training as `stepscope run` records one: in each step a batch that is waited for, forward, backward and the optimizer,
    their operators, signals, a loss, and now and then a garbage collection and a sample of the stack.

    Args:
        directory: for the journal.
        events: about how many there are.
        steps: of which each has the same.
        step_ns: how long one takes.
        batch: events that are written together, about.
    """
    from stepscope.exporters.specimens import run_in
    from stepscope.runtime.events import strings, tracks
    from stepscope.runtime.events.record import EventBatch, Kind
    from stepscope.runtime.journal.writer import JournalWriter
    from stepscope.runtime.windows.window import Step, Window

    step, heap = _step(max(events // steps, 12), step_ns)
    track = tracks.new(tracks.TrackKind.THREAD, 1234, 1, "MainThread")
    level = strings.intern("resident_bytes")
    begin = 1_000_000_000
    writer = JournalWriter(directory / "journal")
    writer.open(run_in(directory))
    every = max(batch // len(step), 1)
    for first in range(0, steps, every):
        count = min(every, steps - first)
        block: Any = np.tile(step, count)
        numbers = np.repeat(np.arange(first, first + count), len(step))
        block["step"] = numbers
        block["ts"] += begin + numbers * step_ns
        block["track"] = track
        block["id"] += np.uint64(1) + (numbers * len(step)).astype(np.uint64)
        block["parent"] += np.where(block["parent"] > 0, numbers * len(step), 0).astype(np.uint64)
        counted = (block["kind"] == Kind.COUNTER) & (block["category"] == strings.category("step signal"))
        block["value"][counted] *= np.where(block["name"][counted] == level, 1, numbers[counted])
        due = (block["ts"] // NS_A_SAMPLE != (block["ts"] - step_ns) // NS_A_SAMPLE) | (block["kind"] != Kind.INSTANT)
        rare = (numbers % 10 == 0) | (block["category"] != strings.category("gc"))
        block = block[due & rare]
        block.flags.writeable = False
        writer.write_batch(EventBatch("recorder", 0, block, heap))
    end = begin + steps * step_ns
    writer.write_window(
        Window(
            index=0,
            profiler="training",
            start_ns=begin,
            end_ns=end,
            steps=(Step(0, begin, begin + step_ns), Step(steps - 1, end - step_ns, end)),
            complete=True,
        )
    )
    writer.close()
    return directory


def _step(count: int, step_ns: int) -> tuple[Any, bytes]:
    """The events of one step, from time 0, and their arguments."""
    from stepscope.runtime import _core
    from stepscope.runtime.events import strings
    from stepscope.runtime.events.record import Kind, empty_block

    block: Any = empty_block(count)
    heap = bytearray()
    at = 0

    def put(
        kind: int, name: str, category: str, begin: float, share: float = 0.0, parent: int = 0, **facts: Any
    ) -> int:
        nonlocal at
        row = block[at]
        row["kind"], row["name"], row["category"] = kind, strings.intern(name), strings.category(category)
        row["ts"], row["dur"] = begin * step_ns, share * step_ns
        if kind == Kind.COUNTER:
            row["value"] = facts.pop("value")
        else:
            row["self_dur"], row["id"], row["parent"] = row["dur"], at, parent
        if facts:
            encoded = _core.encode_arguments(facts)
            row["args_at"], row["args_len"] = len(heap), len(encoded)
            heap.extend(encoded)
        at += 1
        return at - 1

    stack = ";".join(f"function_{depth} (/project/package/module_{depth}.py:{depth + 10})" for depth in range(12))
    put(Kind.STEP, "ProfilerStep", "step", 0)
    for signal in SIGNALS:
        put(Kind.COUNTER, signal, "step signal", 0, value=step_ns / 2)
    put(Kind.SPAN, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", 0.01, 0.08)
    put(Kind.INSTANT, "stack sample", "stack sample", 0.3, stack=stack, state="R", other="")
    put(Kind.SPAN, "garbage collection", "gc", 0.92, 0.01, generation=2)
    put(Kind.COUNTER, "loss", "", 0.95, value=0.5)
    left = count - at
    for number in range(left // 2):
        begin = 0.1 + 0.8 * number / (left // 2)
        name = OPERATORS[number % len(OPERATORS)]
        outer = put(Kind.SPAN, name, "cpu_op", begin, 0.6 / left)
        put(Kind.SPAN, f"{name}_{number % 40}", "cpu_op", begin + 0.1 / left, 0.3 / left, outer)
    return block[:at], bytes(heap)
