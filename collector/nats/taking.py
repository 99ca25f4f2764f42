"""A stream of NATS that this collector has the lease on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError

from stepscope.collector.errors import FullError
from stepscope.collector.nats.intake import Intake
from stepscope.collector.nats.place import Place
from stepscope.collector.reference import Reference
from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.runtime.errors import FormatError
from stepscope.runtime.loop_threads.ending_tasks import end_tasks, finish

log = logging.getLogger("stepscope.collector")

GIVE_BACK_SECONDS = 2.0
"""That NATS has to take a lease back."""


class Taking:
    """Takes a stream as long as the lease is ours, tells its exporter the clock, and gives the lease back in the end."""

    def __init__(
        self,
        place: Place,
        stream: str,
        identity: str,
        reference: Reference,
        intake: Callable[[protocol.Hello], Intake],
    ) -> None:
        """
        Args:
            place: where from.
            stream: its id; the lease on it was taken.
            identity: of the directory that it goes to.
            reference: the clock that its exporter is told.
            intake: makes what writes it, once it is known whose it is.
        """
        self._place, self._stream, self._identity = place, stream, identity
        self._reference, self._make = reference, intake
        self._intake: Intake | None = None
        self._ending = False
        self.given = False
        """Whether it is left to another collector."""
        self.ended = False
        """Whether all of it is written, up to its end, here or elsewhere."""
        self.task = asyncio.create_task(self._run(), name="stepscope NATS stream")

    @property
    def works(self) -> bool:
        """Whether it could be taken from so far."""
        return self._intake is not None and self._intake.works

    @property
    def idle(self) -> bool:
        """Whether nothing of it is in hand, and nothing came when it was last asked for."""
        return self._intake is not None and self._intake.idle

    @property
    def size(self) -> int:
        """Bytes of its file, as far as is known."""
        return 0 if self._intake is None else self._intake.size

    def give(self) -> None:
        """Leaves it to another collector: gives the lease back as soon as what is being written is.

        To be called again until the task is done, as libraries may swallow a cancellation.
        """
        self.given = True
        if not self._ending:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            self.ended = await self._has_ended()
            if not self.ended:
                await self._take()
            if self.ended:
                await layout.forget(self._place.jetstream, layout.HELLOS, self._stream)
        finally:
            self._ending = True
            with contextlib.suppress(TimeoutError):  # it vanishes by itself
                await finish(self._place.leases.give_back(self._stream), GIVE_BACK_SECONDS)

    async def _has_ended(self) -> bool:
        try:
            await self._place.ended.get(self._stream)
        except KeyNotFoundError:
            return False
        return True

    async def _take(self) -> None:
        answering = await layout.answer(self._place.client, f"{layout.CLOCKS}.{self._stream}", self._answer)
        try:
            said, hello = await self._hello()
            self._intake = self._make(hello)
            taking = asyncio.create_task(self._intake.run())
            holding = asyncio.create_task(self._place.leases.hold(self._stream))
            try:
                await asyncio.wait({taking, holding}, return_when=asyncio.FIRST_COMPLETED)
                if taking.cancelled():
                    raise FullError("its exporter sends it to this collector another way")
                if taking.done():
                    taking.result()
                    await self._place.ended.put(self._stream + layout.OF_HELLO, said)
                    await self._place.ended.put(self._stream, self._identity.encode())
                    self.ended = True
                else:
                    holding.result()
                    log.warning("stream %s is taken by another collector now", self._stream)
            finally:
                self._ending = True
                await end_tasks(taking, holding)
        finally:
            with contextlib.suppress(NatsError, TimeoutError):  # the connection may be lost
                await answering.unsubscribe()

    async def _hello(self) -> tuple[bytes, protocol.Hello]:
        said = await self._said()
        hello, _ = protocol.decode(said)
        if not isinstance(hello, protocol.Hello) or hello.stream != self._stream:
            raise FormatError("what stands for its Hello is none")
        return said, msgspec.structs.replace(hello, run=protocol.short(hello.run))  # names are kept

    async def _said(self) -> bytes:
        with contextlib.suppress(KeyNotFoundError):
            return (await self._place.hellos.get(self._stream)).value or b""
        try:
            return (await self._place.ended.get(self._stream + layout.OF_HELLO)).value or b""
        except KeyNotFoundError as error:
            raise FormatError(f"nobody has said whose it is: the bucket {layout.HELLOS} has no such key") from error

    async def _answer(self, message: Msg) -> None:
        """Tells an exporter the clock."""
        arrived = self._reference.now()
        try:
            header, _ = protocol.decode(message.data)
            if isinstance(header, protocol.Ping):
                pong = protocol.Pong(header.sent, arrived, self._reference.now(), self._reference.id)
                await message.respond(protocol.encode(pong))
        except (FormatError, NatsError) as error:
            log.debug("stream %s: the clock could not be told: %s", self._stream, error)
