"""Ingests streams from NATS JetStream. Several collectors share the streams: each ingests a part of them, with a lease on each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import StreamInfo
from nats.js.errors import KeyNotFoundError, NotFoundError

from stepscope.collector.audit import Audit
from stepscope.collector.files.store import Store
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import NatsView
from stepscope.collector.memory_budget import MemoryBudget
from stepscope.collector.nats.assignment import Assignment
from stepscope.collector.nats.coordination import Session
from stepscope.collector.nats.ingest import GAP_SECONDS, Ingest
from stepscope.collector.nats.scheduling import FairShare, RetryState, UnassignedStreams, is_complete_in_jetstream
from stepscope.collector.server_clock import ServerClock
from stepscope.exporters.backoff import Backoff
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.limits import NatsLimits
from stepscope.exporters.nats.servers import Servers
from stepscope.exporters.stream import protocol
from stepscope.runtime.loop_threads.ending_tasks import end_tasks, finish

log = logging.getLogger("stepscope.collector")

POLL_SECONDS = 1.0
"""Time between two looks for unassigned streams."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds until the connection is made again after a failure, doubled each time."""
CLOSE_SECONDS = 15.0
"""Time limit for the end of all assignments, and for leaving the peers."""
MAX_CHECKED = 64
"""Streams for which JetStream is asked at once whether it has them completely."""

_STREAM = re.compile("[0-9a-f]{32}")


class NatsSource:
    """Finds unassigned streams, acquires this collector's share of them, and ingests them into its files.

    A collector with more than its share releases some streams each second, the smallest first, but only those that another
    collector can still read from the beginning. Every failure is shown and tried again. A stream is released when it has ended and
    all of it is written, or when JetStream has nothing of it any more.

    Args:
        servers: the servers, and credentials.
        store: where streams are written.
        streams: notes what was written.
        bound: bounds the bytes of messages in memory.
        clock: the collector's clock.
        audit: log of streams and of refused messages.
        limits: limits of the stream in JetStream, if this collector creates it.
        lease_seconds: time after which a lease expires that is not renewed, if this collector creates the bucket of leases.
        gap_seconds: seconds without a message of the exporter until frames that JetStream never had count as lost.
    """

    def __init__(
        self,
        servers: Servers,
        store: Store,
        streams: Streams,
        bound: MemoryBudget,
        clock: ServerClock,
        audit: Audit,
        *,
        limits: NatsLimits | None = None,
        lease_seconds: float = layout.LEASE_SECONDS,
        gap_seconds: float = GAP_SECONDS,
    ) -> None:
        self._servers, self._store, self._streams, self._audit = servers, store, streams, audit
        self._bound, self._clock, self._limits = bound, clock, limits or NatsLimits()
        self._lease_seconds, self._gap_seconds = lease_seconds, gap_seconds
        self._assignments: dict[str, Assignment] = {}
        self._finished: set[str] = set()
        """Streams in JetStream that have ended, or have an invalid id."""
        self._unassigned = UnassignedStreams()
        self._pinned: set[str] = set()
        """Streams that are not released, as no other collector could read them from the beginning."""
        self._retries = RetryState(f"NATS at {servers}")
        self._malformed = 0
        self._client: Client | None = None

    async def run(self) -> None:
        """Ingests streams until it is cancelled. A lost connection is made again."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        while True:
            began = loop.time()
            try:
                await self._connection()
            except Exception as error:
                # Whatever it is: a server, a file or a permission that is wrong today may be right tomorrow.
                self._retries.fail("", error)
            if loop.time() - began > LONGEST_DELAY:
                backoff.reset()
            await asyncio.sleep(backoff.delay())

    def view(self) -> NatsView:
        """State for the page, the HTTP API and metrics."""
        return NatsView(
            servers=self._servers.urls,
            connected=self._client is not None and self._client.is_connected,
            streams=self._assigned_count,
            malformed_messages=self._malformed,
            problem=self._retries.problem,
        )

    @property
    def _assigned_count(self) -> int:
        return sum(not assignment.is_released for assignment in self._assignments.values())

    async def _connection(self) -> None:
        self._client = client = await connect(self._servers, max_reconnect_attempts=-1, error_cb=self._note_error)
        session: Session | None = None
        try:
            session = await Session.open(client, self._bound, self._limits, self._lease_seconds, self._note_error)
            await session.peers.announce(0)
            while not client.is_closed:
                try:
                    await self._poll(session)
                    self._retries.succeed("")
                except NotFoundError:
                    raise  # somebody has deleted the stream, or a bucket
                except (NatsError, TimeoutError) as error:
                    self._retries.fail("", error)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await finish(self._close(client, session), CLOSE_SECONDS)

    async def _close(self, client: Client, session: Session | None) -> None:
        try:
            ending = end_tasks(*(assignment.task for assignment in self._assignments.values()))
            await asyncio.gather(ending, self._leave(session))
        finally:
            self._assignments.clear()
            await client.close()

    async def _leave(self, session: Session | None) -> None:
        if session is not None and session.client.is_connected:
            with contextlib.suppress(NatsError, TimeoutError):  # the value expires
                await session.peers.leave()

    async def _poll(self, session: Session) -> None:
        self._remove_ended()
        info = await session.jetstream.stream_info(layout.STREAM, subjects_filter=f"{layout.SUBJECTS}.*")
        streams = {subject.rpartition(".")[2] for subject in info.state.subjects or {}}
        self._finished &= streams
        self._pinned &= streams
        self._retries.retain(streams)
        keys = await session.leases.keys()
        for stream in keys & streams - self._assignments.keys():
            self._streams.elsewhere(stream)
        await self._find_unassigned(session, streams - self._finished - self._assignments.keys() - keys)
        waiting = set(filter(self._retries.is_waiting, streams - self._finished - self._assignments.keys()))
        loads = await session.peers.loads(keys)
        share = FairShare(self._assigned_count, len(streams - self._finished - waiting), loads)
        await self._acquire(session, share.room, waiting)
        await self._release(session, share.surplus, info)
        for stream in self._assignments.keys() - streams:
            if self._assignments[stream].is_idle:
                self._assignments[stream].task.cancel()
        await session.peers.announce(self._assigned_count + len(waiting))

    async def _find_unassigned(self, session: Session, streams: set[str]) -> None:
        """Finds out which of the streams without a lease have not ended."""
        for stream in self._unassigned.retain(streams):
            if not _STREAM.fullmatch(stream):
                self._finished.add(stream)
                self._refuse(stream, "the id of a stream is 32 hexadecimal digits")
                continue
            try:
                ended = await session.ended.get(stream)
            except KeyNotFoundError:
                self._unassigned.add(stream)
                continue
            self._finished.add(stream)
            if ended.value != self._store.identity().encode():
                self._streams.elsewhere(stream)

    async def _acquire(self, session: Session, room: int, waiting: set[str]) -> None:
        for stream, is_overdue in self._unassigned.candidates(room):
            if stream in waiting or not (room > 0 or is_overdue):
                continue
            if await session.leases.acquire(stream):
                room -= 1
                self._assignments[stream] = Assignment(
                    session, stream, self._store.identity(), self._clock, self._make_ingest(session)
                )

    async def _release(self, session: Session, surplus: int, info: StreamInfo) -> None:
        if not surplus:
            return
        candidates = [
            stream
            for stream, assignment in self._assignments.items()
            if not assignment.is_released and stream not in self._pinned
        ]
        for stream in sorted(candidates, key=lambda stream: self._assignments[stream].size)[:MAX_CHECKED]:
            if not await is_complete_in_jetstream(session.jetstream, stream, info):
                self._pinned.add(stream)
                continue
            log.info("stream %s is released for another collector", stream)
            self._unassigned.note_release(stream)
            self._assignments[stream].release()
            surplus -= 1
            if not surplus:
                return

    def _remove_ended(self) -> None:
        """Removes assignments whose task has ended. Streams that failed are tried again later."""
        for stream, assignment in list(self._assignments.items()):
            if assignment.has_fetched:
                self._retries.succeed(stream)
            if assignment.task.done():
                del self._assignments[stream]
                if assignment.has_ended:
                    self._finished.add(stream)
                if not assignment.task.cancelled() and (error := assignment.task.exception()) is not None:
                    self._retries.fail(stream, error)
            elif assignment.is_released:
                assignment.release()

    def _make_ingest(self, session: Session) -> Callable[[protocol.Hello], Ingest]:
        def make(hello: protocol.Hello) -> Ingest:
            run = hello.run
            self._audit.line("stream", "NATS", stream=hello.stream, name=run.name, rank=str(run.rank))
            return Ingest(
                session,
                self._store,
                self._streams,
                hello,
                lambda reason: self._refuse(hello.stream, reason),
                gap_seconds=self._gap_seconds,
            )

        return make

    def _refuse(self, stream: str, reason: str) -> None:
        """Counts a message that cannot be read, and logs the first one of each stream."""
        self._malformed += 1
        self._retries.warn_once(stream, f"a message cannot be read, and is left out: {reason}")
        self._audit.refuse(ascii(reason[:300])[1:-1], "NATS", f"{layout.SUBJECTS}.{stream}", said_so=True)

    async def _note_error(self, error: Exception) -> None:
        self._retries.fail("", error)
