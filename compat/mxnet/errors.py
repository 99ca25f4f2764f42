"""Errors of the drop-in for `mx.profiler`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.settings.validation import find_invalid_value


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
    literal: Any = Literal
    invalid = find_invalid_value(value, literal[tuple(allowed)], what)
    if invalid is not None:
        raise error(invalid.text)
    return str(value)
