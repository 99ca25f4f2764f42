"""A scripted backend that keeps a log of its calls."""

from __future__ import annotations

from threading import get_ident
from typing import Any, NamedTuple

from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import Sink


class Call(NamedTuple):
    """One call."""

    what: str
    thread: int
    """Identity of the thread that called."""
    before: ProfilerAction | None = None
    after: ProfilerAction | None = None


class LoggedBackend(ScriptedBackend):
    """Every call but `report` is in `calls`, in order, also one that it refuses."""

    def __init__(self, *script: Any, **settings: Any) -> None:
        super().__init__(script, **settings)
        self.calls: list[Call] = []

    def open(self, sink: Sink) -> None:
        self.calls.append(Call("open", get_ident()))
        super().open(sink)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        self.calls.append(Call("transition", get_ident(), before, after))
        super().transition(before, after, at)

    async def aclose(self) -> None:
        self.calls.append(Call("aclose", get_ident()))
        await super().aclose()
