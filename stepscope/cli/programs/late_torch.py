"""torch's operators in a program that may import torch later, or never."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.backends.torch.backend import TorchBackend
from stepscope.backends.torch.importing import TorchImport
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Block, EventBatch
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
        """As for `TorchBackend`; false until torch is there."""
        return self._opened and self._backend.one_thread

    def stream_only(self) -> None:
        """As for `TorchBackend`."""
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
        """As for `TorchBackend`; kept for it until torch is there."""
        self._detail = detail
        if self._opened:
            self._backend.set_detail(detail)

    def can_choose(self, what: str, on: bool) -> str | None:
        """As for `TorchBackend`."""
        return self._backend.can_choose(what, on)

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """As for `TorchBackend`; kept for it until torch is there."""
        self._chosen = dict(chosen)
        if self._opened:
            self._backend.choose(chosen)

    def orphaned(self) -> None:
        """As for `TorchBackend`."""
        if self._opened:
            self._backend.orphaned()

    def derive(self, batch: EventBatch) -> Block | None:
        """The blocks that the backend makes of the recorder's events."""
        return self._backend.derive(batch) if self._opened else None

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
