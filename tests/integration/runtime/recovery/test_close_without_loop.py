"""Closing is given up where the loop does not answer: nothing that was not delivered is deleted, and the report says so."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.lifecycle.open_run import LATE_CLOSING_S
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.note import read_note
from tests.integration.runtime.lifecycle.test_exit import run
from tests.support.basics import poll
from tests.support.blocking import BlockingBackend
from tests.support.killed_programs import names
from tests.support.messages import check_messages

BLOCKED = """
import stepscope as sc, sys, threading
from stepscope.backends.simulated.scripted import ScriptedBackend
if "LOOP" == "asyncio":
    sys.modules["uvloop"] = None
inside = threading.Event()
class Blocking(ScriptedBackend):
    def derive(self, batch):
        inside.set()
        threading.Event().wait()
options = sc.Options(close_timeout=0.5)
good = sc.trace(output_dir="good", options=options)
good.start()
bad = sc.trace(output_dir="bad", backends=[Blocking()], options=options)
with sc.span("before"):
    good.flush()
bad.start()
sc.instant("blocks")
inside.wait()
for number in range(100):
    with sc.span(f"work {number}"):
        pass
    good.step()
"""
WORK = {f"work {number}" for number in range(100)}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("end", ["", "good.close(); print(good.report())"], ids=["exit", "close"])
def test_a_part_that_blocks_the_loop_loses_nothing(end: str, loop: str, tmp_path: Path) -> None:
    """The process ends in time; the session stays, the log and the report say so, and recovery has every span."""
    done = run(f"{BLOCKED.replace('LOOP', loop)}{end}\nimport time; print(time.time())", tmp_path)
    assert time.time() - float(done.stdout.splitlines()[-1]) < LATE_CLOSING_S
    assert "stepscope recover" in done.stderr
    if end:
        assert "dropped   nothing" not in done.stdout and "dropped   not known" in done.stdout
        assert f"stepscope recover {tmp_path}/good" in done.stdout
    note = read_note(tmp_path / "good" / "session", [])
    assert note is not None and note.directory in done.stderr and Path(note.directory).is_dir()
    for name in ("good", "bad"):
        recovered = recover(tmp_path / name, remove_session=True).journal
        assert set(names(recovered)) >= (WORK | {"before"} if name == "good" else WORK)
    assert not Path(note.directory).exists()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_closing_is_completed_when_the_loop_goes_on(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window that was given up is delivered then after all: nothing is left, and no message says otherwise."""
    if loop == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    backend, memory = BlockingBackend(), sc.exporters.MemoryExporter()
    options = sc.Options(close_timeout=0.2)
    profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=tmp_path, options=options)
    profiler.start()
    with sc.span("work"):
        backend.block()
    profiler.step()
    profiler.close()
    try:
        assert profiler.statistics().timed_out and "dropped   not known" in str(profiler.report())
        (note,) = [note for note in profiler.diagnostics() if note.startswith("not delivered")]
        assert "given up, because the runtime's loop is blocked in " in note
        assert (tmp_path / "session").exists() and not profiler.audit()
    finally:
        backend.free.set()
    await poll(lambda: not profiler.statistics().timed_out)
    await poll(lambda: not any(thread.name == "stepscope" for thread in threading.enumerate()))
    assert not (tmp_path / "session").exists() and not profiler.audit()
    report = str(profiler.report())
    assert "work" in memory.names() or "recorder closed" in report


def test_other_profilers_name_the_part_that_blocks_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The flush of another profiler says where the loop is, and so does its closing that was given up."""
    blocking = BlockingBackend()
    good = sc.trace(name="good", output_dir=tmp_path / "good", options=sc.Options(close_timeout=0.3))
    bad = sc.trace(name="bad", output_dir=tmp_path / "bad", backends=[blocking], options=sc.Options(close_timeout=5.0))
    good.start()
    bad.start()
    try:
        blocking.block()
        with caplog.at_level(logging.WARNING, logger="stepscope"):
            assert not good.flush(0.2)
        assert any("'good' gave up" in text and "derive() at" in text for text in caplog.messages), caplog.messages
        good.close()
        assert any("blocked in derive() at" in note for note in good.diagnostics()), good.diagnostics()
    finally:
        blocking.free.set()
        bad.close()


LATE = """
import stepscope as sc, time
from stepscope.backends.simulated.scripted import ScriptedBackend

class Slow(ScriptedBackend):
    def derive(self, batch):
        time.sleep(0.002)

options = sc.Options(close_timeout=0.1, session_dir="sessions")
with sc.trace(backends=[Slow()], schedule=sc.schedule(wait=0, warmup=0, active=1), output_dir="run", options=options) as profiler:
    for _ in range(400):
        sc.instant("work")
        profiler.step()
"""


def test_the_exit_waits_for_a_loop_that_works_after_the_deadline(tmp_path: Path) -> None:
    """Closing is completed then, and no session directory stays; the log says so, and what to do."""
    (tmp_path / "sessions").mkdir()
    done = run(LATE, tmp_path)
    check_messages(
        done.stderr, "Options.close_timeout", "0.1 s", snapshot=False
    )  # how much was closed by then is the machine's
    assert "there was not enough time" in done.stderr
    assert list((tmp_path / "sessions").iterdir()) == []
