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

from stepscope.exporters.network.outcomes import Outcomes
from stepscope.exporters.otlp.options import Headers, OtlpOptions, Signal, make_targets
from stepscope.runtime.errors import BrokenError, ClosedError, OutputError
from stepscope.runtime.events.clock import wall_clock
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import DeliveryResult
from stepscope.runtime.export.run import Run, refuse_another_run
from stepscope.runtime.settings import checked
from stepscope.runtime.settings.validation import suggesting
from stepscope.runtime.windows.window import Window

if TYPE_CHECKING:
    from stepscope.exporters.otlp.encoding import Conversion, Request
    from stepscope.exporters.otlp.sender import Sender

log = logging.getLogger("stepscope")

CLOCK_INTERVAL_S = 0.1
"""Seconds between two comparisons of the wall clock with the monotonic one."""
CLOSE_TIMEOUT_S = 1.0
"""Seconds that a session's connections may take to close."""
NO_METRICS = frozenset({404, 405, 415, 501})
"""Statuses by which receivers of traces alone refuse metrics."""


class OtlpExporter:
    """Sends steps, spans and counters by OTLP over HTTP, as protobuf, to Jaeger, Tempo, Phoenix and the like.

    Every step is a trace of its own, whose root is the step, with spans at their places and times to the nanosecond. The
    run has one more, with its windows and with what lasts longer than a step. Counters are gauges, and the durations of
    steps a histogram.

    Stores take hundreds to thousands of spans a second, so `OtlpOptions` limits what is sent to the longest spans. The
    ledger counts by reason what a filter, the rate or a limit left out, what did not arrive, and what the receiver says that
    it rejected. A request that fails in a way that may pass is tried again, and one that is too large for the receiver is
    divided. One that the receiver took counts as exported if its answer cannot be read, which a warning says once. The
    training program waits for nothing of this.

    Args:
        endpoint: URL of the receiver without `/v1/traces`; default: the variables OTEL_EXPORTER_OTLP_..., which have the
            meaning that OpenTelemetry specifies, else `http://localhost:4318`.
        headers: sent with every request, such as an API key; never shown. They replace those of the environment. A function that
            returns them is called again, on a thread, when the receiver answers 401, as a token may have expired. A value that looks
            like a secret is refused for another machine over `http:` unless `OtlpOptions.insecure` allows it.
        options: all other settings.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument or variable cannot be used; says which, why and what to do.
        ImportError: the packages of the extra `stepscope[otlp]` are missing.
    """

    @suggesting
    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: Headers | None = None,
        options: OtlpOptions | None = None,
    ) -> None:
        self._options = checked.settings("options", options, OtlpOptions)
        _check_headers(headers)
        self._targets = make_targets(endpoint, headers, self._options)
        self.name = f"otlp:{self._targets['traces']}"
        require_extra()
        self._outcomes = Outcomes()
        self._senders: dict[Signal, Sender] = {}
        self._conversion: Conversion | None = None
        self._run: Run | None = None
        self._queue: deque[Iterator[Request]] = deque()
        self._current: Request | None = None
        self._metrics_refused = self._closing = self._warned = False
        self._clock_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"OtlpExporter({str(self._targets['traces'])!r})"

    async def open(self, run: Run) -> None:
        """Prepares to send. Connects when there is something to send.

        Raises:
            OutputError: if certificates cannot be read; says which.
            ClosedError: if it had a run before.
        """
        refuse_another_run(self, self._run)
        from stepscope.exporters.otlp.encoding import Conversion
        from stepscope.exporters.otlp.sender import Sender

        for signal, target in self._targets.items():
            sender = Sender(target, self._options)
            try:
                await sender.open()
            except OSError as error:
                await self._close_senders()
                named = filter(None, (target.certificate, target.client_certificate, target.client_key))
                files = ", ".join(named) or "the system's"
                raise OutputError(f"cannot use the certificates for {target}: {files}: {error}") from error
            self._senders[signal] = sender
            if self._closing:
                sender.closing()
        self._run, self._conversion = run, Conversion(run, self._options, self._outcomes)
        self._clock_task = asyncio.create_task(_compare_clocks(), name=f"clock of {self.name}")

    async def export(self, batch: EventBatch) -> None:
        """Takes a batch, and sends the steps that are complete now.

        Raises:
            ClosedError: before `open` or after `aclose`.
            BrokenError: if something could not be sent; it is counted.
        """
        conversion = self._opened()
        self._queue.append(conversion.add(batch))
        await self._send()

    async def close_window(self, window: Window) -> None:
        """Sends the rest of a window, and its own span.

        Raises:
            BrokenError: if something could not be sent; it is counted.
        """
        self._queue.append(self._opened().close_window(window))
        await self._send()

    def closing(self) -> None:
        """The run ends: a receiver that fails is tried for `OtlpOptions.closing_seconds` from now on."""
        self._closing = True
        for sender in self._senders.values():
            sender.closing()

    async def aclose(self) -> None:
        """Sends the rest. Events that a cancelled call did not send have no result, and so count as `closed`.

        Raises:
            BrokenError: if something could not be sent; it is counted.
        """
        conversion, self._conversion = self._conversion, None
        try:
            if conversion is not None:
                self._queue.append(conversion.close())
            await self._send()
        finally:
            if self._clock_task is not None:
                self._clock_task.cancel()
            self._queue.clear()
            self._current = None
            await self._close_senders()

    def delivery_results(self) -> Iterable[DeliveryResult]:
        """Returns what became of events since the last call."""
        return self._outcomes.drain()

    def _opened(self) -> Conversion:
        if self._conversion is None:
            raise ClosedError(f"{self.name} is not open")
        return self._conversion

    async def _send(self) -> None:
        """Sends the queue in order. The request that was in progress when a call was cancelled is sent again first."""
        first: BrokenError | None = None
        while (request := self._next()) is not None:
            try:
                await self._deliver(request)
            except BrokenError as error:
                first = first or error
            self._current = None
        if first is not None:
            raise first

    def _next(self) -> Request | None:
        while self._current is None and self._queue:
            self._current = next(self._queue[0], None)
            if self._current is None:
                self._queue.popleft()
        return self._current

    async def _deliver(self, request: Request) -> None:
        from stepscope.exporters.otlp.sender import Refused

        if request.signal == "metrics" and self._metrics_refused:
            self._outcomes.drop(request.window, "rejected", request.events)
            return
        try:
            rejected = await self._senders[request.signal].send(request)
        except Refused as error:
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and len(request.parts) > 1:
                if not self._warned:
                    self._warned = True
                    log.warning("%s: %s; it is sent in parts, see OtlpOptions.batch_bytes", self.name, error)
                self._queue.appendleft(iter(request.halves()))
                return
            self._outcomes.drop(request.window, "rejected", request.events)
            if request.signal == "metrics" and error.status in NO_METRICS:
                self._metrics_refused = True
                raise BrokenError(
                    f"{error}; no more metrics are sent: OtlpOptions(metrics=False) avoids this"
                ) from None
            raise
        except BrokenError:
            self._outcomes.drop(request.window, "unsent", request.events)
            raise
        rejected = min(rejected, request.events)
        self._outcomes.drop(request.window, "rejected", rejected)
        self._outcomes.export(request.window, request.events - rejected)

    async def _close_senders(self) -> None:
        for sender in self._senders.values():
            # Also if this call is cancelled: a session that is not closed keeps its connection.
            with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                await sender.aclose()


def _check_headers(headers: object) -> None:
    if not (headers is None or isinstance(headers, Mapping) or callable(headers)):
        raise TypeError(
            f"headers must be a mapping of names to values, or a function that returns one, got {type(headers).__name__}"
        )


def require_extra() -> None:
    """Checks that the packages are installed that only this exporter needs.

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


async def _compare_clocks() -> None:
    """Notices when the wall clock is set. Spans that began since the comparison before may be off by as much."""
    while True:
        wall_clock.look()
        await asyncio.sleep(CLOCK_INTERVAL_S)
