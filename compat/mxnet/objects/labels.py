"""Labels of a thread or task, one inside another."""

from __future__ import annotations

from contextvars import ContextVar


class Label:
    """A label that was entered, and the one around it."""

    __slots__ = ("left", "outer", "text")

    def __init__(self, text: str, outer: Label | None) -> None:
        self.text = text
        self.outer = outer
        self.left = False
        """Whether it was left in another context than the one that it holds in."""


class Labels:
    """Labels that follow asyncio tasks: one that is made under a label keeps it, also when that is left."""

    def __init__(self, name: str) -> None:
        self._innermost: ContextVar[Label | None] = ContextVar(name, default=None)

    def current(self) -> Label | None:
        """The label that holds here."""
        label = self._innermost.get()
        while label is not None and label.left:
            label = label.outer
        return label

    def enter(self, text: str) -> Label:
        """A label holds here, until it is left."""
        label = Label(text, self.current())
        self._innermost.set(label)
        return label

    def leave(self, label: Label) -> None:
        """It holds no more, wherever this is called: a generator that entered it may be closed by another thread."""
        if self._innermost.get() is label:
            self._innermost.set(label.outer)
        else:
            label.left = True
