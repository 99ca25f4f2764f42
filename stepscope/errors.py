"""Errors that stepscope raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.runtime.errors import (
        BackendError as BackendError,
    )
    from stepscope.runtime.errors import (
        ControlError as ControlError,
    )
    from stepscope.runtime.errors import (
        ExporterError as ExporterError,
    )
    from stepscope.runtime.errors import (
        OutputError as OutputError,
    )
    from stepscope.runtime.errors import (
        ProfilerStateError as ProfilerStateError,
    )
    from stepscope.runtime.errors import (
        ScheduleError as ScheduleError,
    )
    from stepscope.runtime.errors import (
        StepscopeError as StepscopeError,
    )
    from stepscope.runtime.errors import (
        TriggerError as TriggerError,
    )
else:
    from stepscope.runtime.lazy import lazy as _lazy

    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.runtime.errors": (
                "BackendError",
                "ControlError",
                "ExporterError",
                "OutputError",
                "ProfilerStateError",
                "ScheduleError",
                "StepscopeError",
                "TriggerError",
            ),
        },
    )

__all__ = [
    "BackendError",
    "ControlError",
    "ExporterError",
    "OutputError",
    "ProfilerStateError",
    "ScheduleError",
    "StepscopeError",
    "TriggerError",
]
