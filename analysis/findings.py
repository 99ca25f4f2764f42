"""The answer: findings with their evidence, as plain values that any page can show."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepscope.runtime.step_statistics import StepStatistics as Statistics
from stepscope.runtime.table import human_count


class Place(msgspec.Struct, frozen=True):
    """A place in the program's code."""

    function: str
    """Its qualified name."""
    file: str
    line: int
    share: float = 0.0
    """Of the time that is meant, from 0 to 1, by samples of the stack."""

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time."""

    id: str
    """Stable name of the kind, such as `input-bound`."""
    title: str
    """The verdict, a sentence."""
    cost: float
    """Share of the steps' time that it costs, from 0 to 1."""
    cost_ns: float
    """The same, in ns of a step."""
    evidence: tuple[str, ...]
    """Sentences with numbers."""
    action: str = ""
    """What to try first."""
    gain: str = ""
    """What that would gain."""
    certainty: str = "likely"
    """`certain`, `likely` or `possible`."""
    steps: tuple[int, ...] = ()
    """Steps that show it, a few."""
    ranks: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()


class Share(msgspec.Struct, frozen=True):
    """A part of the step."""

    name: str
    ns: float
    """Median over steady steps, scaled so that all parts add up to the step."""
    share: float


class KernelTime(msgspec.Struct, frozen=True):
    """All runs of the kernels of one name on a device."""

    name: str
    ns: int
    """Summed over all streams: not what the program waited for."""
    count: int
    share: float
    """Of the summed time of all kernels."""


class NameShare(msgspec.Struct, frozen=True):
    """A name of spans, and its part of some time."""

    name: str
    ns: int
    share: float


class HostActivity(msgspec.Struct, frozen=True):
    """What the host did while a device idled."""

    name: str
    ns: int
    share: float
    """Of the time in which the device idled."""
    names: tuple[NameShare, ...] = ()
    """The spans that were innermost for longest meanwhile; their shares are of this activity."""


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a device did from its first to its last event; of several windows, the sums. Times are ns, over all its streams."""

    name: str
    total_ns: int
    busy_ns: int
    """Any kernel, copy or set ran."""
    idle_ns: int
    """None did."""
    computation_ns: int
    """Kernels other than those of collectives, and sets of memory."""
    communication_ns: int
    """Kernels of collectives, and no computation beside them: it is exposed. What waited for it is not said."""
    copy_ns: int
    """Copies, and no kernel beside them: they are exposed."""
    meanwhile: tuple[HostActivity, ...]
    """What the host did while the device idled, each nanosecond once; they add up to `idle_ns`. It need not be what kept the
    device idle."""
    kernels: tuple[KernelTime, ...]
    """Those with the most time."""
    kernel_names: int
    """How many names there are."""

    @property
    def idle(self) -> float:
        """Share of the time in which the device idled."""
        return self.idle_ns / self.total_ns if self.total_ns else 0.0


class TaskTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of asyncio of one name. Times in ns, summed over them."""

    name: str
    count: int
    running: int
    ready: int
    """They could have run, at most, and another task did."""
    waiting: int
    """For something outside of the loop."""


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one rank went."""

    rank: int | None
    name: str
    statistics: Statistics | None
    shares: tuple[Share, ...]
    startup_ns: int = 0
    """What was recorded before the first step."""
    shutdown_ns: int = 0
    """What was recorded after the last step."""
    tasks: tuple[TaskTimes, ...] = ()
    """Of its event loops: those first that ran or were ready longest, eight at most."""
    places: tuple[Place, ...] = ()
    """Of a process without steps and tasks: where most samples of its stack are."""
    devices: tuple[DeviceAnswer, ...] = ()

    @property
    def has_steps(self) -> bool:
        """Whether steps were marked. If not, the whole run is one."""
        return self.statistics is not None and self.statistics.steps > 1


def processes(ranks: Sequence[int | None]) -> str:
    """How many there are by their ranks: as ranks if all have one."""
    return human_count(len(ranks), *(("process", "es") if None in ranks else ("rank", "s")))


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a run."""

    path: str
    verdict: str
    """The first sentence."""
    refused: str = ""
    """Why nothing can be judged, and what to record; empty if something can."""
    findings: tuple[Finding, ...] = ()
    ranks: tuple[RankAnswer, ...] = ()
    unknown: tuple[str, ...] = ()
    """What the data do not say, and what to record for it."""
    trust: str = ""
    """One line: whether all events are there."""

    def __str__(self) -> str:
        from stepscope.analysis.terminal import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from stepscope.analysis.page.render import answer_html

        return answer_html(self)
