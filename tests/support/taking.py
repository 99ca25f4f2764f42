"""Collectors that take from NATS, without their web servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from stepscope.collector.audit import Audit
from stepscope.collector.files.store import Store
from stepscope.collector.intake import Intake
from stepscope.collector.live.streams import Streams
from stepscope.collector.nats.source import NatsSource
from stepscope.collector.reference import Reference
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.nats.servers import Servers
from tests.support.beside import running

LEASE_SECONDS = 3.0


class Source:
    """A collector's part that takes from NATS."""

    def __init__(self, directory: Path, url: str, intake: Intake | None = None) -> None:
        self.directory = directory
        settings = CollectorSettings(directory=directory)
        self.store = Store(settings)
        self.streams = Streams(100)
        self.nats = NatsSource(
            Servers(url),
            self.store,
            self.streams,
            intake or Intake(settings.max_intake),
            Reference(),
            Audit(directory),
            lease_seconds=LEASE_SECONDS,
        )

    def ended(self, stream: str) -> bool:
        """Whether a stream was taken up to its end."""
        found = self.streams.all.get(stream)
        return found is not None and found.ended

    def next(self, stream: str) -> int:
        """Number of the first frame of a stream that was not taken."""
        found = self.streams.all.get(stream)
        return 0 if found is None else found.next

    def kept(self) -> set[str]:
        """The streams in the directory."""
        return {stream for stream, _ in self.store.journals()}

    @property
    def held(self) -> int:
        """How many streams it takes."""
        return self.nats.view().streams


@contextlib.asynccontextmanager
async def taking(directory: Path, url: str, intake: Intake | None = None) -> AsyncGenerator[Source]:
    """One that takes, on the loop of the test."""
    source = Source(directory, url, intake)
    async with running(source.nats.run()):
        yield source
