"""Writes the messages of one partition to the collector's files, stream by stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from stepscope.collector.errors import FullError, StuckError
from stepscope.collector.files.store import Store
from stepscope.collector.files.stream_file import NewFrames, StreamFile
from stepscope.collector.live.stream import DIED_AFTER, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.memory_budget import FREE, Grant, MemoryBudget
from stepscope.collector.nats.consumer import Consumer, Retries
from stepscope.collector.nats.roster import NatsProcess, Roster
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.names import Names, job_token, key_of
from stepscope.exporters.network.backoff import Backoff
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.protocol import job_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.loop_threads.ending_tasks import finish

log = logging.getLogger("stepscope.collector")

REFUSE_SECONDS = 300.0
"""Seconds for which messages of a stream without a valid `Hello` are delivered again. Exporters put the `Hello` first."""
ACK_SECONDS = 10.0
"""Seconds after which JetStream delivers a message again that was not acknowledged."""
INACTIVE_SECONDS = 86_400.0
"""Seconds after which JetStream deletes the consumer of a collector that does not come back."""
MAX_UNACKNOWLEDGED = 1 << 15
"""Messages of a partition that may be delivered and not acknowledged, such as those of streams that cannot be written."""
MAX_WAITING = 128
"""The same of a stream, so that streams that cannot be written keep no others back. Further ones are acknowledged, and are read again when
the stream can be written."""
FETCH_COUNT = 256
"""Messages in one request."""
MAX_LARGEST = 4
"""A request for all available messages has room for so many of the largest size."""
IDLE_SECONDS = 5.0
"""Seconds that a request waits for a message."""
BUSY_SECONDS = 3.0
"""The same while messages wait to be delivered again, of any size: the request has memory then for which others may wait. Longer than
`RETRY_SECONDS`: JetStream can lose a message that it delivers at the moment at which the request ends, for `ACK_SECONDS`."""
RETRY_SECONDS = 1.0
"""Seconds after which a message comes again that follows one which could not be written."""
LOOK_SECONDS = 0.1
"""Seconds between two looks for files to close."""
STALE_SECONDS = 180.0
"""Seconds after which a message that was to be delivered again counts as deleted: the longest delay, and more."""
CLOSE_SECONDS = 3.0
"""Time limit for closing all files."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 15.0
"""Seconds until a partition that failed is read again, doubled each time."""


class Session(NamedTuple):
    """Shared by the partitions of a collector."""

    client: Client
    jetstream: JetStreamContext
    names: Names
    roster: Roster
    store: Store
    streams: Streams
    budget: MemoryBudget
    retries: Retries
    refuse: Callable[[str, str], object]
    """Called with the subject of a message that is left out, and the reason."""
    file_opened: Callable[[protocol.Hello], object] = lambda _: None
    """Called when the file of a stream is opened."""
    silent_seconds: float = DIED_AFTER
    """Seconds without a message after which a stream counts as not connected, and its file is closed until the next one."""
    ack_seconds: float = ACK_SECONDS
    refuse_seconds: float = REFUSE_SECONDS


class _Message(NamedTuple):
    """A message that was decoded, and is not acknowledged yet."""

    message: Msg
    frames: protocol.Frames
    payload: memoryview

    @property
    def number(self) -> int:
        """The message's number in JetStream."""
        return self.message.metadata.sequence.stream


class _Intake:
    """State of one stream while its messages come."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.file: StreamFile | None = None
        self.stream: Stream | None = None
        self.files = contextlib.AsyncExitStack()
        """Closes the file."""
        self.next = 0
        """All frames before this number were acknowledged."""
        self.heard = self.hello_at = asyncio.get_running_loop().time()
        """When its last new message came, and when its `Hello` was valid last; at first, when its first message came."""
        self.reset()

    def reset(self) -> None:
        """Forgets the messages that were delivered, for a consumer that begins again."""
        self.waiting: dict[int, int] = {}
        """First frames of the messages that were delivered and not acknowledged, by their numbers in JetStream."""

    @property
    def what(self) -> str:
        """The stream's name in messages."""
        return f"stream {self.key}"


class Partition:
    """Takes a partition until it is cancelled. Each frame is written once and in order, also if JetStream delivers it again, or a
    process was killed.

    A message is acknowledged when its frames are written. JetStream has the messages of a stream in the order of their frames; one that
    follows a message that could not be written is returned, and is delivered again a second later. Frames count as lost if JetStream,
    read from the beginning, does not have them.

    `session.retries` shows failures, which are tried again. A stream that cannot be written does not keep the others from it.
    """

    def __init__(self, session: Session, number: int) -> None:
        self._session, self.number = session, number
        self._intakes: dict[str, _Intake] = {}
        identity = session.store.identity()
        config = ConsumerConfig(
            durable_name=f"collect-{identity}-{number}",
            filter_subject=session.names.partition(number),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=session.ack_seconds,
            max_ack_pending=MAX_UNACKNOWLEDGED,
            inactive_threshold=INACTIVE_SECONDS,
        )
        self._identity = identity
        self._consumer = Consumer(session.client, session.jetstream, session.names.stream, config)
        self._unacknowledged: dict[int, float] = {}
        """Delivery times of messages that are not acknowledged, by their numbers in JetStream."""
        self._looks_at = 0.0
        """Time of the next look for files to close."""
        self._reads_again = False
        self._has_more = False
        """Whether JetStream has more messages, or larger ones, as far as is known."""
        self._largest = session.client.max_payload + layout.OVERHEAD
        self._grant: Grant | None = None

    @property
    def streams(self) -> int:
        """Number of streams whose file is open."""
        return sum(intake.file is not None for intake in self._intakes.values())

    async def run(self) -> None:
        """Takes the partition."""
        retries, what = self._session.retries, f"partition {self.number}"
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        try:
            while True:
                try:
                    await self._begin(again=False)
                    while True:
                        await self._process_next()
                        retries.succeed(what)
                        backoff.reset()
                except (NatsError, TimeoutError) as error:
                    retries.fail(what, error)
                finally:
                    self._release()
                await asyncio.sleep(backoff.delay())
        finally:
            with contextlib.suppress(TimeoutError):  # the disk hangs: the files are closed as soon as it does not
                await finish(self._close_all(), CLOSE_SECONDS)

    async def _begin(self, *, again: bool) -> None:
        self._reads_again = False
        self._unacknowledged.clear()
        for intake in self._intakes.values():
            intake.reset()
        await self._consumer.start(again=again)

    async def _process_next(self) -> None:
        if self._reads_again:
            await self._begin(again=True)
        messages = await self._fetch()
        if not messages:
            # If the consumer was deleted, no reply says so, and no message would ever come: this raises.
            await self._consumer.info()
        by_stream: dict[str, list[_Message]] = {}
        for message in messages:
            self._unacknowledged[message.metadata.sequence.stream] = asyncio.get_running_loop().time()
            try:
                key = key_of(message.subject)
                header, payload = protocol.decode(message.data)
                if not isinstance(header, protocol.Frames):
                    raise FormatError(f"{type(header).__name__} is not for a stream")
            except FormatError as error:
                await self._terminate(message, error)
                continue
            by_stream.setdefault(key, []).append(_Message(message, header, payload))
        for key, its in by_stream.items():
            await self._write_stream(key, sorted(its, key=lambda one: one.frames.first))
        self._release()
        await self._close_silent()

    # requests

    async def _fetch(self) -> list[Msg]:
        """The next messages; none if none came for a while. No memory is needed to wait for one that is small."""
        if not (self._has_more or self._unacknowledged):
            fetched = await self._consumer.fetch_next(FREE, IDLE_SECONDS)
        else:
            limit = self._session.budget.limit
            room = max(self._largest, min(MAX_LARGEST * self._largest, limit // 4))
            self._grant = await self._session.budget.acquire(room)
            if self._unacknowledged:
                # One by one: JetStream puts off a message for which a request has no room when it delivers it again.
                fetched = await self._consumer.fetch_next(room, BUSY_SECONDS)
            else:
                fetched = await self._consumer.fetch_available(FETCH_COUNT, room)
            if fetched.has_larger and not fetched.messages:
                self._largest *= 2  # the server had a larger max_payload once
        more = bool(fetched.messages) and fetched.messages[-1].metadata.num_pending > 0
        self._has_more = more or fetched.has_larger
        return fetched.messages

    def _release(self) -> None:
        if self._grant is not None:
            self._grant.release()
            self._grant = None

    async def _acknowledge(self, message: Msg) -> None:
        self._unacknowledged.pop(message.metadata.sequence.stream, None)
        await message.ack()

    async def _terminate(self, message: Msg, error: FormatError) -> None:
        """Has JetStream never deliver a message again: the next attempt would fail as well."""
        self._unacknowledged.pop(message.metadata.sequence.stream, None)
        self._session.refuse(message.subject, str(error))
        await message.term()

    async def _postpone(self, intake: _Intake, message: _Message, seconds: float) -> None:
        """Returns a message to JetStream, which delivers it again."""
        if len(intake.waiting) >= MAX_WAITING and message.number not in intake.waiting:
            # Everything is read again as soon as it is missing in the file.
            intake.next = max(intake.next, message.frames.first + message.frames.count)
            await self._acknowledge(message.message)
            return
        intake.waiting[message.number] = message.frames.first
        await message.message.nak(seconds)

    # streams

    async def _write_stream(self, key: str, messages: list[_Message]) -> None:
        """Writes messages of one stream, in the order of their frames."""
        session = self._session
        if key not in self._intakes:
            if await session.roster.has_ended(key):
                for one in messages:
                    await self._acknowledge(one.message)
                return
            self._intakes[key] = _Intake(key)
        intake = self._intakes[key]
        for one in messages:
            if one.message.metadata.num_delivered == 1:
                intake.heard = asyncio.get_running_loop().time()
        remaining = list(messages)
        error: Exception | None = None
        if not session.retries.wait(intake.what):
            try:
                process = await session.roster.process(key)
                intake.hello_at = asyncio.get_running_loop().time()
                file, stream = await self._opened(intake, process)
                while remaining:
                    await self._write(intake, process, file, stream, remaining[0])
                    del remaining[0]
                session.retries.succeed(intake.what)
                if file.ended:
                    await self._close(self._intakes.pop(key))
                elif file.next < min(intake.waiting.values(), default=intake.next) and file.next < intake.next:
                    # The file has lost frames that were acknowledged, or was deleted, or could not be written.
                    intake.next = file.next
                    self._reads_again = True
                return
            except (FormatError, FullError, StuckError, OSError) as caught:
                if isinstance(caught, TimeoutError):  # of JetStream
                    raise
                error = caught
        await self._return_or_refuse(intake, remaining, error)

    async def _return_or_refuse(self, intake: _Intake, messages: list[_Message], error: Exception | None) -> None:
        """JetStream delivers messages again that could not be written, unless their stream had no valid `Hello` for too long."""
        session = self._session
        if error is not None:
            session.retries.fail(intake.what, error)
            await self._close(intake)
        unknown_seconds = asyncio.get_running_loop().time() - intake.hello_at
        for one in messages:
            if isinstance(error, FormatError) and unknown_seconds >= session.refuse_seconds:
                intake.waiting.pop(one.number, None)
                # If a valid Hello comes after all, these frames are missing, and the partition is read from the beginning.
                self._consumer.from_beginning = False
                await self._terminate(one.message, error)
            else:
                await self._postpone(intake, one, max(session.retries.wait(intake.what), RETRY_SECONDS))

    async def _opened(self, intake: _Intake, process: NatsProcess) -> tuple[StreamFile, Stream]:
        """The file and the state of a stream.

        Raises:
            FormatError: if the file is one of another stream, or the stream is known as one of another job.
            FullError: if a limit is met.
            OSError: if the file cannot be opened.
        """
        if intake.file is None or intake.stream is None:
            session, hello = self._session, process.hello
            existing = session.streams.all.get(hello.stream)
            if existing is not None and existing.job != job_of(hello.run):
                raise FormatError(f"it is a stream of the job {existing.job!r}")
            async with contextlib.AsyncExitStack() as files:
                file = await files.enter_async_context(session.store.stream(hello, lambda: None))
                stream = files.enter_context(session.streams.connected(hello, process))
                intake.file, intake.stream, intake.files = file, stream, files.pop_all()
            session.file_opened(hello)
        return intake.file, intake.stream

    async def _write(
        self, intake: _Intake, process: NatsProcess, file: StreamFile, stream: Stream, one: _Message
    ) -> None:
        """Writes a message, and acknowledges it. A message that the file has already is only acknowledged; one that others must precede is postponed."""
        session, first = self._session, one.frames.first
        intake.waiting[one.number] = first
        if first > file.next and not await self._is_lost_before(intake, file, first):
            await self._postpone(intake, one, RETRY_SECONDS)
            return
        try:
            new_frames = file.check(one.frames, one.payload)
            _check_job(process, new_frames)
        except FormatError as error:
            intake.waiting.pop(one.number, None)
            await self._terminate(one.message, error)
            return
        decode_queue = session.streams.decode_queue
        try:
            await session.store.write(file, new_frames, process.hello, lambda: decode_queue.add(stream, new_frames))
        finally:
            await decode_queue.drained(stream)
        if file.ended:
            await session.roster.end(intake.key, self._identity)
        intake.next = max(intake.next, file.next)
        intake.waiting.pop(one.number, None)
        await self._acknowledge(one.message)

    async def _is_lost_before(self, intake: _Intake, file: StreamFile, first: int) -> bool:
        """Whether the frames that are missing before this number will not come any more: JetStream has the messages of a stream in order."""
        # JetStream may have deleted messages that were to be delivered again.
        limit = asyncio.get_running_loop().time() - STALE_SECONDS
        for number in [number for number, at in self._unacknowledged.items() if at < limit]:
            del self._unacknowledged[number]
        intake.waiting = {number: at for number, at in intake.waiting.items() if number in self._unacknowledged}
        if first > min(intake.waiting.values(), default=first):
            return False
        info = await self._consumer.info()
        if (info.num_ack_pending or 0) > len(self._unacknowledged):
            return False  # messages that were delivered and got lost are delivered again
        # The file may have been deleted, or have less than was acknowledged after a loss of power: everything is read again.
        self._reads_again = not self._consumer.from_beginning or file.next < intake.next
        intake.next = min(intake.next, file.next)
        return not self._reads_again

    async def _close(self, intake: _Intake) -> None:
        intake.file = intake.stream = None
        await intake.files.aclose()

    async def _close_silent(self) -> None:
        """Closes files of streams that are silent.

        The stream of a killed process must not count as connected for ever, nor its file as one that is being written.
        """
        now = asyncio.get_running_loop().time()
        if now < self._looks_at:
            return
        self._looks_at = now + LOOK_SECONDS
        for intake in list(self._intakes.values()):
            if now - intake.heard >= self._session.silent_seconds and not intake.waiting:
                await self._close(intake)
                if intake.key not in self._session.roster.processes:  # it was forgotten, or has no Hello
                    del self._intakes[intake.key]

    async def _close_all(self) -> None:
        await asyncio.gather(*map(self._close, self._intakes.values()), self._consumer.close())


def _check_job(process: NatsProcess, new_frames: NewFrames) -> None:
    """Refuses frames of another job. Raises `FormatError` if a run record among them names another one."""
    job = process.names.key.partition(".")[0]
    for run in new_frames.runs():
        if job_token(job_of(run)) != job:
            raise FormatError(f"its run is of the job {job_of(run)[:100]!r}")
