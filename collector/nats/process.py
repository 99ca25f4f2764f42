"""A process whose stream goes through NATS."""

from __future__ import annotations

import itertools

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from stepscope.exporters.nats.names import StreamNames
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError
from stepscope.runtime.requests.command import Answer, Command

_numbers = itertools.count(1)


class NatsProcess:
    """A process that any collector of its team can give commands, if it takes them.

    Args:
        client: the connection to NATS.
        names: of its stream.
        hello: the `Hello` of its stream.
    """

    def __init__(self, client: Client, names: StreamNames, hello: protocol.Hello) -> None:
        self._client, self.names, self.hello = client, names, hello

    @property
    def control(self) -> int:
        """Version of the commands that the process obeys; 0: none."""
        return self.hello.control

    async def order(self, command: Command, seconds: float) -> Answer:
        """Gives the process a command; returns its answer.

        Raises:
            TimeoutError: if it does not answer in time.
            ConnectionError: if it, or this collector, is not connected to NATS.
        """
        order = protocol.Order(next(_numbers), msgspec.json.encode(command))
        try:
            reply = await self._client.request(self.names.orders, protocol.encode(order), timeout=seconds)
        except TimeoutError:
            raise
        except NatsError as error:
            raise ConnectionError("the process is not connected to NATS, or this collector is not") from error
        try:
            answer, _ = protocol.decode(reply.data)
            if not isinstance(answer, protocol.Obeyed):
                return Answer(error=f"the answer is {type(answer).__name__}")
            return answer.decoded()
        except FormatError as error:
            return Answer(error=f"the answer cannot be read: {error}")
