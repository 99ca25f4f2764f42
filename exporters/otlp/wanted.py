"""Which events are sent: by category, name and duration."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind

Mask: TypeAlias = NDArray[np.bool_]


class Wanted:
    """The filter of the settings, each text looked at once."""

    def __init__(self, options: OtlpOptions) -> None:
        self._categories, self._leave_out = options.categories, options.leave_out
        self._names = options.names
        self._min_ns = round(options.min_duration * 1e9)
        self._name_table = _Table(self._wants_name)
        self._category_table = _Table(self._wants_category)

    def mask(self, events: Block) -> Mask:
        """Which of these are wanted; steps always are."""
        wanted: Mask = self._category_table.of(events["category"])
        if self._names is not None:
            wanted &= self._name_table.of(events["name"])
        spans = events["kind"] == int(Kind.SPAN)
        if self._min_ns:
            wanted &= ~spans | (events["dur"] >= self._min_ns)
        wanted |= spans & is_step(events)
        return wanted

    def _wants_category(self, category: int) -> bool:
        text = strings.text(category)
        return text in self._categories if self._categories is not None else text not in self._leave_out

    def _wants_name(self, name: int) -> bool:
        text = strings.text(name)
        return any(fnmatchcase(text, pattern) for pattern in self._names or ())


def is_step(events: Block) -> Mask:
    """Which of these spans are steps."""
    numbered: Mask = (events["flags"] & int(Flag.NUMBERED)) != 0
    return numbered


class _Table:
    """Answers for ids of texts, which are asked for once."""

    def __init__(self, ask: Callable[[int], bool]) -> None:
        self._ask = ask
        self._known = np.zeros(256, np.bool_)
        self._answers = np.zeros(256, np.bool_)

    def of(self, ids: NDArray[np.unsignedinteger]) -> Mask:
        if not len(ids):
            return np.zeros(0, np.bool_)
        top = int(ids.max())
        if top >= len(self._known):
            more = np.zeros(2 * top + 1 - len(self._known), np.bool_)
            self._known, self._answers = np.concatenate([self._known, more]), np.concatenate([self._answers, more])
        for new in set(ids[~self._known[ids]].tolist()):
            self._known[new], self._answers[new] = True, self._ask(new)
        answers: Mask = self._answers[ids]
        return answers
