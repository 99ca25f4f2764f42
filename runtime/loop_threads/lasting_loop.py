"""Event loops that continue if a task raises `SystemExit` or `KeyboardInterrupt`."""

from __future__ import annotations

import asyncio
import importlib
import logging
import selectors
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.files.descriptors import check_free_descriptors

log = logging.getLogger("stepscope")

LOOP_DESCRIPTORS = 12
"""Upper bound of the descriptors of a loop. libuv ends the process if it gets none for its first loop."""

_Selector = selectors.DefaultSelector
"""The class as it was when stepscope was imported: gevent and eventlet replace it."""

if TYPE_CHECKING:
    _Loop = asyncio.SelectorEventLoop
else:
    _Loop = object


class _Lasting(_Loop):
    """Unlike asyncio's loops, it continues if a task or a callback, other than the main task, raises `SystemExit` or
    `KeyboardInterrupt`. The exception is logged, and awaiting the task raises it."""

    _main: asyncio.Future[Any] | None = None
    _executor: Executor | None = None

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Does not wait, unlike the base class, whose waiting thread may be a greenlet. The threads of `DaemonExecutor` end by
        themselves."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def set_default_executor(self, executor: Any) -> None:
        """Does what the base class does."""
        self._executor = executor
        super().set_default_executor(executor)

    def run_until_complete(self, future: Any) -> Any:
        """Does what the base class does."""
        main = self._main = asyncio.ensure_future(future, loop=self)
        try:
            return super().run_until_complete(main)
        finally:
            self._main = None

    def run_forever(self) -> None:
        """Does what the base class does, but for exceptions of tasks."""
        while True:
            try:
                return super().run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                if self._main is None or self._main.done():
                    raise
                log.error("a task or callback of a part raised %s; the loop goes on", error_text(error))


def lasting_loop() -> asyncio.AbstractEventLoop:
    """Returns a new loop: uvloop's if that is installed, else asyncio's.

    Raises:
        OSError: if the process cannot open as many files as a loop needs.
    """
    check_free_descriptors(LOOP_DESCRIPTORS)
    try:
        base: Any = importlib.import_module("uvloop").Loop
        arguments = []
    except ImportError:
        base, arguments = asyncio.SelectorEventLoop, [_Selector()]
    loop: asyncio.AbstractEventLoop = type("LastingLoop", (_Lasting, base), {})(*arguments)
    return loop


def is_lasting(loop: object) -> bool:
    """Whether a loop is of this kind, and so runs no code of the program but that of exporters and backends."""
    return isinstance(loop, _Lasting)
