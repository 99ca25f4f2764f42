"""Closing is given up where the loop does not answer: nothing that was not delivered is deleted, and the report says so."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session_note import read_note
from tests.blocking import BlockingBackend
from tests.support import poll
from tests.test_exit import journal_names, run

BLOCKED = """
import stepscope as sc, sys, threading
from stepscope.backends.scripted import ScriptedBackend
if "LOOP" == "asyncio":
    sys.modules["uvloop"] = None
inside = threading.Event()
class Blocking(ScriptedBackend):
    def transition(self, before, after, at):
        inside.set()
        threading.Event().wait()
options = sc.Options(close_timeout=0.5)
good = sc.trace(output_dir="good", options=options)
good.start()
bad = sc.trace(output_dir="bad", backends=[Blocking()], options=options)
with sc.span("before"):
    good.flush()
bad.start()
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
    done = run(BLOCKED.replace("LOOP", loop) + end, tmp_path)
    assert "stepscope recover" in done.stderr
    if end:
        assert "dropped   nothing" not in done.stdout and "dropped   not known" in done.stdout
        assert f"stepscope recover {tmp_path}/good" in done.stdout
    note = read_note(tmp_path / "good" / "session", [])
    assert note is not None and note.directory in done.stderr and Path(note.directory).is_dir()
    for name in ("good", "bad"):
        recovered = recover(tmp_path / name, remove_session=name == "bad").journal
        names, _ = journal_names(recovered)
        assert set(names) >= (WORK | {"before"} if name == "good" else WORK)
    assert not Path(note.directory).exists()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_closing_is_completed_when_the_loop_goes_on(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was given up is delivered then after all: nothing is left, and nothing says otherwise."""
    if loop == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    backend, memory = BlockingBackend(), sc.MemoryExporter()
    options = sc.Options(close_timeout=0.2)
    profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=tmp_path, options=options)
    profiler.start()
    assert backend.blocks.wait(30)
    sc.instant("work")
    profiler.step()
    profiler.close()
    try:
        assert profiler.statistics().given_up and "dropped   not known" in str(profiler.report())
        assert any(note.startswith("not delivered") for note in profiler.diagnostics())
        assert (tmp_path / "session").exists() and not profiler.audit()
    finally:
        backend.free.set()
    await poll(lambda: not profiler.statistics().given_up)
    await poll(lambda: not any(thread.name == "stepscope" for thread in threading.enumerate()))
    assert not (tmp_path / "session").exists() and not profiler.audit()
    report = str(profiler.report())
    assert "work" in memory.names() or "recorder closed" in report
