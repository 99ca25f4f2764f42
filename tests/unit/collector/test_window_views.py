"""The windows of jobs are laid out on a thread, while the loop goes on to take what streams say of their clocks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.collector.clocks.latest import ClockBound, LatestClock
from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.streams import Streams
from tests.system.collector.test_collector_totals import feed


async def test_the_clock_is_fitted_on_the_loop_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """To fit it on a thread would race with the round trips that the loop adds."""
    fitted: list[str] = []
    now: Any = LatestClock.now

    def noted(self: LatestClock) -> ClockBound:
        fitted.append(threading.current_thread().name)
        found: ClockBound = now.fget(self)
        return found

    streams = Streams(8)
    for number in range(4):
        feed(streams, number, number, 99)
    monkeypatch.setattr(LatestClock, "now", property(noted))
    live = Live(streams, Downloads(Path("/nowhere")), exposed=False)
    windows = await live.windows(50)
    assert windows and all(msgspec.structs.asdict(window)["started_ns"] for window in windows)
    assert set(fitted) <= {threading.main_thread().name}
