"""The part of a collector that ingests from NATS, without its web server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from stepscope.collector.audit import Audit
from stepscope.collector.clocks.server_clock import ServerClock
from stepscope.collector.files.store import Store
from stepscope.collector.live.streams import Streams
from stepscope.collector.memory_budget import MemoryBudget
from stepscope.collector.nats.source import NatsSource
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.nats.names import DEFAULT_TEAM, Names
from stepscope.exporters.nats.servers import NatsAccess, Servers
from tests.support.background_task import running

LEASE_SECONDS = 3.0


class Source:
    """Ingests streams from NATS into a directory."""

    def __init__(
        self,
        directory: Path,
        url: str,
        intake: MemoryBudget | None = None,
        team: str = DEFAULT_TEAM,
        access: NatsAccess | None = None,
    ) -> None:
        self.directory = directory
        settings = CollectorSettings(directory=directory)
        self.store = Store(settings)
        self.streams = Streams(100)
        self.nats = NatsSource(
            Servers(url, access),
            Names(team),
            self.store,
            self.streams,
            intake or MemoryBudget(settings.max_intake),
            ServerClock(),
            Audit(directory),
            lease_seconds=LEASE_SECONDS,
        )

    def ended(self, stream: str) -> bool:
        """True if a stream was written up to its end."""
        found = self.streams.all.get(stream)
        return found is not None and found.ended

    def next(self, stream: str) -> int:
        """Number of the first frame of a stream that was not written."""
        found = self.streams.all.get(stream)
        return 0 if found is None else found.next

    def ahead(self, number: int) -> set[str]:
        """The streams of which frames from a number on were written."""
        return {id for id, stream in self.streams.all.items() if stream.next > number}

    def stored(self) -> set[str]:
        """The streams in the directory."""
        return {stream for stream, _ in self.store.journals()}

    @property
    def partitions(self) -> int:
        """Number of partitions that it takes."""
        return self.nats.view().partitions


@contextlib.asynccontextmanager
async def ingesting(directory: Path, url: str, **options: Any) -> AsyncGenerator[Source]:
    """One that runs on the loop of the test; options are those of `Source`."""
    source = Source(directory, url, **options)
    async with running(source.nats.run()):
        yield source
