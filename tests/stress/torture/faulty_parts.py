"""Parts that delay and misbehave as a plan says."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import numpy as np

from stepscope.backends.simulated.scripted import Span, make_block
from stepscope.exporters.base import EventBatch, Exporter
from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import EVENT_DTYPE, Block
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from tests.stress.torture.plan import Backend, Lag, Moment

EVENTS = 50
"""Of a delivery."""
SPAN_NS = 100


class Delays:
    """The delays of one part, in the order in which it is called."""

    def __init__(self, lag: Lag) -> None:
        self._chance = random.Random(lag.seed)
        self._lag = lag
        self._left = lag.total

    def next(self) -> float:
        """Seconds by which the next call is delayed."""
        wanted = self._chance.uniform(0.0, self._lag.longest) if self._chance.random() < self._lag.share else 0.0
        granted = min(wanted, self._left)
        self._left -= granted
        return granted


def delayed(exporter: Exporter, lag: Lag) -> Exporter:
    """The same exporter, whose calls are delayed."""
    delays = Delays(lag)

    def slow(call: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def called(*arguments: Any) -> None:
            try:
                await anyio.sleep(delays.next())
            finally:  # one that is cancelled is to close what it can
                await call(*arguments)

        return called

    for method in ("open", "export", "close_window", "aclose"):
        setattr(exporter, method, slow(getattr(exporter, method)))
    return exporter


class Unruly:
    """A backend that is slow, fails, and delivers in every way but the right one."""

    def __init__(self, plan: Backend, number: int) -> None:
        self.name = f"unruly {number}"
        self.thread_bound = plan.bound
        self._plan = plan
        self._delays, self._derivations = Delays(plan.lag), Delays(plan.derive)
        self._sink: Sink | None = None
        self._began = 0

    def open(self, sink: Sink) -> None:
        self._sink = sink
        self._meet("open")

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        sink = self._sink
        assert sink is not None
        try:
            self._meet("transition")
            if before.records and (not after.records or before is ProfilerAction.RECORD_AND_SAVE):
                self._deliver(sink, self._began, at)
        finally:
            if after.records:
                self._began = at
            if self._plan.delivery != "no watermark":
                sink.watermark(at)

    async def aclose(self) -> None:
        sink = self._sink
        assert sink is not None
        if self._plan.delivery == "after close":
            self._later(lambda: self._events(sink, self._began))
        await anyio.sleep(self._delays.next())
        if self._plan.at == "aclose" and self._plan.failing == "hang":
            await anyio.sleep_forever()
        self._fail("aclose")
        sink.watermark((1 << 63) - 1)

    def derive(self, batch: EventBatch) -> Block | None:
        """Derives nothing, slowly."""
        time.sleep(self._derivations.next())
        return None

    def report(self) -> BackendReport:
        return BackendReport(mode="unruly")

    def _meet(self, moment: Moment) -> None:
        time.sleep(self._delays.next())
        self._fail(moment)

    def _fail(self, moment: Moment) -> None:
        if self._plan.at != moment:
            return
        match self._plan.failing:
            case "raise":
                raise OSError("the device is on fire")
            case "exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "cancel":
                raise asyncio.CancelledError("made up")
            case "generator exit":
                raise GeneratorExit
            case "hang" | "block":
                threading.Event().wait()
            case "":
                pass

    def _deliver(self, sink: Sink, began: int, at: int) -> None:
        match self._plan.delivery:
            case "in time" | "no watermark":
                self._events(sink, began)
            case "late":
                self._later(lambda: self._events(sink, began))
            case "out of order":
                self._events(sink, at, step=-1)
                self._events(sink, began)
            case "twice":
                self._events(sink, began)
                self._events(sink, began)
            case "garbage":
                anything: Any = np.zeros(3, np.int64)
                sink.deliver(anything, b"")
            case "noise":
                sink.deliver(np.frombuffer(os.urandom(EVENTS * EVENT_DTYPE.itemsize), EVENT_DTYPE), os.urandom(16))
            case "too much":
                for _ in range(200):
                    self._events(sink, began)
            case "lost":
                sink.dropped(EVENTS, "device", began)
            case "" | "after close":
                pass

    def _events(self, sink: Sink, start: int, step: int = 1) -> None:
        spans = [Span("device", step * number * SPAN_NS, SPAN_NS) for number in range(EVENTS)]
        sink.deliver(*make_block(spans, start, lambda name: tracks.process()))

    def _later(self, deliver: Callable[[], object]) -> None:
        """Delivers when nobody expects it."""
        timer = threading.Timer(max(self._delays.next(), 0.05), deliver)
        timer.daemon = True
        timer.start()
