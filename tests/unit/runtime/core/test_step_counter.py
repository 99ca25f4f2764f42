"""The step counter: the half of `step()` that is native."""

from __future__ import annotations

import pytest

from stepscope.runtime import _core
from stepscope.runtime._core import StepCounter, span
from stepscope.runtime.events.record import Flag, Kind
from tests.support.recording import recording, run_program

NEVER = 1 << 60


class Steps(StepCounter):
    """Notes each call, and changes on demand."""

    def __init__(self, next_change: int = NEVER, serial: int = 7) -> None:
        self.next_change, self.serial, self.live = next_change, serial, True
        self.changes: list[tuple[int, int]] = []

    def _transition(self, step: int, at: int) -> None:
        self.changes.append((step, at))
        self.next_change = step + 2
        assert _core.changing(0) == 1
        self._end_change()
        self._end_change()
        assert _core.changing(0) == 0


def test_steps_are_counted_and_marked() -> None:
    """Each call ends a step and begins the next with a mark: number, profiler, track, open span and moment."""
    steps = Steps()
    with recording() as log, span("epoch"):
        steps.step()
        steps.step()
        before = _core.now()
        steps.step()
    marks = log.of(Kind.STEP)
    epoch = log.span("epoch")
    assert [(mark.step, mark.id, mark.name, mark.dur) for mark in marks] == [
        (number, 7, "ProfilerStep", 0) for number in (1, 2, 3)
    ]
    assert {(mark.track, mark.parent, mark.flags) for mark in marks} == {(epoch.track, epoch.id, Flag(0))}
    assert before <= marks[-1].ts <= _core.now() and steps.number == 3
    # Other events get their step later, by their time.
    assert epoch.step == -1


def test_marks_do_not_depend_on_recording() -> None:
    """A window may begin while nothing else is recorded."""
    steps = Steps()
    with recording() as log:
        log.record(False)
        steps.step()
        at, track, parent = steps._mark(0)  # pyright: ignore[reportPrivateUsage]
    first, second = log.rows
    assert (first.step, second.step) == (1, 1)
    assert (second.ts, second.track, second.parent) == (at, track, parent)


def test_an_error_at_a_change_reaches_the_caller() -> None:
    """The step is counted and marked all the same, and the consumer does not wait for a change that is over."""

    class Failing(Steps):
        def _transition(self, step: int, at: int) -> None:
            raise ValueError("at a change")

    steps = Failing(next_change=1)
    with recording() as log, pytest.raises(ValueError, match="at a change"):
        steps.step()
    assert (steps.number, len(log.of(Kind.STEP)), _core.changing(0)) == (1, 1, 0)


def test_large_step_numbers() -> None:
    """A run that is resumed may be far along."""
    steps = Steps()
    steps.number = (1 << 31) - 3
    with recording() as log:
        steps.step()
        steps.step()
    assert [mark.step for mark in log.of(Kind.STEP)] == [(1 << 31) - 2, (1 << 31) - 1]


def test_without_a_session() -> None:
    """Before any recorder is open, and in a forked child, steps are counted and nothing is written."""
    (result,) = run_program(
        """
        pid = os.fork()
        if pid:
            sys.exit(os.waitpid(pid, 0)[1])
        steps = _core.StepCounter()
        steps.next_change, steps.live = 1 << 60, True
        for _ in range(5):
            steps.step()
        print_json([steps.number, steps._mark(0)[1:], _core.drain(1024, 1 << 62)[0].hex()])
        os._exit(0)
        """
    )
    assert result == [5, [0, 0], ""]
