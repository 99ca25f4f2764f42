"""View: what `on_trace_ready` gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.compat.torch.results import Results
from stepscope.compat.torch.windows.cycle import Cycle
from stepscope.runtime.export.metadata import Metadata
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.windows.window import Window

if TYPE_CHECKING:
    from stepscope.compat.torch.profile import profile


class View(Results):
    """A profile as it was when a window was over: the same methods and attributes, however far training has come since.

    Results, exports, `step_num` and `current_action` are those of the window, also when it is kept and asked later.
    Metadata that is added here belongs to this window alone. Everything else is the profile's own.
    """

    def __init__(self, owner: profile, cycles: Sequence[Cycle], action: ProfilerAction) -> None:
        """Args: the profile; the windows that count, the last one last; what the step after it does."""
        super().__init__()
        self._owner = owner
        self._frozen = tuple(cycles)
        self._asked = cycles[-1].asked
        self._kept = owner._kept
        self._metadata = Metadata()
        self.post_processing_timeout_s = owner.post_processing_timeout_s
        self.step_num = cycles[-1].step_num
        """Number of the step that had begun when the window was over."""
        self.current_action = action
        """That step's action."""

    @property
    def window(self) -> Window:
        """The window itself, with its steps, times, accounts and diagnostics."""
        return self._frozen[-1].window

    def add_metadata(self, key: str, value: Any) -> None:
        """Adds a fact to exports of this window."""
        self._metadata.add(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a fact that is JSON text to exports of this window."""
        self._metadata.add_json(key, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._owner, name)

    def _cycles(self) -> Sequence[Cycle]:
        return self._frozen

    def facts(self, cycle: Cycle) -> Mapping[str, Any]:
        return {**self._owner.facts(cycle), **self._metadata.snapshot()}
