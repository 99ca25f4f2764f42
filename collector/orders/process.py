"""A process that takes commands, however it is connected."""

from __future__ import annotations

from typing import Protocol

from stepscope.runtime.requests.command import Answer, Command


class Process(Protocol):
    """Takes commands for a process."""

    @property
    def control(self) -> int:
        """Version of the commands that the process obeys; 0: none."""
        ...

    async def order(self, command: Command, seconds: float) -> Answer:
        """Gives the process a command; returns its answer.

        Raises:
            TimeoutError: if it does not answer in time.
            ConnectionError: if it is not connected.
        """
        ...
