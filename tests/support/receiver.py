"""A receiver of OTLP for tests: checks every byte, and misbehaves when a test asks for it."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Fault = Literal[
    "drop", "drop in body", "half an answer", "hang", "close after", "byte by byte", "half a body", "hang in body"
]


class Reply(msgspec.Struct, frozen=True):
    """How one request is answered; by default it is accepted."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    fault: Fault | None = None
    delay: float = 0.0
    rejects: int = 0
    """Spans or points that a success says were rejected."""
    raw: bytes | None = None
    """Sent in place of an answer; then the connection ends."""


class Received(msgspec.Struct, frozen=True):
    """One request that was read whole."""

    path: str
    headers: dict[str, str]
    at: float
    """The loop's clock."""
    size: int
    """Bytes of the body as it was sent."""
    connection: int


def value_of(value: AnyValue) -> Any:
    """The value of an attribute, in Python."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def attributes_of(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes as a dict; each key must be there once, and not be empty."""
    pairs = [(item.key, value_of(item.value)) for item in attributes]
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    assert all(key for key, _ in pairs)
    return dict(pairs)


class Receiver:
    """An HTTP server on the loop that runs it. It stores the requests that it takes, parsed."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        """How the next requests are answered, in order; then all are accepted."""
        self.always: Reply | None = None
        """How all further ones are answered."""
        self.most_bytes: int | None = None
        """Larger bodies are answered with 413."""
        self.received: list[Received] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.metric_requests: list[ExportMetricsServiceRequest] = []
        self.seen: Callable[[Received], object] = lambda _: None
        """Called for every request."""
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._scheme = "http"
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        """Its endpoint."""
        assert self._server is not None
        return f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        """Listens on loopback."""
        self._scheme = "http" if tls is None else "https"
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=tls)

    async def stop(self) -> None:
        """Closes all connections, and listens no more."""
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # connections that were just accepted
        serving = dict(self._serving)
        for task, writer in serving.items():
            writer.transport.abort()  # unsent bytes would keep it open
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.sleep(0)

    # received requests

    @property
    def spans(self) -> list[Span]:
        """All spans, each once, as stores keep them by id."""
        found = {(bytes(span.trace_id), bytes(span.span_id)): span for span in self.all_spans}
        return list(found.values())

    @property
    def all_spans(self) -> list[Span]:
        """All spans, as often as they came."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def recorded(self) -> list[Span]:
        """Spans that stand for events, not those of runs and windows."""
        return [span for span in self.spans if "stepscope.span" not in attributes_of(span.attributes)]

    @property
    def own(self) -> list[Span]:
        """Spans of runs, windows and steps that no event stands for."""
        return [span for span in self.spans if "stepscope.span" in attributes_of(span.attributes)]

    @property
    def metrics(self) -> list[Metric]:
        """All metrics, as often as they came."""
        return [
            metric
            for request in self.metric_requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def named(self, name: str) -> Span:
        """The only span of this name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def names(self) -> Counter[str]:
        """Names of the spans that stand for events."""
        return Counter(span.name for span in self.recorded)

    # server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            while await self._request(reader, writer, connection):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            del self._serving[task]
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        assert method == "POST", method
        reply = self.replies.pop(0) if self.replies else self.always or Reply()
        if reply.fault == "drop in body":
            await reader.read(10)
            writer.transport.abort()
            return False
        body = await reader.readexactly(int(headers["content-length"]))
        at = asyncio.get_running_loop().time()
        received = Received(path, headers, at, len(body), connection)
        self.received.append(received)
        self.seen(received)
        if self.most_bytes is not None and len(body) > self.most_bytes:
            reply = Reply(413)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.fault == "hang":
            await asyncio.sleep(3600)
        if reply.fault == "drop":
            writer.transport.abort()
            return False
        if reply.raw is not None:
            writer.write(reply.raw)
            await writer.drain()
            return False
        data = self._take(path, headers, body, reply) if reply.body is None else reply.body
        lines = [
            f"HTTP/1.1 {reply.status} reason",
            "Content-Type: application/x-protobuf",
            f"Content-Length: {len(data)}",
        ]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        answer = "\r\n".join([*lines, "", ""]).encode() + data
        if reply.fault == "half an answer":
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return False
        if reply.fault in ("half a body", "hang in body"):
            writer.write(answer[: len(answer) - (len(data) + 1) // 2])
            await writer.drain()
            await asyncio.sleep(3600 if reply.fault == "hang in body" else 0)
            return False
        if reply.fault == "byte by byte":
            end = len(answer) - len(data)
            for part in (answer[:end], *(data[at : at + 1] for at in range(len(data)))):
                writer.write(part)
                await asyncio.sleep(0.01)  # so that each is a segment of its own
            return True
        writer.write(answer)
        await writer.drain()
        return reply.fault != "close after"

    def _take(self, path: str, headers: dict[str, str], body: bytes, reply: Reply) -> bytes:
        assert headers["content-type"] == "application/x-protobuf"
        encoding = headers.get("content-encoding")
        assert encoding in (None, "gzip")
        plain = gzip.decompress(body) if encoding else body
        traces = ExportTraceServiceRequest()
        metrics = ExportMetricsServiceRequest()
        parsed = traces if path.partition("?")[0].endswith("/traces") else metrics
        assert parsed.ParseFromString(plain) == len(plain)
        assert parsed.SerializeToString(deterministic=True)
        if reply.status != 200:
            return b""
        if parsed is traces:
            self.traces.append(traces)
            answer = ExportTraceServiceResponse()
            answer.partial_success.rejected_spans = reply.rejects
            return answer.SerializeToString() if reply.rejects else b""
        self.metric_requests.append(metrics)
        points = ExportMetricsServiceResponse()
        points.partial_success.rejected_data_points = reply.rejects
        return points.SerializeToString() if reply.rejects else b""


@asynccontextmanager
async def receiver(tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver]:
    """A receiver on the running loop."""
    server = Receiver()
    await server.start(tls)
    try:
        yield server
    finally:
        await server.stop()


class ReceiverThread:
    """A receiver on a loop and thread of its own, for programs that have none."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        self._ready.wait()
        return self.receiver

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        async def main() -> None:
            await self.receiver.start()
            self._ready.set()
            await self._stop.wait()
            await self.receiver.stop()

        self._loop.run_until_complete(main())
        self._loop.close()
