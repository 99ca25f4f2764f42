"""A program that has every logger at DEBUG finds no token, password or header with a secret in what is logged."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from pathlib import Path

import pytest

from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.servers import NatsAccess
from stepscope.exporters.network.secrets import QuietLogger
from stepscope.exporters.otlp.exporter import OtlpExporter
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.transport import LinkSettings
from stepscope.runtime.errors import BrokenError
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from tests.support.basics import poll, require
from tests.support.collecting import wait_until
from tests.support.collectors import Process, collecting, free_port, journals
from tests.support.collectors import spans_whole as whole
from tests.support.messages import refused
from tests.support.nats import NatsServer
from tests.support.nkeys import Operator
from tests.support.receiver import Reply, receiver

SECRET = "s3cr3t-t0ken"
WRONG = "wr0ng-s3cr3t"
QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)

LOGGING = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, filename=sys.argv.pop(1))
logging.getLogger("test").debug("begins")
from stepscope.cli.main import main
sys.exit(main())
"""
"""The command line of a program whose loggers are all at DEBUG; the first argument is the file that they write."""


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Records of all loggers, from the lowest level on that there is."""
    caplog.set_level(1)
    return caplog


def log_text(logged: pytest.LogCaptureFixture) -> str:
    """All that was logged, with what the texts were made of and what hangs on the records."""
    return logged.text + "".join(repr(vars(record)) for record in logged.records)


async def test_the_token_of_a_collector(logged: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Neither who sends nor who takes logs it, right or wrong, in WebSockets and in other requests."""
    async with collecting(tmp_path / "collected", token=SECRET) as running:
        sender = CollectorExporter(running.url, token=SECRET, settings=QUICK)
        await sender.open(run_in(tmp_path / "run"))
        await sender.export(batch_of(spans(["x"])))
        await sender.aclose()
        refused = CollectorExporter(running.url, token=WRONG, settings=QUICK)
        await refused.open(run_in(tmp_path / "other"))
        await poll(lambda: (found := refused.statistics()) and "401" in found.last_error)
        await end_tasks(asyncio.ensure_future(refused.aclose()))
        asked = urllib.request.Request(
            f"http://127.0.0.1:{running.port}/v1/job", headers={"Authorization": f"Bearer {SECRET}"}
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(asked, timeout=30).close())
    assert {"uvicorn.error", "stepscope.collector"} <= {record.name for record in logged.records}
    assert SECRET not in log_text(logged) and WRONG not in log_text(logged)


def test_a_quiet_logger_passes_warnings_on(logged: pytest.LogCaptureFixture) -> None:
    """With its logger's name, and what hangs on it."""
    quiet = QuietLogger("library")
    assert not quiet.isEnabledFor(logging.DEBUG) and quiet.isEnabledFor(logging.INFO)
    quiet.debug("> %s: %s", "Authorization", SECRET)
    quiet.warning("a connection is %s", "lost", extra={"websocket": 5})
    (record,) = (record for record in logged.records if record.name == "library")
    assert record.getMessage() == "a connection is lost" and vars(record)["websocket"] == 5


@pytest.mark.parametrize("way", ["token", "password", "credentials"])
async def test_secrets_for_nats(way: str, logged: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The file's secret appears nowhere, with access or without: for an exporter here and a collector in its own program."""
    (file := tmp_path / "secret").write_text(WRONG)
    secrets, right = [SECRET, WRONG], SECRET
    if way == "token":
        config, access = f'authorization {{ token: "{SECRET}" }}', NatsAccess(token_file=file)
    elif way == "password":
        config = f'authorization {{ user: me, password: "{SECRET}" }}'
        access = NatsAccess(user="me", password_file=file)
    else:
        require("nkeys")
        operator = Operator()
        config, access = operator.configuration(), NatsAccess(credentials=file)
        right = operator.credentials()
        secrets += [line for line in right.splitlines() if len(line) > 50]
        assert len(secrets) == 4
    log = tmp_path / "log"
    with NatsServer(tmp_path / "jetstream", config) as server:
        exporter = NatsExporter(server.url, access=access, settings=QUICK)
        await exporter.open(run_in(tmp_path / "run"))
        await poll(lambda: (found := exporter.statistics()) and found.last_error)
        file.write_text(right)
        await exporter.export(batch_of(spans(["x"])))
        await exporter.aclose()
        options = ("--from", server.url, *access.options())
        collector = Process(tmp_path / "collected", free_port(), *options, program=(LOGGING, str(log)))
        try:
            await asyncio.to_thread(wait_until, lambda: any(map(whole, journals(tmp_path / "collected"))))
        finally:
            collector.end()
    written = log.read_text()
    assert "begins" in written and "has ended" in written
    assert not [secret for secret in secrets if secret in log_text(logged) or secret in written]


async def test_headers_of_otlp(logged: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Secrets appear in no message, even if a receiver repeats them in its answer."""
    repeated = (("Set-Cookie", f"{SECRET}@=1"), ("Set-Cookie", f"a={SECRET}; Expires={SECRET}"), ("X-Back", SECRET))
    options = OtlpOptions(metrics=False, spans_per_second=None, batch_spans=1, first_delay=0.001)
    async with receiver() as server:
        server.replies = [
            Reply(503, repeated),
            Reply(headers=repeated, body=SECRET.encode()),
            Reply(400, repeated, SECRET.encode()),
            Reply(302, (*repeated, ("Location", f"http://{SECRET}/"))),
            Reply(fault="drop"),
        ]
        exporter = OtlpExporter(
            f"{server.url}?key={SECRET}", headers={"Authorization": f"Bearer {SECRET}"}, options=options
        )
        errors: list[str] = []
        await exporter.open(run_in(tmp_path))
        batch = batch_of(spans([f"span {number}" for number in range(6)]))
        for call in (exporter.export(batch), exporter.close_window(window_of(0, batch)), exporter.aclose()):
            try:
                await call
            except BrokenError as error:
                errors.append(str(error))
        assert not server.replies and {got.headers["authorization"] for got in server.received} == {f"Bearer {SECRET}"}
    assert errors and SECRET not in log_text(logged) + repr((errors, exporter, exporter.name, vars(exporter)))


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment whose scheme was forgotten."""
    for variable in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, f"me:{SECRET}@localhost:1")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("proxy")
async def test_the_password_of_a_proxy_that_is_none(logged: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Neither kind of exporter repeats it; both say what is wrong."""
    otlp = OtlpExporter("http://example.invalid", options=OtlpOptions(metrics=False, retry_seconds=0.0))
    await otlp.open(run_in(tmp_path / "otlp"))
    batch = batch_of(spans(["x"]))
    with refused(BrokenError, "http://example.invalid/v1/traces", "http://host:port") as raised:
        await otlp.export(batch)
        await otlp.close_window(window_of(0, batch))
    streaming = CollectorExporter("wss://example.invalid", settings=QUICK)
    await streaming.open(run_in(tmp_path / "stream"))
    await poll(lambda: (found := streaming.statistics()) and "proxy that the environment" in found.last_error)
    assert SECRET not in log_text(logged) + repr((raised.value, streaming.statistics()))
    with pytest.raises(BrokenError):
        await otlp.aclose()  # the run's own span
    await end_tasks(asyncio.ensure_future(streaming.aclose()))
