"""Sends a journal over a connection that is made, lost and made again: to a collector, or to a message broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from stepscope.exporters.network.backoff import Backoff
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.shipper import Shipper
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import clock
from stepscope.runtime.events.clock import ClockSync
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from stepscope.runtime.options import PositiveFloat
from stepscope.runtime.settings.checked import Checked

log = logging.getLogger("stepscope")

FIRST_SYNCS = 8
"""Comparisons of the clocks that follow each other quickly."""
MAX_SUMMARY_BYTES = 1 << 20
"""Bytes of summaries that wait for a connection. Beyond them the oldest are dropped."""
BRIEF_S = 30.0
"""A connection that has ended sooner, without a confirmed frame, does not make the same error news."""
MOST_ORDERS = 16
"""Commands that are carried out at once."""

SyncInterval = Annotated[float, msgspec.Meta(gt=0, le=15)]


class LinkSettings(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds and bytes. Unknown fields are refused.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    buffer_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 1 << 30
    """Bytes that may wait on disk for the collector in a run without a journal of all windows. A journal has a limit of its own."""
    message_bytes: Annotated[int, msgspec.Meta(ge=1 << 12, le=8 << 20)] = 1 << 20
    """Frames are sent together up to this size."""
    timeout: PositiveFloat = 10.0
    """Seconds for a connection to be made, and for a collector to give a sign of life."""
    first_delay: PositiveFloat = 0.1
    """Seconds until a lost connection is made again; doubled each time."""
    longest_delay: PositiveFloat = 10.0
    """No longer than this."""
    closing_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 3.0
    """How long a collector without a connection may hold up the end of the run. One that is connected has `timeout` seconds more to
    confirm something. The rest stays in the journal, for `stepscope deliver`."""
    first_sync: SyncInterval = 0.25
    """Seconds between the first comparisons of the clocks."""
    sync_interval: SyncInterval = 5.0
    """Between the later ones."""
    insecure: bool = False
    """Whether another machine may be reached without TLS: others can read the traces and the token, and send commands."""


class LinkStatistics(msgspec.Struct, frozen=True):
    """State and history of a connection."""

    connected: bool
    connections: int
    """How often it was made."""
    confirmed: int
    """The frames before this one are written, or stored where collectors take them from."""
    refused: bool
    """Whether the last attempt was refused for a reason that time alone does not change."""
    last_error: str
    """The last failure; empty while it is connected."""


class Feed(NamedTuple):
    """The journal that a transport sends, and the calls by which it reports."""

    shipper: Shipper
    """Reads the frames that are to be sent."""
    hello: protocol.Hello
    """The first message, which says which stream this is."""
    synced: Callable[[ClockSync], object] = lambda _: None
    """Called with each comparison of the clocks."""
    limit_segments: Callable[[int], object] = lambda _: None
    """Called with the bytes that a segment should have at most."""
    obey: Callable[[bytes], Awaitable[bytes]] | None = None
    """Carries out a command of a collector's operator, and answers; `None`: commands are ignored."""


class Transport(ABC):
    """Makes a connection whenever there is none, and sends a journal until all of it is confirmed.

    Runs on the exporter's loop, beside its calls. A mistake of the other end ends a connection, and nothing else.
    """

    _closed_error: ClassVar[type[Exception]]
    """Raised when something is sent over a connection that has ended."""

    def __init__(self, where: str, settings: LinkSettings, feed: Feed) -> None:
        self.where = where
        """The address, for messages."""
        self.logged = ""
        """The last error that was logged."""
        self._logged_frames: int = -1
        """How many frames were confirmed then."""
        self._settings = settings
        self._feed, self._shipper = feed, feed.shipper
        self._orders: set[asyncio.Task[None]] = set()
        self._news, self._changed, self._retry_now = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._hurried = False
        """Whether frames are sent without waiting for more of them."""
        self._summaries: deque[bytes] = deque()
        self._summary_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._connected = self._refused = False
        self._connections = self._frames = 0
        self._established_at = -math.inf
        """Begin of the last connection, by the monotonic clock."""
        self._last_error = ""
        self._log_refusals = True

    def start(self, *, log_refusals: bool = True) -> None:
        """Begins to connect, and goes on until `close` or `abort`.

        Args:
            log_refusals: whether to log why the other end refuses it. If false, the caller reports it.
        """
        self._log_refusals = log_refusals
        self._task = asyncio.create_task(self._run(), name="stepscope transport")

    def wake(self) -> None:
        """Looks for something to send."""
        self._news.set()
        self._changed.set()

    def summarize(self, summary: protocol.StepSummary) -> None:
        """Sends facts of steps as soon as there is a connection, before frames that wait."""
        message = protocol.encode(summary)
        self._summaries.append(message)
        self._summary_bytes += len(message)
        while self._summary_bytes > MAX_SUMMARY_BYTES:
            self._next_summary()
        self._news.set()

    def _next_summary(self) -> bytes | None:
        """The oldest summary that was not sent; `None` if there is none."""
        if not self._summaries:
            return None
        message = self._summaries.popleft()
        self._summary_bytes -= len(message)
        return message

    async def finish(self, reach_s: float, confirm_s: float, is_complete: Callable[[], object] = lambda: True) -> None:
        """Sends the rest. Returns when the journal is complete and confirmed, the other end refuses it, or nothing was confirmed for long.

        Args:
            reach_s: seconds without anything confirmed after which to give up while there is no connection.
            confirm_s: further seconds while there is one.
            is_complete: whether the journal is complete.
        """
        self._hurried = True
        self.wake()
        self._retry_now.set()
        shipper, loop = self._shipper, asyncio.get_running_loop()
        since = loop.time()
        while not (is_complete() and shipper.is_confirmed) and not self._refused:
            before, waits = shipper.confirmed, not shipper.is_confirmed
            limit = since + reach_s + (confirm_s if self._connected else 0)
            self._changed.clear()
            try:
                async with asyncio.timeout_at(limit if waits else None):
                    await self._changed.wait()
            except TimeoutError:
                return
            if not waits or shipper.confirmed != before:
                since = loop.time()

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
        """Counts of the connection so far."""
        return LinkStatistics(self._connected, self._connections, self._frames, self._refused, self._last_error)

    # for those who know how to connect

    @abstractmethod
    async def _connection(self) -> None:
        """Connects, and sends until the connection is lost."""

    def _reason(self, failure: Exception) -> tuple[str, bool]:
        """The text of a failure, and whether somebody has to act."""
        if isinstance(failure, OSError | TimeoutError | FormatError | ValueError):
            return f"{type(failure).__name__}: {failure}", False
        return type(failure).__name__, False  # what others' code may raise, a proxy's for one: without its text

    def _established(self) -> None:
        self._connected, self._refused, self._last_error = True, False, ""
        self._connections += 1
        self._established_at = time.monotonic()
        self._changed.set()

    def _confirm(self, next: int) -> None:
        """The other end has the frames below `next`."""
        self._frames = max(self._frames, next)
        self._shipper.confirm(next)
        self._news.set()
        self._changed.set()

    def _fail(self, error: str, *, refused: bool = False) -> None:
        """Says that something is wrong, once until it is right again: for a time, or with a confirmed frame."""
        news = not self._refused if refused else bool(error) and not self._last_error
        brief = time.monotonic() - self._established_at < BRIEF_S
        again = brief and error == self.logged and self._frames == self._logged_frames
        if news and not again and (self._log_refusals or not refused):
            self.logged, self._logged_frames = error, self._frames
            level = logging.ERROR if refused else logging.WARNING
            log.log(level, "%s is tried again later: %r", self.where, error)
        self._last_error, self._refused = error or self._last_error, refused
        self._changed.set()

    async def _compare_clocks(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        """Asks for the collector's clock, often at first; who gets the answer gives it to `_compared`."""
        count = 0
        while True:
            await send(protocol.encode(protocol.Ping(clock.now())))
            count += 1
            early = count < FIRST_SYNCS
            await asyncio.sleep(self._settings.first_sync if early else self._settings.sync_interval)

    def _compared(self, pong: protocol.Pong) -> None:
        returned = clock.now()
        self._feed.synced(
            ClockSync(sent=pong.sent, arrived=pong.arrived, answered=pong.answered, returned=returned, clock=pong.clock)
        )

    def _take_order(self, order: protocol.Order, reply: Callable[[bytes], Awaitable[object]]) -> None:
        """Has a command carried out, unless too many are."""
        if self._feed.obey is None or len(self._orders) >= MOST_ORDERS:
            log.warning("%s: a command was ignored", self.where)
            return
        task = asyncio.create_task(self._carry_out(order, reply, self._feed.obey), name="stepscope order")
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    async def _carry_out(
        self,
        order: protocol.Order,
        reply: Callable[[bytes], Awaitable[object]],
        obey: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        answer = protocol.encode(protocol.Obeyed(order.number, await obey(order.command)))
        with contextlib.suppress(self._closed_error):  # nobody waits for the answer any more
            await reply(answer)

    async def _run(self) -> None:
        backoff = Backoff(self._settings.first_delay, self._settings.longest_delay)
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
                backoff.reset()
            await self._pause(backoff, backoff.longest_delay() if refused else backoff.delay())

    async def _pause(self, backoff: Backoff, seconds: float) -> None:
        """Waits before another attempt, unless the run ends: then that comes at once, and others soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._retry_now.wait()
                self._retry_now.clear()
                backoff.reset()
