"""A fault of ours ends neither the loop nor what it does for others; it is counted, stored and reported."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

import stepscope as sc
from stepscope.runtime.accounting.error_log import MAX_RETAINED, InternalErrors
from stepscope.runtime.errors import InternalError
from stepscope.runtime.events.record import Kind
from tests.support.collecting import wait_until
from tests.support.flight_recording import QUIET

ONES_OWN = (
    "handle_messages",
    "_handle",
    "add_marks",
    "route_block",
    "set_watermark",
    "save",
    "closable",
    "close_windows",
    "answer_flushes",
    "is_awaited",
)
"""Functions of a pipeline."""
PASSING = ("_pass_on", "_pace")
"""Functions of its backlog."""
OF_ALL = ("_drain", "_drain_rings", "_handle_messages", "_route", "_wait", "_interval")
"""Functions of the loop."""
FILES = {
    name: file
    for file, names in (("pipeline", ONES_OWN), ("backpressure", PASSING), ("drain_loop", OF_ALL))
    for name in names
}


class NoMemory:
    """The next call of a function by a thread of ours, once it is `armed`, finds no memory.

    Args:
        file: of the function, without its ending.
        function: its name.
        caller: name of the function that calls it, if not any.
        owner: the faults of whose objects are counted under this name, if not any.
    """

    def __init__(self, file: str, function: str, caller: str = "", owner: str = "") -> None:
        self.armed = self.came = False
        self._caller, self._owner = caller, owner
        self._file, self._function = f"runtime/loop/{file}.py", function

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Called by the interpreter for each call."""
        code, caller = frame.f_code, frame.f_back
        if not self.armed or self.came or code.co_name != self._function or not code.co_filename.endswith(self._file):
            return
        if self._owner and owner_of(frame.f_locals["self"]) != self._owner:
            return
        if not self._caller or (caller is not None and caller.f_code.co_name == self._caller):
            self.came = True
            raise MemoryError(self._function)


def owner_of(part: Any) -> str:
    """The name under which faults of a pipeline, or of its backlog, are counted."""
    faults: InternalErrors = part.faults if hasattr(part, "faults") else part._faults
    return faults.owner


@contextmanager
def no_memory(file: str, function: str, caller: str = "", owner: str = "") -> Generator[NoMemory]:
    """Gives the fault of threads that are started inside."""
    before, fault = threading.gettrace(), NoMemory(file, function, caller, owner)
    threading.settrace(cast(Any, fault))
    try:
        yield fault
    finally:
        threading.settrace(cast(Any, before))


def faults_of(profiler: sc.Profiler) -> int:
    """How many a profiler counts; it stores and reports each, without the objects of its frames."""
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    count = pipeline.faults
    if not count:
        profiler.raise_errors()
        assert not profiler.diagnostics()
        return 0
    with pytest.raises(ExceptionGroup) as caught:
        profiler.raise_errors()
    errors = caught.value.exceptions
    assert len(errors) == count
    assert all(type(error) is InternalError and type(error.__cause__) is MemoryError for error in errors)
    for error in errors:
        assert error.__cause__ is not None
        innermost, _ = list(traceback.walk_tb(error.__cause__.__traceback__))[-1]
        assert not innermost.f_locals
    assert any("of stepscope, first in" in note for note in profiler.diagnostics())
    return count


@pytest.mark.parametrize("function", [*ONES_OWN, *PASSING, *OF_ALL])
def test_a_fault_while_it_records(function: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fault in work for one profiler loses no events of the other; the log has one line."""
    memory = sc.exporters.MemoryExporter()
    owner = "" if function in OF_ALL else "profiler 'unlucky'"
    with no_memory(FILES[function], function, owner=owner) as fault:
        unlucky = sc.trace(name="unlucky", keep_last=3, output_dir=tmp_path / "unlucky", options=QUIET)
        other = sc.trace(exporters=[memory], output_dir=tmp_path / "other", options=QUIET)
        with unlucky, other:
            sc.instant("before")
            assert unlucky.flush() and other.flush()
            fault.armed = True
            sc.instant("at")
            unlucky.pause()
            unlucky.resume()
            unlucky.save()
            wait_until(lambda: fault.came)
            assert unlucky.flush() and other.flush()
            sc.instant("after")
    assert memory.names(kind=Kind.INSTANT) == ["before", "at", "after"]
    assert not other.audit()
    assert (faults_of(unlucky), faults_of(other)) == (1, int(function in OF_ALL))
    assert sum("a fault of stepscope" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("drain_loop", "_drain"),
        ("drain_loop", "_drain_rings"),
        ("pipeline", "close_sources"),
        ("pipeline", "_end_retention"),
    ],
)
def test_a_fault_while_one_closes(file: str, function: str, tmp_path: Path) -> None:
    """Its exporters are closed all the same, and the other goes on."""
    own_memory, memory = sc.exporters.MemoryExporter(), sc.exporters.MemoryExporter()
    with no_memory(file, function) as fault:
        unlucky = sc.trace(keep_last=3, exporters=[own_memory], output_dir=tmp_path / "unlucky", options=QUIET)
        other = sc.trace(exporters=[memory], output_dir=tmp_path / "other", options=QUIET)
        with unlucky, other:
            sc.instant("before")
            assert unlucky.flush() and other.flush()
            fault.armed = True
            unlucky.close()
            assert fault.came and own_memory.closed and not unlucky.statistics().timed_out
            sc.instant("after")
            assert other.flush()
    assert memory.names(kind=Kind.INSTANT) == ["before", "after"]
    assert not other.audit()
    assert faults_of(unlucky) == 1


def test_a_fault_when_the_deadline_has_passed(tmp_path: Path) -> None:
    """The profiler is closed without a drain, and the other goes on."""
    memory, hasty = sc.exporters.MemoryExporter(), sc.Options(close_timeout=1e-9)

    def closed() -> bool:
        closing = any(thread.name == "stepscope closing" for thread in threading.enumerate())
        return not closing and not unlucky.statistics().timed_out

    with no_memory("drain_loop", "_drain_rings", "remove") as fault:
        unlucky = sc.trace(output_dir=tmp_path / "unlucky", options=hasty)
        other = sc.trace(exporters=[memory], output_dir=tmp_path / "other", options=QUIET)
        with unlucky, other:
            assert other.flush()
            fault.armed = True
            unlucky.close()
            wait_until(closed)
            assert fault.came
            sc.instant("after")
            assert other.flush()
    assert memory.names(kind=Kind.INSTANT) == ["after"]
    assert faults_of(other) == 1


def test_stored_faults(caplog: pytest.LogCaptureFixture) -> None:
    """All are counted; the first are stored, without the objects of their frames; the log has the first of each kind."""

    def fail(kind: type[Exception]) -> None:
        buffer = bytearray(1)
        raise kind(f"with {len(buffer)}")

    faults = InternalErrors("somebody")
    with caplog.at_level(logging.ERROR, "stepscope"):
        for number in range(MAX_RETAINED + 4):
            try:
                fail(KeyError if number % 2 else MemoryError)
            except Exception as error:
                faults.record("fail", error)
    assert (faults.raised.count, len(faults.raised.errors), faults.raised.first) == (
        MAX_RETAINED + 4,
        MAX_RETAINED,
        "fail(): MemoryError: with 1",
    )
    assert [record.message.split(" in ")[0] for record in caplog.records] == ["somebody: a fault of stepscope"] * 2
    trace = faults.raised.errors[0].__traceback__
    assert trace is not None and trace.tb_next is not None
    assert trace.tb_next.tb_frame.f_locals == {}
