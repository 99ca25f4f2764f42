"""Stacks of Python functions, folded, as flame graphs are drawn from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stepscope.compat.mindspore.output_files import write_text
from stepscope.compat.mindspore.products.base import PYTHON, Product, in_categories, spans
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.windows.window import Window


class FoldedStacks(Product):
    """Writes `stacks_<rank>.folded`: one line for each stack, functions parted by `;`, then its time in µs."""

    name = "folded stacks"

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = directory / f"stacks_{rank}.folded"
        self._spans: dict[int, tuple[int, int, int]] = {}

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        events = events[in_categories(events, (PYTHON,))]
        columns = (events[field].tolist() for field in ("id", "parent", "name", "self_dur"))
        for number, parent, name, own in zip(*columns, strict=True):
            self._spans[number] = (parent, name, own + self._spans.get(number, (0, 0, 0))[2])

    async def finish(self, window: Window) -> tuple[Path, ...]:
        if not self._spans:
            return ()
        stacks: Counter[str] = Counter()
        for parent, name, own in self._spans.values():
            if own > 0:
                stacks[self._stack(parent, name)] += own
        lines = (f"{stack} {max(round(time / 1000), 1)}\n" for stack, time in sorted(stacks.items()))
        return (write_text(self._path, "".join(lines)),)

    def _stack(self, parent: int, name: int) -> str:
        names = [strings.text(name)]
        while parent in self._spans and len(names) < 512:
            parent, name, _ = self._spans[parent]
            names.append(strings.text(name))
        return ";".join(text.replace(";", ",") for text in reversed(names))
