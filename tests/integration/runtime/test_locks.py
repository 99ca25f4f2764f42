"""Signals that come while the main thread holds a lock which the closing of profilers needs."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import weakref
from pathlib import Path

import pytest

from stepscope.runtime.threads import locks
from tests.support.terminations import WORK, delivered, run

PROGRAM = (
    """
import logging
from stepscope.runtime.threads import locks
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
def tracer(frame, event, _):
    if frame.f_code.co_qualname == WHERE and locks.held_here():
        sys.settrace(None)
        print("now", flush=True)
        term()
    return tracer
sys.settrace(tracer)
profiler.add_metadata("key", 1)
profiler.arm(sc.control.WindowRequest(start_step=1000, steps=1))
profiler.flush()
profiler.statistics()
profiler.report()
logging.getLogger("stepscope").warning("said")
threading.Thread(target=time.time).start()
sys.settrace(None)
profiler.close()
"""
)


@pytest.mark.parametrize(
    "where",
    [
        "Metadata.add",
        "Arming.arm",
        "Arming.armed",
        "Inbox.put",
        "Inbox.statistics",
        "ExporterWorker.statistics",
        "OverheadController._read",
        "StreamHandler.emit",
        "Thread.start",
    ],
)
def test_a_signal_where_a_lock_is_held(where: str, tmp_path: Path) -> None:
    """It takes effect when the lock has been given back; everything is delivered, long before the deadline."""
    said = run(f"WHERE = {where!r}\n" + PROGRAM, tmp_path, code=-signal.SIGTERM)
    assert said == "now\n"
    assert delivered(tmp_path)


def test_a_handler_of_the_program_that_closes_where_a_lock_is_held(tmp_path: Path) -> None:
    """It does not wait for what waits for its own thread; who closes later does."""
    handler = (
        "WHERE = 'Inbox.put'\nsignal.signal(signal.SIGTERM, lambda *_: (profiler.close(), print('left', flush=True)))\n"
    )
    said = run(handler + PROGRAM, tmp_path, code=0)
    assert said == "now\nleft\n"
    assert delivered(tmp_path)


def test_who_holds_a_lock() -> None:
    """Only the thread that does; of locks that are gone nothing is known."""
    lock = locks.reentrant()
    reference = weakref.ref(lock)
    assert not locks.held_here()
    with lock:
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(locks.held_here()))
        thread.start()
        thread.join()
        assert locks.held_here() and seen == [False]
        with lock:
            pass
        assert locks.held_here()
    assert not locks.held_here()
    handler = logging.getLogger().handlers[0] if logging.getLogger().handlers else None
    if handler is not None and handler.lock is not None:
        with handler.lock:
            assert locks.held_here()
    del lock
    gc.collect()
    assert reference() is None and not locks.held_here()
