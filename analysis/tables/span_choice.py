"""Judges spans by name and category: each pair once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block


class SpanChoice:
    """Chooses spans, or puts them into classes.

    Args:
        judge: whether spans of a name and category are chosen, or the number of their class.
        answers: type of what that returns, for arrays.
    """

    def __init__(self, judge: Callable[[str, str], int], answers: Any = np.bool_) -> None:
        self._judge, self._type = judge, answers
        self._answers: dict[int, int] = {}

    def of(self, spans: Block) -> NDArray[Any]:
        """The answer on each of the spans."""
        pairs: Any = spans["name"].astype(np.int64) << 16 | spans["category"]
        distinct, places = np.unique(pairs, return_inverse=True)
        answers: NDArray[Any] = np.fromiter(map(self._answer, distinct.tolist()), self._type, len(distinct))[places]
        return answers

    def _answer(self, pair: int) -> int:
        found = self._answers.get(pair)
        if found is None:
            found = self._answers[pair] = self._judge(strings.text(pair >> 16), strings.text(pair & 0xFFFF))
        return found
