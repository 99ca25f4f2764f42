"""torch's one profiler slot, which the program's own profilers of torch get first.

A thread of torch has room for one profiler (kineto, ITT, NVTX), and a process for one recording of kineto. While one of
our modes is open, torch's functions that start and end a profiler are wrapped: before the program calls one of them
what we have in the slot is taken out, so that torch does what it would do without us; afterwards, if the slot is free
again, we take it back. The modes count the time between as missing.

A region of torch (`record_function`) or an operator that began under a recording of kineto points into that recording.
If it ends after the recording, torch takes whatever is in the slot of the thread for that recording, and writes into
freed memory; with an empty slot it does nothing. So such a region is ended on a thread whose slot is empty, and while
such an operator runs the slot stays empty.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from stepscope.backends.torch.importing import private
from stepscope.runtime import _core
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import get_ident
from stepscope.runtime.threads.user_code import replace

log = logging.getLogger("stepscope")

PROGRAM = "the program's own torch profiler was on, and torch has room for one"
"""Why operators of some time are missing."""
OPERATOR_RUNS = "a torch profiler ended inside of an operator, and torch crashes if another one begins before that ends"
"""Why operators of some time are missing."""

_MODULES = ("torch.autograd.profiler", "torch.autograd", "torch._C._autograd", "torch.autograd.profiler_legacy")
"""The modules in which the program finds torch's functions. Each may have its own reference to them."""
_FUNCTIONS = {
    "_prepare_profiler": "prepare",
    "_enable_profiler": "enable",
    "_enable_profiler_legacy": "enable",
    "_disable_profiler": "disable",
    "_disable_profiler_legacy": "disable",
    "_run_on_profiler_stop": "flag",
}

_SOMEWHERE = -1
"""Stands for an unknown thread."""


class Occupant(Protocol):
    """A part of stepscope that uses the slot."""

    def vacate(self, kineto: bool) -> None:
        """Leaves the slot of the calling thread. With `kineto` the program needs kineto itself, on whatever thread."""
        ...

    def reoccupy(self) -> None:
        """The slot of the calling thread is free again, as far as the program is concerned."""
        ...

    @property
    def must_stay(self) -> bool:
        """True if it is in the slot of the calling thread, and must not leave inside of an operator."""
        ...


def _empty_result() -> Any:
    """The result of a torch profiler that recorded nothing: the methods of torch's own result that profilers call."""
    begin_ns = time.time_ns()

    def save(path: str) -> None:
        Path(path).write_text('{"traceEvents": []}\n', encoding="utf-8")

    return SimpleNamespace(trace_start_ns=lambda: begin_ns, events=list, experimental_event_tree=list, save=save)


class _Calls(threading.local):
    ours = 0
    """Calls of ours that this thread is inside of."""
    emits = False
    """Whether the slot of this thread has our emission of operators."""
    stands_in = False
    """Whether a profiler of the program began that believes that it records, and does not."""
    in_operator = False
    """Whether a recording of kineto ended on this thread inside of an operator, which may still run."""


class _Stand:
    """Stands for what torch calls inside of an operator's object, whose hash is that of what it calls."""

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        self._original = original
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self._original)


class TorchSlot:
    """The users of torch's slot. Any method may be called from any thread."""

    def __init__(self) -> None:
        self.occupants: list[Occupant] = []
        self._calls = _Calls()
        self._lock = locks.reentrant()
        self._users = 0
        self._undo: list[Callable[[], None]] = []
        """Functions that restore the replaced ones of torch."""
        self._kineto: set[int] = set()
        """Threads on which the program has prepared or started kineto."""
        self._changes = Counter[int]()
        """Number of profilers that began or ended on each thread."""
        self._changes_at_watch = Counter[int]()
        self._regions: dict[int, tuple[int, int] | None] = {}
        """By the id of torch's record of each open region: the thread it began on and that thread's number of changes
        then; `None` if it began outside of a recording of kineto."""
        self._enabled: Callable[[], bool] | None = None
        """The function of torch that `is_occupied` calls; `None` before the first call."""
        self._warned = False
        self.all_threads = False
        """Whether a recording of kineto, ours or the program's, has every thread (`profile_all_threads`). It is in no thread's
        slot, and the first profiler that ends on any thread ends it."""
        self._emitting: dict[int, int] = {}
        """Threads that have our emission of operators in their slots, each with the system's number."""
        self._waits = False
        """Whether we could not take the slot because of an operator that still runs."""

    def watch(self) -> None:
        """Notices the program's profilers from now on; to be undone by `unwatch`. Raises `BackendError` if this version
        of torch lacks what that takes."""
        torch: Any = import_module("torch")
        flags: Any = import_module("torch.autograd.profiler")
        region = flags.record_function
        ends = private(private(torch.ops.profiler, "_record_function_exit"), "_RecordFunction")
        # The wrappers need these in the program's calls, which must not fail.
        for owner, name in (
            (torch.autograd, "_profiler_enabled"),
            (flags, "_is_profiler_enabled"),
            (flags, "_set_is_profiler_enabled"),
            (ends, "_op"),
        ):
            private(owner, name)
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            self._kineto.clear()
            self.all_threads = self.all_threads and flags._is_profiler_enabled
            self._changes_at_watch = self._changes.copy()
            if flags._is_profiler_enabled:  # on which thread torch does not say
                self._kineto.add(get_ident() if self.is_occupied else _SOMEWHERE)
            for name in _MODULES:
                module = sys.modules.get(name)
                for function, what in _FUNCTIONS.items():
                    if hasattr(module, function):
                        replace(self._undo, function, partial(self._wrap, what), module)
            replace(self._undo, "__enter__", self._wrap_region_begin, region)
            # Not `__exit__`, which a `with` statement that has begun already has; but below the operator's own object, at which torch
            # looks while it compiles.
            replace(self._undo, "_op", self._stand_for_end, ends)

    def unwatch(self) -> None:
        """Puts torch's functions back, once nobody watches any more; not where somebody else has wrapped them since."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            while self._undo:
                self._undo.pop()()

    @contextmanager
    def ours(self) -> Generator[None]:
        """A block whose calls of torch are our own."""
        self._calls.ours += 1
        try:
            yield
        finally:
            self._calls.ours -= 1

    @property
    def emits(self) -> bool:
        """True if the slot of the calling thread has our emission of operators."""
        return self._calls.emits

    @emits.setter
    def emits(self, on: bool) -> None:
        self._calls.emits = on
        with self._lock:
            if on:
                self._emitting[get_ident()] = threading.get_native_id()
            else:
                self._emitting.pop(get_ident(), None)

    @property
    def emitting(self) -> frozenset[int]:
        """Threads, by the system's numbers, whose operators arrive live."""
        alive = {thread.ident for thread in threading.enumerate()}
        with self._lock:
            return frozenset(number for thread, number in self._emitting.items() if thread in alive)

    def change(self) -> None:
        """Notes that a recording of kineto begins or has ended on the calling thread."""
        with self._lock:
            self._changes[get_ident()] += 1
        self._calls.in_operator = in_operator()

    def set_all_threads(self, on: bool) -> None:
        """Notes that a recording of every thread begins or has ended."""
        if on or self.all_threads:
            self.all_threads = on
            self._changes[_SOMEWHERE] += 1

    @property
    def may_end_another(self) -> bool:
        """True if the end of a profiler here may end a recording of all threads: there is one, or a profiler that began unseen."""
        return self.all_threads or _SOMEWHERE in self._kineto

    @property
    def operator_runs(self) -> bool:
        """True if an operator of a recording that has ended may still run on the calling thread: the slot must stay empty."""
        if self._calls.in_operator:
            self._calls.in_operator = in_operator()
            self._waits = self._waits or self._calls.in_operator
        return self._calls.in_operator

    @property
    def is_occupied(self) -> bool:
        """True if a profiler is in the slot of the calling thread."""
        enabled = self._enabled
        if enabled is None:
            enabled = self._enabled = import_module("torch").autograd._profiler_enabled
        return bool(enabled())

    def has_profiler(self, kind: str) -> bool:
        """True if the slot of the calling thread has a profiler of this kind, as torch names it: `KINETO`, `ITT`; one of any
        kind, where torch does not say which."""
        profiler_type = getattr(import_module("torch")._C._autograd, "_profiler_type", None)  # torch 2.0 and later
        return self.is_occupied and (profiler_type is None or str(profiler_type()).endswith(kind))

    def empty(self) -> None:
        """Ends what is in the slot of the calling thread, which is ours.

        Raises:
            RuntimeError: if torch refuses.
            BackendError: if this version of torch cannot.
        """
        profiler: Any = import_module("torch.autograd.profiler")
        with self.ours():
            private(profiler, "_disable_profiler")()
        private(profiler, "_run_on_profiler_stop")()

    @property
    def kineto_in_use(self) -> bool:
        """True if the program uses kineto, on whatever thread that lives."""
        with self._lock:
            if self._kineto:
                self._kineto &= {_SOMEWHERE, *(thread.ident or 0 for thread in threading.enumerate())}
            return bool(self._kineto)

    def _wrap(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._calls.ours or not self._users:
                return original(*args, **kwargs)
            with self.ours():
                return self._call_for_program(original, what, args, kwargs)

        return call

    def _wrap_region_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Notes for each region the recording of kineto that it begins under."""

        def begin(region: Any) -> Any:
            where = _SOMEWHERE if self.all_threads else get_ident()
            mark = (where, self._changes[where]) if self.all_threads or (self.is_occupied and not self.emits) else None
            result = original(region)
            self._regions[id(region.record)] = mark
            return result

        return begin

    def _wrap_region_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Ends a region elsewhere if its recording has ended and another profiler is in the slot of this thread."""

        def end(record: Any) -> Any:
            stale = self._is_stale(id(record)) and (self.is_occupied or self.all_threads)
            self._regions.pop(id(record), None)
            if stale and self.all_threads:
                _open_records.append(record)  # that recording has every thread
                return None
            if stale:
                return _end_elsewhere(record, original)
            result = original(record)
            if self._waits and not self.operator_runs and not self.is_occupied:
                self._waits = False
                for occupant in self.occupants:
                    occupant.reoccupy()
            return result

        return end

    def _stand_for_end(self, original: Callable[..., Any]) -> _Stand:
        return _Stand(original, self._wrap_region_end(original))

    def _is_stale(self, region: int) -> bool:
        """True if the recording that a region began under may have ended."""
        me = get_ident()
        if region not in self._regions:  # it began before `watch`
            return self.emits or any(self._changes[at] != self._changes_at_watch[at] for at in (me, _SOMEWHERE))
        mark = self._regions[region]
        return mark is not None and self._changes[mark[0]] != mark[1]

    def _stands_in(self, what: str) -> bool:
        """True if the program's profiler must record nothing.

        A recording of kineto that ends inside of an operator comes back when torch leaves the operator, and torch crashes in what is
        left of it. So ours stays where the program begins one there.
        """
        if what == "disable":
            stood_in, self._calls.stands_in = self._calls.stands_in, False
            return stood_in
        if self._calls.stands_in:
            return True
        if not any(occupant.must_stay for occupant in self.occupants) or not in_operator():
            return False
        self._calls.stands_in = True
        if not self._warned:
            self._warned = True
            log.warning(
                "a torch profiler of the program began inside of an operator (in a hook or a custom function), where stepscope "
                "records with kineto: it records nothing. Begin it outside, or record with TorchBackend(mode='stream')"
            )
        return True

    def _call_for_program(
        self, original: Callable[..., Any], what: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        me = get_ident()
        flags: Any = import_module("torch.autograd.profiler")
        if what == "flag":  # torch says in a variable that no profiler is on: ours may be
            enabled = self.is_occupied or self.all_threads
            original(*args, **kwargs)
            flags._set_is_profiler_enabled(enabled)
            return None
        if self._stands_in(what):
            return [] if original.__name__.endswith("legacy") else _empty_result()
        activities = args[1] if len(args) > 1 else kwargs.get("activities", ())
        kineto = what == "prepare" or (what == "enable" and bool(activities))
        flag = flags._is_profiler_enabled
        for occupant in self.occupants:
            occupant.vacate(kineto)
        flags._set_is_profiler_enabled(flag)
        try:
            result = original(*args, **kwargs)
            if what != "prepare":
                self.change()
            with self._lock:
                if what == "disable" or (what == "enable" and kineto and not self.is_occupied):
                    self.set_all_threads(what == "enable")
                if kineto:
                    self._kineto.add(me)
                elif what == "disable":
                    self._kineto -= {me, _SOMEWHERE}
            return result
        finally:
            if self.emits or not self.is_occupied:
                for occupant in self.occupants:
                    occupant.reoccupy()


def in_operator() -> bool:
    """True if torch has called the Python code that runs now, as it does for hooks, custom functions and operators."""
    return _core.called_by("libtorch")


_open_records: list[Any] = []
"""Regions that stay open, as there is no thread to end them on. torch would end them if they were freed."""


def _end_elsewhere(record: Any, end: Callable[[Any], Any]) -> Any:
    """Calls torch's end of a region on a thread that has nothing in torch's slot; raises what the call raises."""
    call = BackgroundCall(end, record, name="stepscope-region-end", elsewhere=True)
    try:
        call.start()
    except RuntimeError:
        _open_records.append(record)
        return None
    return call.result()


slot = TorchSlot()
"""The slot of this process."""
