"""Retention of saved windows: the newest and the slowest."""

from __future__ import annotations

import re

from stepscope.runtime.windows.window import Window


class SavedWindows:
    """The newest and the slowest saved windows. All others must be deleted."""

    def __init__(self, keep_newest: int, keep_slowest: int) -> None:
        self._newest = keep_newest
        self._slowest = keep_slowest
        self._windows: dict[int, int] = {}
        """The longest step of each, in ns, by index."""
        self.saved = 0
        self.discarded = 0

    @property
    def remaining(self) -> tuple[int, ...]:
        """Windows that are retained, the oldest first."""
        return tuple(self._windows)

    def add(self, window: Window) -> list[int]:
        """Adds a window. Returns the indices of windows that must be deleted now, perhaps including this one."""
        self.saved += 1
        slowest = max((step.end_ns - step.start_ns for step in window.steps), default=window.end_ns - window.start_ns)
        saved = {**self._windows, window.index: slowest}
        by_age = sorted(saved, reverse=True)
        by_time = sorted(saved, key=lambda index: (saved[index], -index), reverse=True)
        remaining = {*by_age[: self._newest], *by_time[: self._slowest]}
        discarded = [index for index in saved if index not in remaining]
        self._windows = {index: saved[index] for index in saved if index in remaining}
        self.discarded += len(discarded)
        return discarded


def window_name(index: int, facts: object) -> str:
    """Returns a file name for a saved window: its index, and the step and reason in its metadata."""
    text = f"{index:06}"
    if isinstance(facts, dict):
        metadata: dict[object, object] = facts  # pyright: ignore[reportUnknownVariableType]
        step, reason = metadata.get("step"), metadata.get("reason")
        text += f"-step{step}" if isinstance(step, int) else ""
        text += f"-{slug(reason)}" if isinstance(reason, str) else ""
    return text


def slug(reason: str) -> str:
    """A reason as a part of a file's name: it may come from the user, and must not leave the directory."""
    return re.sub(r"[^a-z0-9]+", "_", reason.lower()[:64]).strip("_")[:40] or "saved"
