"""A result of torch's profiler, shared by all who read it: torch exports a result once only, and frees it slowly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from stepscope.backends.scratch import make_scratch_file, remove_scratch
from stepscope.backends.torch.kineto.symbols import save_without_gil
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.native_threads import RLock


class SharedResult:
    """A result of kineto with several users, each on a thread of its own. The last `release` frees it."""

    def __init__(self, result: Any, users: int = 1) -> None:
        """Args: torch's `_ProfilerResult`; how often `release` will be called."""
        self._result: Any = result
        self._users = users
        self._counting = locks.reentrant()
        # Not one of `locks`, as it is held while a file is written. Reentrant: a handler may export what is being exported.
        self._saving = RLock()
        self._copy: Path | None = None

    @property
    def raw(self) -> Any:
        """torch's own object; `None` once it was freed."""
        return self._result

    def add_user(self) -> None:
        """One more will call `release`."""
        with self._counting:
            self._users += 1

    def save(self, path: str) -> bool:
        """Writes kineto's trace, any number of times.

        Returns:
            False if all Python threads had to stand still meanwhile.

        Raises:
            Exception: what torch raises if it cannot.
        """
        with self._saving:
            if self._copy is not None:
                shutil.copyfile(self._copy, path)
                return True
            alone = save_without_gil(self._result, path)
            if not alone:
                self._result.save(path)
            if self._users > 1:
                whole = make_scratch_file("stepscope-kineto-", ".json")
                shutil.copyfile(path, whole)
                self._copy = whole  # last: it is whole, whatever interrupted this
            return alone

    def flops(self) -> dict[int, int]:
        """torch's estimates of floating-point operations, by the events' correlation ids."""
        return {event.correlation_id(): flops for event in self._result.events() if (flops := event.flops())}

    def release(self) -> None:
        """One user less."""
        with self._counting:
            self._users -= 1
            if self._users:
                return
        self._result = None
        copy, self._copy = self._copy, None
        if copy is not None:
            remove_scratch(copy)
