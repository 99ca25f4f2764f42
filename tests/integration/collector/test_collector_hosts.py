"""By which names a collector can be addressed, with which certificates, and from which pages."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.collector.errors import ListenError
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web.server import hosts_of
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.basics import poll
from tests.support.certificates import certify
from tests.support.collecting import collecting as collecting_apart
from tests.support.collecting import send_request, trained, wait_until
from tests.support.collectors import collecting, journals
from tests.support.commands import stepscope
from tests.support.messages import refused

TOKEN = "a-token-of-this-test"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}
EVERYWHERE = ("--host", "0.0.0.0")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    return certify(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for a client, and its key."""
    return certify(tmp_path_factory.mktemp("client"), "DNS:rank-0")


def status(url: str, host: str, tls: ssl.SSLContext | None = None) -> int:
    """How a request for a host is answered."""
    return send_request(f"{url.replace('0.0.0.0', '127.0.0.1')}/v1/jobs", {**ALLOWED, "Host": host}, tls=tls).status


def test_a_name_that_leads_here_is_not_ours(tmp_path: Path) -> None:
    """Also where other machines can connect, for all of its paths; the port does not matter, nor the case."""
    options = (*EVERYWHERE, "--insecure", "--allowed-host", "Head.example", "--allowed-host", "fe80::1")
    with collecting_apart(tmp_path, *options) as collector:
        for host in (
            "head.example",
            "HEAD.EXAMPLE:7788",
            "head.example.",
            "[fe80:0:0:0::1]:1",
            "127.0.0.1",
            "localhost:3",
        ):
            assert status(collector.url, host) == 200, host
        for host in ("evil.example", "head.example.evil.example", "xhead.example", "10.0.0.1", "", "["):
            assert status(collector.url, host) == 421, host
        url = collector.url.replace("0.0.0.0", "127.0.0.1")
        for path in ("/", "/healthz", "/metrics"):
            assert send_request(url + path, {"Host": "evil.example"}).status == 421
        assert "any host name" not in collector.stop()[1]


def test_the_names_of_the_certificate_are_ours(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """And the address that it listens on; a list takes their place."""
    names = "DNS:Head.example,DNS:*.cluster.example,IP:10.1.2.3,IP:fe80::1"
    made, key = certify(tmp_path, names)
    settings: dict[str, Any] = {"directory": tmp_path, "certificate": made, "key": key}
    certified = frozenset({"head.example", "*.cluster.example", "10.1.2.3", "fe80::1"})
    assert hosts_of(CollectorSettings(host="0.0.0.0", **settings)) == certified
    assert hosts_of(CollectorSettings(host="10.9.9.9", insecure=True, **settings)) == certified | {"10.9.9.9"}
    assert hosts_of(CollectorSettings(host="0.0.0.0", allowed_hosts=("a", "B"), **settings)) == frozenset("ab")
    assert hosts_of(CollectorSettings(**settings)) == frozenset(), "on loopback there is no other name"
    assert hosts_of(CollectorSettings(directory=tmp_path, host="10.9.9.9")) == frozenset({"10.9.9.9"})
    assert hosts_of(CollectorSettings(directory=tmp_path, host="10.9.9.9", insecure=True)) is None
    options = (*EVERYWHERE, "--certificate", str(made), "--key", str(key))
    with collecting_apart(tmp_path / "c", *options, STEPSCOPE_TOKEN=TOKEN) as collector:
        tls = ssl.create_default_context(cafile=str(made))
        tls.check_hostname = False
        for host, expected in {"head.example": 200, "rank-3.cluster.example:1": 200, "10.1.2.3": 200}.items():
            assert status(collector.url, host, tls) == expected
        for host in ("cluster.example", "a.b.cluster.example", "0.0.0.0", "evil.example"):
            assert status(collector.url, host, tls) == 421, host


def test_a_certificate_without_names_wants_a_list(tmp_path: Path) -> None:
    """Else nobody could ask for anything; one that cannot be read is named."""
    made, key = certify(tmp_path, "")
    with refused(ListenError, made, "--allowed-host"):
        hosts_of(CollectorSettings(directory=tmp_path, host="0.0.0.0", certificate=made, key=key))
    with refused(ListenError, tmp_path / "none", "--allowed-host"):
        hosts_of(CollectorSettings(directory=tmp_path, host="0.0.0.0", certificate=tmp_path / "none"))


def test_pages_of_other_ports_start_no_download(tmp_path: Path) -> None:
    """They cannot read it, but two of them keep others waiting; by hand, from the page or from a script it goes."""
    with collecting_apart(tmp_path) as collector:
        trained(collector.url, 0, world=1)
        (rank,) = wait_until(lambda: [one for one in collector.get("/v1/ranks") if one["state"] == "ended"])
        stream = f"/v1/streams/{rank['stream']}"
        for path in (
            f"{stream}/journal",
            f"{stream}/windows/0/chrome",
            f"{stream}/windows/0/statistics",
            "/v1/windows/0/chrome",
        ):
            for site, expected in (("same-site", 403), ("cross-site", 403), ("same-origin", 200), ("none", 200)):
                assert send_request(collector.url + path, {"Sec-Fetch-Site": site}).status == expected, (path, site)
            assert send_request(collector.url + path).status == 200


def handshake(
    port: int, made: Path, ciphers: str = "", version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
) -> tuple[str, str]:
    """The version and the cipher on which a client of an older version agrees with a collector."""
    tls = ssl.create_default_context(cafile=str(made))
    tls.minimum_version, tls.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, version
    tls.set_ciphers(ciphers or "ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", port), 30) as one,
        tls.wrap_socket(one, server_hostname="127.0.0.1") as agreed,
    ):
        cipher = agreed.cipher()
        assert cipher is not None
        return agreed.version() or "", cipher[0]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_and_ciphers_are_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """TLS 1.2 has forward secrecy and authenticated encryption, or is none; 1.1 is none."""
    made, key = certificate
    with collecting_apart(tmp_path, "--certificate", str(made), "--key", str(key)) as collector:
        port = urlsplit(collector.url).port or 0
        version, cipher = handshake(port, made)
        assert version == "TLSv1.2" and cipher.startswith("ECDHE-ECDSA-") and "SHA" in cipher
        for ciphers in ("ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0", "ECDHE-ECDSA-AES128-SHA256:@SECLEVEL=0"):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(port, made, ciphers)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(port, made, version=ssl.TLSVersion.TLSv1_1)
        assert handshake(port, made, version=ssl.TLSVersion.TLSv1_3)[0] == "TLSv1.3"


def test_client_certificates(tmp_path: Path, certificate: tuple[Path, Path], client: tuple[Path, Path]) -> None:
    """A client without a trusted certificate is refused with a line in the log, and gets no answer."""
    made, key = certificate
    shown, its_key = client
    options = ("--certificate", str(made), "--key", str(key), "--client-ca", str(shown))
    with collecting_apart(tmp_path / "c", *options, STEPSCOPE_TOKEN=TOKEN) as collector:
        tls = ssl.create_default_context(cafile=str(made))
        for wrong in ((), (made, key)):
            if wrong:
                tls.load_cert_chain(*wrong)
            with pytest.raises(OSError):
                send_request(f"{collector.url}/healthz", tls=tls)
        tls.load_cert_chain(shown, its_key)
        assert send_request(f"{collector.url}/healthz", tls=tls).status == 200
        assert send_request(f"{collector.url}/v1/jobs", tls=tls).status == 401, "it is no token"
        assert send_request(f"{collector.url}/v1/jobs", ALLOWED, tls=tls).status == 200
        token = tmp_path / "token"
        token.write_text(TOKEN)
        command = (
            "arm",
            "--status",
            "--url",
            collector.url,
            "--token-file",
            str(token),
            "--ca",
            str(made),
            "--timeout",
            "5",
        )
        assert "cannot be reached" in stepscope(*command, cwd=tmp_path).stderr
        done = stepscope(*command, "--certificate", str(shown), "--key", str(its_key), cwd=tmp_path)
        assert "404, none of 0 connected processes" in done.stderr
        done = stepscope(*command, "--certificate", str(tmp_path / "none"), cwd=tmp_path)
        assert done.returncode == 1 and "--certificate, --key) cannot be used" in done.stderr
        journal = JournalWriter(tmp_path / "run" / "journal")
        journal.open(run_in(tmp_path / "run"))
        journal.close()
        command = ("deliver", str(tmp_path / "run"), *command[2:-2], "--timeout", "10")
        done = stepscope(*command, "--certificate", str(shown), "--key", str(its_key), cwd=tmp_path)
        assert done.returncode == 0 and "delivered" in done.stdout, done.stderr
        output = collector.stop()[1]
    assert "127.0.0.1" in output and "it shows no certificate (--client-ca)" in output
    assert "its certificate is not valid: " in output and "Traceback" not in output


async def test_an_exporter_shows_its_certificate(
    tmp_path: Path, certificate: tuple[Path, Path], client: tuple[Path, Path]
) -> None:
    """By the context in its arguments."""
    made, key = certificate
    settings = sc.exporters.LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.2)
    async with collecting(tmp_path / "c", certificate=made, key=key, client_ca=client[0]) as running:
        tls = ssl.create_default_context(cafile=str(made))
        tls.load_cert_chain(*client)
        https: Any = running.server.config.http_protocol_class
        assert https.args[0].minimum_version is ssl.TLSVersion.TLSv1_2, "with any ciphers"
        exporter = sc.CollectorExporter(running.url.replace("ws:", "wss:"), settings=settings, tls=tls)
        await exporter.open(run_in(tmp_path / "run"))
        await poll(lambda: (found := exporter.statistics()) is not None and found.connected)
        await exporter.export(batch_of(spans(["work"])))
        await exporter.aclose()
        assert exporter.unsent_files is None and len(list(journals(running.directory))) == 1
        assert running.collector.audit.refused == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.close()  # it says nothing: that is no refusal
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await poll(lambda: not running.server.server_state.connections)
        assert running.collector.audit.refused == 0


def test_client_certificates_want_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a certificate of its own the collector would ask nobody for one."""
    with refused(ValueError, "--client-ca", "certificate"):
        CollectorSettings(directory=tmp_path, client_ca=tmp_path / "ca.pem")
    with pytest.raises(SystemExit):
        main(["collect", "--dir", str(tmp_path / "c"), "--client-ca", str(tmp_path / "ca.pem")])
    assert "--client-ca" in capsys.readouterr().err
    made, key = certify(tmp_path)
    with refused(ListenError, "none.pem") as caught:
        asyncio.run(
            _serve(CollectorSettings(directory=tmp_path, certificate=made, key=key, client_ca=tmp_path / "none.pem"))
        )
    assert str(made) in str(caught.value)


async def _serve(settings: CollectorSettings) -> None:
    from stepscope.collector.app import Collector

    async with Collector(settings).serving():
        pytest.fail("it serves")
