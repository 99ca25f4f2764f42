"""A signal that ends the run."""

from __future__ import annotations

from stepscope.runtime.flight.triggers.trigger import Evaluator, FindsNothing
from stepscope.runtime.settings.checked import Checked


class Terminated(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires when SIGTERM is about to end the process, and when KeyboardInterrupt leaves the profiler's `with`.

    It saves at once, whatever the cool-down, as `terminated by SIGTERM` or `terminated by KeyboardInterrupt`. SIGTERM is
    seen where `Options.handle_sigterm` has a handler; one that the program has itself calls `Profiler.save`. In asyncio
    Ctrl-C is a cancellation, and no reason to save.
    """

    name = "terminated"

    def evaluator(self) -> Evaluator:
        """Returns an evaluator that finds nothing: the profiler reports the signal itself."""
        return FindsNothing()
