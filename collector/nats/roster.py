"""The streams that a team has in NATS: their processes, and which of them are stored completely."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from stepscope.exporters.nats.names import Names, StreamNames
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError
from stepscope.runtime.requests.command import Answer, Command

MAX_PROCESSES = 1 << 15
"""Processes that are known at once; of more, those that are known for longest are forgotten, first of the jobs that have most."""
_numbers = itertools.count(1)


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
    """The streams of a team. Each has a `Hello`, which its process publishes, and which is looked up when frames come of it; of those that
    have ended it is known which directory has them.

    Args:
        hellos: the bucket of `Hello`s.
        ended: the bucket of streams that have ended.
        forgot: called with the number of processes that are forgotten, as there are too many.
    """

    def __init__(
        self,
        client: Client,
        names: Names,
        hellos: KeyValue,
        ended: KeyValue,
        forgot: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._client, self._names, self._hellos, self._ended, self._forgot = client, names, hellos, ended, forgot
        self.processes: dict[str, NatsProcess] = {}
        """Processes by the keys of their streams, in the order in which they became known."""

    async def process(self, key: str) -> NatsProcess:
        """The process of a stream. Raises `FormatError` if the stream has no `Hello`, or that is not its own, and
        `nats.errors.Error` or `TimeoutError` if JetStream does not answer."""
        if key not in self.processes:
            try:
                entry = await self._hellos.get(key)
            except KeyNotFoundError as error:
                raise FormatError(f"its run is unknown: the bucket {self._names.hellos} has no Hello of it") from error
            self.add(key, protocol.decode(entry.value or b"")[0])
        return self.processes[key]

    def add(self, key: str, hello: protocol.Header) -> None:
        """Adds a process by the `Hello` of its stream. Raises `FormatError` if the `Hello` is of another stream."""
        if key not in self.processes:
            self._add(key, self._checked(key, hello))

    async def has_ended(self, key: str) -> bool:
        """Whether a directory has all of a stream. Raises `nats.errors.Error` or `TimeoutError` if JetStream does not
        answer."""
        try:
            await self._ended.get(key)
        except KeyNotFoundError:
            return False
        return True

    async def end(self, key: str, identity: str) -> None:
        """Says that a directory has all of a stream. Raises `nats.errors.Error` or `TimeoutError` if JetStream does not
        answer."""
        await self._ended.put(key, identity.encode())

    def _add(self, key: str, process: NatsProcess) -> None:
        self.processes[key] = process
        if len(self.processes) <= MAX_PROCESSES:
            return
        later = Counter[str]()
        """Processes of each job that became known later."""
        surplus: dict[str, int] = {}
        for other in reversed(self.processes):
            job = other.partition(".")[0]
            surplus[other] = later[job]
            later[job] += 1
        oldest = sorted(reversed(surplus), key=lambda each: -surplus[each])[: MAX_PROCESSES // 8]
        for each in oldest:
            del self.processes[each]
        self._forgot(len(oldest))

    def _checked(self, key: str, hello: protocol.Header) -> NatsProcess:
        if isinstance(hello, protocol.Hello):
            hello = msgspec.structs.replace(hello, run=protocol.short(hello.run))  # its names stay in memory
            names = self._names.of(hello.run, hello.stream)
            if names.key == key:
                return NatsProcess(self._client, names, hello)
        raise FormatError("its Hello is not that of this stream and job")
