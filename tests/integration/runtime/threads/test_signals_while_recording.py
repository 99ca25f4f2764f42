"""Signals: handlers that record or raise while recording is under way, and what a killed process leaves."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stepscope.runtime._core import counter, instant, span
from stepscope.runtime.events.record import Kind
from tests.support.recording import check_self_times, recording, run_program

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def storm(handler: Handler, interval: float) -> Generator[None]:
    """Runs the body with a timer's signal arriving every `interval` seconds; 0: when the body sets the timer."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handler_records_while_recording() -> None:
    """100,000 spans, with a handler in between that records as well: all are there, nested and exact."""
    handled = 0

    def handler(_: int, frame: FrameType | None) -> None:
        nonlocal handled
        handled += 1
        with span("handler", text=f"number {handled}"):
            instant("in the handler")

    with recording() as log:
        with storm(handler, 0.0005):
            for number in range(50_000):
                with span("outer", number=number), span("inner", text="text"):
                    pass
    assert handled > 0
    assert len(log.events(Kind.SPAN, "outer")) == len(log.events(Kind.SPAN, "inner")) == 50_000
    assert len(log.events(Kind.SPAN, "handler")) == len(log.of(Kind.INSTANT)) == handled
    assert not any(int(row.flags) & ~1 for row in log.spans)
    check_self_times(log.spans)


def test_a_handlers_exception_is_not_lost() -> None:
    """A timeout or an interrupt that arrives inside of recording reaches the program, once each."""

    class Timeout(BaseException):
        pass

    class Slow:
        def __float__(self) -> float:
            for _ in range(20):
                pass
            return 1.0

    slow: Any = Slow()
    raised = caught = 0

    def handler(_: int, frame: FrameType | None) -> None:
        nonlocal raised
        raised += 1
        raise Timeout

    with recording(), storm(handler, 0):
        for _ in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                for _ in range(500_000):
                    with span("a", number=1):
                        counter("slow", slow)
            except Timeout:
                caught += 1
    assert (raised, caught) == (200, 200)
    with recording() as log, span("after"):
        pass
    assert log.span("after").parent == 0


def test_the_first_event_of_a_thread_in_a_handler() -> None:
    """A handler may come while the thread's ring is being made."""
    (result,) = run_program("""
        import signal
        def handler(*_):
            instant("handler")
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
        for _ in range(2000):
            with span("main"):
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        log.drain()
        print_json([len(log.spans), len({row.track for row in log.rows}), recorder.statistics().rings])
    """)
    assert result == [2000, 1, 1]


def test_threads_may_outlive_the_recorder() -> None:
    """After it was closed nothing is recorded, and nothing is raised."""
    run_program("""
        stop = threading.Event()
        def work():
            while not stop.is_set():
                with span("work", name_of=str(time.time())):
                    pass
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        while recorder.statistics().produced < 1000:
            pass
        recorder.close()
        late = threading.Thread(target=lambda: instant("late"))
        late.start()
        late.join()
        stop.set()
        for thread in threads:
            thread.join()
        assert not _core.recording() and not recorder.directory.exists()
    """)
