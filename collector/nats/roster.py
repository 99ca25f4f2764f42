"""Which streams a team has in NATS: whose they are, and which of them are written up to their end."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

from stepscope.collector.nats.consumer import Consumer, Fetched, Retries
from stepscope.exporters.nats.names import Names, StreamNames
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError
from stepscope.runtime.requests.command import Answer, Command

_WAIT = 5.0
"""Seconds that a request waits for a change."""
_COUNT, _BYTES = 4096, 4 << 20
"""Values in one request at most, and their bytes."""
_INACTIVE = 60.0
"""Seconds after which JetStream deletes the consumer of a collector that is gone."""
_RETRY = 1.0
MAX_PROCESSES = 1 << 15
"""Processes that are known at once; of more, those that said `Hello` longest ago are forgotten, first of the jobs that have most."""
MAX_VALUES = 1 << 17
"""Values of a bucket whose expiry is awaited; of more, the oldest count as expired."""
_numbers = itertools.count(1)


class Follower:
    """Follows the values of a bucket, so that nobody has to list them.

    Args:
        seconds: time after which a value expires there; `None`: never.
        changed: called with the key and each new value, and with `None` when it has expired.
    """

    def __init__(
        self,
        client: Client,
        jetstream: JetStreamContext,
        bucket: str,
        seconds: float | None,
        changed: Callable[[str, bytes | None], object],
        retries: Retries,
    ) -> None:
        config = ConsumerConfig(
            filter_subject=f"$KV.{bucket}.>",
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_INACTIVE,
        )
        self._consumer = Consumer(client, jetstream, f"KV_{bucket}", config)
        self._prefix, self._seconds, self._changed = f"$KV.{bucket}.", seconds, changed
        self._retries, self._what = retries, f"bucket {bucket}"
        self._put: dict[str, float] = {}
        """When the value of each key was put, in Unix time; the oldest first."""
        self._delivered = 0
        """Number of the message that the consumer delivered last."""
        self.complete = asyncio.Event()
        """Set when all values that the bucket had at first are known."""

    async def run(self) -> None:
        """Follows the bucket until it is cancelled. Raises `nats.js.errors.NotFoundError` if the bucket was deleted."""
        try:
            while True:
                try:
                    await self._consumer.start(again=True)
                    self._delivered = 0
                    await self._follow()
                except NotFoundError:
                    raise
                except (NatsError, TimeoutError) as error:
                    self._retries.fail(self._what, error)
                    await asyncio.sleep(_RETRY)
        finally:
            await self._consumer.close()

    async def _follow(self) -> None:
        """Follows it until the consumer has vanished, or a message got lost."""
        is_complete = True
        while is_complete:
            fetched = await self._consumer.fetch_available(_COUNT, _BYTES)
            while is_complete and fetched.messages:
                is_complete = self._note(fetched)
                fetched = await self._consumer.fetch_available(_COUNT, _BYTES)
            if fetched.has_larger:  # no value of ours is so large; it is passed over
                is_complete = self._note(await self._consumer.fetch_next(1 << 30, _WAIT))
                continue
            try:
                # If the consumer has vanished, no reply says so.
                await self._consumer.info()
            except NotFoundError:
                return
            self.complete.set()
            self._retries.succeed(self._what)
            is_complete = self._note(await self._consumer.fetch_next(_BYTES, _WAIT))

    def _note(self, fetched: Fetched) -> bool:
        """Notes values. Returns whether none is missing before them."""
        for message in fetched.messages:
            if message.metadata.sequence.consumer != self._delivered + 1:
                return False
            self._delivered += 1
            key = message.subject.removeprefix(self._prefix)
            self._put.pop(key, None)
            if message.headers and "KV-Operation" in message.headers:  # it was deleted by hand
                self._changed(key, None)
                continue
            self._put[key] = now = message.metadata.timestamp.timestamp()
            self._changed(key, message.data)
            while len(self._put) > MAX_VALUES or self._is_over(now):
                oldest = next(iter(self._put))
                del self._put[oldest]
                self._changed(oldest, None)
        return True

    def _is_over(self, now: float) -> bool:
        if not self._seconds:  # 0: nothing expires
            return False
        return next(iter(self._put.values())) < now - self._seconds


class NatsProcess:
    """A process that any collector of its team can give commands, if it takes them.

    Args:
        hello: the `Hello` of its stream.
    """

    def __init__(self, client: Client, names: StreamNames, hello: protocol.Hello) -> None:
        self._client, self.names, self.hello = client, names, hello

    @property
    def control(self) -> int:
        """Version of the commands that the process obeys; 0: none."""
        return self.hello.control

    async def order(self, command: Command, seconds: float) -> Answer:
        """Gives the process a command; returns its answer. Raises `TimeoutError` if it does not answer in time, and
        `ConnectionError` if it, or this collector, is not connected to NATS."""
        order = protocol.Order(next(_numbers), msgspec.json.encode(command))
        try:
            reply = await self._client.request(self.names.orders, protocol.encode(order), timeout=seconds)
        except TimeoutError:
            raise
        except NatsError as error:
            raise ConnectionError("the process is not connected to NATS, or this collector is not") from error
        try:
            answer, _ = protocol.decode(reply.data)
            if not isinstance(answer, protocol.Obeyed):
                return Answer(error=f"the answer is {type(answer).__name__}")
            return answer.decoded()
        except FormatError as error:
            return Answer(error=f"the answer cannot be read: {error}")


class Roster:
    """The streams of a team. Each has a `Hello`; of those that have ended it is known which directory has them.

    Args:
        hellos: the bucket of `Hello`s.
        ended: the bucket of streams that have ended.
        forgot: called with the number of processes that are forgotten, as there are too many.
    """

    def __init__(
        self,
        client: Client,
        jetstream: JetStreamContext,
        names: Names,
        hellos: KeyValue,
        ended: KeyValue,
        retries: Retries,
        forgot: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._client, self._jetstream, self._names, self._retries = client, jetstream, names, retries
        self._hellos, self._ended, self._forgot = hellos, ended, forgot
        self.processes: dict[str, NatsProcess] = {}
        """By the keys of their streams; those that said `Hello` last are last."""
        self.ended: dict[str, str] = {}
        """By the key of a stream, the identity of the directory that has all of it."""

    async def followers(self) -> list[Follower]:
        """The followers that keep it up to date. The caller runs them."""
        return [
            Follower(self._client, self._jetstream, name, (await bucket.status()).ttl, note, self._retries)
            for name, bucket, note in (
                (self._names.hellos, self._hellos, self._note_hello),
                (self._names.ended, self._ended, self._note_end),
            )
        ]

    async def process(self, key: str) -> NatsProcess:
        """The process of a stream. Raises `FormatError` if the stream has no `Hello`, or that is not its own, and
        `nats.errors.Error` or `TimeoutError` if JetStream does not answer."""
        if key not in self.processes:
            try:
                entry = await self._hellos.get(key)
            except KeyNotFoundError as error:
                raise FormatError(f"its run is unknown: the bucket {self._names.hellos} has no Hello of it") from error
            self._add(key, self._checked(key, entry.value or b""))
        return self.processes[key]

    async def end(self, key: str, identity: str) -> None:
        """Says that a directory has all of a stream. Raises `nats.errors.Error` or `TimeoutError` if JetStream does not
        answer."""
        await self._ended.put(key, identity.encode())
        self.ended[key] = identity

    def _note_hello(self, key: str, value: bytes | None) -> None:
        before = self.processes.pop(key, None)
        if value is None:
            return
        try:
            process = self._checked(key, value)
        except FormatError:  # who asks for it learns why
            return
        if before is not None:
            before.hello, process = process.hello, before
        self._add(key, process)

    def _add(self, key: str, process: NatsProcess) -> None:
        self.processes[key] = process
        if len(self.processes) <= MAX_PROCESSES:
            return
        later = Counter[str]()
        """Processes of each job that said `Hello` later."""
        surplus: dict[str, int] = {}
        for other in reversed(self.processes):
            job = other.partition(".")[0]
            surplus[other] = later[job]
            later[job] += 1
        oldest = sorted(reversed(surplus), key=lambda each: -surplus[each])[: MAX_PROCESSES // 8]
        for each in oldest:
            del self.processes[each]
        self._forgot(len(oldest))

    def _note_end(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.ended.pop(key, None)
        else:
            self.ended[key] = value.decode(errors="replace")

    def _checked(self, key: str, encoded: bytes) -> NatsProcess:
        hello, _ = protocol.decode(encoded)
        if isinstance(hello, protocol.Hello):
            hello = msgspec.structs.replace(hello, run=protocol.short(hello.run))  # its names stay in memory
            names = self._names.of(hello.run, hello.stream)
            if names.key == key:
                return NatsProcess(self._client, names, hello)
        raise FormatError(f"its value in the bucket {self._names.hellos} is not the Hello of this stream and job")
