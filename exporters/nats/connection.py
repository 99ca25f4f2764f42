"""The connection to NATS, which sends nothing before it is as safe as it must be."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import ssl
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError

from stepscope.exporters.nats.servers import Servers
from stepscope.exporters.network.secrets import read_secret
from stepscope.runtime.loop_threads.ending_tasks import finish

CLOSING_TIMEOUT_S = 2.0
"""Seconds that a server has to take what is sent to it last."""

_PART = r"-{3,}BEGIN %s-{3,}\r?\n([A-Za-z0-9_.=-]+)\r?\n"


class Guarded(Client):
    """A client that sends its credentials to no server that is not who it should be, or whom others can listen to.

    The client of `nats` goes on without TLS where the server offers none, whatever was asked for, and connects to servers
    that others name. So what a server says of itself is looked at before anything is sent to it.
    """

    def __init__(self, servers: Servers) -> None:
        """Args: whom to connect to.

        Raises:
            NatsError: if this version of `nats` has no place where a server can be looked at.
        """
        super().__init__()
        self._servers_meant = servers
        places = {"_process_info": Client, "_current_server": self, "_transport": self}
        missing = [name for name, owner in places.items() if not hasattr(owner, name)]
        if missing:
            raise NatsError(
                f"nats: nats-py {version('nats-py')} has no Client.{', Client.'.join(missing)}, private names that it takes "
                "to look at a server before credentials are sent to it, so nothing is sent; take a version that has them"
            )

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server is not None:
            scheme, host = server.uri.scheme, server.uri.hostname or ""
            plain = not self._servers_meant.wants_tls(scheme) and self._servers_meant.may_be_plain(host)
            if not info.get("tls_required") and not plain:
                raise NatsError(f"nats: {host} does without TLS, so nothing is sent to it")
        untyped: Any = super()
        await untyped._process_info(info, initial_connection)

    async def close(self) -> None:
        """Closes the connection. Idempotent.

        No socket is left behind, also if the caller is cancelled, or the server takes nothing more.
        """
        try:
            with contextlib.suppress(TimeoutError):
                await finish(super().close(), CLOSING_TIMEOUT_S)
        finally:
            untyped: Any = self._transport
            writer: asyncio.StreamWriter | None = getattr(untyped, "_io_writer", None)
            if writer is not None:
                writer.transport.abort()  # does nothing if it is closed


async def connect(servers: Servers, **options: Any) -> Client:
    """A connection to one of these servers; without end if none is there, unless options say otherwise.

    Args:
        options: as `nats.connect` has them.

    Raises:
        OSError: if a file of the access cannot be read, or is no certificate.
        NatsError: if this version of `nats` does not let a server be looked at.
    """
    client = Guarded(servers)
    untyped: Any = client
    ways = _ways_in(servers)
    try:
        await untyped.connect(servers.urls, **ways, **options)
    except BaseException:
        # It may be half-way: who is cancelled leaves no socket behind.
        await client.close()
        raise
    return client


def _ways_in(servers: Servers) -> dict[str, Any]:
    """Options that say who we are. Files are read when they are needed, and again for each connection."""
    access, ways = servers.access, dict[str, Any]()
    if access.wants_tls or any(url.startswith("tls:") for url in servers.urls):
        ways["tls"] = ssl.create_default_context(cafile=access.ca)
        if access.certificate is not None:
            ways["tls"].load_cert_chain(access.certificate, access.key)
    if (credentials := access.credentials) is not None:
        ways["user_jwt_cb"] = partial(_credentials_block, credentials, "NATS USER JWT")
        ways["signature_cb"] = partial(_signed, credentials)
    if (token := access.token_file) is not None:
        ways["token"] = partial(_secret, token)
    if (password := access.password_file) is not None:
        ways["user"], ways["password"] = access.user, partial(_secret, password)
    return ways


def _secret(file: Path) -> str:
    try:
        return read_secret(file)
    except ValueError as error:
        raise NatsError(str(error)) from error


def _credentials_block(file: Path, what: str) -> bytearray:
    """A part of a file of credentials."""
    found = re.search(_PART % what, f"{_secret(file)}\n")
    if found is None:
        raise NatsError(f"{file} holds no {what}: it should be a file of credentials, as nsc writes it")
    return bytearray(found[1].encode())


def _signed(file: Path, nonce: str) -> bytes:
    keys: Any = import_module("nkeys")
    try:
        pair = keys.from_seed(_credentials_block(file, "USER NKEY SEED"))
    except (keys.NkeysError, ValueError) as error:
        raise NatsError(f"{file} holds a seed that is none") from error
    signature: bytes = base64.b64encode(pair.sign(nonce.encode()))
    pair.wipe()
    return signature
