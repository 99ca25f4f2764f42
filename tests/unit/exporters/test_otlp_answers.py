"""Answers of an OTLP receiver: the status decides, the rest is read as far as it comes, and none of them ends the exporter."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from stepscope.exporters.otlp.exporter import OtlpExporter
from tests.integration.exporters.test_otlp_faults import EVENTS, PLAIN, Sent, everything, send
from tests.support.receiver import Fault, Reply, receiver

ONCE = msgspec.structs.replace(PLAIN, retry_seconds=0.0)
OK = b"HTTP/1.1 200 OK\r\n"


def answer(rejects: int, message: str = "") -> bytes:
    """A partial success."""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = rejects
    response.partial_success.error_message = message
    return response.SerializeToString()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those of answers that cannot be read."""
    return [message for record in caplog.records if "cannot be read" in (message := record.getMessage())]


async def test_an_answer_in_segments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read to its end, and the connection is used again."""
    async with receiver() as server:
        server.replies = [Reply(fault="byte by byte", rejects=7)]
        sent = await send(OtlpExporter(server.url, options=PLAIN), tmp_path)
        assert (sent.exported, sent.dropped) == (EVENTS - 7, {"rejected": 7})
        assert everything(server) and server.connections == 1
    assert not warnings(caplog)


async def test_a_long_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read up to a bound that no receiver needs."""
    async with receiver() as server:
        server.replies = [Reply(body=answer(3, "x" * 60_000))]
        sent = await send(OtlpExporter(server.url, options=PLAIN), tmp_path)
        assert (sent.exported, sent.dropped) == (EVENTS - 3, {"rejected": 3})
    assert not warnings(caplog)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff" * 100, "no answer of OTLP"),
        (answer(3, "x" * 70_000), "longer than 65,536 bytes"),
        (gzip.compress(answer(3, "x" * 10_000_000)), "no answer of OTLP"),
    ],
)
async def test_an_answer_that_is_none_is_a_success(
    body: bytes, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Receivers answer 200 with all sorts of bodies; one warning says so, and a huge one is neither read nor decompressed."""
    async with receiver() as server:
        server.always = Reply(body=body, headers=(("Content-Encoding", "gzip"),) if body[:2] == b"\x1f\x8b" else ())
        options = msgspec.structs.replace(PLAIN, batch_spans=5)
        sent = await send(OtlpExporter(server.url, options=options), tmp_path)
        assert sent.exported == EVENTS and not sent.errors
        assert len(server.received) >= EVENTS // 5
    (warning,) = warnings(caplog)
    assert why in warning and "/v1/traces" in warning


@pytest.mark.parametrize("fault", ["half a body", "hang in body"])
async def test_a_success_that_breaks_off_is_one(fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The receiver has accepted the request, which is not sent again. A warning says that its answer is incomplete."""
    async with receiver() as server:
        server.replies = [Reply(fault=fault, rejects=7)]
        sent = await send(OtlpExporter(server.url, options=msgspec.structs.replace(PLAIN, timeout=0.5)), tmp_path)
        assert sent.exported == EVENTS and not sent.errors
        assert len(server.all_spans) == len(server.spans)
    (warning,) = warnings(caplog)
    assert "did not come" in warning


@pytest.mark.parametrize("fault", ["half a body", "hang in body"])
async def test_the_status_decides_though_the_answer_breaks_off(fault: Fault, tmp_path: Path) -> None:
    """A failure that may pass is tried again, one that will not is not."""
    options = msgspec.structs.replace(PLAIN, timeout=0.5)
    async with receiver() as server:
        server.replies = [Reply(503, body=b"reason", fault=fault)]
        sent = await send(OtlpExporter(server.url, options=options), tmp_path)
        assert everything(server) and sent.exported == EVENTS and not sent.errors
    async with receiver() as server:
        server.replies = [Reply(400, body=b"reason", fault=fault)]
        sent = await send(OtlpExporter(server.url, options=options), tmp_path)
        assert sent.dropped == {"rejected": EVENTS}
        assert "400 Bad Request: rea" in sent.errors[0] and not server.names()


async def answered(raw: bytes, path: Path) -> Sent:
    """The result for events whose only request is answered like this."""
    async with receiver() as server:
        server.always = Reply(raw=raw)
        return await send(OtlpExporter(server.url, options=ONCE), path)


@pytest.mark.parametrize(
    "raw",
    [
        OK + b"Content-Length: abc\r\n\r\n",
        OK + b"Content-Length: 1000000000000\r\n\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        OK + b"Set-Cookie: \xff=;;;=\x01; expires=x\r\nContent-Length: 0\r\n\r\n",
        OK + b"Content-Encoding: \xff\xfe\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 99999 x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::bad\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 x\r\nWWW-Authenticate: Digest \xff=,\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
    ids=lambda raw: repr(raw[:50]),
)
async def test_invalid_http_costs_its_request_at_most(raw: bytes, tmp_path: Path) -> None:
    """For any answer each event is exported, rejected or unsent, and the error names the address."""
    sent = await answered(raw, tmp_path)
    assert set(sent.dropped) <= {"rejected", "unsent"}
    assert sent.errors or not sent.dropped
    assert all("/v1/traces: " in error for error in sent.errors)
