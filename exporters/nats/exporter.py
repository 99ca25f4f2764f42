"""The exporter that streams a run into NATS JetStream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stepscope.exporters.collector import protocol
from stepscope.exporters.collector.exporter import CollectorExporter
from stepscope.exporters.collector.settings import LinkSettings

if TYPE_CHECKING:
    from stepscope.exporters.nats.link import NatsLink

MAX_FRAME = 1 << 19
"""Bytes: a server takes messages of 1 MiB unless it is told otherwise."""


class NatsExporter(CollectorExporter):
    """Publishes everything to JetStream, from where `stepscope collect --from nats://…` takes it.

    As with `CollectorExporter` training is never held up, and nothing is there twice in the end: JetStream knows what
    it has stored by the ids of messages, collectors by the numbers of frames.

    Args:
        servers: one or more, such as `nats://host:4222`.
        settings: times and sizes. Messages are no larger than the server takes (1 MB unless it is told otherwise).
        access: how to get in, as `nats.connect` has it: `user_credentials="file"`, `token=…`, `tls=…`.

    Raises:
        ValueError: for a URL that is none of NATS, or that holds a password.
        ImportError: if the packages that it needs are not installed; says how to get them.
    """

    name = "nats"
    max_frame = MAX_FRAME

    def __init__(self, servers: str | Sequence[str], *, settings: LinkSettings | None = None, **access: object) -> None:
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        for server in self._servers:
            parts = urlsplit(server)
            if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
                raise ValueError("a NATS server must be such as nats://host:4222; what was given is not")
            if parts.password:
                raise ValueError("the server's url must not hold a password; give user=..., password=...")
        self._access = access
        try:
            self._nats = import_module("stepscope.exporters.nats.link")
        except ImportError as error:
            raise ImportError(f"NatsExporter needs packages: pip install 'stepscope[nats]' ({error})") from error
        super().__init__("ws://localhost", settings=settings)

    @property
    def url(self) -> str:
        """The servers."""
        return ",".join(self._servers)

    def _make_link(self, hello: Callable[[], protocol.Hello]) -> NatsLink:
        link: NatsLink = self._nats.NatsLink(
            self._servers, self._settings, self._backlog, hello, synced=self._synced, **self._access
        )
        return link
