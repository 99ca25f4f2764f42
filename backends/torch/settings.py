"""Settings of torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, cast

import msgspec

from stepscope.runtime.settings.arguments import got

SWITCHES = {
    "shapes": "record_shapes",
    "memory": "profile_memory",
    "stacks": "with_stack",
    "flops": "with_flops",
    "modules": "with_modules",
}
"""Details that can be chosen for a window, and torch's names for them."""
DEVICES = ("CUDA", "XPU", "MTIA", "HPU")
"""Accelerators by the names of their activities, the likeliest first."""
_FLAGS = tuple(SWITCHES.values())


def device_is_there(name: str) -> bool:
    """Whether torch, which is installed, finds an accelerator of this kind."""
    module = getattr(import_module("torch"), name.lower(), None)
    return module is not None and hasattr(module, "is_available") and bool(module.is_available())


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

    def chosen(self, chosen: Mapping[str, bool]) -> TorchSettings:
        """With what was chosen for a window in place of what the backend was made for."""
        flags = {SWITCHES[what]: on for what, on in chosen.items() if what in SWITCHES}
        return msgspec.structs.replace(self, **flags) if flags else self

    def covers(self, other: TorchSettings) -> bool:
        """True if what is recorded with these settings holds all that `other` asks for."""
        return (
            all(getattr(self, flag) or not getattr(other, flag) for flag in _FLAGS)
            and (not self.activities or bool(other.activities) and other.activities <= self.activities)
            and (not self.filters or self.filters == other.filters)
            and (other.experimental_config is None or other.experimental_config is self.experimental_config)
        )

    def together(self, other: TorchSettings) -> TorchSettings:
        """Settings that cover both; of two experimental configurations the first counts."""
        flags = {flag: getattr(self, flag) or getattr(other, flag) for flag in _FLAGS}
        both = self.activities | other.activities if self.activities and other.activities else frozenset[str]()
        return msgspec.structs.replace(
            self,
            **flags,
            activities=both,
            filters=self.filters if self.filters == other.filters else {},
            experimental_config=self.experimental_config or other.experimental_config,
        )

    @property
    def beyond_stream(self) -> tuple[str, ...]:
        """The arguments that only kineto can serve."""
        requested = [name for name in _FLAGS if getattr(self, name)]
        if self.activities - {"CPU"} or self.filters:
            requested.append("activities")
        if self.experimental_config is not None:
            requested.append("experimental_config")
        return tuple(requested)


def read_activities(activities: Iterable[Any] | None) -> tuple[frozenset[str], dict[Any, set[str]]]:
    """Takes apart what `torch.profiler.profile` accepts as `activities`.

    Args:
        activities: members of `torch.profiler.ProfilerActivity`, or dicts from such a member to the kinds of events
            that are wanted of it (torch 2.12 and later).

    Returns:
        The members' names, and the wanted kinds by member.

    Raises:
        TypeError: if they are no list, or an item is neither.
    """
    if isinstance(activities, str):
        raise TypeError(
            f"activities must be a list, {got(activities)}; write activities=[torch.profiler.ProfilerActivity.CPU]"
        )
    if not isinstance(activities, Iterable | None):
        raise TypeError(f"activities must be a list, {got(activities)}; write activities=[{activities}]")
    names: set[str] = set()
    filters: dict[Any, set[str]] = {}
    for item in activities or ():
        wanted = cast(Mapping[Any, Iterable[str]], item) if isinstance(item, Mapping) else {item: ()}
        for activity, kinds in wanted.items():
            name = getattr(activity, "name", None)
            if not isinstance(name, str):
                raise TypeError(f"activities must hold members of torch.profiler.ProfilerActivity, {got(activity)}")
            names.add(name)
            if isinstance(item, Mapping):
                filters[activity] = set(kinds)
    return frozenset(names), filters
