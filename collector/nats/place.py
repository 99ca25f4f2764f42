"""Where a collector takes streams from NATS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from stepscope.collector.intake import Intake
from stepscope.collector.nats.lease import Leases
from stepscope.collector.nats.members import Members
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.limits import NatsLimits


class Place(NamedTuple):
    """JetStream over one connection, and what exporters and collectors share there."""

    client: Client
    jetstream: JetStreamContext
    hellos: KeyValue
    ended: KeyValue
    leases: Leases
    members: Members
    intake: Intake
    """Bounds what is in memory of what comes from there, and from elsewhere."""

    @classmethod
    async def at(
        cls,
        client: Client,
        intake: Intake,
        limits: NatsLimits,
        lease_seconds: float,
        failed: Callable[[Exception], Awaitable[None]],
    ) -> Place:
        """What there is at a server; made if need be.

        Args:
            client: the connection.
            intake: bounds what is in memory.
            limits: of what JetStream keeps, if the stream is made.
            lease_seconds: of a lease, if the bucket of leases is made.
            failed: is told when a lease cannot be renewed.

        Raises:
            nats.errors.Error: if it is not there and cannot be made.
            TimeoutError: if nobody answers.
        """
        jetstream = layout.jetstream(client)
        max_age = await layout.stream(jetstream, limits)
        hellos = await layout.hellos(jetstream, max_age)
        # Nobody need know what has ended once JetStream has nothing of it any more.
        ended = await layout.bucket(jetstream, layout.ENDED, max_age or None)
        bucket = await layout.bucket(jetstream, layout.LEASES, lease_seconds)
        seconds = (await bucket.status()).ttl or lease_seconds
        leases = Leases(jetstream, bucket, seconds, failed)
        return cls(client, jetstream, hellos, ended, leases, Members(jetstream, bucket, seconds), intake)
