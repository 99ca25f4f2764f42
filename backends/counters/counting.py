"""A backend that reads figures from time to time, and records them as counters."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from stepscope.runtime.errors import BackendError, ClosedError
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import got, number_argument
from stepscope.runtime.settings.validation import did_you_mean
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Event, Thread


class SamplingBackend(ABC):
    """Calls `_sample` every so often while recording goes on; the thread sleeps while it does not.

    Args: the source's name; seconds between two samples, above 0; whether windows have samples that were not asked for with them."""

    thread_bound = False
    what: ClassVar[str]
    """The switch of `WindowDetail` for its samples."""

    def __init__(self, name: str, interval: float, *, always: bool = True) -> None:
        number_argument("interval", interval, unit="seconds")
        if not interval > 0:
            raise ValueError(f"interval must be a number of seconds above 0, got {interval!r}")
        self.name = name
        self._interval = interval
        self._wake = Event()
        self._closed = self._window = self._border = False
        self._always = self._wanted = always
        self._thread: Thread | None = None
        self._problem = ""
        self._samples = 0

    def open(self, sink: Sink) -> None:
        """Starts the thread."""
        self._stop_thread()
        self._closed = self._window = self._border = False
        self._wanted = self._always
        self._thread = Thread(target=self._run, args=(sink,), name=f"stepscope {self.name}", daemon=True)
        start(self._thread)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        self._window, self._border = after.records, True
        self._wake.set()

    def can_choose(self, what: str, on: bool) -> str | None:
        """Samples can be chosen for each window."""
        return "" if what == self.what else None

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Takes samples in windows from now on, or takes none."""
        self._wanted = chosen.get(self.what, self._always)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._stop_thread)

    def report(self) -> BackendReport:
        notes = (self._problem,) if self._problem else ()
        return BackendReport(mode=f"every {self._interval * 1000:g} ms, {self._samples} samples", notes=notes)

    @property
    def _recording(self) -> bool:
        return self._window and self._wanted

    def _stop_thread(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._wake.set()
            self._thread.join()
            self._thread = None

    def _run(self, sink: Sink) -> None:
        try:
            while not self._closed:
                self._wake.wait(self._interval if self._recording else None)
                self._wake.clear()
                border, self._border = self._border, False
                now = clock.now()
                events, args = self._border_passed(now) if border else (None, b"")
                if events is not None:
                    sink.deliver(events, args)
                if self._recording and not self._closed:
                    self._samples += 1
                    events, args = self._sample(now)
                    if events is not None:
                        sink.deliver(events, args)
                sink.watermark(self._delivered_until(now))
        except ClosedError:
            return
        except BaseException as error:  # the program's other sources go on
            self._problem = f"sampling ended: {type(error).__name__}: {error}"
            sink.watermark((1 << 63) - 1)

    @abstractmethod
    def _sample(self, now: int) -> tuple[Block | None, bytes]:
        """Takes a sample; returns events and their arguments."""

    def _border_passed(self, now: int) -> tuple[Block | None, bytes]:
        """A window began or ended; returns what is to be delivered because of that."""
        return None, b""

    def _delivered_until(self, now: int) -> int:
        """No event that began before this time will be delivered any more."""
        return now


class Reading(NamedTuple):
    """A figure that was read."""

    name: str
    value: float
    total: bool = False
    """Whether the figure only grows; then its increase per second is recorded."""


class CountingBackend(SamplingBackend):
    """Records what `_read` finds. A level has the time at which it was read; a rate that at which what it was measured over
    began, for viewers draw a value from its time on. In a window that is shorter than the interval it is measured over what
    there is of it. Args: as of `SamplingBackend`."""

    category: ClassVar[str]
    """Category of the counters."""
    what: ClassVar[str] = "counters"
    """The part of a window that its samples are."""

    def __init__(self, name: str, interval: float, *, always: bool = True) -> None:
        super().__init__(name, interval, always=always)
        self._since = 0
        self._totals: dict[str, float] = {}
        self._rated = False
        self._notes: dict[str, None] = {}

    def report(self) -> BackendReport:
        report = super().report()
        return BackendReport(mode=report.mode, notes=(*report.notes, *self._notes))

    @abstractmethod
    def _read(self) -> Iterable[Reading]:
        """The current figures; those that cannot be read are missing, and `_note` has the reason."""

    def _rates(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        """The values of counters, from the increase of each total in a second."""
        return rates

    def _nothing(self, why: object) -> BackendError:
        """The error of `open` where there is nothing to read."""
        return BackendError(f"backend {self.name!r} can read nothing here: {why}")

    def _note(self, text: str) -> None:
        """Notes for the report which figures could not be read; the same text once."""
        self._notes[text] = None

    def _sample(self, now: int) -> tuple[Block | None, bytes]:
        at = clock.now()
        found = list(self._read())
        levels = {reading.name: reading.value for reading in found if not reading.total}
        totals = {reading.name: reading.value for reading in found if reading.total}
        block = join_blocks([self._increase(at, totals), self._block(now, levels)])
        self._since, self._totals = at, totals
        return block, b""

    def _border_passed(self, now: int) -> tuple[Block | None, bytes]:
        if self._recording or not self._totals:
            return None, b""
        at = clock.now()
        long_enough = not self._rated or at - self._since >= self._interval * 5e8
        totals = {reading.name: reading.value for reading in self._read() if reading.total} if long_enough else {}
        block = self._increase(at, totals)
        self._totals, self._rated = {}, False
        return block, b""

    def _delivered_until(self, now: int) -> int:
        return self._since if self._totals else now

    def _increase(self, at: int, totals: Mapping[str, float]) -> Block:
        """Rates since the last sample; none without one."""
        seconds = (at - self._since) / 1e9
        both = totals.keys() & self._totals.keys()
        if not both or seconds <= 0:
            return empty_block()
        self._rated = True
        rates = {name: max(totals[name] - self._totals[name], 0.0) / seconds for name in totals if name in both}
        return self._block(self._since, self._rates(rates))

    def _block(self, at: int, values: Mapping[str, float]) -> Block:
        events = empty_block(len(values))
        events["ts"], events["kind"] = at, int(Kind.COUNTER)
        events["name"] = [strings.intern(name) for name in values]
        events["category"], events["track"] = strings.category(self.category), tracks.process()
        events["value"] = list(values.values())
        return events


def chosen(argument: str, value: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """The chosen names, once each.

    Raises:
        TypeError: if it is neither a name nor a list of names.
        ValueError: for an unknown name, with the nearest; if there is none.
    """
    if not isinstance(value, Iterable):
        raise TypeError(f"{argument} must be a list of names, {got(value)}; known: {', '.join(sorted(allowed))}")
    names = (value,) if isinstance(value, str) else tuple(dict.fromkeys(value))
    for name in names:
        if name not in allowed:
            raise ValueError(f"{argument} has {name!r}, which there is not{did_you_mean(str(name), allowed)}")
    if not names:
        raise ValueError(f"{argument} is empty; known: {', '.join(sorted(allowed))}")
    return names
