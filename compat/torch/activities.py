"""Activities that may be recorded, by torch's names, and the ones that exist here."""

from __future__ import annotations

import enum
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any, cast

from stepscope.backends.torch.settings import DEVICES, device_is_there, read_activities
from stepscope.runtime.display.code_places import warn
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import did_you_mean


class ProfilerActivity(enum.Enum):
    """Kinds of activities, with torch's names. Where torch is installed `stepscope.torch` has torch's own in its place."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class KindError(ValueError, RuntimeError):
    """Raised for a kind of event that an activity does not have. torch raises `RuntimeError`, as it begins to record."""


_RUNTIMES = {"CUDA_RUNTIME", "CUDA_DRIVER", "XPU_RUNTIME", "XPU_DRIVER", "PRIVATEUSE1_RUNTIME", "PRIVATEUSE1_DRIVER"}
_ON_DEVICE = {"GPU_MEMCPY", "GPU_MEMSET", "CONCURRENT_KERNEL"}
KINDS: dict[str, set[str]] = {
    "CPU": {"CPU_OP", "CPU_INSTANT_EVENT", "USER_ANNOTATION", "EXTERNAL_CORRELATION", "PYTHON_FUNCTION", *_RUNTIMES},
    "CUDA": {*_ON_DEVICE, "GPU_USER_ANNOTATION", "CUDA_RUNTIME", "CUDA_DRIVER", "OVERHEAD"},
    "XPU": {*_ON_DEVICE, "XPU_RUNTIME", "XPU_DRIVER"},
    "MTIA": {"MTIA_CCP_EVENTS", "MTIA_RUNTIME", "MTIA_INSIGHT", "MTIA_COUNTERS"},
    "HPU": {"HPU_OP"},
    "PrivateUse1": {*_ON_DEVICE, "GPU_USER_ANNOTATION", "PRIVATEUSE1_RUNTIME", "PRIVATEUSE1_DRIVER"},
}
"""Kinds of events of each activity, in torch's `torch/csrc/profiler/kineto_shim.cpp`."""
_KINDS_OF = 2, 13
"""Version of torch that has these kinds."""


def has_torch() -> bool:
    """True if torch is installed; imports nothing."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # it is in sys.modules without a spec, as fakes are
        return False


def torch_or_none() -> Any:
    """The module torch; `None` where it is not installed."""
    return importlib.import_module("torch") if has_torch() else None


def supported_activities() -> set[Any]:
    """The activities that can be recorded here, as `torch.profiler.supported_activities` has them; without torch, those of the host."""
    torch = torch_or_none()
    return {ProfilerActivity.CPU} if torch is None else set(torch.profiler.supported_activities())


def choose(activities: Iterable[Any] | None, use_cuda: bool | None) -> tuple[list[Any] | None, set[str]]:
    """Chooses the activities to record, of those that were asked for: as `TorchBackend` takes them, and by name.

    Warns of devices that are asked for and not there; torch records nothing of them, and may say nothing. `use_cuda` is torch's
    deprecated switch.

    Raises:
        TypeError: if activities are no such thing.
        ValueError: if there are none, if one is there twice, is unknown, or none of their devices is there.
    """
    if activities is not None and (isinstance(activities, str | bytes) or not isinstance(activities, Iterable)):
        raise TypeError(f"activities must be a list, {got(activities)}; write activities=[ProfilerActivity.CPU]")
    requested = None if activities is None else list(activities)
    read_activities(requested)
    wanted: dict[str, Any] = {} if requested is None else _kinds(requested)
    if use_cuda is not None:
        warn("use_cuda is deprecated; use activities instead", FutureWarning)
        wanted = wanted or {"CPU": None}
        if use_cuda:
            wanted.setdefault("CUDA", None)
        else:
            wanted.pop("CUDA", None)
        if not wanted:
            raise ValueError("use_cuda=False leaves no activity; name ProfilerActivity.CPU in activities")
    elif requested is None:
        return None, {"CPU", *(name for name in DEVICES if _is_there(name))}
    absent = sorted(name for name in wanted if not _is_there(name))
    if len(absent) == len(wanted):
        raise ValueError(f"activities ask for {' and '.join(absent)} only, and torch finds no such device here")
    if absent:
        warn(
            f"activities ask for {' and '.join(absent)}, and torch finds no such device here: nothing of it is recorded"
        )
    found = {name: kinds for name, kinds in wanted.items() if name not in absent}
    return [_member(name) if kinds is None else {_member(name): kinds} for name, kinds in found.items()], set(found)


def members(names: Iterable[str]) -> set[Any]:
    """The members of torch's `ProfilerActivity` with these names, or of ours where torch is not installed."""
    return {_member(name) for name in names}


def _member(name: str) -> Any:
    torch = torch_or_none()
    return getattr(ProfilerActivity if torch is None else torch.profiler.ProfilerActivity, name)


def _kinds(activities: list[Any]) -> dict[str, Any]:
    """The wanted kinds of events of each activity, by its name; `None`: all."""
    found: dict[str, Any] = {}
    for item in activities:
        wanted = cast(Mapping[Any, object], item) if isinstance(item, Mapping) else {item: None}
        for activity, kinds in wanted.items():
            name = activity.name
            if name in found:
                raise ValueError(f"activities name {name} more than once")
            if name not in ProfilerActivity.__members__:
                hint = did_you_mean(name, ProfilerActivity.__members__)
                raise ValueError(f"activities hold {name!r}, which is no ProfilerActivity{hint}")
            if isinstance(item, Mapping):
                _check_kinds(name, kinds)
            found[name] = kinds
    if not found:
        raise ValueError(
            "activities must name at least one, such as ProfilerActivity.CPU; leave it out for all there are"
        )
    return found


def _check_kinds(activity: str, kinds: object) -> None:
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise TypeError(f"kinds of events of {activity} must be a list, {got(kinds)}")
    allowed = KINDS.get(activity, set())
    for kind in cast(Iterable[object], kinds):
        if not isinstance(kind, str):
            raise TypeError(f"kinds of events of {activity} must be str, {got(kind)}")
        if kind not in allowed and not _is_newer():
            hint = did_you_mean(kind, allowed)
            raise KindError(f"activities hold {kind!r}, which is no kind of event of {activity}{hint}")


def _is_newer() -> bool:
    """Whether torch may have further kinds."""
    version = str(getattr(torch_or_none(), "__version__", "0")).split(".")
    return tuple(int(part) for part in version[:2] if part.isdigit()) > _KINDS_OF


def _is_there(name: str) -> bool:
    if name == "CPU":
        return True
    torch = torch_or_none()
    if torch is None:
        return False
    if name == "PrivateUse1":
        return name in {activity.name for activity in torch.profiler.supported_activities()}
    return device_is_there(name)
