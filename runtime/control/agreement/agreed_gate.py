"""The gate of a window that ranks agree on: nobody passes it before it is decided that all do."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.runtime.control.agreement.job_directory import read_record
from stepscope.runtime.control.agreement.records import Decision


class AgreedGate:
    """Asked once, on the thread that steps, when the window's first step begins.

    If nothing is decided by then, it decides itself that the window is not recorded: with one call that only the first of
    all ranks succeeds with, so that all ranks come to the same decision whatever they know.
    """

    def __init__(self, decision: Path, own: Path) -> None:
        """Args: name of the decision's record; a file with this rank's decision, which is published by linking it."""
        self._decision, self._own = decision, own
        self.known: Decision | None = None
        """What was decided, as far as this process knows."""

    def __call__(self, step: int) -> str:
        known = self.known
        if known is None:
            known = self.known = self._decide()
        return "" if known.decision == "committed" else known.reason

    def _decide(self) -> Decision:
        try:
            os.link(self._own, self._decision)
        except FileExistsError:
            pass
        except OSError as error:
            return Decision("aborted", f"the job's directory cannot be used any more: {error.strerror}")
        # Whoever came first: a decision is whole when it has its name.
        found = read_record(self._decision, Decision)
        return Decision("aborted", "the decision cannot be read") if found is None else found
