"""Many events, at a speed that the tool can take."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

PORTION = 5_000
"""Spans between two pauses."""


class Span(Protocol):
    """Makes a span, as `stepscope.span` does."""

    def __call__(self, name: str, /) -> AbstractContextManager[Any]: ...


def emit(span: Span, count: int, pause: float = 0.002) -> None:
    """Records `count` spans, some inside others, under 50 names; about two million a second.

    Args:
        pause: seconds of rest after every portion, as a training loop rests when it computes.
    """
    names = [f"layer.{number}" for number in range(49)]
    done = 0
    while done < count:
        until = min(done + PORTION, count)
        while done < until:
            with span("forward"):
                done += 1
                for name in names[: until - done]:
                    with span(name):
                        pass
                done += min(len(names), until - done)
        if pause:
            time.sleep(pause)
