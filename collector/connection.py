"""The connection of one exporter: its Hello, its frames and summaries, acknowledgements and orders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from functools import partial

import msgspec
from litestar.types import Receive, Send, WebSocketScope

from stepscope.collector.audit import Audit
from stepscope.collector.clocks.server_clock import ServerClock
from stepscope.collector.errors import FullError, StuckError
from stepscope.collector.files.store import Store
from stepscope.collector.files.stream_file import StreamFile
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.problems import ProblemError, send_problem
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.step_summary import count_steps
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.requests.command import Answer, Command

REFUSAL_TIMEOUT = 2.0
"""Seconds in which a refusal must have been sent."""
MAX_GATHER_MS = 2000
"""The most milliseconds for which exporters gather small frames: one for each rank."""
_MANY = 4096
"""A message with so many frames is checked on a thread: each frame takes some microseconds."""
_FEW_STEPS = 128
"""Steps of a summary that are read at once; of larger ones one in each turn of the loop, as they take it some ms."""
REPLACED = "another connection of this stream came"


class _DisconnectedError(Exception):
    """The exporter has disconnected."""


class Connection:
    """Serves one WebSocket until either side ends it. A client's mistake ends its own connection only."""

    def __init__(
        self,
        scope: WebSocketScope,
        receive: Receive,
        send: Send,
        settings: CollectorSettings,
        store: Store,
        streams: Streams,
        clock: ServerClock,
        audit: Audit,
        admit: Callable[[str, RunRecord], object] | None = None,
    ) -> None:
        """
        Args:
            admit: called with the stream's id and each run that it says it is of, first that of `Hello`; raises `FormatError` if
                it may not send that. `None`: any may be sent.
        """
        self._admit = admit
        self._scope, self._receive_message, self._send_message = scope, receive, send
        self._settings, self._store, self._streams = settings, store, streams
        self._clock, self._audit = clock, audit
        self._task: asyncio.Task[object] | None = None
        self._ending: tuple[str, bool] | None = None
        """The reason for ending the connection, and whether the exporter may connect again."""
        self.control = 0
        """Version of the commands that the process obeys; 0: none."""
        self._waiting_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._orders: dict[int, asyncio.Future[Answer]] = {}
        self._order_number = 0

    async def serve(self) -> None:
        """Processes messages until the connection is closed."""
        if protocol.SUBPROTOCOL not in self._scope["subprotocols"]:
            self._note(f"it does not speak {protocol.SUBPROTOCOL}")
            error = ProblemError(426, f"this collector speaks {protocol.SUBPROTOCOL}")
            await send_problem(self._scope, self._send_message, error)
            return
        await self._receive_message()  # that it wants to connect
        await self._send_message({"type": "websocket.accept", "subprotocol": protocol.SUBPROTOCOL, "headers": []})
        self._task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._settings.hello_timeout):
                hello = await self._receive()
            if not isinstance(hello[0], protocol.Hello):
                raise FormatError(f"the first message must be Hello, not {type(hello[0]).__name__}")
            # Names are kept for as long as the stream is known: a header has room for 64 KiB of them.
            run = protocol.short(hello[0].run)
            if self._admit is not None:
                self._admit(hello[0].stream, run)
            await self._stream(msgspec.structs.replace(hello[0], run=run))
        except _DisconnectedError:
            return
        except asyncio.CancelledError:
            if self._ending is None or self._task is None or self._task.uncancel():
                raise
            await self._refuse(self._ending[0], retry=self._ending[1])
        except FormatError as error:
            await self._refuse(str(error), retry=False)
        except TimeoutError:
            await self._refuse("nothing came in time", retry=True)
        except (FullError, StuckError) as error:
            await self._refuse(str(error), retry=True)
        except OSError as error:
            # The path is for the log, which has so many refusals a minute: of a full disk each rank comes again and again.
            noted = f"a stream cannot be written: {error}"
            await self._refuse(f"the collector cannot write: {error.strerror}", retry=True, noted=noted)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def order(self, command: Command, seconds: float) -> Answer:
        """Gives the process a command; returns its answer. Raises `TimeoutError` if it does not answer in time, and
        `ConnectionError` if the connection ends first."""
        self._order_number += 1
        number, loop = self._order_number, asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()
        self._orders[number] = answered
        try:
            async with asyncio.timeout(seconds):
                try:
                    await self._send(protocol.Order(number, msgspec.json.encode(command)))
                except (RuntimeError, _DisconnectedError) as error:
                    raise ConnectionError("the connection has ended") from error
                return await answered
        finally:
            del self._orders[number]

    def _obeyed(self, header: protocol.Obeyed) -> None:
        waiting = self._orders.get(header.number)
        if waiting is not None and not waiting.done():  # else it came too late
            waiting.set_result(header.decoded())

    def end(self, why: str = REPLACED, *, retry: bool = True) -> None:
        """Ends it, by default because another connection of its stream is there; says whether the exporter may come again."""
        if self._task is not None and self._ending is None:
            self._ending = why, retry
            self._task.cancel()

    async def _stream(self, hello: protocol.Hello) -> None:
        self._look()
        async with self._store.stream(hello, self.end) as file:
            with self._streams.connected(hello, self) as stream, self._giving_orders():
                self.control = hello.control
                client, run = self._scope["client"], hello.run
                self._audit.line(
                    "stream", client[0] if client else "", stream=hello.stream, name=run.name, rank=str(run.rank)
                )
                with self._waiting():
                    await self._send(
                        protocol.Welcome(
                            next=file.next,
                            max_message=self._store.message_bytes,
                            largest=self._settings.max_message,
                            checksum=file.checksum,
                            segment_bytes=self._store.segment_bytes(run),
                            gather_ms=self._gather_ms(run),
                        )
                    )
                while True:
                    answer = await self._next(file, stream, hello)
                    if answer is not None:
                        with self._waiting():
                            await self._send(answer)

    def _gather_ms(self, run: RunRecord) -> int:
        """Milliseconds for which exporters gather small frames: as many as the job has ranks."""
        return min(max(self._streams.connected_now, run.world_size or 0), MAX_GATHER_MS)

    @contextlib.contextmanager
    def _waiting(self) -> Generator[None]:
        self._waiting_since = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._waiting_since = None

    def _look(self) -> None:
        """Ends the connection if one wait for the exporter has taken too long.

        One timer serves all waits, and is set anew only when it goes off: to set one for every message of a thousand streams
        would cost a collector a twentieth of its time.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = (now if self._waiting_since is None else self._waiting_since) + self._settings.idle_timeout
        if now >= due:
            self.end("nothing came in time")
        else:
            self._timer = loop.call_at(due, self._look)

    async def _next(self, file: StreamFile, stream: Stream, hello: protocol.Hello) -> protocol.Header | None:
        """Receives a message; returns the answer. No reference to it is left then: it may be large, and the next one long in
        coming."""
        with self._waiting():
            header, payload = await self._receive()
        if isinstance(header, protocol.Frames):
            await self._receive_frames(file, header, payload, stream, hello)
            return protocol.Ack(file.next)
        if isinstance(header, protocol.StepSummary):
            await self._receive_summary(header, stream)
            return None
        if isinstance(header, protocol.Ping):
            arrived = self._clock.now()
            return protocol.Pong(header.sent, arrived, self._clock.now(), self._clock.id)
        if not isinstance(header, protocol.Obeyed):
            raise FormatError(f"{type(header).__name__} is not for the collector")
        self._obeyed(header)
        return None

    @contextlib.contextmanager
    def _giving_orders(self) -> Generator[None]:
        try:
            yield
        finally:
            self.control = 0
            for waiting in self._orders.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the connection has ended"))

    async def _receive_frames(
        self, file: StreamFile, header: protocol.Frames, payload: memoryview, stream: Stream, hello: protocol.Hello
    ) -> None:
        check = partial(file.check, header, payload)
        new_frames = check() if header.count < _MANY else await asyncio.to_thread(check)
        if self._admit is not None:
            for run in new_frames.runs():
                self._admit(hello.stream, run)
        decode_queue = self._streams.decode_queue
        try:
            await self._store.write(file, new_frames, hello, lambda: decode_queue.add(stream, new_frames))
        finally:  # also if this connection has been taken over: what it brought is in memory until then
            await decode_queue.drained(stream)

    async def _receive_summary(self, summary: protocol.StepSummary, stream: Stream) -> None:
        if count_steps(summary) <= _FEW_STEPS:
            stream.add_summary(summary)
        else:
            async with self._streams.summary_lock:
                stream.add_summary(summary)
                await asyncio.sleep(0)
        if wait := stream.summary_wait(summary):
            await asyncio.sleep(wait)  # nothing is read of the connection meanwhile

    async def _receive(self) -> tuple[protocol.Header, memoryview]:
        message = await self._receive_message()
        if message["type"] != "websocket.receive":
            raise _DisconnectedError
        data = message.get("bytes")
        if data is None:
            raise FormatError("messages are binary")
        return protocol.decode(data)

    async def _send(self, header: protocol.Header) -> None:
        try:
            await self._send_message({"type": "websocket.send", "bytes": protocol.encode(header), "text": None})
        except OSError as error:  # as ASGI wants it of a server whose client has gone
            raise _DisconnectedError from error

    async def _refuse(self, reason: str, *, retry: bool, noted: str = "") -> None:
        self._note(noted or reason)
        try:
            async with asyncio.timeout(REFUSAL_TIMEOUT):
                await self._send(protocol.Refused(reason[:500], retry))
                await self._send_message({"type": "websocket.close", "code": 1008, "reason": ""})
        except (RuntimeError, OSError, _DisconnectedError):
            return  # it has gone

    def _note(self, reason: str) -> None:
        """Logs a refused client with the reason, without unescaped text of it."""
        client = self._scope["client"]
        self._audit.refuse(ascii(reason[:300])[1:-1], f"{client[0]}:{client[1]}" if client else "", protocol.PATH)
