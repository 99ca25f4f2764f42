"""`record_function`: names a stretch of the program."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Self, TypeVar

from stepscope.backends.kineto_session import session
from stepscope.runtime._core import span

_F = TypeVar("_F", bound=Callable[..., Any])


class record_function:
    """A context manager and a decorator that names a block or function, as `torch.profiler.record_function` does.

    It is a span of stepscope, so it costs a fraction of a µs where torch's takes some, is there without torch, in every
    profiler that records, and in tasks and generators. While an accelerator is recorded it is torch's own as well as
    the device's timeline needs it; it is then drawn once.

    Args:
        name: what is shown.
        args: more text, kept as argument `args`.

    Raises:
        TypeError: if name is no str.
    """

    __slots__ = ("_entered", "args", "name")

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {type(name).__name__}: {name!r}")
        self.name = name
        self.args = args
        self._entered: Any = None

    def __enter__(self) -> Self:
        if session.records_device:
            theirs: Any = import_module("torch").profiler.record_function(self.name, self.args)
            self._entered = theirs.__enter__()
        else:
            self._entered = self._span().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(*exc)

    def __call__(self, function: _F) -> _F:
        """A function that is recorded at each call; coroutine functions and generators as well."""
        return self._span()(function)

    def _span(self) -> span:
        if self.args is None:
            return span(self.name, category="user_annotation")
        return span(self.name, category="user_annotation", args=self.args)
