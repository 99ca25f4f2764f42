"""Event loops that a task cannot end."""

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
"""More than a loop opens. libuv ends the process where it gets none for its first loop."""

_Selector = selectors.DefaultSelector
"""The one of when stepscope was imported: gevent and eventlet replace it."""

if TYPE_CHECKING:
    _Loop = asyncio.SelectorEventLoop
else:
    _Loop = object


class _Lasting(_Loop):
    """Goes on where asyncio's loops end: when a task or a callback, other than the main task, raises `SystemExit` or
    `KeyboardInterrupt`. Who waits for the task gets that; the log has it in any case."""

    _main: asyncio.Future[Any] | None = None
    _executor: Executor | None = None

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Unlike the base, which waits for the executor on a thread that it starts, and that may be a greenlet: the threads
        of ours end by themselves."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def set_default_executor(self, executor: Any) -> None:
        """As the base."""
        self._executor = executor
        super().set_default_executor(executor)

    def run_until_complete(self, future: Any) -> Any:
        """As the base."""
        main = self._main = asyncio.ensure_future(future, loop=self)
        try:
            return super().run_until_complete(main)
        finally:
            self._main = None

    def run_forever(self) -> None:
        """As the base, but for what tasks raise."""
        while True:
            try:
                return super().run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                if self._main is None or self._main.done():
                    raise
                log.error("a task or callback of a part raised %s; the loop goes on", error_text(error))


def lasting_loop() -> asyncio.AbstractEventLoop:
    """A new loop: uvloop's where that is installed, else asyncio's.

    Raises:
        OSError: if the process may not open as many files as a loop needs.
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
    """Whether it is such a loop, which runs nothing of the program's."""
    return isinstance(loop, _Lasting)
