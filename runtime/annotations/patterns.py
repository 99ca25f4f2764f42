"""Which names are chosen: globs of what is taken and of what is left out."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from stepscope.runtime.settings.arguments import got


class Patterns:
    """Names that match one of `include` and none of `exclude`; `None` includes all names but those like `__this__`.

    A name such as `Net.__init__` is included only by a glob whose last part begins with two underscores.

    Raises:
        TypeError: if a glob is no str.
    """

    def __init__(self, include: str | Iterable[str] | None, exclude: str | Iterable[str]) -> None:
        self._include = ("*",) if include is None else _globs("include", include)
        self._exclude = _globs("exclude", exclude)

    def take(self, name: str) -> bool:
        """Whether a dotted name is chosen."""
        last = name.rpartition(".")[2]
        special = last.startswith("__") and last.endswith("__") and len(last) > 4
        return any(
            fnmatchcase(name, glob) and (not special or glob.rpartition(".")[2].startswith("__"))
            for glob in self._include
        ) and not any(fnmatchcase(name, glob) for glob in self._exclude)


def _globs(argument: str, given: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(given, Iterable):
        raise TypeError(f"{argument} takes globs such as 'load_*', {got(given)}")
    globs = (given,) if isinstance(given, str) else tuple(given)
    for glob in globs:
        if not isinstance(glob, str):
            raise TypeError(f"{argument} takes globs such as 'load_*', {got(glob)}")
    return globs
