"""A backend that looks at something from time to time, on a thread of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Block
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import number_argument
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Event, Thread


class SamplingBackend(ABC):
    """Calls `_sample` every so often while recording goes on; the thread sleeps while it does not.

    Args:
        name: of this source.
        interval: seconds between two samples.
        always: whether windows have samples that were not asked for with them.

    Raises:
        TypeError: if the interval is no number.
        ValueError: if it is not above 0.
    """

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
        if self._thread is not None:
            self._stop_thread()
        self._closed = self._window = self._border = False
        self._wanted = self._always
        self._thread = Thread(target=self._run, args=(sink,), name=f"stepscope {self.name}", daemon=True)
        start(self._thread)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        self._window, self._border = after.records, True
        self._wake.set()

    def can_choose(self, what: str, on: bool) -> str | None:
        """Whether there are samples can be chosen for each window."""
        return "" if what == self.what else None

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Takes samples in windows from now on, or takes none."""
        self._wanted = chosen.get(self.what, self._always)

    async def aclose(self) -> None:
        thread = self._thread
        self._closed = True
        self._wake.set()
        if thread is not None:
            await asyncio.to_thread(thread.join)
            self._thread = None

    def report(self) -> BackendReport:
        notes = (self._problem,) if self._problem else ()
        return BackendReport(mode=f"every {self._interval * 1000:g} ms, {self._samples} samples", notes=notes)

    @property
    def _recording(self) -> bool:
        return self._window and self._wanted

    def _stop_thread(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

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
        """Looks once; returns events and their arguments."""

    def _border_passed(self, now: int) -> tuple[Block | None, bytes]:
        """A window began or ended; returns what is to be delivered because of that."""
        return None, b""

    def _delivered_until(self, now: int) -> int:
        """No event that began before this time will be delivered any more."""
        return now
