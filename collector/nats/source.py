"""Takes streams from NATS JetStream. Several collectors share the streams: each takes its part, and has a lease on each."""

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

from stepscope.collector import intake
from stepscope.collector.audit import Audit
from stepscope.collector.files.store import Store
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import NatsView
from stepscope.collector.nats.beginning import has_beginning
from stepscope.collector.nats.free import Free
from stepscope.collector.nats.intake import GAP_SECONDS, Intake
from stepscope.collector.nats.place import Place
from stepscope.collector.nats.share import Share
from stepscope.collector.nats.taking import Taking
from stepscope.collector.nats.troubles import Troubles
from stepscope.collector.reference import Reference
from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.limits import NatsLimits
from stepscope.exporters.nats.servers import Servers
from stepscope.runtime.loop_threads.ending_tasks import end_tasks, finish

log = logging.getLogger("stepscope.collector")

LOOK_SECONDS = 1.0
"""Between two looks for streams that nobody takes."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds until it is begun anew, doubled each time."""
ENDING = 15.0
"""Seconds that streams have to end in, and NATS to take note that this collector goes."""
MOST_ASKED = 64
"""Streams at a look of which JetStream is asked whether it has their beginning."""

_STREAM = re.compile("[0-9a-f]{32}")


class NatsSource:
    """Finds streams that nobody takes, leases its part of them, and writes what they hold into the collector's files.

    Who has more than its part gives some away at each look, the smallest first, but none of which JetStream no longer has the
    beginning: whoever took it would not have all of it. Whatever goes wrong is shown, and tried again. A stream that has ended
    is left as soon as all of it is written, and one of which JetStream has nothing any more until it has.
    """

    def __init__(
        self,
        servers: Servers,
        store: Store,
        streams: Streams,
        bound: intake.Intake,
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
            bound: of what is in memory.
            reference: the clock that exporters are told.
            audit: where streams, and messages that are none, are noted.
            limits: of what JetStream keeps, if this collector is the first to use it.
            lease_seconds: after which a stream goes to another collector when this one is not heard of, if this one is
                the first to make the bucket of leases.
            gap_seconds: how long an exporter must be silent until frames are given up that JetStream never had.
        """
        self._servers, self._store, self._streams, self._audit = servers, store, streams, audit
        self._bound, self._reference, self._limits = bound, reference, limits or NatsLimits()
        self._lease_seconds, self._gap_seconds = lease_seconds, gap_seconds
        self._taken: dict[str, Taking] = {}
        self._over: set[str] = set()
        """Streams in JetStream that are not to be taken, as they have ended or are none."""
        self._free = Free()
        self._kept: set[str] = set()
        """Streams that are not given away, as only this directory has them from the beginning."""
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
            streams=self._held,
            malformed_messages=self._malformed,
            problem=self._troubles.worst,
        )

    @property
    def _held(self) -> int:
        return sum(not taking.given for taking in self._taken.values())

    async def _connection(self) -> None:
        self._client = client = await connect(self._servers, max_reconnect_attempts=-1, error_cb=self._note)
        place: Place | None = None
        try:
            place = await Place.at(client, self._bound, self._limits, self._lease_seconds, self._note)
            await place.members.tell(0)
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
            await finish(self._end(client, place), ENDING)

    async def _end(self, client: Client, place: Place | None) -> None:
        try:
            ending = end_tasks(*(taking.task for taking in self._taken.values()))
            await asyncio.gather(ending, self._leave(place))
        finally:
            self._taken.clear()
            await client.close()

    async def _leave(self, place: Place | None) -> None:
        if place is not None and place.client.is_connected:
            with contextlib.suppress(NatsError, TimeoutError):  # it shows by itself after a while
                await place.members.leave()

    async def _look(self, place: Place) -> None:
        self._reap()
        info = await place.jetstream.stream_info(layout.STREAM, subjects_filter=f"{layout.SUBJECTS}.*")
        streams = {subject.rpartition(".")[2] for subject in info.state.subjects or {}}
        self._over &= streams
        self._kept &= streams
        self._troubles.keep(streams)
        keys = await place.leases.keys()
        for stream in keys & streams - self._taken.keys():
            self._streams.elsewhere(stream)
        await self._find(place, streams - self._over - self._taken.keys() - keys)
        waiting = set(filter(self._troubles.is_waiting, streams - self._over - self._taken.keys()))
        others = await place.members.others(keys)
        share = Share(self._held, len(streams - self._over - waiting), others)
        await self._take(place, share.room, waiting)
        await self._give(place, share.surplus, info)
        for stream in self._taken.keys() - streams:
            if self._taken[stream].idle:
                self._taken[stream].task.cancel()
        await place.members.tell(self._held + len(waiting))

    async def _find(self, place: Place, streams: set[str]) -> None:
        """Sees which of the streams that nobody takes are to be taken."""
        for stream in self._free.look(streams):
            if not _STREAM.fullmatch(stream):
                self._over.add(stream)
                self._refuse(stream, "the id of a stream is 32 hexadecimal digits")
                continue
            try:
                ended = await place.ended.get(stream)
            except KeyNotFoundError:
                self._free.add(stream)
                continue
            self._over.add(stream)
            if ended.value != self._store.identity().encode():
                self._streams.elsewhere(stream)

    async def _take(self, place: Place, room: int, waiting: set[str]) -> None:
        for stream, late in self._free.choose(room):
            if stream in waiting or not (room > 0 or late):
                continue
            if await place.leases.take(stream):
                room -= 1
                self._taken[stream] = Taking(
                    place, stream, self._store.identity(), self._reference, self._intake(place)
                )

    async def _give(self, place: Place, surplus: int, info: StreamInfo) -> None:
        if not surplus:
            return
        held = [stream for stream, taking in self._taken.items() if not taking.given and stream not in self._kept]
        for stream in sorted(held, key=lambda stream: self._taken[stream].size)[:MOST_ASKED]:
            if not await has_beginning(place.jetstream, stream, info):
                self._kept.add(stream)
                continue
            log.info("stream %s is left to another collector", stream)
            self._free.give(stream)
            self._taken[stream].give()
            surplus -= 1
            if not surplus:
                return

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
            elif taking.given:
                taking.give()

    def _intake(self, place: Place) -> Callable[[protocol.Hello], Intake]:
        def made(hello: protocol.Hello) -> Intake:
            run = hello.run
            self._audit.line("stream", "NATS", stream=hello.stream, name=run.name, rank=str(run.rank))
            return Intake(
                place,
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
        self._audit.refuse(ascii(why[:300])[1:-1], "NATS", f"{layout.SUBJECTS}.{stream}", said_so=True)

    async def _note(self, error: Exception) -> None:
        self._troubles.add("", error)
