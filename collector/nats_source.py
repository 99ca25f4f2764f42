"""Takes streams from NATS JetStream. Several collectors share the streams: each has a lease on those that it takes."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import Error as JetStreamError
from nats.js.kv import KeyValue

from stepscope.collector.lease import Leases
from stepscope.collector.reference import Reference
from stepscope.collector.store import Store
from stepscope.collector.stream import Stream
from stepscope.collector.stream_file import StreamFile
from stepscope.collector.streams import Streams
from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.runtime.ending_tasks import end_tasks
from stepscope.runtime.errors import FormatError

log = logging.getLogger("stepscope.collector")

LOOK_SECONDS = 1.0
"""Between two looks for streams that nobody takes."""
FETCH = 64
"""Messages taken at once, and held out of order at most."""
ACK_SECONDS = 10.0
"""Seconds after which JetStream sends again what was not confirmed. Less than `GAP_SECONDS`: what a collector that was killed
had in hand has come by the time it would be given up."""
GAP_SECONDS = 30.0
"""How long frames that came out of order wait for those before them, which JetStream may have thrown away."""


class NatsSource:
    """Finds streams that nobody takes, leases them, and writes what they hold into the collector's files."""

    def __init__(
        self,
        servers: list[str],
        store: Store,
        streams: Streams,
        reference: Reference,
        *,
        lease_seconds: float = layout.LEASE_SECONDS,
        **access: object,
    ) -> None:
        """
        Args:
            servers: their URLs.
            store: where streams are kept.
            streams: is told what was taken.
            reference: the clock that exporters are told.
            lease_seconds: after which a stream goes to another collector when this one is not heard of, if this one is
                the first to make the bucket of leases.
            access: how to get in, as `nats.connect` has it.
        """
        self._servers, self._store, self._streams, self._access = servers, store, streams, access
        self._reference, self._lease_seconds = reference, lease_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Takes streams until it is cancelled; the connection is made again whenever it is lost."""
        client = await layout.connect(self._servers, max_reconnect_attempts=-1, error_cb=_note, **self._access)
        try:
            jetstream = layout.jetstream(client)
            await layout.stream(jetstream)
            hellos = await layout.bucket(jetstream, layout.HELLOS)
            bucket = await layout.bucket(jetstream, layout.LEASES, self._lease_seconds)
            leases = Leases(bucket, (await bucket.status()).ttl or self._lease_seconds, _note)
            while True:
                with contextlib.suppress(NatsError, TimeoutError):  # said by `_note`; looked at again in a moment
                    await self._look(client, jetstream, hellos, leases)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await end_tasks(*self._tasks.values())
            await client.close()

    async def _look(self, client: Client, jetstream: JetStreamContext, hellos: KeyValue, leases: Leases) -> None:
        for stream, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[stream]
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("stream %s is not taken any more: %s", stream, error)
        info = await jetstream.stream_info(layout.STREAM, subjects_filter=f"{layout.SUBJECTS}.*")
        for subject in info.state.subjects or {}:
            stream = subject.rpartition(".")[2]
            if stream not in self._tasks and await leases.take(stream):
                self._tasks[stream] = asyncio.create_task(self._take(client, jetstream, hellos, leases, stream))

    async def _take(
        self, client: Client, jetstream: JetStreamContext, hellos: KeyValue, leases: Leases, stream: str
    ) -> None:
        answering = await layout.answer(client, f"{layout.CLOCKS}.{stream}", self._answer)
        try:
            hello, _ = protocol.decode((await hellos.get(stream)).value or b"")
            if not isinstance(hello, protocol.Hello) or hello.stream != stream:
                raise FormatError("what stands for its Hello is none")
            taking = asyncio.create_task(self._write(jetstream, hello))
            holding = asyncio.create_task(leases.hold(stream))
            try:
                await asyncio.wait({taking, holding}, return_when=asyncio.FIRST_COMPLETED)
                if taking.done():
                    taking.result()
                else:
                    holding.result()
                    log.warning("stream %s is taken by another collector now", stream)
            finally:
                await end_tasks(taking, holding)
        finally:
            with contextlib.suppress(NatsError, TimeoutError):  # the connection may be lost
                await answering.unsubscribe()
            await leases.give_back(stream)

    async def _answer(self, message: Msg) -> None:
        """Tells an exporter the clock."""
        arrived = self._reference.now()
        try:
            header, _ = protocol.decode(message.data)
            if isinstance(header, protocol.Ping):
                pong = protocol.Pong(header.sent, arrived, self._reference.now(), self._reference.id)
                await message.respond(protocol.encode(pong))
        except (FormatError, NatsError) as error:
            await _note(error)

    async def _write(self, jetstream: JetStreamContext, hello: protocol.Hello) -> None:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_SECONDS, max_ack_pending=4 * FETCH)
        subscription = await jetstream.pull_subscribe(
            f"{layout.SUBJECTS}.{hello.stream}",
            durable=f"collect-{self._store.identity()}-{hello.stream}",
            stream=layout.STREAM,
            config=config,
        )
        task = asyncio.current_task()
        assert task is not None
        async with self._store.stream(hello, task.cancel) as file:
            with self._streams.connected(hello, self) as stream:
                held: dict[int, Msg] = {}
                waiting_since: float | None = None
                while True:
                    try:
                        messages = await subscription.fetch(FETCH, timeout=1.0)
                    except (NatsError, TimeoutError, JetStreamError):
                        messages = []
                    for message in messages:
                        header, _ = protocol.decode(message.data)
                        if isinstance(header, protocol.Frames):
                            held[header.first] = message
                    now = asyncio.get_running_loop().time()
                    await self._append(file, stream, hello, held)
                    waiting_since = None if not held else waiting_since or now
                    if held and waiting_since is not None and now - waiting_since > GAP_SECONDS:
                        first = min(held)
                        stream.missed(first - file.next)
                        file.skip(first)
                        await self._append(file, stream, hello, held)

    async def _append(self, file: StreamFile, stream: Stream, hello: protocol.Hello, held: dict[int, Msg]) -> None:
        """Writes those that follow what is there, and confirms them; what is there already is only confirmed."""
        while held:
            first = min(held)
            if first > file.next:
                return
            message = held.pop(first)
            header, payload = protocol.decode(message.data)
            assert isinstance(header, protocol.Frames)
            addition = file.check(header.first, header.count, payload)
            await self._store.write(file, addition, hello)
            stream.took(addition.frames, len(addition.data), file.next)
            await message.ack()


async def _note(error: Exception) -> None:
    log.warning("NATS: %s: %s", type(error).__name__, error)
