"""Errors of the drop-in for `mx.profiler`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.settings.arguments import got


class MXNetError(StepscopeError, RuntimeError):
    """Raised where `mxnet.base.MXNetError` is: a call that does not fit the profiler's state."""


class MXNetValueError(MXNetError, ValueError, AssertionError):
    """Raised for a value that is not one of those that there are; an AssertionError, too, as mxnet's `dumps` raises."""


class MXNetStateError(MXNetValueError, KeyError):
    """Raised for an unknown state, for which mxnet's `set_state` raises a KeyError."""

    def __str__(self) -> str:
        return str(self.args[0])


def one_of(what: str, value: object, allowed: Iterable[str], error: type[MXNetValueError] = MXNetValueError) -> str:
    """The value, if it is one of those that are known.

    Raises:
        MXNetValueError: naming the value, those that there are, and the nearest; or the `error` that was given.
    """
    names = list(allowed)
    if isinstance(value, str) and value in names:
        return value
    nearest = difflib.get_close_matches(str(value), names, 1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise error(f"{what} must be one of {', '.join(map(repr, names))}, {got(value)}{hint}")
