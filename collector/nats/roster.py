"""Which streams a team has in NATS: whose they are, and which of them are written up to their end."""

from __future__ import annotations

import asyncio
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
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from stepscope.runtime.requests.command import Answer, Command

MAX_PROCESSES = 1 << 15
"""Processes that are known at once; of more, those that were looked up longest ago are forgotten, first of the jobs that have most."""
MAX_SEARCHES = 256
"""Processes that are looked up at once."""
MAX_ABSENT = 4096
"""Processes of which is known that they were not there a moment ago."""
SEARCH_AGAIN_SECONDS = 5.0
"""Until a process that was not there is looked up again."""
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
    """The streams of a team, looked up when something comes of them. Each has a `Hello`; of those that have ended it is known which
    directory has them.

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
        """By the keys of their streams; those that were looked up last are last."""
        self._searches: dict[str, asyncio.Task[None]] = {}
        self._absent: dict[str, float] = {}
        """Until when processes that were not there are not looked up."""

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

    def search(self, key: str, found: Callable[[NatsProcess | None], object]) -> bool:
        """Looks a process up in the background, and calls `found` with it, or with `None`. Returns false if that goes on already, if
        it was not there a moment ago, or if too many are looked up."""
        known_absent = asyncio.get_running_loop().time() < self._absent.get(key, 0.0)
        if known_absent or key in self._searches or len(self._searches) >= MAX_SEARCHES:
            return False
        self._searches[key] = asyncio.create_task(self._search(key, found), name="stepscope NATS process")
        return True

    async def close(self) -> None:
        """Looks nothing up any more."""
        await end_tasks(*self._searches.values())

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

    async def _search(self, key: str, found: Callable[[NatsProcess | None], object]) -> None:
        try:
            found(await self.process(key))
        except (FormatError, NatsError, TimeoutError):
            self._absent.pop(key, None)
            self._absent[key] = asyncio.get_running_loop().time() + SEARCH_AGAIN_SECONDS
            if len(self._absent) > MAX_ABSENT:
                del self._absent[next(iter(self._absent))]
            found(None)
        finally:
            del self._searches[key]

    def _add(self, key: str, process: NatsProcess) -> None:
        self.processes[key] = process
        if len(self.processes) <= MAX_PROCESSES:
            return
        later = Counter[str]()
        """Processes of each job that were looked up later."""
        surplus: dict[str, int] = {}
        for other in reversed(self.processes):
            job = other.partition(".")[0]
            surplus[other] = later[job]
            later[job] += 1
        oldest = sorted(reversed(surplus), key=lambda each: -surplus[each])[: MAX_PROCESSES // 8]
        for each in oldest:
            del self.processes[each]
        self._forgot(len(oldest))

    def _checked(self, key: str, encoded: bytes) -> NatsProcess:
        hello, _ = protocol.decode(encoded)
        if isinstance(hello, protocol.Hello):
            hello = msgspec.structs.replace(hello, run=protocol.short(hello.run))  # its names stay in memory
            names = self._names.of(hello.run, hello.stream)
            if names.key == key:
                return NatsProcess(self._client, names, hello)
        raise FormatError(f"its value in the bucket {self._names.hellos} is not the Hello of this stream and job")
