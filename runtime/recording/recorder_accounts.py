"""Accounts of the recorder while one profiler is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.runtime.recording.recorder_statistics import RecorderStatistics

if TYPE_CHECKING:
    from stepscope.runtime.recording.recorder import Recorder


class RecorderAccounts:
    """Accounts of the recorder while one profiler is open. Other profilers may have used it before."""

    def __init__(self, recorder: Recorder) -> None:
        """Must be called on the drain loop, so that the counts are exact."""
        self._recorder = recorder
        self._before = recorder.statistics()
        self._workers = recorder.workers.open_accounts()
        self._last: RecorderStatistics | None = None

    def statistics(self) -> RecorderStatistics:
        """Accounts so far; of a closed profiler, those of its end. Any thread may call."""
        if self._last is not None:
            return self._last
        workers = self._recorder.workers.statistics(self._workers)
        return self._recorder.statistics().since(self._before, workers)

    def close(self) -> None:
        """Freezes the accounts. Must be called on the drain loop."""
        self._last = self.statistics()
        self._recorder.workers.close_accounts(self._workers)
