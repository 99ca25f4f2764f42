"""Settings of control: the entry points for requests to a running profiler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec

from stepscope.runtime.requests.window_request import RunId
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked


class Control(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry points for requests to a running profiler: `trace(control=...)`. All are off by default.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    path: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """A file to watch, or a directory with the file `stepscope.json`. All ranks of a job need the same path."""
    poll: Annotated[float, msgspec.Meta(ge=0.01, le=86_400)] = 2.0
    """Seconds between two looks at the file. With several ranks, rank 0 chooses steps that begin after twice this time and a
    second."""
    create: bool = True
    """Whether rank 0 creates a missing file, with every field but without a request."""
    agree: bool = True
    """Whether the ranks of a job record the steps that rank 0 chooses. They must see the same directory. Otherwise each rank
    uses its own step numbers."""
    patience: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 20.0
    """Seconds after which a request is refused if rank 0 has not answered. `start_step="next"` waits half of it for ranks to
    join."""
    job: RunId = ""
    """Name of the job; default: that of the launcher (STEPSCOPE_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID, else that of PBS,
    LSF, Flux or Grid Engine)."""
    signal: bool = False
    """Whether SIGUSR2 arms a window from the next step on. Requires that the profiler is started on the main thread, and that
    the program has no handler of its own."""
    signal_steps: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] = 5
    """Number of steps of that window."""
    socket: bool = False
    """Whether to accept `stepscope arm --pid`, over a socket in a private directory, from processes of this user only."""
    collector: bool = False
    """Whether to record windows that operators of the collector request, for profilers with a `CollectorExporter`."""

    @classmethod
    def of(cls, value: object) -> Control | None:
        """Converts the argument `control`: a path becomes `Control(path=...)`.

        Raises:
            TypeError: if it is something else.
        """
        if isinstance(value, str | os.PathLike):
            return cls(path=os.fspath(value))
        if value is None or isinstance(value, Control):
            return value
        likely = f"**{value!r}" if isinstance(value, Mapping) else "socket=True"
        raise TypeError(
            f"control must be a path or a stepscope.Control, {got(cast(Any, value))}; write control=stepscope.Control({likely})"
        )
