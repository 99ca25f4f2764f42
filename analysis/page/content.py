"""The values that the page shows, as texts and numbers. Nothing is judged here."""

from __future__ import annotations

import itertools
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np

from stepscope.analysis.findings import Answer, DeviceAnswer, RankAnswer
from stepscope.analysis.page.icicle import icicle_of
from stepscope.analysis.reading.recording import Rank, Recording
from stepscope.analysis.tables.parallel_layout import groups_of, layout_of
from stepscope.analysis.tables.rank_summary import RankSummary, durations
from stepscope.analysis.terminal import LEAST, shown_rank
from stepscope.analysis.thresholds import SLOW_STEP
from stepscope.backends.parallel_layout import DECLARED
from stepscope.runtime.display.text_table import human_count, human_number, human_time, percents, printable
from stepscope.runtime.windows.open_window import RECORDER, STEPS
from stepscope.runtime.windows.step_facts import Facts
from stepscope.runtime.windows.step_parts import QUEUED, RUNNING, UNCOVERED, WAITING, is_uncovered, parts_of
from stepscope.runtime.windows.step_statistics import SHOWN_FROM_NS

MOST_STEPS = 2_000
"""Bars of the chart of steps. Of more steps, neighbours share one, and there are half as many: each can be seen then."""
MOST_ROWS = 500
"""Rows of the table of spans."""
MOST_NODES = 3_000
"""Frames of the flame graph."""
MOST_PROCESSES = 8
"""Processes that are shown one by one; the limits above are for all of them together."""
MOST_DEVICES = 16
"""Devices of a process that are shown."""
MOST_GROUPS = 500
"""Groups of ranks that are shown."""
MOST_TEXT = 1_000
"""Characters of a value of the run's metadata."""
MOST_METADATA = 100
MOST_NOTES = 50
MOST_WINDOWS = 8
"""Windows whose steps are named."""
_NAMES_OF_COLOURS: dict[str, tuple[str, ...]] = {
    "collection": ("garbage collection",),
    "communication": ("communication", "communicating", "calling collectives"),
    "checkpoint": ("checkpoint", "logging"),
    "data": ("data", "waiting for data"),
    "optimizer": ("optimizer", "other calls of the device's runtime"),
    "backward": ("backward", "Python"),
    "copy": ("copies to devices", "copying", "launching kernels"),
    "forward": ("forward", "computing", "operators"),
    "waiting": ("waiting (task)", "waiting for the device", QUEUED),
    "spans": ("other spans",),
    "uncovered": ("idle", "no known activity", UNCOVERED, RUNNING, WAITING),
}
COLOURS = {name: colour for colour, names in _NAMES_OF_COLOURS.items() for name in names}
"""Names of colours in the page's style."""

DEVICE_PARTS = ("computing", "communicating", "copying")
"""Kinds of time on devices, in the order of `Device`."""


class PartRow(msgspec.Struct, frozen=True):
    """A row of a table that adds up to 100 %."""

    name: str
    colour: str
    time: str
    percent: str
    width: float
    """Width of its bar, in percent of the longest."""
    share: float
    """Share in percent."""


class Parts(msgspec.Struct, frozen=True):
    """A table of parts of the step."""

    rows: tuple[PartRow, ...]
    total: str


def content_of(recording: Recording, summaries: Sequence[RankSummary], answer: Answer) -> SimpleNamespace:
    """Gathers what the page shows, for its template."""
    several = len(summaries) > 1
    named = {number for finding in answer.findings for number in finding.ranks}
    pairs = list(zip(summaries, answer.ranks, strict=True))
    stepping = [len(summary.judged_steps) > 0 for summary in summaries]
    first = shown_rank(answer)
    # The one that the verdict names, then those that other findings name, then the others.
    order = sorted(range(len(pairs)), key=lambda at: (not stepping[at], summaries[at].rank not in named, at))
    order.sort(key=lambda at: answer.ranks[at] is not first)
    chosen = order[:1] + sorted(order[1:MOST_PROCESSES], key=lambda at: (not stepping[at], at))
    room = max(len(chosen), 1)
    processes = tuple(_process(*pairs[at], room, several) for at in chosen)
    columns, rank_rows = _ranks(pairs if several else [], named)
    groups = groups_of(filter(None, (layout_of(rank.metadata) for rank in recording.ranks)))
    return SimpleNamespace(
        answer=answer,
        title=recording.path.resolve().name or str(recording.path),
        when=_when(recording.ranks),
        processes=processes,
        hidden=len(pairs) - len(chosen),  # these are only in the table of ranks
        rank_columns=[f"#{name}" for name in columns],
        ranks=rank_rows,
        groups=groups[:MOST_GROUPS],
        more_groups=max(len(groups) - MOST_GROUPS, 0),
        losses=tuple(
            (f"{label_of(rank)}: {reason}" if several else reason, f"{count:,}")
            for rank in recording.ranks
            for reason, count in rank.dropped.items()
            if count
        ),
        notes=tuple(itertools.islice(_notes(recording), MOST_NOTES)),
        facts=tuple(_facts(recording)),
        data=[process.data for process in processes],  # for the script
    )


def label_of(rank: Rank | RankSummary | RankAnswer) -> str:
    """The name of a process."""
    return f"rank {rank.rank}" if rank.rank is not None else rank.name or "process"


def parts_of_step(answer: RankAnswer) -> list[tuple[str, float]]:
    """Names and ns of the parts of a step."""
    return [(share.name, share.ns) for share in answer.shares]


def parts_table(parts: Sequence[tuple[str, float]]) -> Parts | None:
    """A table of parts of the step, of which names and ns are given; they add up to the step."""
    if not parts:
        return None
    longest = max(ns for _, ns in parts) or 1.0
    rows = tuple(
        PartRow(
            name=name,
            colour=COLOURS.get(name, "spans"),
            time=human_time(ns),
            percent=f"{percent:.1f} %",
            width=round(100 * max(ns, 0.0) / longest, 1),
            share=percent,
        )
        for (name, ns), percent in zip(parts, percents([max(ns, 0.0) for _, ns in parts]), strict=True)
    )
    return Parts(rows, human_time(sum(ns for _, ns in parts)))


def _process(summary: RankSummary, answer: RankAnswer, room: int, several: bool) -> SimpleNamespace:
    """A process that is shown by itself."""
    samples, of = summary.samples_in_steps(), "the steps that are judged"
    if not samples:
        samples, of = summary.samples, "the whole run"
    icicle = icicle_of(samples, MOST_NODES // room)
    step_ns = 0 if of == "the whole run" else round(summary.step_ns)
    chart = _chart(summary, MOST_STEPS // room)
    memory = _memory(summary.facts, MOST_STEPS // room)
    label = label_of(summary)
    rows = sorted(summary.rows, key=lambda row: -row.self)
    return SimpleNamespace(
        label=f"{label} on {summary.recorded.host}" if several and summary.recorded.host else label,
        answer=answer,
        tiles=tuple(_tiles(answer)),
        parts=parts_table(parts_of_step(answer)),
        devices=_devices(summary),
        device_views=tuple(_device_view(device) for device in answer.devices[:MOST_DEVICES]),
        spans=tuple(rows[: MOST_ROWS // room]),
        names=len(rows),  # of spans; the table has the first of them
        steps=len(summary.facts),
        bins=len(chart["first"]) if chart else 0,
        first_steps=len(summary.facts) - len(summary.judged_steps),
        samples=icicle.samples[0] if icicle is not None else 0,
        samples_of=of,
        memory=memory is not None,
        foreign=summary.recorded.foreign,
        data={
            "chart": chart,
            "memory": memory,
            "icicle": icicle and msgspec.to_builtins(icicle) | {"stepNs": step_ns},
        },
    )


def _tiles(answer: RankAnswer) -> Iterable[tuple[str, str, str]]:
    facts = answer.statistics
    if facts is None:
        return
    yield "Steps", f"{facts.steps:,}", f"{facts.steady:,} judged"
    yield "Median step", human_time(facts.p50), f"mean {human_time(facts.mean)}"
    yield "95 % are below", human_time(facts.p95), f"{facts.p95 / facts.p50:.1f} × the median" if facts.p50 else ""
    yield "Rate", f"{human_number(facts.rate, 3)}/s", "steps a second"
    if facts.steps < 2:
        return
    yield (
        "Slowest step",
        human_time(facts.slowest_ns),
        f"step {facts.slowest}{': ' if facts.slowest_why else ''}{facts.slowest_why}",
    )
    if answer.startup_ns >= SHOWN_FROM_NS:
        yield "Startup", human_time(answer.startup_ns), "before the first step"
    if answer.shutdown_ns >= SHOWN_FROM_NS:
        yield "Shutdown", human_time(answer.shutdown_ns), "after the last step"


def shortened(text: str, limit: int) -> str:
    """A text without its end if it is longer."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _devices(summary: RankSummary) -> Parts | None:
    steady = summary.judged_steps
    if not len(steady) or not steady["device"].any():
        return None
    sums = dict(zip(DEVICE_PARTS, steady["device"].sum(axis=0).tolist(), strict=True))
    idle = max(int(durations(steady).sum()) - sum(sums.values()), 0)
    scale = summary.step_ns / (sum(sums.values()) + idle)
    parts = sorted(((name, ns * scale) for name, ns in sums.items() if ns), key=lambda part: -part[1])
    return parts_table([*parts, ("idle", idle * scale)])


def _device_view(device: DeviceAnswer) -> SimpleNamespace:
    """A device from its first to its last event; activities of the host have the spans that were in them for longest."""
    times = device.computation_ns, device.communication_ns, device.copy_ns, device.idle_ns
    return SimpleNamespace(
        answer=device,
        use=parts_table([(name, ns) for name, ns in zip((*DEVICE_PARTS, "idle"), times, strict=True) if ns]),
        meanwhile=parts_table([(each.name, each.ns) for each in device.meanwhile]),
        names=tuple(
            (each.name, ", ".join(f"{shortened(name.name, 100)} {name.share:.0%}" for name in each.names))
            for each in device.meanwhile
            if each.names
        ),
    )


def _starts(count: int, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The begins of bins of about one size."""
    return np.linspace(0, count, count if count <= most else max(most // 2, 1), endpoint=False).astype(np.int64)


def _chart(summary: RankSummary, most: int) -> dict[str, Any] | None:
    facts = summary.facts
    if not len(facts):
        return None
    took, found = durations(facts), parts_of(facts)
    judged = len(facts) - len(summary.judged_steps)
    parts = dict(sorted(found.items(), key=lambda item: (is_uncovered(item[0]), -int(item[1][judged:].sum()))))
    starts = _starts(len(facts), most)
    sizes = np.diff(np.append(starts, len(facts)))
    median = summary.step_ns
    slow = took > SLOW_STEP * median
    slow[:judged] = False
    longest = np.maximum.reduceat(took, starts)
    # The step that was the longest of its bin.
    at = [int(begin) + int(np.argmax(took[begin : begin + size])) for begin, size in zip(starts, sizes, strict=True)]
    return {
        "names": list(parts),
        "colours": [COLOURS.get(name, "spans") for name in parts],
        "ns": [_ints(np.add.reduceat(np.maximum(column, 0), starts) / sizes) for column in parts.values()],
        "usual": [round(float(np.median(column[judged:]))) if judged < len(facts) else 0 for column in parts.values()],
        "first": facts["step"][starts].tolist(),
        "last": facts["step"][np.append(starts[1:], len(facts)) - 1].tolist(),
        "longest": _ints(longest),
        "longestStep": facts["step"][at].tolist(),
        "slow": np.add.reduceat(slow.astype(np.int64), starts).tolist(),
        "cold": int(np.searchsorted(starts, judged)),
        "median": round(median),
        "p95": round(float(np.quantile(durations(summary.judged_steps), 0.95))) if len(summary.judged_steps) else 0,
        "slowFactor": SLOW_STEP,
    }


def _ints(values: Any) -> list[int]:
    """Three digits more than are shown are enough."""
    return [int(float(f"{value:.5g}")) for value in values]


def _memory(facts: Facts, most: int) -> dict[str, Any] | None:
    if not len(facts):
        return None
    known = facts[np.isfinite(facts["resident_bytes"])]
    if len(known) < 2:
        return None
    starts = _starts(len(known), most)
    return {
        "step": known["step"][starts].tolist(),
        "bytes": _ints(np.maximum.reduceat(known["resident_bytes"], starts)),
    }


def _ranks(
    pairs: Sequence[tuple[RankSummary, RankAnswer]], named: set[int]
) -> tuple[tuple[str, ...], list[SimpleNamespace]]:
    """The parts that are a share of some rank's steps, the largest first, and a row for each rank. Uncovered time is one part."""
    sums: defaultdict[str, float] = defaultdict(float)
    by_rank: list[defaultdict[str, float]] = []
    for _, answer in pairs:
        by_rank.append(defaultdict(float))
        for share in answer.shares:
            name = UNCOVERED if is_uncovered(share.name) else share.name
            by_rank[-1][name] += share.ns
            sums[name] += share.ns
    shown = {name for ns in by_rank for name, part in ns.items() if part >= LEAST * sum(ns.values())}
    columns = tuple(sorted(shown, key=lambda name: (name == UNCOVERED, -sums[name])))
    return columns, [
        SimpleNamespace(
            label=label_of(summary),
            host=summary.recorded.host,
            named=summary.rank in named,
            statistics=answer.statistics,
            ns=tuple(ns[name] for name in columns),
        )
        for (summary, answer), ns in zip(pairs, by_rank, strict=True)
    ]


def _when(ranks: Sequence[Rank]) -> str:
    begins = [window.wall_start_ns for rank in ranks for window in rank.windows.values() if window.wall_start_ns > 0]
    try:
        return datetime.fromtimestamp(min(begins) / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC") if begins else ""
    except (OverflowError, ValueError, OSError):  # what a damaged file may say
        return ""


def _notes(recording: Recording) -> Iterable[str]:
    yield from recording.notes
    for rank in recording.ranks:
        yield from (shortened(note, MOST_TEXT) for note in rank.notes)
        first: dict[str, int] = {}
        for window in rank.windows.values():
            for text in window.diagnostics:
                first.setdefault(text, window.index)
        for text, number in itertools.islice(first.items(), 20):
            yield shortened(f"{label_of(rank)}, window {number}: {text}", MOST_TEXT)


def _facts(recording: Recording) -> Iterable[tuple[str, str]]:
    yield "path", str(recording.path)
    several = len(recording.ranks) > 1
    for rank in recording.ranks[:MOST_PROCESSES]:
        windows = rank.windows.values()
        spent = sum(window.end_ns - window.start_ns for window in windows)
        name = label_of(rank) if several else "process"
        recorded = f"{human_count(len(rank.windows), 'window')}, {human_time(max(spent, 0))} recorded"
        source = f"a trace of torch.profiler; {recorded}" if rank.foreign else f"{recorded}; {rank.ending}"
        yield name, f"{rank.name}, pid {rank.pid} on {rank.host or 'an unknown host'}; {source}"
    yield from ((name, ", ".join(texts)) for name, texts in _settings(recording).items() if texts)
    shown: dict[str, Any] = {}
    for rank in recording.ranks:
        for key, value in rank.metadata.items():
            shown.setdefault(key, value)
    if any(layout_of(rank.metadata) for rank in recording.ranks):
        shown.pop(DECLARED, None)
    for key, value in list(shown.items())[:MOST_METADATA]:
        yield shortened(key, 100), shortened(_value(key, value), MOST_TEXT)


def _settings(recording: Recording) -> dict[str, Sequence[str]]:
    """Sentences: the recorded windows, and their outputs."""
    windows = [window for rank in recording.ranks for window in rank.windows.values()]
    of_one = [window.steps for rank in recording.ranks[:1] for window in rank.windows.values() if window.steps]
    steps = [" to ".join(str(step.number) for step in (each[:1] + each[1:][-1:])) for each in of_one[:MOST_WINDOWS]]
    return {
        "steps recorded": steps + (["…"] if len(of_one) > MOST_WINDOWS else []),
        "backends": sorted({name for window in windows for name in window.ledger.sources} - {RECORDER, STEPS}),
        "exporters": sorted({name for window in windows for name in window.ledger.outputs}),
    }


def _value(key: str, value: Any) -> str:
    if key in ("command", "options") and isinstance(value, list):
        return shlex.join(map(str, cast(Iterable[object], value)))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
