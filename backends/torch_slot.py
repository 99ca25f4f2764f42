"""torch's one profiler slot, which the program's own profilers of torch get first.

A thread of torch has room for one profiler (kineto, ITT, NVTX), and a process for one recording of kineto. While one of
our modes is open, torch's functions that start and end a profiler are wrapped: before the program calls one of them
what we have in the slot is taken out, so that torch does what it would do without us; afterwards, if the slot is free
again, we take it back. The modes count the time between as missing.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from stepscope.runtime import locks

PROGRAM = "the program's own torch profiler was on, and torch has room for one"
"""Why operators of some time are missing."""

_MODULES = ("torch.autograd.profiler", "torch.autograd", "torch._C._autograd", "torch.autograd.profiler_legacy")
"""Where the program finds torch's functions. Each may have its own reference to them."""
_FUNCTIONS = {
    "_prepare_profiler": "prepare",
    "_enable_profiler": "enable",
    "_enable_profiler_legacy": "enable",
    "_disable_profiler": "disable",
    "_disable_profiler_legacy": "disable",
    "_run_on_profiler_stop": "flag",
}

_SOMEWHERE = -1
"""Stands for a thread that is not known."""


class Occupant(Protocol):
    """A part of ours that uses the slot."""

    def vacate(self, kineto: bool) -> None:
        """Leaves the slot of the calling thread. With `kineto` the program needs kineto itself, on whatever thread."""
        ...

    def reoccupy(self) -> None:
        """The slot of the calling thread is free again, as far as the program is concerned."""
        ...


class _Calls(threading.local):
    ours = 0
    """Calls of ours that this thread is inside of."""
    emits = False
    """Whether the slot of this thread has our emission of operators."""


class _Regions:
    """Counts regions of torch that were entered while a profiler of the program was on, and that are open.

    They are seen by `record_function`, whose two methods are wrapped from the begin of such a profiler until the last of them has
    ended. Optimizers, data loaders and distributed modules make theirs in the same way.

    Args:
        over: called when the last one has ended, on its thread, and no profiler of the program is on.
    """

    def __init__(self, over: Callable[[], object]) -> None:
        self.open = 0
        """Regions that are open."""
        self._over = over
        self._profilers = 0
        self._entered: list[Any] = []
        """Each of them, once for each entry."""
        self._methods: tuple[Any, Any, Any] | None = None
        self._lock = locks.reentrant()

    def watch(self) -> None:
        """A profiler of the program is on."""
        with self._lock:
            self._profilers += 1
            if self._methods is None:
                self._wrap(import_module("torch.autograd.profiler").record_function)

    def end(self) -> None:
        """It has ended."""
        with self._lock:
            self._profilers = max(self._profilers - 1, 0)
            self._unwrap()

    def _wrap(self, kind: Any) -> None:
        enter, leave = kind.__enter__, kind.__exit__

        @functools.wraps(enter)
        def entered(region: Any) -> Any:
            result = enter(region)
            with self._lock:
                if self._profilers:
                    self._entered.append(region)
                    self.open += 1
            return result

        @functools.wraps(leave)
        def left(region: Any, *error: Any) -> Any:
            try:
                return leave(region, *error)
            finally:
                if self._forget(region):
                    self._over()

        self._methods = (kind, enter, leave)
        kind.__enter__, kind.__exit__ = entered, left

    def _forget(self, region: Any) -> bool:
        """A region has ended; whether it was the last one, and no profiler of the program is on."""
        with self._lock:
            for at in range(len(self._entered) - 1, -1, -1):
                if self._entered[at] is region:
                    del self._entered[at]
                    self.open -= 1
                    self._unwrap()
                    return not self.open and not self._profilers
        return False

    def _unwrap(self) -> None:
        if self._methods is not None and not self.open and not self._profilers:
            kind, enter, leave = self._methods
            kind.__enter__, kind.__exit__ = enter, leave
            self._methods = None


class TorchSlot:
    """Who uses torch's slot. Any method may be called from any thread."""

    def __init__(self) -> None:
        self.occupants: list[Occupant] = []
        self._calls = _Calls()
        self._lock = locks.reentrant()
        self._users = 0
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        self._regions = _Regions(self._return_slot)
        self._kineto: set[int] = set()
        """Threads on which the program has prepared or started kineto."""

    def watch(self) -> None:
        """Notices the program's profilers from now on; to be undone by `unwatch`."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            self._kineto.clear()
            flags = sys.modules.get("torch.autograd.profiler")
            if getattr(flags, "_is_profiler_enabled", False):  # on which thread torch does not say
                self._kineto.add(threading.get_ident() if self.taken else _SOMEWHERE)
            for name in _MODULES:
                module = sys.modules.get(name)
                for function, what in _FUNCTIONS.items():
                    original = getattr(module, function, None)
                    if original is not None:
                        wrapper = self._wrap(original, what)
                        setattr(module, function, wrapper)
                        self._wrapped.append((module, function, original, wrapper))

    def unwatch(self) -> None:
        """Puts torch's functions back, once nobody watches any more; not where somebody else has wrapped them since."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for module, function, original, wrapper in self._wrapped:
                if getattr(module, function, None) is wrapper:
                    setattr(module, function, original)
            self._wrapped.clear()

    @contextmanager
    def ours(self) -> Generator[None]:
        """Calls of torch inside are our own."""
        self._calls.ours += 1
        try:
            yield
        finally:
            self._calls.ours -= 1

    @property
    def emits(self) -> bool:
        """Whether the slot of the calling thread has our emission of operators."""
        return self._calls.emits

    @emits.setter
    def emits(self, on: bool) -> None:
        self._calls.emits = on

    @property
    def taken(self) -> bool:
        """Whether a profiler is in the slot of the calling thread."""
        return bool(import_module("torch").autograd._profiler_enabled())

    @property
    def free(self) -> bool:
        """Whether we may use the slot of the calling thread.

        Not inside of a region or an operator that began under a profiler of the program: at its end torch would take ours for
        that one, and crash. Of operators only those of a backward pass are known.
        """
        torch: Any = import_module("torch")
        backward = getattr(torch._C, "_current_autograd_node", lambda: None)() is not None
        return not (backward or self._regions.open or self.taken)

    @property
    def kineto_taken(self) -> bool:
        """Whether the program uses kineto, on whatever thread that lives."""
        with self._lock:
            if self._kineto:
                self._kineto &= {_SOMEWHERE, *(thread.ident or 0 for thread in threading.enumerate())}
            return bool(self._kineto)

    def _wrap(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._calls.ours or not self._users:
                return original(*args, **kwargs)
            with self.ours():
                return self._call_for_program(original, what, args, kwargs)

        return call

    def _call_for_program(
        self, original: Callable[..., Any], what: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        me = threading.get_ident()
        flags: Any = import_module("torch.autograd.profiler")
        if what == "flag":  # torch says in a variable that no profiler is on: ours may be
            enabled = self.taken
            original(*args, **kwargs)
            flags._set_is_profiler_enabled(enabled)
            return None
        activities = args[1] if len(args) > 1 else kwargs.get("activities", ())
        kineto = what == "prepare" or (what == "enable" and bool(activities))
        flag = flags._is_profiler_enabled
        for occupant in self.occupants:
            occupant.vacate(kineto)
        flags._set_is_profiler_enabled(flag)
        try:
            result = original(*args, **kwargs)
            if what == "enable":
                self._regions.watch()
            elif what == "disable":
                self._regions.end()
            with self._lock:
                if kineto:
                    self._kineto.add(me)
                elif what == "disable":
                    self._kineto -= {me, _SOMEWHERE}
            return result
        finally:
            self._return_slot()

    def _return_slot(self) -> None:
        with self.ours():
            if self.free:
                for occupant in self.occupants:
                    occupant.reoccupy()


slot = TorchSlot()
"""That of this process."""
