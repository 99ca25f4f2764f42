"""What carries a stream's backlog away: a link to a collector, or to what stands between."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import msgspec

from stepscope.exporters.collector import protocol
from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import clock
from stepscope.runtime.journal.records import ClockSync
from stepscope.runtime.loop_threads.ending_tasks import end_tasks

log = logging.getLogger("stepscope")

FIRST_SYNCS = 8
"""Comparisons of the clocks that follow each other quickly."""


class LinkStatistics(msgspec.Struct, frozen=True):
    """What the connection has been through."""

    connected: bool
    connections: int
    """How often it was made."""
    confirmed: int
    """The frames before this one are written, or stored where collectors take them from."""
    refused: bool
    """Whether the last attempt was refused for a reason that time alone does not change."""
    last_error: str
    """What went wrong last; empty while it is connected."""


class Connecting(ABC):
    """Makes a connection whenever there is none, and sends the backlog until it is confirmed.

    Runs on the exporter's loop, beside its calls. What the other end does wrong ends a connection, and nothing else.
    """

    def __init__(
        self,
        where: str,
        settings: LinkSettings,
        backlog: Backlog,
        hello: Callable[[], protocol.Hello],
        *,
        synced: Callable[[ClockSync], object] = lambda _: None,
        missed: Callable[[int], object] = lambda _: None,
    ) -> None:
        """
        Args:
            where: what is connected to, for messages.
            settings: times and sizes.
            backlog: what to send.
            hello: which stream this is.
            synced: is given each comparison of the clocks.
            missed: is told the number of the other end's next frame when it lacks frames that are nowhere any more.
        """
        self.where = where
        """What is connected to, for messages."""
        self.told = ""
        """What went wrong last of what the log was told."""
        self._settings = settings
        self._backlog, self._hello, self._synced, self._missed = backlog, hello, synced, missed
        self._news, self._changed = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._connected = self._refused = False
        self._connections = self._frames = 0
        self._last_error = ""
        self._insists = True

    def start(self, *, insists: bool = True) -> None:
        """Begins to connect.

        Args:
            insists: whether the log says why the other end refuses it. Else the caller does. Connecting goes on in either
                case, until `close` or `abort`.
        """
        self._insists = insists
        self._task = asyncio.create_task(self._run(), name="stepscope link")

    def wake(self) -> None:
        """There is something to send."""
        self._news.set()

    async def settled(self) -> bool:
        """Waits until everything is confirmed; false as soon as the other end refuses it."""
        while len(self._backlog) and not self._refused:
            self._changed.clear()
            await self._changed.wait()
        return not len(self._backlog)

    async def progressed(self, before: int) -> bool:
        """Waits until fewer than `before` pieces are left; false if none is, or the other end refuses them."""
        while len(self._backlog) >= before and not self._refused:
            self._changed.clear()
            await self._changed.wait()
        return bool(len(self._backlog)) and not self._refused

    async def close(self) -> None:
        """Ends the connection in order. Idempotent."""
        if self._task is not None:
            await end_tasks(self._task)
            self._task = None

    def abort(self) -> None:
        """Ends it at once; nobody waits for that. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._ending = asyncio.ensure_future(end_tasks(self._task))  # as that one may be swallowed
            self._task = None

    def statistics(self) -> LinkStatistics:
        """What it has been through so far."""
        return LinkStatistics(self._connected, self._connections, self._frames, self._refused, self._last_error)

    # for those who know how to connect

    @abstractmethod
    async def _connection(self) -> None:
        """Connects, and sends until the connection is lost."""

    def _reason(self, failure: Exception) -> tuple[str, bool]:
        """What to say of a failure, and whether somebody has to do something about it."""
        if isinstance(failure, OSError | TimeoutError | FormatError | ValueError):
            return f"{type(failure).__name__}: {failure}", False
        return type(failure).__name__, False  # what others' code may raise, a proxy's for one: without its text

    def _established(self) -> None:
        self._connected, self._refused, self._last_error = True, False, ""
        self._connections += 1
        self._changed.set()

    def _confirm(self, next: int) -> None:
        """Frames below `next` need not be kept any more."""
        self._frames = max(self._frames, next)
        self._backlog.confirm(next)
        self._news.set()
        self._changed.set()

    def _fail(self, error: str, *, refused: bool = False) -> None:
        """Says that something is wrong, once until it is right again."""
        news = not self._refused if refused else bool(error) and not self._last_error
        if news and (self._insists or not refused):
            self.told = error
            level = logging.ERROR if refused else logging.WARNING
            log.log(level, "%s is tried again later: %r", self.where, error)
        self._last_error, self._refused = error or self._last_error, refused
        self._changed.set()

    async def _compare_clocks(self, ask: Callable[[bytes], Awaitable[object]]) -> None:
        """Asks for the collector's clock, often at first; who gets the answer gives it to `_compared`."""
        count = 0
        while True:
            await ask(protocol.encode(protocol.Ping(clock.now())))
            count += 1
            early = count < FIRST_SYNCS
            await asyncio.sleep(self._settings.first_sync if early else self._settings.sync_interval)

    def _compared(self, pong: protocol.Pong) -> None:
        returned = clock.now()
        self._synced(
            ClockSync(sent=pong.sent, arrived=pong.arrived, answered=pong.answered, returned=returned, clock=pong.clock)
        )

    async def _run(self) -> None:
        delay = self._settings.first_delay
        while True:
            before = self._frames
            error, refused = "", False
            try:
                await self._connection()
            except Exception as failure:
                error, refused = self._reason(failure)
            self._connected = False
            self._fail(error[:500], refused=refused)
            if self._frames > before:
                delay = self._settings.first_delay
            # By chance, so that a thousand ranks do not come back at the same moment.
            await asyncio.sleep((self._settings.longest_delay if refused else delay) * random.uniform(0.5, 1.0))
            delay = min(2 * delay, self._settings.longest_delay)
