"""Signal handlers that raise, or do something, at every point where Python could call one, one after the other."""

from __future__ import annotations

import _weakrefset
import ctypes
import gc
import itertools
import signal
import sys
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBER = signal.SIGUSR1

_library = ctypes.CDLL(None)
_raise = ctypes.cast(_library["raise"], ctypes.c_void_p)
_add_pending = ctypes.pythonapi.Py_AddPendingCall
_add_pending.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


class Late(BaseException):
    """The exception of the handler."""


class Interrupter:
    """A handler that has itself called again at the next point, by a signal that the interpreter raises right before it.

    So the points are the real ones: between two of them nothing of a thread's Python can be interrupted.
    """

    def __init__(self) -> None:
        self.where = ""
        """The point at which it interrupted last."""
        self._left = self._again = 0
        self._came = False
        self._instead: Callable[[], object] | None = None
        self._inside: Collection[str] = ()

    def __call__(
        self,
        call: Callable[[], object],
        point: int,
        instead: Callable[[], object] | None = None,
        *,
        again: int = 0,
        inside: Collection[str] = (),
    ) -> bool:
        """Makes a call, and interrupts it at its `point`-th point, from 1; returns whether there was one.

        Args:
            instead: what to call there; default: to raise `Late`.
            again: interrupt a second time at this point after the first one; 0: do not.
            inside: qualified names of the functions whose points count; default: all.
        """
        self._left, self._again, self.where, self._instead = point, again, "", instead
        self._inside = inside
        gc.disable()  # finalizers that it calls ignore exceptions
        tracer = sys.gettrace()
        sys.settrace(None)  # a tool that traces, such as coverage, would have thousands of points of its own
        try:
            signal.raise_signal(NUMBER)
            call()
        except Late:
            pass
        finally:
            self._left = 0
            sys.settrace(tracer)
            gc.enable()
        return bool(self.where)

    def everywhere(self, least: int) -> Iterator[int]:
        """Points, until no call was interrupted at one; there are more than `least`."""
        point = 0
        for point in itertools.count(1):
            self._came = False
            yield point
            if not self._came:
                break
        assert point > least

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        assert frame is not None
        if not self._left:
            return
        # Not in here, nor where Python itself ignores what is raised.
        counts = not self._inside or frame.f_code.co_qualname in self._inside
        if counts and frame.f_code.co_filename not in (__file__, _weakrefset.__file__):
            self._left -= 1
            if not self._left:
                self._came = True
                self.where += f"{frame.f_code.co_qualname}, line {frame.f_lineno}; "
                self._left, self._again = self._again, 0
                if self._left:
                    _add_pending(_raise, number)
                if self._instead is None:
                    raise Late
                self._instead()
                return
        _add_pending(_raise, number)  # called before the next instruction of this function, which is its last


@contextmanager
def interrupting() -> Generator[Interrupter]:
    """Gives what makes calls and interrupts them; of the main thread."""
    interrupter = Interrupter()
    before = signal.signal(NUMBER, interrupter.handle)
    try:
        yield interrupter
    finally:
        signal.signal(NUMBER, before)
