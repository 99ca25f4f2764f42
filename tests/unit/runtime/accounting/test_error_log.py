"""Exceptions of parts are counted, and stored as they came first: raised again, one keeps nothing more alive."""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stepscope.compat.torch.windows.callbacks import Callbacks
from stepscope.runtime.accounting.error_log import MAX_RETAINED, MAX_TEXT, ErrorLog
from tests.support.exceptions import length

TIMES = 50


class LocalObject:
    """A local variable of the frame that raises: a batch, say."""


class Long(Exception):
    """Counts how often it is asked what it says."""

    asked = 0

    def __str__(self) -> str:
        self.asked += 1
        return "x" * (MAX_TEXT + 5)


@dataclass(frozen=True)
class Frozen(Exception):
    """No attribute of it can be set: it takes no note."""

    why: str


def itself(error: Exception) -> None:
    raise error


def as_cause(error: Exception) -> None:
    try:
        raise error
    except Exception as cause:
        raise ValueError("what it means") from cause


def as_context(error: Exception) -> None:
    try:
        raise error
    except Exception:
        raise KeyError("while it was dealt with")  # noqa: B904


def as_member(error: Exception) -> None:
    try:
        raise error
    except Exception as member:
        raise ExceptionGroup("of tasks", [OSError("another"), member]) from None


def raised_again(
    keeper: ErrorLog[Exception], error: Exception, how: Callable[[Exception], None]
) -> weakref.WeakSet[LocalObject]:
    """Raises it many times and stores it, each time in a frame with an object; returns the objects that are alive."""
    alive: weakref.WeakSet[LocalObject] = weakref.WeakSet()

    def call() -> None:
        local = LocalObject()
        alive.add(local)
        how(error)

    for _ in range(TIMES):
        try:
            call()
        except Exception as raised:
            keeper.record("call", raised)
    return alive


@pytest.mark.parametrize("how", [itself, as_cause, as_context, as_member])
def test_an_exception_raised_again_does_not_grow(how: Callable[[Exception], None]) -> None:
    """However it is raised: its traceback is the first, and only objects of the stored exception are alive; a later one is only
    counted, and nobody asks what it says."""
    keeper: ErrorLog[Exception] = ErrorLog(contexts=True)
    error = OSError("the connection was lost")
    alive = raised_again(keeper, error, how)
    assert keeper.count == TIMES and len(keeper.retained) == (1 if how is itself else MAX_RETAINED)
    assert len(alive) <= len(keeper.retained) and 1 <= length(error) <= 3
    assert all(1 <= length(error) <= 4 for error in keeper.errors)
    full: ErrorLog[Exception] = ErrorLog(contexts=True)
    for number in range(MAX_RETAINED):
        full.record("open", OSError(number))
    slow = Long()
    assert not raised_again(full, slow, how)
    assert full.count == MAX_RETAINED + TIMES and len(full.retained) == MAX_RETAINED
    assert length(slow) == 0 and slow.asked == 0
    assert full.first == "open(): OSError: 0"


def test_its_text_is_read_once() -> None:
    """When it is stored, on the thread that stores it: it may take long. The text is bounded, and there is one note."""
    keeper: ErrorLog[Exception] = ErrorLog(contexts=True)
    error = Long()
    for _ in range(3):
        keeper.record("export", error, "exporter 'bad'")
    ((retained, text),) = keeper.retained
    assert retained is error and error.asked == 1 and keeper.count == 3
    assert text == f"Long: {'x' * (MAX_TEXT - 6)}... ({MAX_TEXT + 11:,} characters)"
    assert keeper.first == f"export(): {text}"
    assert error.__notes__ == ["raised by exporter 'bad' in export()"]


def test_the_cause_of_one_may_be_raised_by_itself() -> None:
    """Then it is stored as well, and asked for."""
    keeper: ErrorLog[Exception] = ErrorLog(contexts=True)
    cause, error = OSError("lost"), ValueError("what it means")
    error.__cause__ = cause
    keeper.record("export", error)
    keeper.record("flush", cause)
    assert keeper.errors == [error, cause] and keeper.retains(cause) and not keeper.retains(OSError("lost"))


def test_an_exception_that_takes_no_note_is_stored_without() -> None:
    """It is stored without one; its traceback is the first all the same."""
    keeper: ErrorLog[Exception] = ErrorLog(contexts=True)
    error = Frozen("of glass")

    def raised() -> None:
        BaseException.with_traceback(error, None)
        try:
            raise error
        except Frozen as frozen:
            keeper.record("aclose", frozen, "exporter 'bad'")

    raised()
    raised()
    ((_, text),) = keeper.retained
    assert text.startswith("Frozen")
    assert keeper.count == 2 and length(error) == 1


def test_a_callback_that_raises_the_same_again() -> None:
    """Of every window: it is counted, and stored as it was first."""
    error = ValueError("of the program")

    def fail(view: object) -> None:
        raise error

    callbacks = Callbacks(fail)
    for number in range(20):
        callbacks.put(number)
    callbacks.finish()
    assert (callbacks.raised.count, callbacks.raised.errors) == (20, [error])
    assert length(error) == length(callbacks.raised.errors[0]) < 4


def test_an_exception_of_the_program_is_left_to_it() -> None:
    """A part that fails while the program's own exception is on its way does not cost that its traceback."""
    keeper: ErrorLog[Exception] = ErrorLog()

    def part(number: int) -> None:
        raise OSError(number)

    def closing() -> None:
        for number in range(MAX_RETAINED + 2):
            try:
                part(number)
            except OSError as error:
                keeper.record("close", error)

    def training() -> None:
        try:
            raise RuntimeError("training failed")
        finally:
            closing()

    def program() -> None:
        try:
            training()
        finally:
            closing()

    with pytest.raises(RuntimeError) as failed:
        program()
    assert [frame.name for frame in traceback.extract_tb(failed.value.__traceback__)][-2:] == ["program", "training"]
