"""`record_function`: a span around a block or function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from threading import get_ident
from typing import Any, Self, TypeVar

from stepscope.backends.torch.compile import substitute_region
from stepscope.backends.torch.kineto.session import session
from stepscope.backends.torch.kineto.slot import slot
from stepscope.runtime._core import span
from stepscope.runtime.settings.arguments import got

_F = TypeVar("_F", bound=Callable[..., Any])


class record_function:
    """A context manager and a decorator that names a block or function, as `torch.profiler.record_function` does.

    It is a span of stepscope: it costs a fraction of a µs where torch's takes some, works without torch, and is in every
    profiler that records, and in tasks and generators. One object may be entered any number of times at once. While an
    accelerator is recorded, torch's own takes its place, as the device's timeline needs that. While a profiler of torch records
    that the program has started itself, both are entered.

    Args:
        name: what is shown.
        args: more text, kept as argument `args`.

    Raises:
        TypeError: if name is no str, or args neither str nor None.
    """

    __slots__ = ("_span", "_theirs", "args", "name")

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, {got(name)}")
        if args is not None and not isinstance(args, str):
            raise TypeError(f"args must be a str or None, {got(args)}")
        self.name = name
        self.args = args
        self._span = _span(name, args)
        self._theirs: list[tuple[int, Any, bool]] = []
        """torch's own that are entered, the latest last: the thread that entered it, and whether our span was entered as well."""

    def __enter__(self) -> Self:
        programs = not session.records_device and _programs_profiler_records()
        if session.records_device or programs:
            theirs: Any = import_module("torch").profiler.record_function(self.name, self.args)
            self._theirs.append((get_ident(), theirs.__enter__(), programs))
        if not session.records_device:
            self._span.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        theirs, both = self._latest() if self._theirs else (None, True)
        if both:
            self._span.__exit__(*exc)
        if theirs is not None:
            theirs.__exit__(*exc)

    def _latest(self) -> tuple[Any, bool]:
        """The latest of torch's own that this thread entered, `None` if it entered none; and whether our span is to end."""
        here = get_ident()
        for at in range(len(self._theirs) - 1, -1, -1):
            if self._theirs[at][0] == here:
                return self._theirs.pop(at)[1:]
        return None, True

    def __call__(self, function: _F) -> _F:
        """Returns a function that is recorded at each call; coroutine functions and generators as well."""
        return self._span(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return record_function, (self.name, self.args)


def _programs_profiler_records() -> bool:
    """Whether a profiler of torch that is none of ours records on this thread."""
    return "torch.profiler" in sys.modules and slot.is_occupied and not slot.emits and not session.here


def _span(name: str, args: str | None) -> span:
    if args is None:
        return span(name, category="user_annotation")
    return span(name, category="user_annotation", args=args)


def _for_compiler(name: str, args: str | None = None) -> Any:
    import torch

    return torch.profiler.record_function(name, args)


substitute_region(record_function, _for_compiler, lambda region: (region.name, region.args))
