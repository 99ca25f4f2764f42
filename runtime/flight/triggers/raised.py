"""An exception in the loop."""

from __future__ import annotations

from stepscope.runtime.flight.triggers.trigger import Evaluator, FindsNothing
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked


class Raised(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires when an exception leaves the profiler's `with`, and when `Profiler.caught` reports one.

    Raises:
        TypeError: if `only` holds something else than exception types.
    """

    name = "raised"

    __unchecked__ = ("only",)

    only: tuple[type[BaseException], ...] = (Exception,)
    """Types that count; the default leaves out KeyboardInterrupt and SystemExit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        value: object = self.only
        if isinstance(value, type):
            raise TypeError(
                f"Raised.only must be a tuple of exception types, {got(value)}; write only=({value.__name__},)"
            )
        for kind in self.only:
            if not isinstance(kind, type) or not issubclass(kind, BaseException):
                raise TypeError(f"Raised.only holds {kind!r}; give exception types, such as only=(RuntimeError,)")

    def evaluator(self) -> Evaluator:
        """Finds nothing by itself: the profiler reports exceptions."""
        return FindsNothing()
