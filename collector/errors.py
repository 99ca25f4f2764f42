"""Errors of a collector."""

from __future__ import annotations

from stepscope.runtime.errors import StepscopeError


class ExposureError(StepscopeError):
    """The collector would be reachable by others without protection."""


class DirectoryInUseError(StepscopeError):
    """Another collector writes to the directory."""


class ListenError(StepscopeError):
    """The collector cannot listen: its address is taken, or its certificate cannot be used."""


class FullError(StepscopeError):
    """A limit of the collector is met. It may be raised, or room be made."""


class StuckError(StepscopeError):
    """The disk does not answer. It may do so later."""
