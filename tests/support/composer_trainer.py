"""A trainer with Composer's events in Composer's order, for a handler to be driven by; the training is real.

The order of events and what a state holds are as Composer's documentation of `Event` and `Timestamp` has them. Composer
itself wants an older torch than the rest of our environment.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.basics import Deferred

torch: Any = Deferred("torch")


class Action(enum.Enum):
    """The actions of Composer's profiler."""

    SKIP = "skip"
    WARMUP = "warmup"
    ACTIVE = "active"
    ACTIVE_AND_SAVE = "active_and_save"


class Timestamp(msgspec.Struct, frozen=True):
    """Training time."""

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0

    def to_next_batch(self) -> Timestamp:
        return Timestamp(self.epoch, self.batch + 1, self.batch_in_epoch + 1)

    def to_next_epoch(self) -> Timestamp:
        return Timestamp(self.epoch + 1, self.batch, 0)


class Profiler:
    """Composer's profiler, as far as handlers and schedules see it."""

    def __init__(self, schedule: Callable[[Any], Action], handler: Any) -> None:
        self.schedule = schedule
        self.resumption_batch_idx = 0
        self.handler = handler

    def mark(self, name: str, state: State, is_start: bool) -> None:
        """A duration, as a marker tells of it."""
        self.handler.process_duration_event(name, ["event"], is_start, state.timestamp, time.time_ns())


class State:
    """What callbacks are given."""

    def __init__(self, length: int | None, timestamp: Timestamp) -> None:
        self.run_name = "small"
        self.timestamp = timestamp
        self.dataloader_len = length
        self.profiler: Profiler | None = None


class SmallTrainer:
    """Trains a line, in microbatches, and tells a handler of everything.

    Args:
        handler: the trace handler; it is a callback, too.
        schedule: of the profiler; without one there is none.
        batches: in an epoch; `known` says whether the state has the number.
        resumed: where the training goes on.
        in_batch: called in each batch with its number.
    """

    def __init__(
        self,
        handler: Any,
        *,
        schedule: Callable[[Any], Action] | None = None,
        batches: int = 8,
        microbatches: int = 1,
        known: bool = True,
        resumed: Timestamp | None = None,
        in_batch: Callable[[int], None] = lambda batch: None,
    ) -> None:
        self.handler = handler
        self.batches, self.microbatches = batches, microbatches
        self.in_batch = in_batch
        self.state = State(batches if known else None, resumed or Timestamp())
        if schedule is not None:
            self.state.profiler = Profiler(schedule, handler)
        if resumed is not None:
            if self.state.profiler is not None:
                self.state.profiler.resumption_batch_idx = resumed.batch_in_epoch
            self.run_event("after_load")

    def run_event(self, name: str) -> None:
        """Calls the handler as the engine does."""
        method = getattr(self.handler, name, None)
        if method is not None:
            method(self.state, None)

    def fit(self, epochs: int) -> None:
        """Trains up to so many epochs, and closes, whatever happens."""
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        try:
            self.run_event("fit_start")
            while self.state.timestamp.epoch < epochs:
                self.run_event("epoch_start")
                while self.state.timestamp.batch_in_epoch < self.batches:
                    self._batch(model, optimizer)
                self.state.timestamp = self.state.timestamp.to_next_epoch()
                self.run_event("epoch_end")
            self.run_event("fit_end")
        finally:
            self.run_event("close")

    def _batch(self, model: Any, optimizer: Any) -> None:
        state = self.state
        # A marker that began to record tells of its end, too; one that did not, of its end only.
        told = state.profiler is not None and state.profiler.schedule(state) is not Action.SKIP
        if told and state.profiler is not None:
            state.profiler.mark("event/batch", state, True)
        self.run_event("batch_start")
        self.in_batch(state.timestamp.batch)
        optimizer.zero_grad()
        for _ in range(self.microbatches):
            self.run_event("before_forward")
            loss = model(torch.rand(2, 4)).square().mean()
            self.run_event("after_forward")
            self.run_event("before_backward")
            loss.backward()
            self.run_event("after_backward")
        optimizer.step()
        if state.profiler is not None:
            state.profiler.mark("event/batch", state, False)
        state.timestamp = state.timestamp.to_next_batch()
        self.run_event("batch_end")


def write_trace(path: Path, names: Sequence[str]) -> Path:
    """A file of torch's own profiler, with regions of these names."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for name in names:
            with torch.profiler.record_function(name):
                torch.add(torch.ones(2), 1)
    profiler.export_chrome_trace(str(path))
    return path
