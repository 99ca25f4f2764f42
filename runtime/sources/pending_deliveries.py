"""What backends have delivered, and that waits for the step marks of its time."""

from __future__ import annotations

from collections import deque
from typing import Any

from stepscope.runtime.events import clock
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import Delivery, Message


class PendingDeliveries:
    """In the order in which it came; on the loop. Its bytes count as waiting in the inbox, which so stays bounded."""

    def __init__(self, inbox: Inbox[Any]) -> None:
        """Args: where it was taken from."""
        self._inbox = inbox
        self._messages: deque[tuple[int, Message]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self._inbox.held

    @property
    def events(self) -> int:
        """Events in it; from any thread."""
        return sum(len(message.events) for _, message in list(self._messages) if isinstance(message, Delivery))

    def add(self, message: Message) -> None:
        """It is here from now on."""
        self._messages.append((clock.now(), message))
        self._inbox.held += _size(message)

    def next(self, until: int) -> Message | None:
        """Takes the first, if it was here by this time, in ns."""
        if not self._messages or self._messages[0][0] > until:
            return None
        _, message = self._messages.popleft()
        self._inbox.held -= _size(message)
        return message

    def take(self) -> list[Message]:
        """Takes all."""
        messages = [message for _, message in self._messages]
        self._messages.clear()
        self._inbox.held = 0
        return messages


def _size(message: Message) -> int:
    return message.nbytes if isinstance(message, Delivery) else 0
