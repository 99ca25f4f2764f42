"""Threads: many at once, many after another, those that die, and those that Python did not make."""

from __future__ import annotations

import _thread
import ctypes
import threading
from collections import Counter
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime._core import instant, span
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Kind
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.window import Window
from tests.integration.runtime.lifecycle.test_exit import run
from tests.support.nesting import chrome_problems, journal_problems, journal_spans
from tests.support.recording import check_self_times, recording

THREADS = 64


@pytest.mark.checklist("F18")
def test_many_threads_at_once(output_dir: Path) -> None:
    """Each has its row, with all of its spans, nested."""
    together = threading.Barrier(THREADS)
    each = 400

    def work(number: int) -> None:
        together.wait()
        for turn in range(each):
            with span("outer", n=number), span("inner", n=turn):
                instant("mark")

    chrome = output_dir / "trace.json"
    with sc.trace(output_dir=output_dir, exporters=[sc.ChromeTraceExporter(chrome)]) as profiler:
        threads = [threading.Thread(target=work, args=(number,), name=f"worker {number}") for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    profiler.raise_errors()
    assert profiler.report().statistics.pipeline is not None
    spans = journal_spans(output_dir / "journal")
    assert len(spans) == 2 * THREADS * each
    outer = spans[spans["name"] == strings.intern("outer")]
    assert Counter(outer["args_len"].tolist()) == dict.fromkeys(range(THREADS), each)
    for number in range(THREADS):
        assert len(set(outer["track"][outer["args_len"] == number].tolist())) == 1
    assert journal_problems(spans) == [] and chrome_problems(chrome) == []


def test_threads_that_python_did_not_make() -> None:
    """They are rows as others, and are gone when they end."""
    libc = ctypes.CDLL(None)

    def foreign(argument: int | None) -> None:
        with span("foreign"):
            instant("inside")

    def bare() -> None:
        with span("bare"):
            pass
        done.release()

    routine = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(foreign)
    done = _thread.allocate_lock()
    done.acquire()
    with recording() as log:
        for _ in range(20):
            thread = ctypes.c_ulong()
            assert libc.pthread_create(ctypes.byref(thread), None, routine, None) == 0
            assert libc.pthread_join(thread, None) == 0
        _thread.start_new_thread(bare, ())
        done.acquire()
    found = log.events(Kind.SPAN, "foreign")
    assert len(found) == 20 and len({row.track for row in found}) == 20
    assert {row.parent for row in log.of(Kind.INSTANT)} == {row.id for row in found}
    bare_track = tracks.get(log.span("bare").track)
    assert bare_track is not None and bare_track.name
    check_self_times(log.of(Kind.SPAN))


def test_daemon_threads_that_record_at_exit(tmp_path: Path) -> None:
    """Also in a loop's tasks: the program ends, and everything that its files say adds up."""
    run(
        """
import asyncio, threading, time
import stepscope as sc
profiler = sc.trace(output_dir="run")
profiler.start()
def work():
    while True:
        with sc.span("outer"), sc.span("inner"):
            time.sleep(0)
async def task():
    while True:
        with sc.span("task", text="text"):
            await asyncio.sleep(0)
for target in (*[work] * 15, lambda: asyncio.run(task())):
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.1)
""",
        tmp_path,
    )
    path = tmp_path / "run" / "journal"
    with JournalReader(path) as reader:
        (window,) = [item for item in reader if isinstance(item, Window)]
        assert not reader.damage and reader.end is not None
    assert all(account.balanced() for account in window.ledger.sources.values())
    spans = journal_spans(path)
    assert len(spans) > 0 and journal_problems(spans) == []


def test_threads_that_die_while_they_record(output_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an exception in a span, by `_thread.exit`, or with spans that nobody ends: what had ended is there."""
    monkeypatch.setattr(threading, "excepthook", print)
    open_spans: list[span] = []

    def die(number: int) -> None:
        with span("whole"):
            pass
        if number % 3 == 2:
            open_spans.append(span("left open"))
            open_spans[-1].__enter__()
            return
        with span("cut off"):
            _thread.exit() if number % 3 else exit_by_error()

    def exit_by_error() -> None:
        raise SystemExit

    with sc.trace(output_dir=output_dir):
        for start in range(0, 300, 30):
            threads = [threading.Thread(target=die, args=(number,)) for number in range(start, start + 30)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    spans = journal_spans(output_dir / "journal")
    found = Counter(strings.text(int(name)) for name in spans["name"])
    assert (found["whole"], found["cut off"]) == (300, 200)
    assert journal_problems(spans) == []
