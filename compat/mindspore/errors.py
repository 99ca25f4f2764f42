"""Errors of `stepscope.mindspore`. Calls that do not fit the profiler's state raise `ProfilerStateError`, a RuntimeError."""

from __future__ import annotations

from stepscope.runtime.errors import StepscopeError


class ProfilerException(StepscopeError):
    """Base of the errors of reading and writing MindSpore's layout."""


class ProfilerPathErrorException(ProfilerException, ValueError):
    """Raised when a path cannot be used for output."""


class ProfilerIOException(ProfilerException, OSError):
    """Raised when a product cannot be written."""


class ProfilerFileNotFoundException(ProfilerException, FileNotFoundError):
    """Raised when raw data should be there and are not."""


class ProfilerDirNotFoundException(ProfilerFileNotFoundException):
    """Raised when a directory should be there and is not."""


class ProfilerRawFileException(ProfilerException, ValueError):
    """Raised when raw data cannot be read."""


class NothingToAnalyse(ProfilerException, RuntimeError):
    """Raised when no raw data below a path can be analysed."""


class WireError(ProfilerException, ValueError):
    """Raised when bytes are no block of `DynamicProfilerArgs`: torn, of another version, or something else."""
