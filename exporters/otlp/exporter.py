"""The OTLP exporter: steps, spans and counters to any receiver of OpenTelemetry, while the run goes on."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING

import anyio

from stepscope.exporters.one_run import refuse_another_run
from stepscope.exporters.otlp import target as targets
from stepscope.exporters.otlp.ceiling import Ceiling
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.otlp.target import Signal, Target
from stepscope.exporters.outcomes import Outcomes
from stepscope.runtime.errors import BrokenError, ClosedError, OutputError
from stepscope.runtime.events.clock import wall_clock
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import DeliveryResult
from stepscope.runtime.export.run import Run
from stepscope.runtime.settings import checked
from stepscope.runtime.settings.validation import suggesting
from stepscope.runtime.windows.window import Window

if TYPE_CHECKING:
    from stepscope.exporters.otlp.conversion import Conversion
    from stepscope.exporters.otlp.request import Request
    from stepscope.exporters.otlp.sender import Sender

log = logging.getLogger("stepscope")

CLOCK_LOOK_S = 0.1
"""Seconds between two looks at the wall clock."""
CLOSING_S = 1.0
"""How long a session's connections may take to close."""


class OtlpExporter:
    """Sends steps, spans and counters by OTLP over HTTP, as protobuf, to Jaeger, Tempo, Phoenix and the like.

    Every step is a trace of its own, whose root is the step, with spans at their places and times to the nanosecond. The
    run has one more, with its windows and with what lasts longer than a step. Counters are gauges, and the durations of
    steps a histogram.

    Stores take hundreds to thousands of spans a second, so `OtlpOptions` limits what is sent to the longest spans; what
    is left out by filter, rate or number is counted by reason in the ledger, as is what did not arrive and what the receiver
    says that it rejected. A request that fails in a way that may pass is tried again, and one that is too large for the
    receiver goes in smaller ones. One that the receiver took counts as exported where its answer cannot be read, which a
    warning says once. The training program waits for nothing of this.

    Args:
        endpoint: URL of the receiver without `/v1/traces`; default: the variables OTEL_EXPORTER_OTLP_..., which have the
            meaning that OpenTelemetry specifies, else `http://localhost:4318`.
        headers: sent with every request, such as an API key; never shown. They go before those of the environment. What looks
            like a secret is refused for another machine over `http:` unless `OtlpOptions.insecure` allows it.
        options: all other settings.

    Raises:
        TypeError: an argument is not what it should be.
        ValueError: an argument or variable cannot be used; says which, why and what to do.
        ImportError: the packages of the extra `stepscope[otlp]` are missing.
    """

    @suggesting
    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        options: OtlpOptions | None = None,
    ) -> None:
        self._options = checked.settings("options", options, OtlpOptions)
        if headers is not None and not isinstance(headers, Mapping):
            raise TypeError(f"headers must be a mapping of names to values, got {type(headers).__name__}")
        self._targets = targets.both(endpoint, headers, self._options)
        self.name = f"otlp:{self._targets['traces']}"
        require_extra()
        self._outcomes = Outcomes()
        self._senders: dict[Signal, Sender] = {}
        self._conversion: Conversion | None = None
        self._run: Run | None = None
        self._waiting: deque[Iterator[Request]] = deque()
        self._in_hand: Request | None = None
        self._no_metrics = self._closing = False
        self._ceilings: dict[Signal, Ceiling] = {signal: Ceiling() for signal in self._targets}
        self._warned = False
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"OtlpExporter({str(self._targets['traces'])!r})"

    async def open(self, run: Run) -> None:
        """Prepares to send; a receiver that is not there yet is waited for when there is something to send.

        Raises:
            OutputError: if certificates cannot be read; says which.
            ClosedError: if it had a run before.
        """
        refuse_another_run(self, self._run)
        from stepscope.exporters.otlp.conversion import Conversion
        from stepscope.exporters.otlp.sender import Sender

        for signal, target in self._targets.items():
            sender = Sender(target, self._options)
            try:
                await sender.open()
            except OSError as error:
                await self._close_senders()
                raise OutputError(f"cannot use the certificates for {target}: {_files(target)}: {error}") from error
            self._senders[signal] = sender
            if self._closing:
                sender.closing()
        self._run, self._conversion = run, Conversion(run, self._options, self._outcomes)
        self._watch = asyncio.create_task(_watch_clock(), name=f"clock of {self.name}")

    async def export(self, batch: EventBatch) -> None:
        """Takes a batch, and sends what is complete by it.

        Raises:
            ClosedError: before `open` or after `aclose`.
            BrokenError: if something could not be sent; it is counted.
        """
        conversion = self._opened()
        self._waiting.append(conversion.add(batch))
        await self._send()

    async def close_window(self, window: Window) -> None:
        """Sends what is left of a window, and its own span.

        Raises:
            BrokenError: if something could not be sent; it is counted.
        """
        self._waiting.append(self._opened().close_window(window))
        await self._send()

    def closing(self) -> None:
        """A receiver that fails is given `OtlpOptions.closing_seconds` from now on."""
        self._closing = True
        for sender in self._senders.values():
            sender.closing()

    async def aclose(self) -> None:
        """Sends what is left. What a cancelled call could not send is not told of, and so counts as `closed`."""
        conversion, self._conversion = self._conversion, None
        try:
            if conversion is not None:
                self._waiting.append(conversion.close())
            await self._send()
        finally:
            if self._watch is not None:
                self._watch.cancel()
            self._waiting.clear()
            self._in_hand = None
            await self._close_senders()

    def settle(self) -> Iterable[DeliveryResult]:
        """What became of events since the last call."""
        return self._outcomes.take()

    def _opened(self) -> Conversion:
        if self._conversion is None:
            raise ClosedError(f"{self.name} is not open")
        return self._conversion

    async def _send(self) -> None:
        """Sends what waits, in order. Goes on where a cancelled call was: that request is sent once more."""
        first: BrokenError | None = None
        while (request := self._next()) is not None:
            try:
                await self._post(request)
            except BrokenError as error:
                first = first or error
            self._in_hand = None
        if first is not None:
            raise first

    async def _post(self, request: Request) -> None:
        if request.signal == "metrics" and self._no_metrics:
            self._drop(request, "rejected")
            return
        ceiling = self._ceilings[request.signal]
        if request.parts > 1 and not ceiling.fits(len(request.body)):
            self._halve(request)
            return
        try:
            rejected = await self._senders[request.signal].send(request)
        except BrokenError as error:
            status = getattr(error, "status", None)
            if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and request.parts > 1:
                ceiling.refused(len(request.body))
                self._halve(request, error)
                return
            self._drop(request, "unsent" if status is None else "rejected")
            if request.signal == "metrics" and status in (404, 405, 415, 501):
                self._no_metrics = True
                raise BrokenError(
                    f"{error}; no more metrics are sent: OtlpOptions(metrics=False) avoids this"
                ) from None
            raise
        ceiling.taken(len(request.body))
        rejected = min(rejected, request.events)
        self._outcomes.drop(request.window, "rejected", rejected)
        self._outcomes.export(request.window, request.events - rejected)

    def _halve(self, request: Request, why: BrokenError | None = None) -> None:
        """Its halves are the next to be sent."""
        from stepscope.exporters.otlp.halving import halves

        if why is not None and not self._warned:
            self._warned = True
            log.warning("%s: %s; smaller ones follow, see OtlpOptions.batch_bytes", self.name, why)
        self._waiting.appendleft(iter(halves(request)))

    def _drop(self, request: Request, reason: str) -> None:
        self._outcomes.drop(request.window, reason, request.events)

    def _next(self) -> Request | None:
        while self._in_hand is None and self._waiting:
            self._in_hand = next(self._waiting[0], None)
            if self._in_hand is None:
                self._waiting.popleft()
        return self._in_hand

    async def _close_senders(self) -> None:
        for sender in self._senders.values():
            # Cancelled or not, each is closed: a session that is only forgotten keeps its connection.
            with anyio.move_on_after(CLOSING_S, shield=True):
                await sender.aclose()


def require_extra() -> None:
    """Sees that the packages are there that only this exporter needs.

    Raises:
        ImportError: saying how to install them.
    """
    for module in ("aiohttp", "opentelemetry.proto.trace.v1.trace_pb2"):
        try:
            import_module(module)
        except ImportError as error:
            raise ImportError(
                f"OtlpExporter needs {module.partition('.')[0]}: {error}; install it with: pip install 'stepscope[otlp]'"
            ) from error


async def _watch_clock() -> None:
    """Looks often whether the wall clock was set: spans that began since the look before may be off by as much."""
    while True:
        wall_clock.look()
        await asyncio.sleep(CLOCK_LOOK_S)


def _files(target: Target) -> str:
    named = (target.certificate, target.client_certificate, target.client_key)
    return ", ".join(file for file in named if file) or "the system's"
