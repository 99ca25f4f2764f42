"""The durable consumer of one stream: how far it was taken into a directory."""

from __future__ import annotations

import contextlib

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from stepscope.exporters.nats import layout

IN_HAND = 4 * layout.IN_FLIGHT
"""Messages that may be taken and not confirmed: more than those between a missing one and the first that tells that it was
stored."""
ACK_SECONDS = 10.0
"""After which JetStream sends again what was not confirmed."""
FORGOTTEN_SECONDS = 86_400.0
"""After which JetStream forgets how far a directory is whose collector does not come back."""


class Consumer:
    """What JetStream knows of one directory and one stream. Its calls raise what JetStream does."""

    def __init__(
        self, jetstream: JetStreamContext, identity: str, stream: str, ack_seconds: float = ACK_SECONDS
    ) -> None:
        """Args: JetStream; the directory's identity; the stream's id; in place of `ACK_SECONDS`."""
        self._jetstream, self._stream, self._ack_seconds = jetstream, stream, ack_seconds
        self.name = f"collect-{identity}-{stream}"
        self.whole = False
        """Whether it gives everything that JetStream has of the stream."""

    async def begin(self, *, again: bool) -> None:
        """Goes on where the directory is, or begins (again) with all that JetStream has.

        A consumer that has anything in hand was left by a collector that was killed: one that begins there takes its place,
        so that nobody waits until JetStream sends that again by itself.
        """
        config = ConsumerConfig(
            name=self.name,
            durable_name=self.name,
            filter_subject=f"{layout.SUBJECTS}.{self._stream}",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_seconds,
            max_ack_pending=IN_HAND,
            inactive_threshold=FORGOTTEN_SECONDS,
        )
        there, self.whole = True, False
        try:
            info = await self.info()
        except NotFoundError:
            there = False
        else:
            if again or info.num_ack_pending:
                await self.delete()
                there = False
                if not again and info.ack_floor is not None:
                    config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
                    config.opt_start_seq = info.ack_floor.stream_seq + 1
        if not there:
            self.whole = config.opt_start_seq is None
            await layout.consumer(self._jetstream, config)

    async def info(self) -> ConsumerInfo:
        """How far it is."""
        found: ConsumerInfo = await self._jetstream.consumer_info(layout.STREAM, self.name)
        return found

    async def delete(self) -> None:
        """JetStream need not know it any more. Idempotent."""
        with contextlib.suppress(NotFoundError):
            await self._jetstream.delete_consumer(layout.STREAM, self.name)
