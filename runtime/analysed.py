"""Results of the analysis of a run, also for notebooks.

Analysis is above this package: `stepscope.build`, which makes profilers, says here who does it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from stepscope.analysis.findings import Answer as Answer


class Analysis(Protocol):
    """Reads runs, and shows profilers and answers."""

    def explain(self, path: Path) -> Answer:
        """The answer of a run."""
        ...

    def refused(self, path: Path, why: str) -> Answer:
        """Makes an answer that says why there is none."""
        ...

    def html(self, shown: object) -> str:
        """A part of a page with a profiler, its table or its report."""
        ...


by: Analysis | None = None
"""The analysis; `None` if nothing here has made a profiler."""


def as_html(shown: object) -> str:
    """HTML for notebooks: its styles change nothing else, and it has no script."""
    if by is not None:
        return by.html(shown)
    from html import escape

    return f"<pre>{escape(str(shown))}</pre>"


class ShownText(str):
    """Text that notebooks show as a part of a page: as what `shown` returns."""

    def __new__(cls, text: str, shown: Callable[[], object]) -> Self:
        made = super().__new__(cls, text)
        made._shown = shown
        return made

    _shown: Callable[[], object]

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Another process has the text."""
        return str, (str(self),)

    def _repr_html_(self) -> str:
        return as_html(self._shown())
