"""The live state for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from stepscope.collector.live.views import JobView, RankView, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("connected", "silent", "ended", "died")
_LABELS = ("id", "rank", "host")


class _Views(Collector):
    """Views of one snapshot, as metrics."""

    def __init__(self, snapshot: Snapshot, refused: int) -> None:
        self._snapshot, self._refused = snapshot, refused

    def collect(self) -> Iterator[Metric]:
        """Yields every family of metrics."""
        job = self._snapshot.job
        states = GaugeMetricFamily("stepscope_ranks", "Ranks by state", labels=["state"])
        for state, count in zip(_STATES, (job.connected, job.silent, job.ended, job.died), strict=True):
            states.add_metric([state], count)
        yield states
        yield CounterMetricFamily("stepscope_refused_requests", "Requests refused", self._refused)
        for kind, name, help, amount in _amounts(job):
            yield kind(name, help, amount)
        parts = GaugeMetricFamily(
            "stepscope_part_ended",
            "Whether a part of the collector's work has ended though it should not",
            labels=["part"],
        )
        for part in job.parts:
            parts.add_metric([part.name], int(bool(part.problem)))
        yield parts
        for name, help, value in _OF_RANKS:
            family = GaugeMetricFamily(name, help, labels=_LABELS)
            for view in self._snapshot.ranks:
                number = value(view)
                if number is not None:
                    family.add_metric(_labels(view), number)
            yield family


def _labels(view: RankView) -> Sequence[str]:
    return view.id, "" if view.rank is None else str(view.rank), view.host


_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _amounts(job: JobView) -> Iterator[tuple[_Family, str, str, float]]:
    """The numbers of a job, each with its kind, its name and its meaning."""
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield gauge, "stepscope_world_size", "Ranks that there should be", job.world_size or 0
    yield gauge, "stepscope_slow_ranks", "Ranks that hold the others up", job.slow
    yield gauge, "stepscope_shared_ranks", "Ranks that several processes are at once", job.shared
    yield counter, "stepscope_received_events", "Events received", job.events
    yield counter, "stepscope_received_bytes", "Bytes of journals received", job.bytes
    yield counter, "stepscope_dropped_events", "Events lost, by the ledgers", job.dropped
    yield (
        counter,
        "stepscope_unwritten_audit_lines",
        "Lines of the audit that could not be written",
        job.unwritten_lines,
    )
    if (disk := job.storage) is not None:
        yield gauge, "stepscope_disk_bytes", "Bytes on disk of all that was written", disk.used_bytes
        yield gauge, "stepscope_disk_wait_seconds", "Time for which a write has waited for the disk", disk.waits_s
        yield gauge, "stepscope_unreadable_journals", "Journals that cannot be read or written", disk.unreadable
        yield gauge, "stepscope_deleted_streams", "Streams deleted for want of room", disk.deleted_streams
        yield counter, "stepscope_discarded_events", "Events evicted for want of room", disk.discarded_events
    if (upload := job.upload) is not None:
        yield counter, "stepscope_uploaded_bytes", "Bytes put into the object store", upload.bytes
        missing = "Bytes of closed segments that are not in the object store"
        yield gauge, "stepscope_upload_waiting_bytes", missing, upload.waiting_bytes
    if (nats := job.nats) is not None:
        yield gauge, "stepscope_nats_up", "Whether NATS is connected", int(nats.connected)
        yield gauge, "stepscope_nats_partitions", "Partitions taken from NATS", nats.partitions
        yield gauge, "stepscope_nats_streams", "Streams taken from NATS", nats.streams
        unreadable, unknown = (
            "Messages given up as unreadable",
            "Summaries of steps of processes that were not known yet",
        )
        yield counter, "stepscope_nats_malformed_messages", unreadable, nats.malformed_messages
        yield counter, "stepscope_nats_unknown_summaries", unknown, nats.unknown_summaries
        forgotten = "Processes that were forgotten, as there were too many"
        yield counter, "stepscope_nats_forgotten_processes", forgotten, nats.forgotten_processes


_OF_RANKS: tuple[tuple[str, str, Callable[[RankView], float | None]], ...] = (
    ("stepscope_rank_up", "Whether the rank is connected", lambda view: int(view.state == "connected")),
    ("stepscope_rank_silent_seconds", "Time since anything came from it", lambda view: view.silent_s),
    ("stepscope_rank_incarnation", "Times that it was started", lambda view: view.incarnation),
    ("stepscope_rank_step", "Its newest step", lambda view: view.step),
    ("stepscope_rank_step_seconds", "Median of its newest steps", lambda view: view.step_ms and view.step_ms / 1e3),
    ("stepscope_rank_events", "Events of its latest start", lambda view: view.events),
    ("stepscope_rank_bytes", "Bytes of its latest start", lambda view: view.bytes),
    ("stepscope_rank_dropped_events", "Events that its latest start lost", lambda view: view.dropped),
    ("stepscope_rank_windows", "Windows that its latest start closed", lambda view: view.windows),
    ("stepscope_rank_slow", "Whether it holds the others up", lambda view: int(view.slow)),
    (
        "stepscope_rank_clock_bound_seconds",
        "The most by which its times may be off",
        lambda view: view.clock_bound_us and view.clock_bound_us / 1e6,
    ),
)


def exposition(snapshot: Snapshot, refused: int) -> bytes:
    """The text that Prometheus reads: of a registry of its own, so that nothing of the program's gets in."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Views(snapshot, refused))
    return generate_latest(registry)
