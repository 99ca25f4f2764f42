"""An instant in time."""

from __future__ import annotations

from typing import Any

from stepscope.compat.mxnet.errors import one_of
from stepscope.compat.mxnet.objects.forwarding import forwarding
from stepscope.compat.mxnet.objects.names import Named, domain_name, legal
from stepscope.runtime import _core

SCOPES = ("global", "process", "thread", "task", "marker")


class Marker:
    """Marks instants.

    Args:
        domain: groups it.
        name: any text.

    Raises:
        TypeError: if the domain is none, or the name no str.
    """

    def __init__(self, domain: Named, name: str) -> None:
        self.name = name
        self.domain = domain
        self._recorded = legal("marker", name)
        self._category = f"{domain_name(domain)},instant_marker"

    def mark(self, scope: str = "process", **arguments: Any) -> None:
        """Marks this moment.

        Args:
            scope: what it is about: `global`, `process`, `thread`, `task` or `marker`; the argument `scope` of the trace.
            arguments: numbers and texts that the trace shows.

        Raises:
            MXNetValueError: for another scope.
        """
        one_of("scope", scope, SCOPES)
        _core.instant(self._recorded, category=self._category, **{**arguments, "scope": scope})
        if forwarding.to is not None:
            forwarding.mark(self.name, self._category)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Marker({self.name!r})"
