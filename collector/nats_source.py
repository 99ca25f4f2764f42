"""Takes streams from NATS JetStream. Several collectors share the streams: each has a lease on those that it takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from stepscope.collector.audit import Audit
from stepscope.collector.lease import Leases
from stepscope.collector.nats_intake import GAP_SECONDS, Intake
from stepscope.collector.nats_taking import Place, Taking
from stepscope.collector.nats_troubles import Troubles
from stepscope.collector.reference import Reference
from stepscope.collector.store import Store
from stepscope.collector.streams import Streams
from stepscope.collector.views import NatsView
from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.limits import NatsLimits
from stepscope.exporters.nats.servers import Servers
from stepscope.runtime.ending_tasks import end_tasks

LOOK_SECONDS = 1.0
"""Between two looks for streams that nobody takes."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds until it is begun anew, doubled each time."""

_STREAM = re.compile("[0-9a-f]{32}")


class NatsSource:
    """Finds streams that nobody takes, leases them, and writes what they hold into the collector's files.

    Whatever goes wrong is shown, and tried again. A stream that has ended is left as soon as all of it is written, and one of
    which JetStream has nothing any more until it has.
    """

    def __init__(
        self,
        servers: Servers,
        store: Store,
        streams: Streams,
        reference: Reference,
        audit: Audit,
        *,
        limits: NatsLimits | None = None,
        lease_seconds: float = layout.LEASE_SECONDS,
        gap_seconds: float = GAP_SECONDS,
    ) -> None:
        """
        Args:
            servers: whom to connect to, and how to get in.
            store: where streams are kept.
            streams: is told what was taken.
            reference: the clock that exporters are told.
            audit: where streams, and messages that are none, are noted.
            limits: of what JetStream keeps, if this collector is the first to use it.
            lease_seconds: after which a stream goes to another collector when this one is not heard of, if this one is
                the first to make the bucket of leases.
            gap_seconds: how long an exporter must be silent until frames are given up that JetStream never had.
        """
        self._servers, self._store, self._streams, self._audit = servers, store, streams, audit
        self._reference, self._limits = reference, limits or NatsLimits()
        self._lease_seconds, self._gap_seconds = lease_seconds, gap_seconds
        self._taken: dict[str, Taking] = {}
        self._over: set[str] = set()
        """Streams in JetStream that are not to be taken, as they have ended or are none."""
        self._troubles = Troubles(f"NATS at {servers}")
        self._malformed = 0
        self._client: Client | None = None

    async def run(self) -> None:
        """Takes streams until it is cancelled; the connection is made again whenever it is lost."""
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY
        while True:
            began = loop.time()
            try:
                await self._connection()
            except Exception as error:
                # Whatever it is: a server, a file or a permission that is wrong today may be right tomorrow.
                self._troubles.add("", error)
            if loop.time() - began > LONGEST_DELAY:
                delay = FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def view(self) -> NatsView:
        """How it goes."""
        return NatsView(
            servers=self._servers.urls,
            connected=self._client is not None and self._client.is_connected,
            streams=len(self._taken),
            malformed_messages=self._malformed,
            problem=self._troubles.worst,
        )

    async def _connection(self) -> None:
        self._client = client = await connect(self._servers, max_reconnect_attempts=-1, error_cb=self._note)
        try:
            jetstream = layout.jetstream(client)
            max_age = await layout.stream(jetstream, self._limits)
            hellos = await layout.bucket(jetstream, layout.HELLOS)
            # Nobody need know what has ended once JetStream has nothing of it any more.
            ended = await layout.bucket(jetstream, layout.ENDED, max_age or None)
            bucket = await layout.bucket(jetstream, layout.LEASES, self._lease_seconds)
            leases = Leases(bucket, (await bucket.status()).ttl or self._lease_seconds, self._note)
            place = Place(client, jetstream, hellos, ended, leases)
            while not client.is_closed:
                try:
                    await self._look(place)
                    self._troubles.remove("")
                except NotFoundError:
                    raise  # somebody has deleted the stream, or a bucket
                except (NatsError, TimeoutError) as error:
                    self._troubles.add("", error)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await end_tasks(*(taking.task for taking in self._taken.values()))
            self._taken.clear()
            await client.close()

    async def _look(self, place: Place) -> None:
        self._reap()
        info = await place.jetstream.stream_info(layout.STREAM, subjects_filter=f"{layout.SUBJECTS}.*")
        streams = {subject.rpartition(".")[2] for subject in info.state.subjects or {}}
        self._over &= streams
        self._troubles.keep(streams)
        for stream in sorted(streams - self._over - self._taken.keys()):
            if self._troubles.is_waiting(stream):
                continue
            if not _STREAM.fullmatch(stream):
                self._over.add(stream)
                self._refuse(stream, "the id of a stream is 32 hexadecimal digits")
            elif await place.leases.take(stream):
                self._taken[stream] = Taking(
                    place, stream, self._store.identity(), self._reference, self._intake(place)
                )
        for stream in self._taken.keys() - streams:
            if self._taken[stream].idle:
                self._taken[stream].task.cancel()

    def _reap(self) -> None:
        """Forgets streams that are not taken any more; those that something is wrong with are taken again later."""
        for stream, taking in list(self._taken.items()):
            if taking.works:
                self._troubles.remove(stream)
            if taking.task.done():
                del self._taken[stream]
                if taking.ended:
                    self._over.add(stream)
                if not taking.task.cancelled() and (error := taking.task.exception()) is not None:
                    self._troubles.add(stream, error)

    def _intake(self, place: Place) -> Callable[[protocol.Hello], Intake]:
        def made(hello: protocol.Hello) -> Intake:
            run = hello.run
            self._audit.line(
                "stream", "NATS", stream=hello.stream, name=run.name, rank=str(run.rank), supersedes=hello.supersedes
            )
            return Intake(
                place.jetstream,
                self._store,
                self._streams,
                hello,
                lambda why: self._refuse(hello.stream, why),
                gap_seconds=self._gap_seconds,
            )

        return made

    def _refuse(self, stream: str, why: str) -> None:
        """Counts what was given up, and says so, once for each stream."""
        self._malformed += 1
        self._troubles.mention(stream, f"what cannot be read of it is given up: {why}")
        self._audit.refuse(ascii(why[:300])[1:-1], "NATS", f"{layout.SUBJECTS}.{stream}")

    async def _note(self, error: Exception) -> None:
        self._troubles.add("", error)
