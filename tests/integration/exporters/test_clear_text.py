"""Traces and tokens go to no other machine in clear text, and to no host that a redirect names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from http import HTTPStatus
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.cli.network.collect import _exporter  # pyright: ignore[reportPrivateUsage]
from stepscope.exporters.specimens import batch_of, run_in, spans
from tests.support.basics import poll, require
from tests.support.collectors import collecting, journals
from tests.support.commands import stepscope
from tests.support.messages import check_messages, refused

QUICK = sc.exporters.LinkSettings(timeout=2.0, first_delay=0.01, longest_delay=0.05)


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_another_machine_without_tls_is_refused(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a token: the traces are readable, and commands that others send would be obeyed."""
    monkeypatch.delenv("STEPSCOPE_TOKEN", raising=False)
    url = f"{scheme}://other-host:7788"
    with refused(ValueError, "other-host", "wss://", "LinkSettings(insecure=True)"):
        sc.CollectorExporter(url)
    assert (
        sc.CollectorExporter(url, settings=sc.exporters.LinkSettings(insecure=True)).url
        == "ws://other-host:7788/v1/stream"
    )
    for loopback in ("localhost", "127.0.0.1", "[::1]"):
        sc.CollectorExporter(f"{scheme}://{loopback}:7788")
    sc.CollectorExporter("wss://other-host:7788")


def test_commands_refuse_another_machine_without_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`arm` and `deliver` name the option that allows it."""
    for command in (
        ("arm", "--steps", "1"),
        ("arm", "--status"),
        ("deliver", str(tmp_path)),
    ):
        assert main([*command, "--url", "ws://other-host:7788"]) == 1, command
        check_messages(capsys.readouterr().err, "--insecure")


def test_commands_refuse_nats_on_another_machine_without_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both commands refuse: `deliver`, which sends there, and `collect`, which reads from there."""
    require("nats")
    with sc.trace(output_dir=tmp_path / "run"):
        pass
    for command in (
        ("deliver", str(tmp_path / "run"), "--url", "nats://other-host"),
        ("collect", "--dir", str(tmp_path / "c"), "--port", "0", "--from", "nats://other-host"),
    ):
        assert main([*command]) == 1, command
        check_messages(capsys.readouterr().err, "--nats-insecure")


def test_the_line_for_training_scripts_can_be_used() -> None:
    """It allows clear text where the collector was started without TLS for other machines."""
    for url in ("http://0.0.0.0:7788", "http://192.0.2.7:7788", "http://127.0.0.1:7788", "https://0.0.0.0:7788"):
        eval(_exporter(url, None), {"sc": sc})
    assert "insecure" not in _exporter("http://127.0.0.1:7788", None)


def test_otlp_refuses_secrets_in_clear_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names of headers and parameters, which are shown; their values are not."""
    for endpoint, headers in (
        ("http://other-host:4318", {"Authorization": "Bearer hunter2"}),
        ("http://other-host:4318", {"x-api-key": "hunter2"}),
        ("http://other-host:4318/?api_key=hunter2", {}),
    ):
        with refused(ValueError, "other-host", "https://", "OtlpOptions(insecure=True)") as caught:
            sc.exporters.OtlpExporter(endpoint, headers=headers)
        assert "hunter2" not in str(caught.value)
        sc.exporters.OtlpExporter(endpoint, headers=headers, options=sc.exporters.OtlpOptions(insecure=True))
        sc.exporters.OtlpExporter(endpoint.replace("http:", "https:"), headers=headers)
        sc.exporters.OtlpExporter(endpoint.replace("other-host", "127.0.0.1"), headers=headers)
        with monkeypatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
            sc.exporters.OtlpExporter(endpoint, headers=headers)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hunter2")
    with refused(
        ValueError, "api-key", "other-host", "https://", "OtlpOptions(insecure=True)", "OTEL_EXPORTER_OTLP_INSECURE"
    ):
        sc.exporters.OtlpExporter("http://other-host:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-scope-orgid=team")
    sc.exporters.OtlpExporter("http://other-host:4318")  # a tenant's name is no secret


def test_otlp_warns_of_traces_in_clear_text(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each exporter, with the host and what to do, unless it was allowed."""
    sc.exporters.OtlpExporter("http://other-host:4318")
    (text,) = caplog.messages
    assert text.startswith("traces go to other-host over http:, where others can read them; use https://, or allow it")
    caplog.clear()
    sc.exporters.OtlpExporter("https://other-host:4318")
    sc.exporters.OtlpExporter("http://127.0.0.1:4318")
    sc.exporters.OtlpExporter("http://other-host:4318", options=sc.exporters.OtlpOptions(insecure=True))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
    sc.exporters.OtlpExporter("http://other-host:4318")
    assert caplog.messages == []


@contextlib.asynccontextmanager
async def redirecting(status: int, to: str) -> AsyncGenerator[str]:
    """A server that answers every request with a redirect; its host and port."""
    answer = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer.encode())
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(client, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_stream_follows_no_redirect(tmp_path: Path) -> None:
    """A collector that a redirect names gets nothing, and the error says where it led."""
    async with (
        collecting(tmp_path / "c") as elsewhere,
        redirecting(308, f"{elsewhere.url}/v1/stream?secret=hunter2") as named,
    ):
        exporter = sc.CollectorExporter(f"ws://{named}", settings=QUICK)
        await exporter.open(run_in(tmp_path / "run"))
        await poll(lambda: (found := exporter.statistics()) is not None and found.refused)
        found = exporter.statistics()
        assert found is not None
        assert f"it answered 308 to the connection, a redirect to {elsewhere.url}/v1/stream, which is not followed" in (
            found.last_error
        )
        assert "hunter2" not in found.last_error
        await exporter.export(batch_of(spans(["work"])))
        await exporter.aclose()
        assert exporter.unsent_files is not None
        assert list(journals(elsewhere.directory)) == []


async def test_commands_follow_no_redirect(tmp_path: Path) -> None:
    """`arm` and `deliver` ask nobody but who was named."""
    with sc.trace(output_dir=tmp_path / "run"):
        pass
    async with collecting(tmp_path / "c") as elsewhere, redirecting(307, elsewhere.url) as named:
        for command in (
            ("arm", "--status", "--url", f"http://{named}"),
            ("deliver", str(tmp_path / "run" / "journal"), "--url", f"ws://{named}"),
        ):
            done = await asyncio.to_thread(stepscope, *command, cwd=tmp_path)
            assert done.returncode == 1, done
            assert "answered 307" in done.stderr and f"a redirect to {elsewhere.url}" in done.stderr
        assert list(journals(elsewhere.directory)) == []
