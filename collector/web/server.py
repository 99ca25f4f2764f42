"""The web server of a collector: its socket, its certificate and its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from litestar.types import ASGIApp

from stepscope.collector.errors import ListenError
from stepscope.collector.memory_budget import MemoryBudget
from stepscope.collector.settings import CollectorSettings, host_name
from stepscope.collector.web.web_protocols import ConnectionLimit, Handshake, HttpProtocol, WebSocketProtocol
from stepscope.exporters.stream.address import is_local

TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""As OpenSSL names them: with forward secrecy and authenticated encryption. Those of TLS 1.3 all have both."""
GRACE = 4
"""Seconds that requests have to end when the server is stopped."""


class Server(uvicorn.Server):
    """Installs no signal handlers, and calls back when it is about to end.

    It then closes WebSockets with 1012, which means that the service restarts.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: CollectorSettings,
        budget: MemoryBudget,
        ending: Callable[[], Awaitable[object]],
        refused: Callable[[str, tuple[str, int] | None], object],
    ) -> None:
        """
        Args:
            ending: called when no further request is taken.

        Raises:
            ListenError: if the certificate cannot be used.
        """
        limit = ConnectionLimit(settings.max_streams + settings.max_readers, refused)
        # uvicorn calls whatever makes a protocol, though it says that it wants a class.
        http: Any = partial(HttpProtocol, limit)
        sockets: Any = partial(WebSocketProtocol, budget)
        config = uvicorn.Config(
            app,
            http=http,
            ws=sockets,
            ws_max_size=settings.max_message,
            ws_per_message_deflate=False,
            ws_ping_interval=None,  # confirmations and comparisons of clocks are the signs of life (idle_timeout)
            lifespan="off",
            log_config=None,  # logging belongs to the program
            access_log=False,
            server_header=False,
            proxy_headers=False,  # else whoever is on this machine chooses the address that the audit has
            timeout_graceful_shutdown=GRACE,
            ssl_certfile=settings.certificate,
            ssl_keyfile=None if settings.key is None else str(settings.key),
            ssl_ciphers=TLS_1_2_CIPHERS,
            ssl_ca_certs=settings.client_ca,
            ssl_cert_reqs=ssl.CERT_NONE if settings.client_ca is None else ssl.CERT_REQUIRED,
        )
        try:
            config.load()
        except OSError as error:  # of ssl, too
            authorities = "" if settings.client_ca is None else f", or the authorities in {settings.client_ca},"
            raise ListenError(f"the certificate {settings.certificate}{authorities} cannot be used: {error}") from error
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
            https: Any = partial(Handshake, config.ssl, limit)
            config.http_protocol_class = https
            config.ssl = None  # the loop has nothing to do with it
        super().__init__(config)
        self._ending = ending

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves the signal handlers as they are."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the connections."""
        await self._ending()
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Stops the server; called a second time, without waiting for connections."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextlib.asynccontextmanager
    async def listening(self, settings: CollectorSettings) -> AsyncGenerator[str]:
        """Listens inside; gives the address, as browsers want it. Raises `ListenError` if the address is taken, or none
        of this machine."""
        bound = await asyncio.to_thread(_bind, settings.host, settings.port)
        task = asyncio.create_task(self.serve([bound]), name="stepscope collector")
        try:
            while not self.started and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            if self.started:
                scheme = "http" if settings.certificate is None else "https"
                host = f"[{settings.host}]" if ":" in settings.host else settings.host
                yield f"{scheme}://{host}:{bound.getsockname()[1]}"
        finally:
            self.should_exit = True
            await task
            bound.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ListenError(f"the collector cannot listen on {host}, port {port}: {error.strerror or error}") from error


def hosts_of(settings: CollectorSettings) -> frozenset[str] | None:
    """The names and addresses by which clients may address a collector, beside those of loopback; `None`: any. Raises
    `ListenError` if they should be those of the certificate, and it cannot be used or has none."""
    if settings.allowed_hosts:
        return frozenset(map(host_name, settings.allowed_hosts))
    if is_local(settings.host):
        return frozenset()
    own = frozenset[str]() if settings.host in ("0.0.0.0", "::") else frozenset({host_name(settings.host)})
    if settings.certificate is None:
        return None if settings.insecure else own
    own |= _certified(settings.certificate, settings.key)
    if not own:
        raise ListenError(
            f"the certificate {settings.certificate} names no host (subjectAltName); give --allowed-host NAME"
        )
    return own


def _certified(certificate: Path, key: Path | None) -> frozenset[str]:
    """The names in a certificate, as a client sees them: both ends of a connection are in memory."""
    try:
        accepting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        accepting.load_cert_chain(certificate, key)
        asking = ssl.create_default_context(cafile=str(certificate))
        asking.check_hostname = False
        asking.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client, server = asking.wrap_bio(back, there), accepting.wrap_bio(there, back, server_side=True)
        for end in (client, server, client):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        found = client.getpeercert() or {}
    except OSError as error:  # of ssl, too
        raise ListenError(
            f"the names in the certificate {certificate} cannot be read: {error.strerror or error}; mend it, or give --allowed-host NAME"
        ) from error
    names: Any = found.get("subjectAltName", ())
    return frozenset(host_name(name) for kind, name in names if kind in ("DNS", "IP Address"))
