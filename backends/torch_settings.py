"""What is asked of torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec


class TorchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a `TorchBackend`, checked."""

    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    activities: frozenset[str] = frozenset()
    """Names of `ProfilerActivity`; empty for all that there are."""
    filters: dict[Any, set[str]] = {}
    """Kinds of events that are wanted, for the activities that name them."""
    experimental_config: Any = None

    @property
    def beyond_stream(self) -> tuple[str, ...]:
        """The arguments that only kineto can serve."""
        flags = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        asked = [name for name in flags if getattr(self, name)]
        if self.activities - {"CPU"} or self.filters:
            asked.append("activities")
        if self.experimental_config is not None:
            asked.append("experimental_config")
        return tuple(asked)


def read_activities(activities: Iterable[Any] | None) -> tuple[frozenset[str], dict[Any, set[str]]]:
    """Takes apart what `torch.profiler.profile` accepts as `activities`.

    Args:
        activities: members of `torch.profiler.ProfilerActivity`, or dicts from such a member to the kinds of events
            that are wanted of it (torch 2.12 and later).

    Returns:
        The members' names, and the wanted kinds by member.

    Raises:
        TypeError: if an item is neither.
    """
    names: set[str] = set()
    filters: dict[Any, set[str]] = {}
    for item in activities or ():
        wanted = cast(Mapping[Any, Iterable[str]], item) if isinstance(item, Mapping) else {item: ()}
        for activity, kinds in wanted.items():
            name = getattr(activity, "name", None)
            if not isinstance(name, str):
                raise TypeError(f"activities must hold members of torch.profiler.ProfilerActivity, got {activity!r}")
            names.add(name)
            if isinstance(item, Mapping):
                filters[activity] = set(kinds)
    return frozenset(names), filters
