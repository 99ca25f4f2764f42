"""Takes the streams of a team from NATS. Several collectors share them: each takes a part of the partitions, with a lease on each,
and hears what all processes of the team say of their steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from functools import partial

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from stepscope.collector.audit import Audit
from stepscope.collector.clocks.server_clock import ServerClock
from stepscope.collector.files.store import Store
from stepscope.collector.live.stream import STEPS_PER_SECOND, State
from stepscope.collector.live.streams import Streams, in_slices
from stepscope.collector.live.views import NatsView
from stepscope.collector.memory_budget import MemoryBudget
from stepscope.collector.nats.consumer import Retries
from stepscope.collector.nats.leases import Leases, room, surplus
from stepscope.collector.nats.partition import Partition, Session
from stepscope.collector.nats.roster import NatsProcess, Roster
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.names import Names, key_of, partition_of
from stepscope.exporters.nats.servers import NatsLimits, Servers
from stepscope.exporters.network.backoff import Backoff
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.protocol import job_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.loop_threads.ending_tasks import end_tasks, finish

log = logging.getLogger("stepscope.collector")

POLL_SECONDS = 1.0
"""Time between two looks for free partitions."""
PATIENCE = 10.0
"""Seconds after which a free partition is acquired by any collector, whatever its share. A collector does not acquire a partition
again that it released in these seconds."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds until the connection is made again after a failure, doubled each time."""
CLOSE_SECONDS = 15.0
"""Time limit for the end of all partitions, and for leaving the peers."""
RELEASE_SECONDS = 2.0
"""Time limit for the release of a lease."""
END_SECONDS = 10.0
"""Time between two looks for streams that have ended at another collector."""
MOST_ENDS = 64
"""Streams that are looked up then: those first that were not for longest."""


class NatsSource:
    """Acquires this collector's share of the partitions, and takes their streams.

    Every failure is shown and tried again.

    Args:
        bound: bounds the bytes of messages in memory.
        lease_seconds: time after which a lease expires that is not renewed, if this collector creates the bucket of leases.
    """

    def __init__(
        self,
        servers: Servers,
        names: Names,
        store: Store,
        streams: Streams,
        bound: MemoryBudget,
        clock: ServerClock,
        audit: Audit,
        *,
        limits: NatsLimits | None = None,
        lease_seconds: float = layout.LEASE_SECONDS,
    ) -> None:
        self._servers, self._names, self._store, self._streams, self._audit = servers, names, store, streams, audit
        self._bound, self._clock, self._limits = bound, clock, limits or NatsLimits()
        self._lease_seconds = lease_seconds
        self._retries = Retries(f"NATS at {servers}")
        self._clients: list[Client] = []
        self._partitions: dict[int, Partition] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Tasks of partitions that have not ended."""
        self._leaving: set[int] = set()
        """Partitions that are left to other collectors."""
        self._free_since: dict[int, float] = {}
        self._released: dict[int, float] = {}
        self._malformed = self._unknown_summaries = self._forgotten = 0
        self._looked_for_ends = -math.inf

    async def run(self) -> None:
        """Takes streams until it is cancelled. A lost connection is made again."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        while True:
            began = loop.time()
            try:
                await self._connection()
            except Exception as error:
                # Every error counts as temporary: a server, a file or a permission that is wrong today may be right tomorrow.
                self._retries.fail("", error)
            if loop.time() - began > LONGEST_DELAY:
                backoff.reset()
            await asyncio.sleep(backoff.delay())

    def view(self) -> NatsView:
        """State for the page, the HTTP API and metrics."""
        return NatsView(
            servers=self._servers.urls,
            connected=bool(self._clients) and all(client.is_connected for client in self._clients),
            team=self._names.team,
            partitions=len(self._owned),
            streams=sum(self._partitions[number].streams for number in self._owned),
            malformed_messages=self._malformed,
            unknown_summaries=self._unknown_summaries,
            forgotten_processes=self._forgotten,
            problem=self._retries.problem,
        )

    @property
    def _owned(self) -> set[int]:
        return self._tasks.keys() - self._leaving

    async def _connection(self) -> None:
        clients: list[Client] = []
        leases: Leases | None = None
        try:
            # Thousands of ranks publish their summaries each second. On a connection of their own they delay nothing else.
            for _ in range(2):
                client = await connect(
                    self._servers, max_reconnect_attempts=-1, error_cb=self._note_error, inbox_prefix=self._names.inbox
                )
                clients.append(client)
            self._clients = clients
            client, live = clients
            names, jetstream = self._names, layout.jetstream(client)
            max_age = await layout.create(jetstream, names, self._limits)
            hellos = await layout.bucket(jetstream, names.hellos)
            # Whether a stream has ended matters as long as JetStream has messages of it.
            ended = await layout.bucket(jetstream, names.ended, max_age or None)
            bucket = await layout.bucket(jetstream, names.leases, self._lease_seconds, direct=False)
            leases = Leases(jetstream, bucket, names.leases, (await bucket.status()).ttl or self._lease_seconds)
            roster = Roster(client, names, hellos, ended, self._note_forgotten)
            await layout.answer(client, names.clocks, self._answer_clock)
            await layout.answer(live, names.live, partial(self._hear, roster))
            session = Session(
                client, jetstream, names, roster, self._store, self._streams, self._bound, self._retries, self._refuse,
                self._note_stream,
            )  # fmt: skip
            while not (client.is_closed or live.is_closed):
                try:
                    for name in (names.stream, f"KV_{names.hellos}", f"KV_{names.ended}"):
                        await jetstream.stream_info(name)
                    await self._poll(session, leases)
                    await self._look_for_ends(roster)
                    self._retries.succeed("")
                except NotFoundError:
                    raise  # somebody has deleted the stream, or a bucket
                except (NatsError, TimeoutError) as error:
                    self._retries.fail("", error)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await finish(self._close(clients, leases), CLOSE_SECONDS)

    async def _close(self, clients: list[Client], leases: Leases | None) -> None:
        try:
            await end_tasks(*self._tasks.values())
            if leases is not None and clients[0].is_connected:
                with contextlib.suppress(NatsError, TimeoutError):  # the value expires
                    await leases.withdraw()
        finally:
            self._tasks.clear()
            self._partitions.clear()
            self._leaving.clear()
            for client in clients:
                await client.close()

    async def _poll(self, session: Session, leases: Leases) -> None:
        lost = await leases.renew() & self._owned
        if lost:
            log.warning("%d partitions are taken by other collectors now", len(lost))
            self._leaving |= lost
        self._end_leaving()
        without_lease, loads = await leases.others()
        now = asyncio.get_running_loop().time()
        free = without_lease - self._tasks.keys()
        self._free_since = {number: self._free_since.get(number, now) for number in free}
        wanted = room(len(self._owned), loads)
        for number in random.sample(sorted(free), len(free)):
            is_overdue = now - self._free_since[number] > PATIENCE
            is_ours = wanted > 0 and now - self._released.get(number, -PATIENCE) >= PATIENCE
            if (is_ours or is_overdue) and await leases.acquire(number):
                wanted -= 1
                self._partitions[number] = Partition(session, number)
                self._tasks[number] = asyncio.create_task(
                    self._process_partition(leases, number), name="stepscope NATS partition"
                )
        released = random.sample(sorted(self._owned), surplus(len(self._owned), loads))
        if released:
            log.info("%d partitions are left to other collectors", len(released))
            self._leaving.update(released)
            self._released.update(dict.fromkeys(released, now))
            self._end_leaving()
        await leases.announce(len(self._owned))

    async def _look_for_ends(self, roster: Roster) -> None:
        """Looks up streams that seem to have died: another collector may have written their end, while this one was not there."""
        now = time.monotonic()
        if now - self._looked_for_ends < END_SECONDS:
            return
        self._looked_for_ends = now
        streams = list(self._streams.all.values())
        died = [stream async for stream in in_slices(streams) if stream.state(now) is State.DIED]
        chosen = sorted(died, key=lambda one: one.end_looked_up)[:MOST_ENDS]
        for stream in chosen:
            stream.end_looked_up = now
        # Together: leases are not renewed meanwhile.
        keys = [self._names.of(stream.run, stream.id).key for stream in chosen]
        ended = await asyncio.gather(*map(roster.has_ended, keys))
        for stream, has_ended in zip(chosen, ended, strict=True):
            stream.ended_elsewhere = stream.ended_elsewhere or has_ended

    async def _process_partition(self, leases: Leases, number: int) -> None:
        try:
            await self._partitions[number].run()
        finally:
            with contextlib.suppress(TimeoutError):  # the lease expires
                await finish(leases.release(number), RELEASE_SECONDS)

    def _end_leaving(self) -> None:
        """Ends the tasks of partitions that are left to others; again until they have ended, as libraries may swallow a cancellation."""
        for number, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[number], self._partitions[number]
                self._leaving.discard(number)
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._retries.fail(f"partition {number}", error)
            elif number in self._leaving:
                task.cancel()

    async def _hear(self, roster: Roster, message: Msg) -> None:
        """Notes a process's `Hello` and its facts of steps."""
        try:
            key = key_of(message.subject)
            header, _ = protocol.decode(message.data)
            if isinstance(header, protocol.Hello):
                roster.add(key, header)
            elif isinstance(header, protocol.StepSummary):
                self._add_summary(message.subject, header, roster.processes.get(key))
            else:
                raise FormatError(f"{type(header).__name__} is no summary of steps")
        except FormatError as error:
            self._refuse(message.subject, str(error))

    def _add_summary(self, subject: str, summary: protocol.StepSummary, process: NatsProcess | None) -> None:
        if process is None:
            self._unknown_summaries += 1  # its Hello comes later
            return
        stream = self._streams.all.get(process.hello.stream)
        if stream is not None and stream.job != job_of(process.hello.run):
            raise FormatError(f"it is a stream of the job {stream.job[:100]!r}")
        if stream is not None and stream.summary_wait():
            raise FormatError(f"it has summaries of more than {STEPS_PER_SECOND:,} steps a second")
        self._streams.add_shared_summary(process.hello, summary, process)
        self._streams.all[process.hello.stream].summary_wait(summary)

    async def _answer_clock(self, message: Msg) -> None:
        """Answers a clock request of an exporter whose stream this collector takes."""
        arrived = self._clock.now()
        try:
            if partition_of(key_of(message.subject).rpartition(".")[2]) not in self._owned:
                return
            header, _ = protocol.decode(message.data)
            if isinstance(header, protocol.Ping):
                pong = protocol.Pong(header.sent, arrived, self._clock.now(), self._clock.id)
                await message.respond(protocol.encode(pong))
        except (FormatError, NatsError) as error:
            log.debug("a clock request was not answered: %s", error)

    def _note_stream(self, hello: protocol.Hello) -> None:
        run = hello.run
        self._audit.line("stream", "NATS", stream=hello.stream, name=run.name, rank=str(run.rank))

    def _note_forgotten(self, count: int) -> None:
        self._forgotten += count

    def _refuse(self, subject: str, reason: str) -> None:
        """Counts a message that cannot be read."""
        self._malformed += 1
        self._audit.refuse(ascii(reason[:300])[1:-1], "NATS", subject)

    async def _note_error(self, error: Exception) -> None:
        self._retries.fail("", error)
