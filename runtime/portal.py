"""Portals: an event loop in a thread of its own, for a caller that is not a coroutine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

T = TypeVar("T")


@contextmanager
def portal(name: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Generator[BlockingPortal]:
    """A blocking portal of anyio in a daemon thread of this name; anyio itself takes a name from 4.10 on only."""

    async def set_name() -> None:
        threading.current_thread().name = name

    with start_blocking_portal("asyncio", {"loop_factory": loop_factory}) as started:
        started.call(set_name)
        yield started


def run_on_own_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine function to its end and returns its result; also where a loop runs already, as in callbacks."""
    with portal("stepscope export") as started:
        return started.call(work)
