"""Chooses spans by name and category: each pair is judged once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block

_NO_CATEGORY = 0xFFFF


class SpanChoice:
    """Chooses spans. Nearly all names have one category, so a table by the ids of names answers for most.

    Args:
        chosen: whether spans of a name and category are chosen.
    """

    def __init__(self, chosen: Callable[[str, str], bool]) -> None:
        self._chosen = chosen
        self._answers: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._categories: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._is_chosen: dict[tuple[int, int], bool] = {}

    def of(self, spans: Block) -> NDArray[np.bool_]:
        """Which of the spans are chosen."""
        names, categories = spans["name"], spans["category"]
        self._grow(int(names.max(initial=0)) + 1)
        answers: NDArray[np.bool_] = self._answers[names]
        other = np.flatnonzero(self._categories[names] != categories)
        if len(other):
            keys, inverse = np.unique(names[other].astype(np.int64) << 16 | categories[other], return_inverse=True)
            found = np.array([self._judge(key >> 16, key & 0xFFFF) for key in keys.tolist()], np.bool_)
            answers[other] = found[inverse]
        return answers

    def _judge(self, name: int, category: int) -> bool:
        found = self._is_chosen.get((name, category))
        if found is None:
            found = self._is_chosen[name, category] = self._chosen(strings.text(name), strings.text(category))
            if self._categories[name] == _NO_CATEGORY:
                self._categories[name], self._answers[name] = category, found
        return found

    def _grow(self, size: int) -> None:
        more = size - len(self._answers)
        if more > 0:
            more = max(more, len(self._answers))
            self._answers = np.concatenate((self._answers, np.zeros(more, np.bool_)))
            self._categories = np.concatenate((self._categories, np.full(more, _NO_CATEGORY, np.uint16)))
