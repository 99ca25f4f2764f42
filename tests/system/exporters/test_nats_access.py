"""Access to NATS, and its error messages: with real servers that want secrets and have certificates."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stepscope as sc
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.servers import NatsAccess, Servers
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream.transport import LinkSettings
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from tests.support.basics import missing, poll, require
from tests.support.collecting import collecting, wait_until
from tests.support.collectors import COMMAND, journals, spans_whole
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.nats import NatsServer
from tests.support.nkeys import Operator

QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)
SECRET = "hunter2"


class Certificates(NamedTuple):
    """PEM files of an authority and of those that it vouches for."""

    ca: Path
    server: Path
    client: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Made with openssl: a server's for 127.0.0.1, and a client's, each with its key in the same file."""
    if shutil.which("openssl") is None:
        missing("openssl", "Install it (on Debian: apt-get install openssl).")
    place = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    # Python from 3.13 on asks for what RFC 5280 asks for: what the authority's key is for, and by which one others are signed.
    authority = ("-days", "2", "-subj", "/CN=authority", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", *new, *authority, "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("server", "client"):
        openssl("req", *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (place / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "extensions", "-out", f"{name}.crt",
        )  # fmt: skip
        (place / f"{name}.pem").write_bytes((place / f"{name}.crt").read_bytes() + (place / f"{name}.key").read_bytes())
    return Certificates(place / "ca.pem", place / "server.pem", place / "client.pem")


Start = Callable[..., NatsServer]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Starts servers with more in their configuration, and ends them."""
    started: list[NatsServer] = []

    def one(config: str) -> NatsServer:
        started.append(NatsServer(tmp_path / "jetstream", config))
        return started[-1]

    yield one
    for server in started:
        server.kill()


def file(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


async def sent(url: str, access: NatsAccess, directory: Path) -> str:
    """Streams a span; the stream's id."""
    exporter = NatsExporter(url, access=access, settings=QUICK)
    await exporter.open(run_in(directory))
    await exporter.export(batch_of(spans(["x"])))
    await exporter.aclose()
    return exporter.stream


async def stopped(exporter: NatsExporter) -> None:
    """Closes one that gets nowhere."""
    task = asyncio.ensure_future(exporter.aclose())
    await asyncio.wait([task], timeout=0.01)
    await end_tasks(task)


def check_access(directory: Path, url: str, *options: str) -> None:
    """Takes the stream with the command, with these options."""
    with collecting(directory, "--from", url, *options) as collector:
        wait_until(lambda: any(spans_whole(path) for path in journals(directory)))
        assert collector.get("/v1/job")["nats"]["connected"]


def test_tls_with_certificates_of_both(start: Start, certificates: Certificates, tmp_path: Path) -> None:
    """The server is checked, and shown who we are."""
    server = start(
        f'tls {{ cert_file: "{certificates.server}", key_file: "{certificates.server}", ca_file: "{certificates.ca}", '
        "verify: true }"
    )
    access = NatsAccess(ca=certificates.ca, certificate=certificates.client)
    asyncio.run(sent(server.url, access, tmp_path / "run"))
    url = server.url.replace("nats:", "tls:")
    check_access(
        tmp_path / "collected", url, "--nats-ca", str(certificates.ca), "--nats-certificate", str(certificates.client)
    )


async def test_a_certificate_that_nobody_vouches_for(start: Start, certificates: Certificates, tmp_path: Path) -> None:
    """The exporter's error says why nothing is sent."""
    server = start(f'tls {{ cert_file: "{certificates.server}", key_file: "{certificates.server}" }}')
    exporter = NatsExporter(server.url.replace("nats:", "tls:"), settings=QUICK)
    await exporter.open(run_in(tmp_path))
    await poll(lambda: (found := exporter.statistics()) and "CERTIFICATE_VERIFY_FAILED" in found.last_error)
    await stopped(exporter)


async def test_a_server_without_tls_gets_nothing(tmp_path: Path) -> None:
    """It may be somebody else's: neither a secret nor anything else goes there, whichever way TLS was asked for."""
    heard: list[bytes] = []
    serving: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        try:
            writer.write(b'INFO {"server_id":"x","version":"2.9.10","headers":true,"max_payload":1048576}\r\n')
            heard.append(await reader.read(1000))
        finally:
            writer.close()
            await writer.wait_closed()
            serving.discard(asyncio.current_task())

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        access = NatsAccess(token_file=file(tmp_path / "secret", SECRET))
        once = LinkSettings(first_delay=10.0)
        exporter = NatsExporter(f"tls://127.0.0.1:{port}", access=access, settings=once)
        await exporter.open(run_in(tmp_path))
        await poll(lambda: heard and (found := exporter.statistics()) and "without TLS" in found.last_error)
        await stopped(exporter)
        await poll(lambda: not serving)
    assert not b"".join(heard)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "user.creds is empty"),
        ("-----BEGIN NATS USER JWT-----\n", "user.creds holds no"),
    ],
)
async def test_files_that_hold_no_secret(content: str, text: str, start: Start, tmp_path: Path) -> None:
    """That is reported, with the file's name, and the loop goes on."""
    require("nkeys")
    server = start(Operator().configuration())
    credentials = file(tmp_path / "user.creds", "the old secret")
    exporter = NatsExporter(server.url, access=NatsAccess(credentials=credentials), settings=QUICK)
    file(credentials, content)
    await exporter.open(run_in(tmp_path / "run"))
    await poll(lambda: (found := exporter.statistics()) and text in found.last_error)
    await stopped(exporter)


@pytest.mark.parametrize(
    "url", [f"nats://me:{SECRET}@host", f"tls://{SECRET}@host:4222", f"nats://h,{SECRET}@i", f"{SECRET}@h"]
)
def test_a_secret_in_a_url_is_refused(url: str) -> None:
    """The error names the replacement, and the secret is not repeated."""
    with refused(ValueError, "NatsAccess(credentials=...)", "NatsAccess(token_file=...)") as caught:
        NatsExporter(url)
    assert SECRET not in str(caught.value)


def test_commands_refuse_secrets_in_urls(tmp_path: Path) -> None:
    """And name the options to use instead."""
    arguments = ["collect", "--dir", str(tmp_path), "--port", "0", "--from", f"nats://me:{SECRET}@host"]
    done = run_to_end([*COMMAND, *arguments], timeout=60, server="command")
    assert done.returncode == 1 and "--nats-credentials" in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_other_machines_are_reached_by_tls_only(tmp_path: Path) -> None:
    """To another machine nothing goes without TLS, unless somebody says so; on this one nobody listens."""
    for url in ("nats://head:4222", "nats://10.0.0.1"):
        with refused(ValueError, "--nats-ca", "access=NatsAccess(insecure=True)", "--nats-insecure"):
            NatsExporter(url)
        assert NatsExporter(url, access=NatsAccess(insecure=True)).url == url
    with refused(ValueError, "other", "tls://", "--nats-ca", "access=NatsAccess(insecure=True)", "--nats-insecure"):
        Servers(["tls://head", "nats://other"])
    for url in ("tls://head", "nats://127.0.0.1", "nats://localhost:1", "nats://[::1]:4222"):
        assert NatsExporter(url).url == url
    (tmp_path / "ca.pem").touch()
    assert Servers("nats://head", NatsAccess(ca=tmp_path / "ca.pem")).urls == ["nats://head"]


@pytest.mark.parametrize(
    "access",
    [
        {"token_file": "gone"},
        {"credentials": "gone"},
        {"user": "me", "password_file": "gone"},
        {"ca": "gone"},
        {"certificate": "gone"},
        {"certificate": "here", "key": "gone"},
    ],
)
def test_a_file_that_is_not_there_is_reported_at_once(access: dict[str, Any], tmp_path: Path) -> None:
    """Not when the run is over and nothing was sent."""
    (tmp_path / "here").write_text("something")
    files = {name: value if name == "user" else tmp_path / value for name, value in access.items()}
    with refused(FileNotFoundError, tmp_path / "gone"):
        NatsExporter("nats://localhost", access=NatsAccess(**files))


def test_credentials_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package at once, not when the first server asks."""
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with refused(ImportError, "pip install 'stepscope[nats]'", "nkeys"):
        NatsExporter("nats://127.0.0.1", access=NatsAccess(credentials=Path("user.creds")))


def test_contradictory_credentials() -> None:
    with refused(ValueError, "NatsAccess.user", "NatsAccess.password_file"):
        sc.exporters.NatsAccess(user="me")
    with refused(ValueError, "NatsAccess.key", "NatsAccess.certificate"):
        sc.exporters.NatsAccess(key=Path("key"))
    with refused(ValueError, "NatsAccess.credentials", "NatsAccess.token_file", "NatsAccess.user"):
        sc.exporters.NatsAccess(credentials=Path("a"), token_file=Path("b"))
    with refused(ValueError, "nats://host:4222"):
        NatsExporter([])
