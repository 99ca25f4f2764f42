"""torch's operators in a program that may import torch later, or never."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from stepscope.backends.torch import TorchBackend
from stepscope.cli.torch_import import TorchImport
from stepscope.runtime import clock
from stepscope.runtime.action import ProfilerAction
from stepscope.runtime.events import Block, EventBatch
from stepscope.runtime.sink import BackendReport, Sink


class LateTorch:
    """A `TorchBackend` that is opened when the program has imported torch. Until then it has nothing to deliver.

    Args:
        backend: not opened.
        imported: called once torch is there.
    """

    thread_bound = True

    def __init__(self, backend: TorchBackend, imported: Callable[[], None]) -> None:
        self.name = backend.name
        self._backend = backend
        self._imported = imported
        self._watch = TorchImport(self._torch_imported)
        self._there = self._opened = False
        self._sink: Sink | None = None
        self._thread = 0
        self._action = ProfilerAction.NONE
        self._notes: list[str] = []

    def open(self, sink: Sink) -> None:
        self._sink = sink
        self._thread = threading.get_ident()
        self._watch.watch()

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        self._open_if_there()
        self._action = after
        if self._opened:
            self._backend.transition(before, after, at)
        elif self._sink is not None:
            self._sink.watermark(at)

    def derive(self, batch: EventBatch) -> Block | None:
        """What the backend makes of the recorder's events."""
        return self._backend.derive(batch) if self._opened else None

    async def aclose(self) -> None:
        self._watch.forget()
        if self._opened:
            await self._backend.aclose()

    def report(self) -> BackendReport:
        if not self._opened:
            missing = () if self._there else ("the program did not import torch",)
            return BackendReport(notes=(*missing, *self._notes))
        report = self._backend.report()
        return msgspec.structs.replace(report, notes=(*self._notes, *report.notes))

    def _torch_imported(self) -> None:
        """Called inside the program's import statement, into which nothing may be raised."""
        self._there = True
        try:
            self._imported()
            self._open_if_there()
        except Exception as error:
            self._notes.append(f"{type(error).__name__}: {error}")

    def _open_if_there(self) -> None:
        if self._there and not self._opened and self._sink is not None and threading.get_ident() == self._thread:
            self._there = False  # one try
            self._backend.open(self._sink)
            self._opened = True
            if self._action is not ProfilerAction.NONE:
                self._backend.transition(ProfilerAction.NONE, self._action, clock.now())
