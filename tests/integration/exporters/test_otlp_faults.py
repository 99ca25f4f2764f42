"""Faults of a receiver: nothing is lost that could be delivered, and losses are counted by reason."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import time
from collections import Counter
from pathlib import Path

import aiohttp
import anyio
import msgspec
import pytest

import stepscope as sc
from stepscope.exporters.otlp.exporter import OtlpExporter
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.runtime.errors import BrokenError
from stepscope.runtime.events.record import Kind
from tests.support.basics import BUSY
from tests.support.certificates import certify
from tests.support.messages import refused
from tests.support.receiver import Receiver, ReceiverThread, Reply, receiver

EVENTS = 20
QUICK = OtlpOptions(retry_seconds=20.0, first_delay=0.02, longest_delay=0.1)
PLAIN = msgspec.structs.replace(QUICK, spans_per_second=None, metrics=False)


class Sent:
    """The result for the events of one window."""

    def __init__(self) -> None:
        self.exported = 0
        self.dropped: Counter[str] = Counter()
        self.errors: list[str] = []


async def send(exporter: OtlpExporter, path: Path) -> Sent:
    """Sends one window, as an exporter's worker would."""
    sent = Sent()
    batch = batch_of(spans([f"span {number}" for number in range(EVENTS)]))
    await exporter.open(run_in(path))
    for call in (exporter.export(batch), exporter.close_window(window_of(0, batch)), exporter.aclose()):
        try:
            await call
        except BrokenError as error:
            sent.errors.append(str(error))
        for result in exporter.delivery_results():
            sent.exported += result.exported
            sent.dropped.update(result.dropped)
    assert sent.exported + sent.dropped.total() == EVENTS
    return sent


def everything(server: Receiver) -> bool:
    return server.names() == Counter({f"span {number}": 1 for number in range(EVENTS)})


async def test_temporary_failures_are_tried_again(tmp_path: Path) -> None:
    """The four codes of the specification, one after the other."""
    async with receiver() as server:
        server.replies = [Reply(status) for status in (503, 429, 502, 504)]
        sent = await send(OtlpExporter(server.url, options=PLAIN), tmp_path)
        assert everything(server) and sent.exported == EVENTS and not sent.errors
        assert len({got.size for got in server.received[:5]}) == 1  # the same request


@pytest.mark.parametrize("status", [301, 400, 500])
async def test_permanent_failures_are_not_tried_again(status: int, tmp_path: Path) -> None:
    """One attempt, one error that says where and what; a redirection is not followed."""
    async with receiver() as server:
        server.replies = [Reply(status, (("Location", f"{server.url}/elsewhere"),), b"a reason")]
        sent = await send(OtlpExporter(server.url, options=PLAIN), tmp_path)
        assert sent.dropped == {"rejected": EVENTS}
        (error,) = sent.errors
        assert f"{server.url}/v1/traces: {status}" in error and "a reason" in error
        assert (f"a redirect to {server.url}/elsewhere, which is not followed" in error) == (status == 301)
        assert {got.path for got in server.received} == {"/v1/traces"}


async def test_a_token_that_has_expired_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a function, or by the environment's variable; once for each request, and without losing one."""
    tokens = iter(["Bearer old", "Bearer new"])
    for headers in (lambda: {"Authorization": next(tokens)}, None):
        async with receiver() as server:
            server.replies = [Reply(401)]
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer old")
            exporter = OtlpExporter(server.url, headers=headers, options=PLAIN)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer new")
            sent = await send(exporter, tmp_path)
            assert sent.exported == EVENTS and not sent.errors and everything(server)
            used = [got.headers["authorization"] for got in server.received]
            assert used[:2] == ["Bearer old", "Bearer new"] and set(used[1:]) == {"Bearer new"}


async def test_headers_that_do_not_help_are_asked_for_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The receiver goes on refusing, or the function fails: the request is lost, and a secret is not shown."""
    asked = 0

    def headers() -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise RuntimeError("secret-of-the-function")
        return {"Authorization": f"Bearer secret-{asked}"}

    async with receiver() as server:
        server.always = Reply(401, body=b"no: Bearer secret-1 secret-2")
        sent = await send(OtlpExporter(server.url, headers=headers, options=PLAIN), tmp_path)
        assert sent.dropped == {"rejected": EVENTS} and "401" in sent.errors[0]
        assert [got.headers["authorization"] for got in server.received[:2]] == ["Bearer secret-1", "Bearer secret-2"]
    assert "cannot be read again: RuntimeError" in caplog.text
    assert "secret" not in caplog.text + "".join(sent.errors)


@pytest.mark.parametrize("fault", ["drop", "drop in body", "half an answer", "close after", "hang"])
async def test_broken_connections_are_made_anew(fault: str, tmp_path: Path) -> None:
    """Wherever it breaks, every span is there in the end; a store recognises those that came twice by their ids."""
    options = msgspec.structs.replace(PLAIN, timeout=0.5, batch_spans=5)
    async with receiver() as server:
        server.replies = [Reply(), Reply(fault=fault), Reply(), Reply(fault=fault)]  # type: ignore[arg-type]
        sent = await send(OtlpExporter(server.url, options=options), tmp_path)
        assert everything(server) and sent.exported == EVENTS and not sent.errors
        assert server.connections >= 2


async def test_a_receiver_that_asks_for_too_long_is_given_up(tmp_path: Path) -> None:
    """An hour is longer than there is; nobody waits for nothing, and it is not asked again."""
    options = msgspec.structs.replace(PLAIN, retry_seconds=0.3)
    async with receiver() as server:
        server.always = Reply(503, (("Retry-After", "3600"),))
        sent = await send(OtlpExporter(server.url, options=options), tmp_path)
        assert sent.dropped == {"unsent": EVENTS}
        assert "503" in sent.errors[0] and "given up after 0.3 s" in sent.errors[0]
        assert len(server.received) == len({request.path for request in server.received})


@pytest.mark.parametrize("claim", [10**9, -5])
async def test_partial_success_is_not_believed_beyond_reason(claim: int, tmp_path: Path) -> None:
    """The accounts stay whole whatever a receiver says."""
    async with receiver() as server:
        server.replies = [Reply(rejects=claim)]
        sent = await send(OtlpExporter(server.url, options=PLAIN), tmp_path)
        assert sent.dropped == ({"rejected": EVENTS} if claim > 0 else {})


async def test_spans_for_a_receiver_that_is_away_are_dropped_and_counted(tmp_path: Path) -> None:
    """A receiver that is away costs the spans that could not wait, and says so."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        options = msgspec.structs.replace(PLAIN, retry_seconds=0.2)
        sent = await send(OtlpExporter(url, options=options), tmp_path)
    assert sent.dropped == {"unsent": EVENTS}
    assert f"cannot connect to 127.0.0.1:{url.rpartition(':')[2]}: Connection refused" in sent.errors[0]
    assert "ssl" not in sent.errors[0]


async def test_a_receiver_without_metrics_is_asked_once(tmp_path: Path) -> None:
    """Stores of traces refuse metrics: spans go on arriving."""
    async with receiver() as server:
        exporter = OtlpExporter(server.url, options=OtlpOptions())
        counters = spans(["loss"] * 3)
        counters["kind"] = int(Kind.COUNTER)
        await exporter.open(run_in(tmp_path))
        errors: list[str] = []
        counted: Counter[str] = Counter()
        for window in range(3):
            batch = batch_of(counters.copy(), window=window)
            await exporter.export(batch)
            server.replies = [] if window else [Reply(404)]  # the metrics come before the window's span
            try:
                await exporter.close_window(window_of(window, batch))
            except BrokenError as error:
                errors.append(str(error))
            for result in exporter.delivery_results():
                counted.update(result.dropped)
        await exporter.aclose()
        assert len([got for got in server.received if got.path == "/v1/metrics"]) == 1
        assert counted == {"rejected": 9}
        assert len(errors) == 1 and "metrics=False" in errors[0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that only those trust who name it, and its key."""
    return certify(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("trust", ["unknown", "named", "unchecked"])
async def test_certificates_are_checked(trust: str, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing goes to a receiver whose certificate is not trusted, unless an option allows it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    options = OtlpOptions(
        metrics=False, spans_per_second=None, certificate=str(certificate[0]) if trust == "named" else None,
        verify=trust != "unchecked",
    )  # fmt: skip
    async with receiver(context) as server:
        sent = await send(OtlpExporter(server.url, headers={"x-key": "secret"}, options=options), tmp_path)
        if trust == "unknown":
            assert sent.dropped == {"rejected": EVENTS} and not server.received
            assert "OtlpOptions.certificate" in sent.errors[0]
        else:
            assert everything(server) and not sent.errors


async def test_a_receiver_that_wants_tls_is_named(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """The message names the probable cause of connections that end without an answer, and the remedy."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    options = msgspec.structs.replace(PLAIN, retry_seconds=0.0)
    async with receiver(context) as server:
        sent = await send(OtlpExporter(server.url.replace("https:", "http:"), options=options), tmp_path)
    assert "probably wants TLS, use https://" in sent.errors[0]


async def test_a_receiver_that_has_no_tls_is_named(tmp_path: Path) -> None:
    """In place of what the library of TLS says of its answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        sent = await send(OtlpExporter(url, options=PLAIN), tmp_path)
    assert "speaks no TLS: use http://" in sent.errors[0]


@pytest.mark.parametrize("reply", [Reply(fault="hang"), Reply(429, (("Retry-After", "600"),))])
def test_the_end_waits_for_no_receiver(reply: Reply, tmp_path: Path) -> None:
    """Closing keeps its deadline, and what was not sent by then is counted."""
    with ReceiverThread() as server:
        server.always = reply
        exporter = OtlpExporter(server.url, options=OtlpOptions(metrics=False))
        profiler = sc.trace(exporters=[exporter], output_dir=tmp_path, options=sc.Options(close_timeout=1.0))
        with profiler:
            for _ in range(50):
                with sc.span("work"):
                    pass
                profiler.step()
            begun = time.monotonic()
        assert time.monotonic() - begun <= 1.0 + BUSY
        assert not profiler.audit()
        pipeline = profiler.statistics().pipeline
        assert pipeline is not None
        (output,) = [output for output in pipeline.exporters if output.name == exporter.name]
        assert sum(output.ledger.dropped.values()) == output.ledger.offered
        assert set(output.ledger.dropped) <= {"closed", "unsent"}
        assert output.ledger.offered > 100


def test_the_end_gives_a_dead_receiver_up(tmp_path: Path) -> None:
    """One that has failed for long is not waited for until the deadline, and the spans that it has not accepted are counted."""
    reached = threading.Event()
    with ReceiverThread() as server:
        server.always = Reply(503)
        server.seen = lambda _: reached.set()
        options = OtlpOptions(metrics=False, retry_seconds=600.0, closing_seconds=0.2, hold_seconds=0.001)
        exporter = OtlpExporter(server.url, options=options)
        with sc.trace(exporters=[exporter], output_dir=tmp_path, options=sc.Options(close_timeout=60.0)) as profiler:
            for _ in range(50):
                with sc.span("work"):
                    time.sleep(0.001)
                profiler.step()
            assert reached.wait(30.0)
    assert not profiler.audit()
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    (output,) = [output for output in pipeline.exporters if output.name == exporter.name]
    assert output.ledger.dropped == {"unsent": output.ledger.offered}, "not `closed`, which the deadline would say"
    assert "given up as the run ends" in output.first_error


async def end_after_a_failure(exporter: OtlpExporter, server: Receiver) -> None:
    """Says that the end has come, as an exporter's worker would, when the first request has failed."""
    while len(server.received) < 2:
        if server.received:
            exporter.closing()
        await anyio.sleep(0.02)


async def test_the_end_finds_a_receiver_that_is_back(tmp_path: Path) -> None:
    """An attempt that would come much later comes at once, and everything goes that the receiver takes."""
    options = msgspec.structs.replace(PLAIN, first_delay=60.0, longest_delay=600.0, retry_seconds=3600.0, batch_spans=5)
    async with receiver() as server:
        server.replies = [Reply(503)]
        exporter = OtlpExporter(server.url, options=options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_after_a_failure, exporter, server)
            with anyio.fail_after(30.0):
                sent = await send(exporter, tmp_path)
                assert everything(server) and sent.exported == EVENTS and not sent.errors


async def test_the_end_waits_as_long_as_a_receiver_asks(tmp_path: Path) -> None:
    """One that throttles is not asked before its time, also at the end."""
    options = msgspec.structs.replace(PLAIN, closing_seconds=30.0)
    async with receiver() as server:
        server.replies = [Reply(429, (("Retry-After", "1"),))]
        exporter = OtlpExporter(server.url, options=options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_after_a_failure, exporter, server)
            sent = await send(exporter, tmp_path)
            assert everything(server) and not sent.dropped
        assert server.received[1].at - server.received[0].at >= 1.0


@pytest.mark.parametrize("most", [1000, 6000])
async def test_large_requests_go_in_parts(most: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every span arrives once, however little a receiver takes at a time. One warning names the setting."""
    async with receiver() as server:
        server.most_bytes = most
        options = msgspec.structs.replace(PLAIN, compression="none")
        sent = await send(OtlpExporter(server.url, options=options), tmp_path)
        assert everything(server) and sent.exported == EVENTS and not sent.errors
        ids = [bytes(span.span_id) for span in server.all_spans]
        assert len(ids) == len(set(ids))
        assert max(got.size for got in server.received if got.size <= most) > most // 4
        warnings = [record for record in caplog.records if "OtlpOptions.batch_bytes" in record.getMessage()]
        assert len(warnings) == (most < 6000)


async def test_a_span_that_is_too_large_alone_costs_itself(tmp_path: Path) -> None:
    """It is counted as rejected; what was with it arrives."""
    async with receiver() as server:
        server.most_bytes = 900
        names = [f"span {number}" for number in range(EVENTS)]
        names[7] = "x" * 3000
        exporter = OtlpExporter(server.url, options=msgspec.structs.replace(PLAIN, compression="none"))
        await exporter.open(run_in(tmp_path))
        batch = batch_of(spans(names))
        await exporter.export(batch)
        with refused(BrokenError, "413", snapshot=False):  # versions of Python name this status differently
            await exporter.close_window(window_of(0, batch))
        (result,) = exporter.delivery_results()
        await exporter.aclose()
        assert (result.exported, result.dropped) == (EVENTS - 1, {"rejected": 1})
        assert server.names() == Counter(name for name in names if len(name) < 100)


async def test_a_cancelled_end_closes_every_session(tmp_path: Path) -> None:
    """Those of all signals: closing is cancelled at its deadline."""

    def open_sessions() -> list[aiohttp.ClientSession]:
        return [each for each in gc.get_objects() if type(each) is aiohttp.ClientSession and not each.closed]

    before = len(open_sessions())
    exporter = OtlpExporter("http://127.0.0.1:9", options=QUICK)
    await exporter.open(run_in(tmp_path))
    assert len(open_sessions()) >= before + 2
    with anyio.CancelScope() as scope:
        scope.cancel()
        await exporter.aclose()
    assert len(open_sessions()) == before
