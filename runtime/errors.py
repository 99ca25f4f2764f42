"""All errors of the runtime.

StepscopeError
├── ClosedError             it was closed before
├── BrokenError             the other side failed
├── ProfilerStateError      (RuntimeError) a call that does not fit the profiler's state
├── ScheduleError           (ValueError) a schedule that cannot be followed
├── BackendError            a producer cannot start or failed
├── ExporterError           a consumer failed
├── TriggerError            a trigger of the flight recorder failed
├── OutputError             (OSError) an output directory or file cannot be used
├── FormatError             (ValueError) a file or frame is not what it should be
│   ├── RecoveredError      there is a recovery already, and a new one could be poorer
│   └── NoWindowError       a recording has no such window
├── SessionError            a session cannot be joined
├── ControlError            (ValueError) a configuration or request for control that cannot be followed
└── InternalError           a fault of stepscope itself: please report it
"""

INCOMPLETE = 3
"""Exit code of commands that read several recordings: done, but something could not be read, which is named."""


class StepscopeError(Exception):
    """Base of every error that stepscope raises on purpose."""


class ClosedError(StepscopeError):
    """Raised when something is put into a queue, inbox or exporter that was closed before."""


class BrokenError(StepscopeError):
    """Raised when the other end of a queue or stream has failed."""


class ProfilerStateError(StepscopeError, RuntimeError):
    """Raised when a call does not fit the profiler's state, such as `stop()` before `start()`."""


class ScheduleError(StepscopeError, ValueError):
    """Raised when a schedule's arguments or the action that it returned cannot be followed."""


class BackendError(StepscopeError):
    """Raised when a backend cannot be used here, or failed while recording."""


class ExporterError(StepscopeError):
    """Raised by `Profiler.raise_errors()` for what an exporter or callback raised."""


class TriggerError(StepscopeError):
    """Raised by `Profiler.raise_errors()` for what a trigger raised."""


class OutputError(StepscopeError, OSError):
    """Raised when an output directory or file cannot be created or written."""


class FormatError(StepscopeError, ValueError):
    """Raised when a file, frame or record cannot be decoded."""


class RecoveredError(FormatError):
    """Raised instead of replacing what was recovered when there was more to recover from."""


class NoWindowError(FormatError):
    """Raised when a window is asked for that a recording does not have."""

    exit_code = 4
    """Exit code of the command that should have written it."""


class SessionError(StepscopeError):
    """Raised when a directory is not a session that this process can take part in."""


class ControlError(StepscopeError, ValueError):
    """Raised when a control file, request or variable of the environment cannot be followed."""

    def __init__(self, message: str, *, line: int = 0, column: int = 0) -> None:
        """Args: what is wrong; where in the text, counted from 1, 0 where that is not known."""
        super().__init__(message)
        self.line = line
        self.column = column


class InternalError(StepscopeError):
    """Raised when stepscope breaks a promise of its own. If you see this, please report it."""
