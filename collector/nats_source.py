"""Takes streams from NATS JetStream. Several collectors share the streams: each has a lease on those that it takes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import Error as JetStreamError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from stepscope.collector.store import Store
from stepscope.collector.stream import Stream
from stepscope.collector.stream_file import StreamFile
from stepscope.collector.streams import Streams
from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.runtime.errors import FormatError

log = logging.getLogger("stepscope.collector")

LOOK_SECONDS = 1.0
"""Between two looks for streams that nobody takes."""
FETCH = 64
"""Messages taken at once, and held out of order at most."""
GAP_SECONDS = 30.0
"""How long frames that came out of order wait for those before them, which JetStream may have thrown away."""


class NatsSource:
    """Finds streams that nobody takes, leases them, and writes what they hold into the collector's files."""

    def __init__(self, servers: list[str], store: Store, streams: Streams, **access: object) -> None:
        """
        Args:
            servers: their URLs.
            store: where streams are kept.
            streams: is told what was taken.
            access: how to get in, as `nats.connect` has it.
        """
        self._servers, self._store, self._streams, self._access = servers, store, streams, access
        self._name = uuid.uuid4().hex
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Takes streams until it is cancelled; the connection is made again whenever it is lost."""
        client = await layout.connect(self._servers, max_reconnect_attempts=-1, error_cb=_note, **self._access)
        try:
            jetstream = layout.jetstream(client)
            await layout.stream(jetstream)
            hellos = await layout.bucket(jetstream, layout.HELLOS)
            leases = await layout.bucket(jetstream, layout.LEASES, layout.LEASE_SECONDS)
            while True:
                with contextlib.suppress(NatsError, TimeoutError):  # said by `_note`; looked at again in a moment
                    await self._look(jetstream, hellos, leases)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await client.close()

    async def _look(self, jetstream: JetStreamContext, hellos: KeyValue, leases: KeyValue) -> None:
        for stream, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[stream]
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("stream %s is not taken any more: %s", stream, error)
        info = await jetstream.stream_info(layout.STREAM, subjects_filter=f"{layout.SUBJECTS}.*")
        for subject in info.state.subjects or {}:
            stream = subject.rpartition(".")[2]
            if stream not in self._tasks and await self._lease(leases, stream):
                self._tasks[stream] = asyncio.create_task(self._take(jetstream, hellos, leases, stream))

    async def _lease(self, leases: KeyValue, stream: str) -> bool:
        try:
            await leases.create(stream, self._name.encode())
        except KeyWrongLastSequenceError:
            return False
        return True

    async def _renew(self, leases: KeyValue, stream: str) -> None:
        """Returns when the lease is lost."""
        while True:
            await asyncio.sleep(layout.LEASE_SECONDS / 3)
            try:
                entry = await leases.get(stream)
                if entry.value != self._name.encode():
                    return
                await leases.update(stream, self._name.encode(), entry.revision)
            except (KeyNotFoundError, KeyWrongLastSequenceError):
                if not await self._lease(leases, stream):
                    return
            except (NatsError, TimeoutError) as error:
                await _note(error)

    async def _take(self, jetstream: JetStreamContext, hellos: KeyValue, leases: KeyValue, stream: str) -> None:
        try:
            hello, _ = protocol.decode((await hellos.get(stream)).value or b"")
            if not isinstance(hello, protocol.Hello) or hello.stream != stream:
                raise FormatError("what stands for its Hello is none")
            taking = asyncio.create_task(self._write(jetstream, hello))
            renewing = asyncio.create_task(self._renew(leases, stream))
            try:
                await asyncio.wait({taking, renewing}, return_when=asyncio.FIRST_COMPLETED)
                if taking.done():
                    taking.result()
            finally:
                taking.cancel()
                renewing.cancel()
                await asyncio.gather(taking, renewing, return_exceptions=True)
        finally:
            with contextlib.suppress(NatsError, TimeoutError):  # it vanishes by itself
                await leases.delete(stream)

    async def _write(self, jetstream: JetStreamContext, hello: protocol.Hello) -> None:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=60.0, max_ack_pending=4 * FETCH)
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
