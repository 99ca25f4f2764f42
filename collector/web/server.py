"""The web server of a collector: its socket, its certificate and its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

import uvicorn
from starlette.types import ASGIApp

from stepscope.collector.errors import ListenError
from stepscope.collector.intake import Intake
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web.doorway import Doorway
from stepscope.collector.web.handshake import handshakes
from stepscope.collector.web.web_protocols import requests, sockets

TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""As OpenSSL names them: with forward secrecy and authenticated encryption. Those of TLS 1.3 all have both."""
GRACE = 4
"""Seconds that requests have to end when the server is stopped."""


class Server(uvicorn.Server):
    """Leaves signals to whoever runs it, and says when it is about to end.

    What it serves is told then: WebSockets are closed with 1012, which means that the service restarts.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: CollectorSettings,
        intake: Intake,
        ending: Callable[[], Awaitable[object]],
        refused: Callable[[str, tuple[str, int] | None], object] | None = None,
    ) -> None:
        """
        Args:
            app: what to serve.
            settings: where, and with which certificate.
            intake: bounds the messages that are in memory.
            ending: called when no further request is taken.
            refused: is told why a connection was refused that asked nothing, and its address.

        Raises:
            ListenError: if the certificate cannot be used.
        """
        doorway = Doorway(settings.max_streams + settings.max_readers)
        if refused is not None:
            doorway.refused = refused
        http = requests(doorway)
        config = uvicorn.Config(
            app,
            http=http,
            ws=sockets(intake),
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
        )
        try:
            config.load()
        except OSError as error:  # of ssl, too
            raise ListenError(f"the certificate {settings.certificate} cannot be used: {error}") from error
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
            config.http_protocol_class = handshakes(config.ssl, http)
            config.ssl = None  # the loop has nothing to do with it
        super().__init__(config)
        self._ending = ending

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Captures none."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what is served."""
        await self._ending()
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Ends it; called a second time, without waiting for anybody."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextlib.asynccontextmanager
    async def listening(self, settings: CollectorSettings) -> AsyncGenerator[str]:
        """Listens inside; gives the address, as browsers want it.

        Raises:
            ListenError: if the address is taken, or none of this machine.
        """
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
