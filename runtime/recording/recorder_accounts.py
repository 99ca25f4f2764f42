"""The accounts of the recorder that concern one profiler: those of the time in which it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.runtime.recording.recorder_statistics import RecorderStatistics

if TYPE_CHECKING:
    from stepscope.runtime.recording.recorder import Recorder


class RecorderAccounts:
    """Accounts of a recorder while one profiler is open: the recorder may have served others before, and may after."""

    def __init__(self, recorder: Recorder) -> None:
        """Called where the recorder is drained, so that the counts of that moment are exact."""
        self._recorder = recorder
        self._before = recorder.statistics()
        self._workers = recorder.workers.open_accounts()
        self._last: RecorderStatistics | None = None

    def statistics(self) -> RecorderStatistics:
        """Accounts so far; of a profiler that is closed, those of its end. Any thread."""
        if self._last is not None:
            return self._last
        workers = self._recorder.workers.statistics(self._workers)
        return self._recorder.statistics().since(self._before, workers)

    def close(self) -> None:
        """Nothing changes from now on. Called where the recorder is drained."""
        self._last = self.statistics()
        self._recorder.workers.close_accounts(self._workers)
