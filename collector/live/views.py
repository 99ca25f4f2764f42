"""The answers of the HTTP interface, and the live events."""

from __future__ import annotations

from typing import Literal

import msgspec

from stepscope.collector.runs.windows import WindowFacts

StateName = Literal["connected", "silent", "ended", "died"]


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as it is now."""

    id: str
    """Identifies the rank in addresses; the same after a restart of the rank or of the collector."""
    job: str
    """Name of its run."""
    job_id: str
    """The identity of its job: the launcher's name for it, or its run's with the number of ranks."""
    rank: int | None
    host: str
    pid: int
    state: StateName
    silent_s: float
    """Seconds since anything came from it; 0 after it ended."""
    incarnation: int
    """How many times it was started, as far as this collector saw."""
    stream: str
    """Id of the stream of its latest start."""
    step: int | None
    """Number of the newest step that ended."""
    step_ms: float | None
    """Median of the newest steps."""
    own_ms: float | None
    """Median of their own time, without waits for other ranks, if its collectives are known."""
    last_step_ms: float | None
    events: int
    """Events of its latest start."""
    events_per_s: float
    bytes: int
    """Size of the file of its latest start."""
    bytes_per_s: float
    dropped: int
    """Events lost, as far as the ledgers of closed windows have arrived."""
    missing_frames: int
    """Frames of its stream that were lost."""
    clock_bound_us: float | None
    """Largest error of its times, compared with the collector's clock."""
    windows: int
    """Number of closed windows."""
    slow: bool
    """Whether it holds the others up, according to a verdict on its job."""
    cpu_share: float | None
    """Processor time of the thread that steps, as a share of its newest steps."""
    data_share: float | None
    """Share of these steps in which data are loaded."""
    communication_share: float | None
    """Share of these steps in collectives."""
    resident_bytes: int | None
    """Memory of the process at the end of the newest step."""
    restoring: bool
    """Whether its file is still being read, after a start of the collector."""
    others: list[str]
    """Other processes that are this rank at the same time, by host and pid: of another run, say, of the same name. Windows of
    theirs count as those of earlier starts."""


class UploadView(msgspec.Struct, frozen=True, kw_only=True):
    """The upload of streams into an object store."""

    url: str
    streams: int
    complete: int
    """Streams whose end is in the store."""
    bytes: int
    """Bytes that were uploaded since the collector was started."""
    waiting_bytes: int
    """Bytes of closed segments that are not in the store, as of the last look."""
    at_ns: int | None
    """Unix time at which the last look ended; null before that."""
    problem: str
    """Why the last look did not put everything, or for how long the store has not answered; empty if nothing is wrong."""


class StorageView(msgspec.Struct, frozen=True, kw_only=True):
    """The collector's disk."""

    used_bytes: int
    """Bytes on disk of everything that the collector has written to its directory."""
    limit_bytes: int | None
    """Limit above which segments of streams are evicted."""
    free_bytes: int
    """Free bytes of the file system, as of the last look."""
    waits_s: float
    """Seconds for which a write has waited for the disk; 0 if none does."""
    discarded_events: int
    """Events that were evicted, of all streams that were known since the collector was started."""
    deleted_streams: int
    """Streams that were over and were deleted whole, ever since the directory was made."""
    deleted_events: int
    """Events in deleted streams."""
    unreadable: int
    """Streams of which nothing can be evicted, because they cannot be read, written or deleted."""
    problem: str
    """The problem: the disk does not answer or is full, the limit cannot be kept, or one of the unreadable streams is damaged.
    Empty if there is none."""


class NatsView(msgspec.Struct, frozen=True, kw_only=True):
    """The collector's part of the streams in NATS."""

    servers: list[str]
    connected: bool
    team: str
    partitions: int
    """Partitions of 32 that this collector writes now."""
    streams: int
    """Streams that it writes now."""
    malformed_messages: int
    """Messages that could not be decoded, since the collector was started."""
    unknown_summaries: int
    """Summaries of steps of processes that are not known yet. They are not shown."""
    forgotten_processes: int
    """Processes that were forgotten, as there were too many."""
    problem: str
    """Why some streams cannot be taken now; the collector tries again. Empty if all can."""


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the collector's work in the background."""

    name: str
    problem: str
    """Why it has ended though it should not; empty if it goes on, or is done."""


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job that can be chosen."""

    id: str
    """The job's id: `job_id` of its ranks, and the value of the parameter `job`."""
    ranks: int
    """Ranks whose latest start is of this run."""
    connected: int
    died: int
    slow: int
    """Ranks that hold the others up."""


class LiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of slow steps, as `stepscope explain` names it."""

    id: str
    title: str
    evidence: list[str]
    action: str
    gain: str
    cost: float
    """Share of the time, from 0 to 1."""
    certainty: str
    """`certain`, `likely` or `possible`."""
    ranks: list[int]
    steps: list[int]


class JobVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The causes of slow steps among the newest of a job."""

    job_id: str
    at_ns: int
    """Unix time."""
    steps: int
    """The most steps that were judged of a rank."""
    ranks: int
    """Ranks that were compared."""
    findings: list[LiveFinding]
    """The findings, the most costly first; empty if nothing stands out."""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a job together, or of all jobs.

    Events, bytes and losses are sums over all streams since the collector was started: they do not fall when streams are
    forgotten, and what is delivered again of a killed process counts once.
    """

    jobs: list[str]
    """Names of the runs."""
    version: str
    started_ns: int
    """Unix time at which this collector was started."""
    ranks: int
    world_size: int | None
    """Number of ranks that there should be."""
    absent: list[int]
    """Ranks below the world size of their job that were never seen, the first hundred."""
    connected: int
    silent: int
    ended: int
    died: int
    restoring: int
    """Files of earlier streams that are still to be read."""
    events: int
    events_per_s: float
    bytes: int
    bytes_per_s: float
    dropped: int
    step_ms: float | None
    """Median of the ranks' medians."""
    slow: int
    """Ranks that hold the others up."""
    verdicts: list[JobVerdict]
    """Causes and advice for each of the jobs; no entry for a job without facts of steps."""
    shared: int
    """Number of ranks that several processes have at the same time."""
    rank_files: list[str]
    """Kinds of files of a window of one stream."""
    merged_files: list[str]
    """Kinds of files of a window of all ranks."""
    exposed: bool
    """Whether others than this machine can reach the collector without a token or TLS."""
    storage: StorageView | None
    """The disk; null until the collector has measured it."""
    upload: UploadView | None
    """The upload; null if there is none."""
    nats: NatsView | None
    """The streams in NATS; null if it takes none from there."""
    parts: list[PartView]
    """Parts of the collector's own work."""
    unwritten_lines: int
    """Lines of the audit that could not be written."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The live state, or its changes."""

    number: int
    """Number that counts up; the snapshot after a gap is a full one."""
    at_ns: int
    """Unix time."""
    full: bool
    """Whether `ranks` has all ranks, or those that are new or have changed since the snapshot before."""
    job: JobView
    jobs: list[JobEntry] | None
    """Jobs that can be chosen, the most recent ones, by their ids; null if they are as in the snapshot before."""
    ranks: list[RankView]
    gone: list[str]
    """Ids of ranks that were forgotten."""


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a rank."""

    stream: str
    start: int
    """Number of the start, from 1, which is the first that this collector saw."""
    state: StateName
    host: str
    pid: int
    seen_first_ns: int
    """Unix time."""
    events: int
    bytes: int
    dropped: dict[str, int]
    """Lost events by the part that lost them and the reason."""
    missing_frames: int
    undecodable_frames: int
    left_out_steps: int
    """Steps of which it sent no facts, as there were too many."""
    left_out_records: int
    """Records other than events that its journal lacks, such as facts of steps, for want of room or time. Known at its end."""
    evicted_segments: int
    """Segments of its file that were evicted to keep the files within the limit of the disk."""
    evicted_events: int
    evicted_bytes: int
    windows: list[WindowFacts]
    """Its windows, the newest first."""


class RankDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A rank with its starts."""

    rank: RankView
    streams: list[StreamView]
    """Its starts, the latest first."""


class RankWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one rank."""

    rank: str
    start: int
    """Number of the start of the rank that recorded it, from 1."""
    stream: str
    window: WindowFacts


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """A window of a job, of all ranks that have it.

    A rank that was started again counts its windows from 0; they are those of the job that have its steps.
    """

    job_id: str
    index: int
    """Index in the job."""
    started_ns: int
    """Unix time at which half of its ranks had begun it, by their clocks."""
    ranks: int
    open: int
    """Ranks that still record it, or died in it."""
    incomplete: int
    """Ranks in which it was cut short."""
    steps: int
    """The most steps that a rank has."""
    events: int
    dropped: int
    partly_evicted: int
    """Ranks of which a part may have been evicted to keep the files within the limit of the disk."""


class WindowDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A window of a job, rank by rank; of each start of a rank that has it."""

    window: WindowView
    ranks: list[RankWindow]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Mean step times of one rank, in ms, one for each time; null where it had none."""

    id: str
    step_ms: list[float | None]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Step times over time."""

    width_s: float
    """Seconds that each point stands for."""
    times: list[float]
    """Time of each point, in seconds of Unix time."""
    median: list[float | None]
    """Median over all ranks, in ms."""
    lowest: list[float | None]
    highest: list[float | None]
    series: list[Series]


class Heatmap(msgspec.Struct, frozen=True, kw_only=True):
    """Times of steps of each rank, beside those of the others: rows of ranks, columns of steps."""

    job_id: str | None
    first_step: int
    """First step of the first column."""
    steps_per_column: int
    columns: int
    rows: list[str]
    """Id of the first rank of each row."""
    ranks_per_row: int
    ranks: int
    """Ranks in all rows."""
    value: Literal["own", "whole"]
    """Whether the times are without collectives."""
    median_ms: list[float | None]
    """Median of each column, over the ranks."""
    values: bytes
    """A byte for each row and column, row by row; in JSON, base64. 0: nothing is known; else the longest time in it is `2 ** ((byte -
    128) / 32)` times the median of the column."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Permits one request without the token, once and soon: for a browser's download."""

    ticket: str
    seconds: int
    """Seconds for which it is valid."""


class TicketRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The purpose for which a ticket is wanted."""

    path: str
    """Path of the request for which it is valid, with its parameters."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a collector that works."""

    status: Literal["ok"] = "ok"
