"""The exporter that streams a run into NATS JetStream."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from stepscope.exporters.nats.names import DEFAULT_TEAM, Names
from stepscope.exporters.nats.servers import NatsAccess, NatsLimits, Servers
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.transport import Feed, LinkSettings
from stepscope.runtime.settings import checked

if TYPE_CHECKING:
    from stepscope.exporters.nats.transport import NatsTransport


class NatsExporter(CollectorExporter):
    """Publishes everything to JetStream, from where `stepscope collect --from nats://…` takes it.

    As with `CollectorExporter` training is never held up, and nothing is there twice in the end: JetStream knows what
    it has stored by the ids of messages, collectors by the numbers of frames.

    Args:
        servers: one or more, such as `nats://host:4222` or `tls://host`. Others than this machine want TLS.
        team: whose collectors take the stream: those with the same `stepscope collect --nats-team`. Lower-case letters, digits,
            `_` and `-`, at most 32.
        access: credentials and certificates, in files.
        limits: of what JetStream keeps, if this exporter is the first to use it.
        settings: times and sizes. Messages are no larger than the server takes (1 MB unless it is configured otherwise).

    Raises:
        ValueError: for a URL that is none of NATS or holds a secret, for one that leads to another machine without TLS, for
            a name that no team can have, and for a file that should hold a secret and is empty.
        ImportError: if the packages that it needs are not installed; says how to get them.
        OSError: if a file of the access cannot be read.
    """

    name = "nats"

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        team: str = DEFAULT_TEAM,
        access: NatsAccess | None = None,
        limits: NatsLimits | None = None,
        settings: LinkSettings | None = None,
    ) -> None:
        self._servers = Servers(servers, access)
        self._names = Names(team)
        self._limits = checked.settings("limits", limits, NatsLimits)
        try:
            self._nats = import_module("stepscope.exporters.nats.transport")
        except ImportError as error:
            raise ImportError(f"NatsExporter needs packages: pip install 'stepscope[nats]' ({error})") from error
        super().__init__("ws://localhost", settings=settings)

    @property
    def url(self) -> str:
        """The servers."""
        return str(self._servers)

    def _make_transport(self, feed: Feed) -> NatsTransport:
        made: NatsTransport = self._nats.NatsTransport(self._servers, self._names, self._limits, self._settings, feed)
        return made

    def _delivery(self) -> list[str]:
        team = [] if self._names.team == DEFAULT_TEAM else ["--nats-team", self._names.team]
        return ["--url", self._servers.urls[0], *team, *self._servers.access.options()]
