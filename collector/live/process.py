"""A process that can be asked to do something."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from stepscope.runtime.requests.command import Answer, Command


@runtime_checkable
class Process(Protocol):
    """The way to a process that sends a stream."""

    @property
    def control(self) -> int:
        """Version of the commands that it obeys; 0: none."""
        ...

    async def order(self, command: Command, seconds: float) -> Answer:
        """Sends a command, and returns the answer.

        Raises:
            TimeoutError: if it does not answer in time.
            ConnectionError: if there is no way to it any more.
        """
        ...
