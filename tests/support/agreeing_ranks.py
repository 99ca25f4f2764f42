"""Ranks that agree on their windows, played on one thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import stepscope
from stepscope import Options, Profiler
from stepscope.control import Armed, WindowRequest
from stepscope.runtime.control.agreement.agreement import Agreement, Timing
from stepscope.runtime.control.agreement.job_directory import AnyRequest, JobDirectory
from stepscope.runtime.schedule.schedule import never

QUICK = Options(journal=False, drain_interval=0.01)


class Rank:
    """One rank: its profiler and its part in the agreement."""

    def __init__(
        self,
        directory: Path,
        number: int,
        ranks: int,
        own: Any = never,
        patience: float = 60.0,
        stage: str = "",
    ) -> None:
        self.number = number
        self.outcomes: list[Armed] = []
        """The answers to requests for windows."""
        self.ends: list[Armed] = []
        """The same of what was to become of them."""
        self.complete: list[bool] = []
        self.profiler: Profiler = stepscope.trace(
            schedule=own,
            output_dir=directory / "run",
            rank=number,
            options=QUICK,
            on_trace_ready=self._ready,
            metadata={"stage": stage} if stage else None,
        )
        self.windows: list[tuple[str, tuple[int, ...]]] = []
        self.agreement = Agreement(
            JobDirectory(directory / "stepscope.json", "job", number),
            self.profiler._arming,  # pyright: ignore[reportPrivateUsage]
            rank=number,
            world_size=ranks,
            timing=Timing(patience, poll=0.01, margin=0.05),
            outcome=lambda request, trigger, armed: self._answers(request).append(armed),
        )
        self.profiler.start()

    def _answers(self, request: AnyRequest) -> list[Armed]:
        return self.outcomes if isinstance(request, WindowRequest) else self.ends

    def _ready(self, window: stepscope.Window) -> None:
        self.complete.append(window.complete)
        armed = window.metadata.get("armed", {})
        self.windows.append((armed.get("run_id", "-"), tuple(step.number for step in window.steps)))

    def work(self, steps: int) -> None:
        """Goes on with its loop."""
        for _ in range(steps):
            with stepscope.span("work"):
                pass
            self.profiler.step()

    def close(self) -> None:
        """Ends in order."""
        self.agreement.close()
        self.profiler.close()
        self.profiler.raise_errors()


@contextlib.contextmanager
def job(ranks: int, **more: Any) -> Generator[list[Rank]]:
    """Ranks that share a directory, on one thread: what happens when is what the test says."""
    with TemporaryDirectory() as directory:
        made = [Rank(Path(directory), number, ranks, **more) for number in range(ranks)]
        try:
            yield made
        finally:
            for rank in made:
                rank.close()


def go_on(ranks: list[Rank], condition: Callable[[], object], steps: int = 0) -> None:
    """Has all ranks take turns, each with so many steps, until something holds."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, [rank.outcomes for rank in ranks]
        for rank in ranks:
            rank.agreement.turn()
            rank.work(steps)


def finish(ranks: list[Rank], requests: int, steps: int = 3) -> None:
    """Everybody goes on, one as fast as the other, until all requests are answered on all ranks and nothing waits."""

    def done(rank: Rank) -> bool:
        return len(rank.outcomes) >= requests and not any(status.open for status in rank.profiler.armed())

    go_on(ranks, lambda: all(map(done, ranks)), steps)
    for rank in ranks:
        assert rank.profiler.flush(30)
