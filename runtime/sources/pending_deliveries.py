"""Deliveries of backends that wait for the step marks of their time."""

from __future__ import annotations

from collections import deque
from typing import Any

from stepscope.runtime.events import clock
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import Delivery, Message


class PendingDeliveries:
    """A queue of deliveries, on the loop. Their bytes still count against the inbox, so that both are bounded together."""

    def __init__(self, inbox: Inbox[Any]) -> None:
        """Args: the inbox of the deliveries."""
        self._inbox = inbox
        self._messages: deque[tuple[int, Message]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def bytes(self) -> int:
        """Bytes of the waiting deliveries."""
        return self._inbox.unhandled

    @property
    def events(self) -> int:
        """Number of waiting events. Any thread may read it."""
        return sum(len(message.events) for _, message in list(self._messages) if isinstance(message, Delivery))

    def add(self, message: Message) -> None:
        """Adds a message, with the current time."""
        self._messages.append((clock.now(), message))
        self._inbox.unhandled += _size(message)

    def pop(self, until: int) -> Message | None:
        """Removes and returns the first message, if it was added by this time, in ns."""
        if not self._messages or self._messages[0][0] > until:
            return None
        _, message = self._messages.popleft()
        self._inbox.unhandled -= _size(message)
        return message

    def pop_all(self) -> list[Message]:
        """Removes and returns all messages."""
        messages = [message for _, message in self._messages]
        self._messages.clear()
        self._inbox.unhandled = 0
        return messages


def _size(message: Message) -> int:
    return message.nbytes if isinstance(message, Delivery) else 0
