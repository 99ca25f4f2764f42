"""Signals that come while the main thread has a lock which the closing of profilers needs."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

from stepscope.runtime.threads import locks
from tests.support.terminated_programs import WORK, ends

PROGRAM = (
    """
import logging
class Says(sc.exporters.MemoryExporter):
    async def aclose(self):
        logging.getLogger("stepscope").warning("it closes")
        threading.Thread(target=time.time).start()
        await super().aclose()
profiler = sc.trace(output_dir="run", exporters=[Says()], control=sc.Control(), options=sc.Options(close_timeout=20))
profiler.schedule = sc.schedule(wait=0, warmup=0, active=1, repeat=1)
"""
    + WORK
    + """
profiler.step()
lines = 0
def tracer(frame, event, _):
    global lines
    if frame.f_code.co_qualname == WHERE:
        lines += event == "line"
        if lines == LINE:
            sys.settrace(None)
            print("now", flush=True)
            term()
    return tracer
sys.settrace(tracer)
profiler.add_metadata("key", 1)
profiler.flush()
profiler.statistics()
profiler.report()
logging.getLogger("stepscope").warning("said")
threading.enumerate()
sys.settrace(None)
profiler.close()
time.sleep(60)
"""
)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("enumerate", 1),
        *((name, line) for name in ("Metadata.add", "Inbox.put", "StreamHandler.emit") for line in (1, 2, 3)),
    ],
)
def test_a_signal_at_the_acquisition_of_a_lock(where: str, line: int, tmp_path: Path) -> None:
    """Its handler does not wait, so everything is delivered, long before the deadline."""
    ends(f"WHERE, LINE = {where!r}, {line}\n" + PROGRAM, tmp_path, printed="now\n", code=-15)


def test_a_handler_that_closes_at_the_acquisition_of_a_lock(tmp_path: Path) -> None:
    """It does not wait for threads that wait for its own; a later `close()` does."""
    handler = "import signal\ndef handle(*_):\n    profiler.close(); print('left', flush=True)\n"
    script = handler + "WHERE, LINE = 'Inbox.put', 2\nsignal.signal(signal.SIGTERM, handle)\n" + PROGRAM
    ends(script.replace("time.sleep(60)\n", ""), tmp_path, printed="now\nleft\n", code=0)


def test_which_thread_has_a_lock() -> None:
    """Only the one that took it."""
    lock = locks.reentrant()
    reference = weakref.ref(lock)
    assert not locks.holds_any_lock()
    with lock:
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(locks.holds_any_lock()))
        thread.start()
        thread.join()
        assert locks.holds_any_lock() and seen == [False]
        assert locks.without(lock, locks.holds_any_lock) is False
        assert locks.holds_any_lock()
    assert not locks.holds_any_lock()
    del lock
    gc.collect()
    assert reference() is None and not locks.holds_any_lock()
