"""The enumerations of MindSpore's profiler, and the numbers that its interfaces have for their members.

Names and numbers are those of MindSpore's documents. The metrics of AI cores have two numberings there: one of the
constructor of `Profiler`, one of the file of `DynamicProfilerMonitor`. A member or its name means the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

from stepscope.runtime.settings.validation import did_you_mean


class ProfilerLevel(Enum):
    """The amount that is recorded; each level includes the ones before it."""

    LevelNone = "LevelNone"
    """Steps, and what the program marks itself."""
    Level0 = "Level0"
    """Operators."""
    Level1 = "Level1"
    """Shapes of operators' inputs, and the memory of the process."""
    Level2 = "Level2"
    """Stacks of Python functions."""


class ProfilerActivity(Enum):
    """The observed device."""

    CPU = "CPU"
    NPU = "NPU"
    GPU = "GPU"


class AicoreMetrics(Enum):
    """A group of hardware counters of an Ascend core."""

    PipeUtilization = "PipeUtilization"
    ArithmeticUtilization = "ArithmeticUtilization"
    Memory = "Memory"
    MemoryL0 = "MemoryL0"
    MemoryUB = "MemoryUB"
    ResourceConflictRatio = "ResourceConflictRatio"
    L2Cache = "L2Cache"
    MemoryAccess = "MemoryAccess"
    AiCoreNone = "None"


class ExportType(Enum):
    """Form of the products."""

    Text = "text"
    Db = "db"


class AnalysisMode(Enum):
    """Whether `analyse` waits for the products."""

    SYNC_MODE = "sync"
    ASYNC_MODE = "async"


class HostSystem(Enum):
    """The parts of the host that are observed beside the program."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"


PROFILER_METRICS: Final[Mapping[int, AicoreMetrics]] = {
    -1: AicoreMetrics.AiCoreNone,
    0: AicoreMetrics.ArithmeticUtilization,
    1: AicoreMetrics.PipeUtilization,
    2: AicoreMetrics.Memory,
    3: AicoreMetrics.MemoryL0,
    4: AicoreMetrics.ResourceConflictRatio,
    5: AicoreMetrics.MemoryUB,
    6: AicoreMetrics.L2Cache,
}
"""Numbers of `Profiler(aicore_metrics=...)` and of MS_PROFILER_OPTIONS."""

DYNAMIC_METRICS: Final[Mapping[int, AicoreMetrics]] = {
    -1: AicoreMetrics.AiCoreNone,
    0: AicoreMetrics.PipeUtilization,
    1: AicoreMetrics.ArithmeticUtilization,
    2: AicoreMetrics.Memory,
    3: AicoreMetrics.MemoryL0,
    4: AicoreMetrics.MemoryUB,
    5: AicoreMetrics.ResourceConflictRatio,
    6: AicoreMetrics.L2Cache,
}
"""Numbers of the file of `DynamicProfilerMonitor`."""

LEVELS: Final[Mapping[int, ProfilerLevel]] = {
    0: ProfilerLevel.Level0,
    1: ProfilerLevel.Level1,
    2: ProfilerLevel.Level2,
}

ACTIVITIES: Final[Mapping[int, tuple[ProfilerActivity, ...]]] = {
    0: (ProfilerActivity.CPU, ProfilerActivity.NPU),
    1: (ProfilerActivity.CPU,),
    2: (ProfilerActivity.NPU,),
}

E = TypeVar("E", bound=Enum)


def member(kind: type[E], value: object, numbers: Mapping[int, E] | None = None) -> E:
    """The member that a user means: by itself, by name or value in any case, or by MindSpore's number.

    Raises:
        ValueError: if there is none; an unknown name comes with the one that is like it.
        TypeError: if it is neither a member nor a text nor a number that may stand for one.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        for each in kind:
            if value.lower() in (each.name.lower(), each.value.lower()):
                return each
        raise ValueError(f"must be a member of {kind.__name__}{did_you_mean(value, (each.name for each in kind))}")
    if numbers is not None and isinstance(value, int) and not isinstance(value, bool):
        if value not in numbers:
            allowed = ", ".join(f"{number} ({each.name})" for number, each in numbers.items())
            raise ValueError(f"must be a member of {kind.__name__}: {allowed}")
        return numbers[value]
    raise TypeError(f"must be a member of {kind.__name__}, or its name")
