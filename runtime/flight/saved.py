"""Which of the windows that were saved are kept."""

from __future__ import annotations

import re

import msgspec

from stepscope.runtime.windows.window import Window


class SavedWindow(msgspec.Struct, frozen=True):
    """A window that was saved."""

    index: int
    slowest_ns: int
    """Its longest step."""


class SavedWindows:
    """The newest and the slowest; whatever is neither is to be deleted."""

    def __init__(self, keep_newest: int, keep_slowest: int) -> None:
        self._newest = keep_newest
        self._slowest = keep_slowest
        self._kept: list[SavedWindow] = []
        self.saved = 0
        self.discarded = 0

    @property
    def staying(self) -> tuple[int, ...]:
        """Those that are neither deleted nor to be, the oldest first."""
        return tuple(saved.index for saved in self._kept)

    def add(self, window: Window) -> list[int]:
        """Takes note of a window; the indices of those that are to be deleted now, this one among them or not."""
        self.saved += 1
        slowest = max((step.end_ns - step.start_ns for step in window.steps), default=window.end_ns - window.start_ns)
        self._kept.append(SavedWindow(window.index, slowest))
        by_age = sorted(self._kept, key=lambda saved: saved.index, reverse=True)
        by_time = sorted(self._kept, key=lambda saved: (saved.slowest_ns, -saved.index), reverse=True)
        staying = {saved.index for saved in (*by_age[: self._newest], *by_time[: self._slowest])}
        leaving = [saved.index for saved in self._kept if saved.index not in staying]
        self._kept = [saved for saved in self._kept if saved.index in staying]
        self.discarded += len(leaving)
        return leaving


def window_name(index: int, facts: object) -> str:
    """A name for a file of a saved window: its index, and the step and reason that its metadata tell."""
    text = f"{index:06}"
    if isinstance(facts, dict):
        known: dict[object, object] = facts  # pyright: ignore[reportUnknownVariableType]
        step, reason = known.get("step"), known.get("reason")
        text += f"-step{step}" if isinstance(step, int) else ""
        text += f"-{slug(reason)}" if isinstance(reason, str) else ""
    return text


def slug(reason: str) -> str:
    """A reason as a part of a file's name: it may come from the user, and must not leave the directory."""
    return re.sub(r"[^a-z0-9]+", "_", reason.lower()[:64]).strip("_")[:40] or "saved"
