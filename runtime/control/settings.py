"""Settings of control: by which ways windows can be asked of a running profiler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec

from stepscope.runtime.requests.window_request import RunId
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked


class Control(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By which ways windows can be asked of a running profiler: `trace(control=...)`. All are off until they are named.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    path: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """A file to watch, or a directory whose file `stepscope.json` is. All ranks of a job are given the same."""
    poll: Annotated[float, msgspec.Meta(ge=0.01, le=86_400)] = 2.0
    """Seconds between two looks at the file. With `watchfiles` installed a change is seen within a fraction of that. Of several
    ranks, rank 0 chooses steps that are twice as far ahead, and a second."""
    create: bool = True
    """Whether rank 0 creates the file if there is none, with every field and nothing asked for."""
    agree: bool = True
    """Whether the ranks of a job, which see the same directory, record the steps that rank 0 chooses. Otherwise each goes by
    its own count of steps."""
    patience: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 20.0
    """Seconds after which a request that rank 0 has not answered is refused. Half of it is how long `start_step="next"` waits
    for ranks that have not come."""
    job: RunId = ""
    """What the job is called; default: as the launcher says (STEPSCOPE_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID, else that of PBS,
    LSF, Flux or Grid Engine)."""
    signal: bool = False
    """Whether SIGUSR2 arms a window from the next step on. For profilers that are started on the main thread; a handler
    that the program has is left alone."""
    signal_steps: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] = 5
    """How many steps that window has."""
    socket: bool = False
    """Whether `stepscope arm --pid` is answered: over a socket in a private directory, by this user's processes only."""
    collector: bool = False
    """Whether windows that operators of the collector ask for are recorded, for profilers with a `CollectorExporter`."""

    @classmethod
    def of(cls, given: object) -> Control | None:
        """What users give as `control`: a path is that of the file, `None` none of all this.

        Raises:
            TypeError: if it is something else.
        """
        if isinstance(given, str | os.PathLike):
            return cls(path=os.fspath(given))
        if given is None or isinstance(given, Control):
            return given
        likely = f"**{given!r}" if isinstance(given, Mapping) else "socket=True"
        raise TypeError(
            f"control must be a path or a stepscope.Control, {got(cast(Any, given))}; write control=stepscope.Control({likely})"
        )
