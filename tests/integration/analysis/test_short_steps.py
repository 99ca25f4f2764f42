"""Loaders of steps that are so short that handing a batch over takes longer than making it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.explain import explain
from stepscope.analysis.findings import Answer
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from tests.support.journals import batch_with_arguments, write_journal

US = 1_000
STEPS = 50


def answer(directory: Path, step_us: int, waiting_us: int, workers: int, batch_us: int) -> Answer:
    """On a training whose steps all take so long, of which it waits for data so long; a worker makes a batch in so long."""
    names = ["step", "enumerate(DataLoader)#_.__next__", "fetch"] * STEPS + ["loader"]
    nothing: dict[str, Any] = {}
    batch = batch_with_arguments(names, [nothing] * (3 * STEPS) + [{"workers": workers}])
    events = batch.events.copy()
    begins = np.arange(STEPS) * step_us * US
    events["kind"][:-1:3], events["kind"][-1] = Kind.STEP, Kind.INSTANT
    events["ts"] = [*np.repeat(begins, 3), 0]
    events["step"] = [*np.repeat(np.arange(STEPS), 3), 0]
    events["dur"][1:-1:3], events["dur"][2:-1:3] = waiting_us * US, batch_us * US
    events["category"][2:] = strings.category("loader")
    events["category"][4:-1:3] = strings.category("user_annotation")
    if not workers:
        events = np.delete(events, np.s_[2:-1:3])
    else:
        events["track"][2:-1:3] = 77
    write_journal(directory / "journal", [EventBatch(batch.source, 0, events, batch.args)])
    return explain(directory)


def test_no_workers_where_they_would_cost_more_than_they_save(tmp_path: Path) -> None:
    """A step of 1.1 ms, half of it in the loader: with a worker it would take twice as long."""
    first = answer(tmp_path, 1_100, 600, 0, 0).findings[0]
    assert first.id == "input-bound-in-process" and first.certainty == "likely"
    assert "num_workers" not in first.action and "larger batches" in first.action
    assert "possibly" in first.gain and "workers would not help" in first.gain


def test_what_workers_cost_is_in_what_they_gain(tmp_path: Path) -> None:
    """10 ms of 12: what is left is 2 ms of work and 1 ms of handing over."""
    first = answer(tmp_path, 12_000, 10_000, 0, 0).findings[0]
    assert first.action == "DataLoader(..., num_workers=4)" and first.certainty == "certain"
    assert "4.0 times" in first.gain


def test_batches_that_take_long_to_hand_over(tmp_path: Path) -> None:
    """The workers are quick, and the training waits all the same."""
    first = answer(tmp_path, 1_150, 700, 1, 100).findings[0]
    assert first.id == "input-bound-handover" and "61% of each step" in first.title
    assert "num_workers=0" in first.action and "2.1 times" in first.gain


def test_workers_that_are_too_slow(tmp_path: Path) -> None:
    """Another worker helps, as a step is long."""
    first = answer(tmp_path, 12_000, 10_000, 1, 11_000).findings[0]
    assert first.id == "input-bound-workers" and "num_workers=4" in first.action
