"""The contract of a backend as a suite: what every producer must do, whatever it records.

`check_backend(factory)` runs all of it; `CHECKS` are the parts, for one test each. A check raises `AssertionError`
saying what was promised and what happened instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
from anyio.from_thread import BlockingPortal, start_blocking_portal

from stepscope.backends.base import Backend
from stepscope.backends.collecting import CollectingSink
from stepscope.runtime import _core
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.record import EVENT_DTYPE, Block, Flag, Kind
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import lacking
from stepscope.runtime.sources.sink import BackendReport

T = TypeVar("T")
NONE, WARMUP, RECORD, SAVE = ProfilerAction


def _let_time_pass() -> None:
    time.sleep(0.03)


class Case(msgspec.Struct, frozen=True):
    """A backend to check, and what may be expected of it."""

    factory: Callable[[], Backend]
    """Makes a new backend, not opened."""
    exercise: Callable[[], object] = _let_time_pass
    """Work on the training thread of which the backend records events."""
    deadline: float = 5.0
    """Seconds for the watermark to pass the end of a window, and for `aclose`."""
    tolerance: int = 1_000_000
    """The largest error of the times of events, in ns: that of the backend's clock."""
    silent: bool = False
    """True if it need not deliver any event."""


class Stage:
    """A backend between a training thread (the caller's) and a loop (a thread of its own), as in a profiler."""

    def __init__(self, case: Case, portal: BlockingPortal, backend: Backend) -> None:
        self.case, self.backend = case, backend
        self._portal = portal
        self._loop: asyncio.AbstractEventLoop = portal.call(asyncio.get_running_loop)
        self._work: list[Future[Any]] = []
        self.sink = CollectingSink(self._start)
        self._action = NONE

    def _start(self, work: Any) -> None:
        self._work.append(asyncio.run_coroutine_threadsafe(work(), self._loop))

    def open(self) -> None:
        """Opens the backend, with a new sink, where it wants to be opened."""
        self.sink = CollectingSink(self._start)
        self._action = NONE
        self._call(self.backend.open, self.sink)

    def go(self, after: ProfilerAction) -> int:
        """Changes the action now; returns when that was."""
        at = clock.now()
        self._call(self.backend.transition, self._action, after, at)
        self._action = after
        return at

    def record(self, actions: tuple[ProfilerAction, ...]) -> list[int]:
        """Goes through the actions, exercising the backend in each that records; returns the times."""
        times: list[int] = []
        for action in actions:
            times.append(self.go(action))
            if action.records:
                self.case.exercise()
        return times

    def expect_passed(self, at: int) -> None:
        """The watermark passes `at` before the deadline."""
        if not self.sink.wait_past(at, self.case.deadline):
            self.fail(
                f"the watermark must pass the end of a window, {at}, within {self.case.deadline:g} s; "
                f"it is at {self.sink.passed}"
            )

    def expect_report(self, report: object) -> None:
        """Fails unless `report` returned a report."""
        if not isinstance(report, BackendReport):
            self.fail(f"report() must give a BackendReport, got {report!r}")

    def aclose(self) -> None:
        """Closes the backend on the loop, before the deadline."""
        closing = self._portal.start_task_soon(self.backend.aclose)
        try:
            closing.result(self.case.deadline)
        except TimeoutError:
            closing.cancel()
            self.fail(f"aclose must be done within {self.case.deadline:g} s")

    def end(self) -> None:
        """Refuses deliveries after `aclose`, as a profiler does, and raises exceptions of the backend's work."""
        self.sink.close()
        for work in self._work:
            if work.done() and not work.cancelled() and work.exception() is not None:
                raise AssertionError(f"{self.backend.name}: work given to run_soon raised") from work.exception()
            work.cancel()

    def on_loop(self, function: Callable[..., T], *args: object) -> T:
        """Calls a function on the loop's thread."""
        return self._portal.call(function, *args)

    def fail(self, what: str) -> NoReturn:
        """Raises an error: a promise is broken."""
        raise AssertionError(f"{self.backend.name}: {what}")

    def _call(self, function: Callable[..., object], *args: object) -> None:
        if self.backend.thread_bound:
            function(*args)
        else:
            self.on_loop(function, *args)


@contextmanager
def stage(case: Case) -> Generator[Stage, None, None]:
    """A stage with a loop that runs, and a new backend that is not opened yet."""
    with start_blocking_portal("asyncio") as portal:
        made = Stage(case, portal, case.factory())
        yield made
        made.end()


def check_block(events: Block, args: bytes) -> None:
    """A block holds what exporters rely on.

    Raises:
        AssertionError: naming the first event that is wrong, and why.
    """
    assert events.dtype == EVENT_DTYPE, f"a block must have the dtype of events, got {events.dtype}"
    assert events.ndim == 1, f"a block must have one dimension, got {events.ndim}"
    kinds = events["kind"]
    spans = events[(kinds == Kind.SPAN) | (kinds == Kind.GAP)]
    assert np.isin(kinds, [int(kind) for kind in Kind]).all(), f"unknown kinds of event: {set(kinds.tolist())}"
    assert (spans["dur"] >= 0).all(), "a span must not have a negative duration"
    inline = (events["flags"] & Flag.ARG_INLINE) != 0
    heap = ~inline & (events["args_len"] > 0)
    ends = events["args_at"].astype(np.int64) + events["args_len"]
    assert (ends[heap] <= len(args)).all(), f"arguments must lie in the heap of {len(args)} bytes"
    for event in events[heap][:1000]:
        assert _core.decode_arguments(args, int(event["args_at"]), int(event["args_len"])), (
            "arguments cannot be decoded"
        )
    names = np.concatenate([events["name"], events["args_at"][inline]])
    empty = strings.intern("")
    for name in np.unique(names).tolist():
        assert strings.text(name) or name == empty, f"{name} is not the id of a name"
        assert name >= strings.FIRST_NAME, f"{name} is a category, not a name"
    for category in np.unique(events["category"]).tolist():
        assert category == 0 or strings.text(category), f"{category} is not the id of a category"
    for track in np.unique(events["track"]).tolist():
        assert tracks.get(track) is not None, f"{track} is not the id of a track"


def _check_deliveries(at: Stage, times: list[int], windows: int) -> None:
    """Valid blocks, honest watermarks, and events of every window, which `times` separate, and of nothing else."""
    for delivery in at.sink.deliveries:
        check_block(delivery.events, delivery.args)
        if len(delivery.events) and delivery.promised is not None:
            first = int(delivery.events["ts"].min())
            if first < delivery.promised:
                at.fail(f"an event of time {first} was delivered after the watermark {delivery.promised}")
    events = at.sink.events
    began = events["ts"]
    slack = at.case.tolerance
    stray = events[(began >= times[-1] + slack) | (began + events["dur"] < times[0] - slack)]
    if len(stray):
        name = strings.text(int(stray["name"][0]))
        at.fail(f"{len(stray)} events lie outside of what was recorded, such as {name!r} at {stray['ts'][0]}")
    for window in range(0 if at.case.silent else windows):
        if not ((began >= times[window] - slack) & (began < times[window + 1] + slack)).any():
            at.fail(f"nothing was delivered of window {window}")


def check_names(case: Case) -> None:
    """It is a `Backend`, and has its names and flags before it is opened."""
    backend = case.factory()
    lacks = lacking(backend, Backend)
    assert not lacks, f"{backend!r} lacks {lacks}, see stepscope.backends.Backend"
    assert isinstance(backend.name, str) and backend.name, f"a backend's name must be a text, got {backend.name!r}"
    assert isinstance(backend.thread_bound, bool), f"{backend.name}: thread_bound must be True or False"
    assert isinstance(backend.report(), BackendReport), f"{backend.name}: report() must work before open"


def check_window(case: Case) -> None:
    """A window delivers its events, and no others, and then the watermark passes its end."""
    with stage(case) as at:
        at.open()
        at.go(WARMUP)
        times = at.record((RECORD, SAVE, NONE))
        at.expect_passed(times[-1])
        at.aclose()
        _check_deliveries(at, [times[0], times[-1]], 1)


def check_two_windows(case: Case) -> None:
    """Two windows that follow each other directly each get their events, and are passed by the watermark."""
    with stage(case) as at:
        at.open()
        times = at.record((RECORD, SAVE, RECORD, SAVE, NONE))
        at.expect_passed(times[2])
        at.expect_passed(times[-1])
        at.aclose()
        _check_deliveries(at, [times[0], times[2], times[-1]], 2)


def check_pause(case: Case) -> None:
    """Recording goes on after it ended for a while."""
    with stage(case) as at:
        at.open()
        first = at.record((SAVE, NONE))
        at.expect_passed(first[-1])
        second = at.record((WARMUP, SAVE, NONE))
        at.expect_passed(second[-1])
        at.aclose()
        _check_deliveries(at, [first[0], second[1], second[-1]], 2)


def check_restart(case: Case) -> None:
    """After `aclose` it can be opened again, and delivers to the new sink only."""
    with stage(case) as at:
        at.open()
        at.record((RECORD, NONE))
        at.aclose()
        at.sink.close()
        at.open()
        times = at.record((SAVE, NONE))
        at.expect_passed(times[-1])
        at.aclose()
        _check_deliveries(at, times, 1)


def check_nothing_recorded(case: Case) -> None:
    """Without a recording it delivers nothing, warmed up or not."""
    with stage(case) as at:
        at.open()
        at.aclose()
        at.open()
        at.go(WARMUP)
        at.go(NONE)
        at.aclose()
        recorded = [event for event in at.sink.events if event["kind"] != Kind.METADATA]
        if recorded:
            at.fail(f"{len(recorded)} events were delivered though nothing was recorded")


def check_close_while_recording(case: Case) -> None:
    """`aclose` is prompt in the middle of a recording, may be repeated, and nothing after it does harm."""
    with stage(case) as at:
        at.open()
        at.record((RECORD,))
        at.aclose()
        at.sink.close()
        at.aclose()
        at.go(SAVE)
        at.go(NONE)
        at.aclose()
        at.expect_report(at.backend.report())
        for delivery in at.sink.deliveries:
            check_block(delivery.events, delivery.args)


def check_report(case: Case) -> None:
    """`report` works at any time and on any thread."""
    with stage(case) as at:
        at.open()
        at.record((RECORD,))
        at.expect_report(at.backend.report())
        at.expect_report(at.on_loop(at.backend.report))
        at.go(NONE)
        at.aclose()


CHECKS: tuple[Callable[[Case], None], ...] = (
    check_names,
    check_window,
    check_two_windows,
    check_pause,
    check_restart,
    check_nothing_recorded,
    check_close_while_recording,
    check_report,
)


def check_backend(
    factory: Callable[[], Backend],
    *,
    exercise: Callable[[], object] = _let_time_pass,
    deadline: float = 5.0,
    tolerance: int = 1_000_000,
    silent: bool = False,
) -> None:
    """Runs every check against new backends. Call it on the thread that stands for the training thread.

    Args:
        factory: makes a new backend, not opened.
        exercise: makes the backend record something; called on this thread while recording. By default 30 ms pass.
        deadline: seconds for the watermark to pass the end of a window, and for `aclose`.
        tolerance: how far the times of events may be off, in ns.
        silent: whether it may deliver nothing at all.

    Raises:
        AssertionError: for the first promise that is broken.
    """
    case = Case(factory, exercise, deadline, tolerance, silent)
    for check in CHECKS:
        check(case)
