"""The parts of a collector's work that go on beside its answers, and what became of each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from functools import partial
from typing import Any

from stepscope.collector.live.views import PartView
from stepscope.runtime.loop_threads.ending_tasks import end_tasks

log = logging.getLogger("stepscope.collector")


class BackgroundTasks:
    """Runs them. One that ends though it should not is logged, and told to all who look, until the collector is restarted."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}
        """Of each part; empty while it goes on, and when it is done."""
        self._closing = False

    @contextlib.asynccontextmanager
    async def working(
        self, endless: Mapping[str, Coroutine[Any, Any, None]], passing: Mapping[str, Coroutine[Any, Any, None]]
    ) -> AsyncGenerator[None]:
        """Runs tasks inside, by name: `endless` ones, and `passing` ones, which are done at some time."""
        tasks: list[asyncio.Task[None]] = []
        for name, work in {**passing, **endless}.items():
            self._problems[name] = ""
            task = asyncio.create_task(work, name=f"stepscope collector {name}")
            task.add_done_callback(partial(self._ended, name, done=name in passing))
            tasks.append(task)
        try:
            yield
        finally:
            self._closing = True
            await end_tasks(*tasks)

    def view(self) -> list[PartView]:
        """All of them."""
        return [PartView(name=name, problem=problem) for name, problem in self._problems.items()]

    def _ended(self, name: str, task: asyncio.Task[None], *, done: bool) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None and (self._closing or (done and not task.cancelled())):
            return
        self.failed(name, error)

    def failed(self, name: str, error: BaseException | None = None) -> None:
        """A part has ended though it should not: by an error, or without one."""
        why = "it ended without an error" if error is None else f"{type(error).__name__}: {error}"
        self._problems[name] = why[:500]
        log.error("the collector does not go on with a part of its work, %s: %s", name, why, exc_info=error)
