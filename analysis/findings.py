"""The answer and its findings, as plain values that the terminal, the page and other programs show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.windows.step_statistics import StepStatistics as Statistics


class Place(msgspec.Struct, frozen=True):
    """A place in the program's code."""

    function: str
    """The qualified name of the function."""
    file: str
    line: int
    share: float = 0.0
    """The share of the time, from 0 to 1, that the program spends there, by samples of the stack."""

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class EventReference(msgspec.Struct, frozen=True):
    """An event of the recording."""

    name: str
    begin_ns: int
    """On the clock of the recording, as `Rank.events()` has it."""
    duration_ns: int = 0
    rank: int | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time."""

    id: str
    """Stable name of the kind, such as `input-bound`."""
    title: str
    """The verdict, a sentence."""
    cost: float | None = None
    """Share of the time that it costs, from 0 to 1; `None`: it costs no time yet, and spoils the run or will end it."""
    cost_ns: float = 0.0
    """The cost in ns of each step; 0 if it is not a time."""
    evidence: tuple[str, ...]
    """Sentences with numbers."""
    action: str = ""
    """The change to try first."""
    gain: str = ""
    """Expected gain of the change."""
    certainty: str = "likely"
    """`certain`, `likely` or `possible`."""
    steps: tuple[int, ...] = ()
    """Numbers of a few steps that show it, the clearest first."""
    ranks: tuple[int, ...] = ()
    """The ranks that it is about; empty: all, or there is but one."""
    events: tuple[EventReference, ...] = ()
    """A few events that show it, the longest first."""
    places: tuple[Place, ...] = ()


class Share(msgspec.Struct, frozen=True):
    """A part of the step."""

    name: str
    ns: float
    """ns of a median step: the part's share of the shortest 95 % of the steps that are judged. All parts add up to the step."""
    share: float


class KernelTime(msgspec.Struct, frozen=True):
    """All runs of the kernels of one name on a device."""

    name: str
    ns: int
    """Summed over all streams, so it may be more than the program waited for."""
    count: int
    share: float
    """The share of the summed time of all kernels."""


class NameShare(msgspec.Struct, frozen=True):
    """The share that the spans of one name have of some time."""

    name: str
    ns: int
    share: float


class HostActivity(msgspec.Struct, frozen=True):
    """The activity of the host while a device idled."""

    name: str
    ns: int
    share: float
    """The share of the time in which the device idled."""
    names: tuple[NameShare, ...] = ()
    """The spans that were innermost for longest during this activity; their shares are of the activity."""


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a device in the steps that are judged; where there are too few, from its first to its last event.

    Times are in ns, over all its streams, and summed over windows.
    """

    name: str
    total_ns: int
    busy_ns: int
    """Time in which at least one kernel, copy or set of memory ran."""
    idle_ns: int
    """Time in which nothing ran on the device."""
    computation_ns: int
    """Kernels other than those of collectives, and sets of memory."""
    communication_ns: int
    """Kernels of collectives that no computation overlaps. Whether anything waited for them is not known."""
    copy_ns: int
    """Copies that no kernel overlaps."""
    meanwhile: tuple[HostActivity, ...]
    """The activity of the host while the device idled. Each nanosecond counts once, so these add up to `idle_ns`. It need not be what
    kept the device idle."""
    kernels: tuple[KernelTime, ...]
    """The kernels with the most time."""
    kernel_names: int
    """Number of names of kernels in all."""
    copies: tuple[KernelTime, ...] = ()
    """Kinds of copies, the ones with the most time first."""

    @property
    def idle(self) -> float:
        """Share of the time in which the device idled."""
        return self.idle_ns / self.total_ns if self.total_ns else 0.0


class TaskTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The asyncio tasks of one name. Times are in ns, summed over the tasks."""

    name: str
    count: int
    running: int
    ready: int
    """Time for which they could have run, at most, while another task ran."""
    waiting: int
    """Time for which they waited for something outside of the loop."""
    place: Place | None = None
    """Where they wait most often, and in which share of the readings; `None` if that was hardly read."""


class OperatorFlops(msgspec.Struct, frozen=True):
    """The floating-point operations of the spans of one name."""

    name: str
    count: int
    flops: int
    ns: int
    """The time of these spans on the host. Work that they launched on a device is not in it."""


class FlopsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of a process."""

    total: int
    """Operations of the whole recording."""
    a_step: float | None
    """Operations of a judged step, in the mean; `None` without judged steps."""
    rate: float | None
    """Operations per second in these steps."""
    peak: float | None
    """The most in a second that the device can do, as it was declared."""
    declared: bool
    """Whether the program has declared them; otherwise they are estimates, by operator."""
    operators: tuple[OperatorFlops, ...]
    """The operators with the most operations."""
    names: int
    """Number of names in all."""

    @property
    def utilization(self) -> float | None:
        """Model FLOPs utilisation: the share of the peak that the steps reach."""
        return None if self.rate is None or self.peak is None else self.rate / self.peak


class TagMemory(msgspec.Struct, frozen=True):
    """The bytes held at a peak that the spans of one name have allocated."""

    name: str
    """The innermost labelling span: of the program, of a module or of an optimizer; empty if there was none."""
    bytes: int
    count: int
    """Number of these allocations; 0 for those before the window."""

    @property
    def shown(self) -> str:
        """The name, or words in place of an empty one."""
        return self.name or "in no span"

    def share_of(self, peak: int) -> float:
        """Its share of the peak."""
        return self.bytes / peak if peak else 0.0


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a device, as its allocator reports it."""

    device: str
    """The device, such as `cpu/0` or `gpu/1`."""
    capacity: int | None
    """Bytes of the device; `None` if that is not known."""
    allocations: int
    deallocations: int
    allocated: int
    """Bytes of all allocations."""
    peak: int
    """The most bytes that were allocated at once."""
    step: int | None
    """The step in which that was; `None` if it was in none."""
    tags: tuple[TagMemory, ...] = ()
    """The spans that allocated the bytes of the peak, the most first; empty if there were too many allocations."""


class CollectiveTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one name on a rank, of a step in the mean of those that are judged."""

    name: str
    calls: float
    ns: float
    wait_ns: float | None
    """The part of `ns` in which the rank waited for others; `None` if these were not recorded, or ran it more or less often."""
    bytes: float | None
    """Size of the rank's input tensors; `None` if it was not recorded."""
    bandwidth: float | None
    """These bytes in a second of the time without waiting, as far as that is known."""


class OperatorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of a data pipeline. Numbers that were not recorded are `None`."""

    name: str
    """The operator's name, such as `Map(id=1)`."""
    workers: int
    used_per_worker: float | None
    """Percent of a processor that each worker used on average."""
    capacity: int
    """Batches or items that its output queue holds; 0 if it has none."""
    queued: float | None
    """The mean length of that queue."""
    filled: float | None
    """Mean length of the queue, in percent of its capacity."""
    empty: float | None
    """Percent of the samples in which the queue is empty."""


class PipelineAdvice(msgspec.Struct, frozen=True):
    """A remark on an operator of a data pipeline."""

    kind: str
    """`workers` are busy, `slower` than the one before, `reading` is slow, `device` waits, `starved`, or `idle` workers."""
    operator: str
    """Name of the operator."""
    text: str
    """A sentence with numbers."""
    action: str
    """The change to try; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.text}. Try {self.action}." if self.action else f"{self.text}."


class PipelineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A data pipeline: how batches are prepared."""

    source: str
    """`MindSpore` or `torch`."""
    waited_ns: float | None
    """Mean time for which the loop waited for a batch; `None` if it was not recorded."""
    machine_use: float | None = None
    """Percent of the processors that the process may use that were busy on average, with any process; `None` if not recorded."""
    operators: tuple[OperatorAnswer, ...]
    """Its operators, the one nearest to the training loop first."""
    bottleneck: str
    """Name of the operator that is too slow; empty if none is."""
    advice: tuple[PipelineAdvice, ...]
    """Remarks, the one on the bottleneck first."""


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one rank, by part."""

    rank: int | None
    name: str
    statistics: Statistics | None
    shares: tuple[Share, ...]
    startup_ns: int = 0
    """Time that was recorded before the first step."""
    shutdown_ns: int = 0
    """Time that was recorded after the last step."""
    tasks: tuple[TaskTimes, ...] = ()
    """Tasks of its event loops, at most eight names: those first that ran or were ready longest."""
    places: tuple[Place, ...] = ()
    """The places with most samples of the stack: lines of the training loop, or functions if the process has no steps. Empty if it has
    tasks."""
    devices: tuple[DeviceAnswer, ...] = ()
    flops: FlopsAnswer | None = None
    """The operations; `None` if neither shapes of operators' inputs nor FLOPs were recorded."""
    memory: tuple[DeviceMemory, ...] = ()
    """Devices whose allocations a backend has reported, the one with the highest peak first."""
    collectives: tuple[CollectiveTimes, ...] = ()
    """Its collectives, the longest first."""
    pipelines: tuple[PipelineAnswer, ...] = ()
    """Its data pipelines with recorded queues, processors or waits, at most eight: MindSpore's, then those of DataLoaders."""
    saved: tuple[str, ...] = ()
    """Sentences on steps for which a flight recorder saved a window: the trigger's finding, and which part of the step took longer
    than in the median of the recorded steps. The newest `explain.MOST_SAVED`; those that took no longer are not among them."""
    more_pipelines: int = 0
    """Number of further pipelines."""

    @property
    def has_steps(self) -> bool:
        """Whether steps were marked. Without marks, the whole run is one step."""
        return self.statistics is not None and self.statistics.steps > 1


class ParallelGroup(msgspec.Struct, frozen=True):
    """Ranks that communicate with each other."""

    name: str
    ranks: tuple[int, ...] = ()
    kind: str = ""
    """`data`, `tensor`, `pipeline`, `context`, `expert`, `all`, or a name of the program's own."""


class ParallelLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is divided among its ranks."""

    sizes: dict[str, int]
    """The number of parts by each kind of parallelism."""
    groups: tuple[ParallelGroup, ...] = ()
    """The groups that the rank is in."""
    rank: int | None = None
    """The rank whose metadata have the layout."""
    source: str = ""
    """The source: `declared`, `torch` or `MindSpore`."""
    problem: str = ""
    sharding: dict[str, Any] = {}
    """The division of tensors by name, as the program declares it, or as MindSpore's parallel context has it."""

    @property
    def sharding_text(self) -> str:
        """The sharding on one line; empty where none is known."""
        return ", ".join(
            f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
            for name, value in self.sharding.items()
        )

    def __str__(self) -> str:
        sizes = " × ".join(f"{kind} {size}" for kind, size in self.sizes.items()) or "of unknown sizes"
        own = [f"{group.name} {list(group.ranks)}" for group in self.groups if group.kind != "all" and group.ranks]
        whose = f"rank {self.rank}" if self.rank is not None else "this rank"
        groups = f"; {whose} is in {', '.join(own)}" if own else ""
        source = f" ({self.source})" if self.source else ""
        return f"{sizes}{source}{groups}{f'; {self.problem}' if self.problem else ''}"


def processes(ranks: Sequence[int | None]) -> str:
    """`3 ranks`, or `3 processes` if one of them has no rank."""
    return human_count(len(ranks), *(("process", "es") if None in ranks else ("rank", "s")))


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer on a run: what is slow and why, or why there is no answer."""

    path: str
    verdict: str
    """The first sentence."""
    refused: str = ""
    """The reason why nothing can be judged, and what to record; empty if something can."""
    findings: tuple[Finding, ...] = ()
    ranks: tuple[RankAnswer, ...] = ()
    unknown: tuple[str, ...] = ()
    """Gaps: data that were not recorded, each with what to record for it."""
    layout: ParallelLayout | None = None
    """The division of the job among its ranks, as the first rank knows it; `None` if it does not."""
    trust: str = ""
    """One line that says whether all events were recorded and read."""
    missing: dict[str, int] = {}
    """By source, the time in ns, over all ranks, for which it should have recorded, and lacks events."""

    def __str__(self) -> str:
        from stepscope.analysis.terminal import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        """The answer as HTML, which notebooks show."""
        from stepscope.analysis.page.render import answer_html

        return answer_html(self)
