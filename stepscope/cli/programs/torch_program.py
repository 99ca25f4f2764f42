"""torch in a program that may import it later, or never: its operators, and the steps of its optimizers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.backends.torch.backend import TorchBackend
from stepscope.backends.torch.importing import TorchImport
from stepscope.runtime._core import counter
from stepscope.runtime.events import clock
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.native_threads import get_ident


class LateTorch:
    """A `TorchBackend` that is opened when the program has imported torch. Until then it has nothing to deliver.

    Args:
        backend: not opened.
    """

    thread_bound = True

    def __init__(self, backend: TorchBackend) -> None:
        self.name = backend.name
        self._backend = backend
        self._watch = TorchImport(self._torch_imported)
        self._there = self._tried = self._opened = False
        self._sink: Sink | None = None
        self._thread = 0
        self._action = ProfilerAction.NONE
        self._detail = FULL
        self._chosen: dict[str, bool] = {}

    @property
    def one_thread(self) -> bool:
        """Asks `TorchBackend`; false until torch is imported."""
        return self._opened and self._backend.one_thread

    def stream_only(self) -> None:
        """Calls `TorchBackend`."""
        self._backend.stream_only()

    def open(self, sink: Sink) -> None:
        self._sink = sink
        self._thread = get_ident()
        self._watch.watch()

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        self._open_if_there()
        self._action = after
        if self._opened:
            self._backend.transition(before, after, at)
        elif self._sink is not None:
            self._sink.watermark(at)

    def set_detail(self, detail: Detail) -> None:
        """Calls `TorchBackend`, as soon as torch is imported."""
        self._detail = detail
        if self._opened:
            self._backend.set_detail(detail)

    def can_choose(self, what: str, on: bool) -> str | None:
        """Asks `TorchBackend`."""
        return self._backend.can_choose(what, on)

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Calls `TorchBackend`, as soon as torch is imported."""
        self._chosen = dict(chosen)
        if self._opened:
            self._backend.choose(chosen)

    def orphaned(self) -> None:
        """Calls `TorchBackend`."""
        if self._opened:
            self._backend.orphaned()

    async def aclose(self) -> None:
        self._watch.forget()
        if self._opened:
            await self._backend.aclose()

    def report(self) -> BackendReport:
        if self._opened:
            return self._backend.report()
        problem = self._watch.problem
        if problem is not None:
            return BackendReport(notes=(f"{type(problem).__name__}: {problem}",))
        return BackendReport(notes=() if self._tried else ("the program did not import torch",))

    def _torch_imported(self) -> None:
        self._there = True
        self._open_if_there()

    def _open_if_there(self) -> None:
        """torch's profiler is bound to the thread of training: a torch that another one imported waits for a step."""
        if self._there and not self._tried and self._sink is not None and get_ident() == self._thread:
            self._tried = True
            self._backend.open(self._sink)
            self._opened = True
            self._backend.set_detail(self._detail)
            if self._chosen:
                self._backend.choose(self._chosen)
            if self._action is not ProfilerAction.NONE:
                self._backend.transition(ProfilerAction.NONE, self._action, clock.now())


_FLOATS = {"torch.float32": ctypes.c_float, "torch.float64": ctypes.c_double}


class OptimizerSteps:
    """Calls `step` each time that the leading optimizer has made a step.

    Loops may have several optimizers. The first that steps leads; another takes over when it has stepped twice since
    the leader did, or when the leader is gone. So an iteration counts once, though several optimizers step in it.
    """

    def __init__(self, step: Callable[[], None], first: Callable[[], None] = lambda: None) -> None:
        """`first` is called before the first `step`."""
        self._step, self._first = step, first
        self._leader: weakref.ref[Any] | None = None
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that have stepped since the leader did."""
        self._due = False
        self._depth = 0
        self._finite = True
        self._undo: list[Callable[[], object]] = []
        self._detached = False

    def attach(self) -> None:
        """Hooks into torch, which must be imported: its hook for the steps of all optimizers, there since torch 2.0.
        After `detach` it does nothing."""
        if self._detached:
            return
        module: Any = importlib.import_module("torch.optim.optimizer")
        self._undo.append(module.register_optimizer_step_post_hook(self._stepped).remove)
        # torch calls the hook inside its span around the optimizer's step. A border there would cut that span, so it
        # is drawn when the span has ended. The function that is wrapped for this is no documented part of torch.
        around = getattr(module.Optimizer, "profile_hook_step", None)
        if around is not None:
            module.Optimizer.profile_hook_step = staticmethod(functools.partial(self._around, around))
            self._undo.append(lambda: setattr(module.Optimizer, "profile_hook_step", staticmethod(around)))

    def detach(self) -> None:
        """Removes the hooks. Calling it twice, also on two threads, is the same as once."""
        self._detached = True
        undo, self._undo = self._undo, []
        for each in reversed(undo):
            each()

    def _around(self, around: Callable[[Any], Callable[..., Any]], function: Callable[..., Any]) -> Callable[..., Any]:
        inner = around(function)

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1  # an optimizer may call the step of the class that it extends
            try:
                return inner(*args, **kwargs)
            finally:
                self._depth -= 1
                self._end()

        return step

    def _stepped(self, optimizer: object, args: object, kwargs: object) -> None:
        leader = self._leader() if self._leader else None
        if optimizer is not leader:
            if leader is not None and optimizer not in self._others:
                self._others.add(optimizer)
                return
            self._leader = weakref.ref(optimizer)
        self._others.clear()
        self._due = True
        if self._finite and not math.isfinite(first_value(optimizer)):
            self._finite = False
            counter("parameters", math.nan)
        self._end()

    def _end(self) -> None:
        if self._due and not self._depth:
            self._due = False
            first, self._first = self._first, lambda: None
            first()
            self._step()


def first_value(optimizer: Any) -> float:
    """The first number of the first parameter, where that is on the CPU; else 0. A loss that is no number makes it none.

    It is read from memory: an operator of torch would be in the trace, and on a device it would wait for all that was launched.
    """
    with contextlib.suppress(AttributeError, LookupError, TypeError, RuntimeError):
        parameter = optimizer.param_groups[0]["params"][0]
        kind = _FLOATS.get(str(parameter.dtype))
        address: int = parameter.data_ptr()
        if kind is not None and str(parameter.device) == "cpu" and address and parameter.numel():
            return float(kind.from_address(address).value)
    return 0.0
