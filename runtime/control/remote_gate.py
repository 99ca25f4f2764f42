"""The gate of a window that is recorded only if somebody elsewhere says so in time."""

from __future__ import annotations


class RemoteGate:
    """Asked where `step()` is called, when the window's first step begins: it cannot ask back, so silence means no."""

    def __init__(self) -> None:
        self.committed: bool | None = None
        """What was decided; `None`: nothing yet."""
        self.reason = ""

    def __call__(self, step: int) -> str:
        if self.committed is None:
            self.committed, self.reason = False, f"nothing was decided by step {step}, when it was to begin"
        return "" if self.committed else self.reason or "it was decided against"
