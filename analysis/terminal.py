"""The answer on one screen, or in few lines for the end of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from shutil import get_terminal_size

import msgspec
from rich.console import Console
from rich.text import Text

from stepscope.analysis.findings import Answer, Finding, PipelineAnswer, RankAnswer, Share, processes
from stepscope.analysis.tables.allocations import memory_text
from stepscope.analysis.tables.collectives import collectives_text
from stepscope.analysis.tables.data_pipeline import TORCH
from stepscope.analysis.tables.devices import MOST_NAME, idlest, meanwhile_of, use_of
from stepscope.analysis.tables.flops import flops_text
from stepscope.runtime.display.text_table import (
    Column,
    columns,
    human_count,
    human_time,
    printable,
    shorten,
    text_table,
)
from stepscope.runtime.files.paths import shown_file
from stepscope.runtime.windows.step_statistics import SHOWN_FROM_NS

BAR = 18
"""Columns of the longest bar."""
MOST_KERNELS = 3
MOST_MEMORIES = 2
"""Devices whose memory is shown."""
MOST_SHOWN = 3
"""Findings that are shown with their evidence; the others are named."""
MOST_TASK_NAMES = 3
"""Names of tasks that are shown."""
MOST_OPERATORS = 12
"""Operators of a data pipeline that are shown."""
OPERATOR_COLUMNS = 22
"""Width of an operator's name: the table fits a terminal of 80 columns."""
MOST_PARTS = 12
MOST_LINES = 15
"""Lines of the short answer."""
MOST_ROWS = 4
"""Parts of a step in it."""
MOST_SHARDING = 240
"""Columns of the line on sharding."""
_NARROWEST = 20
_LABEL = 7
LEAST = 0.005
"""Share of a step below which a part has no line of its own: it would be shown as 0 %."""
_REST = "the rest"
PLACE = re.compile(r"\((/[^:\n]+):(\d+)\)")


class Line(msgspec.Struct, frozen=True):
    """A text that stands on lines of its own."""

    text: Text
    indent: int = 2
    label: str = ""
    """Stands before the text, which stays to the right of it."""
    style: str = ""
    """Style of the label."""


def show(answer: Answer, console: Console) -> None:
    """Writes the answer."""
    for line in lines(answer):
        for text in wrapped(line, console):
            console.print(text, soft_wrap=True)


def show_short(answer: Answer, console: Console, notes: Sequence[tuple[str, str]] = (), more: str = "") -> None:
    """Writes the verdict, its evidence, where the time goes, and trust, in few lines.

    Args:
        answer: of the run.
        console: where to write.
        notes: what else the end has to say, such as where files are: a label, and the text.
        more: the command that shows the rest.
    """
    trust = answer.trust + (f" All of it: {more}" if more else "")
    rank = shown_rank(answer)
    saved = [("Saved", printable(text)) for text in rank.saved[-1:]] if rank is not None else []
    last = [*(Line(Text(text), 2, label) for label, text in (*saved, *notes)), Line(Text(trust), 2, "Trust", "dim")]
    for rows in (MOST_ROWS, MOST_ROWS - 1, MOST_ROWS - 1 - len(saved)):
        table = list(_table(answer, rank, rows))
        room = MOST_LINES - 1 - sum(len(wrapped(line, console)) for line in [*table, *last])
        first, whole = _fitting(answer, console, room)
        if whole:
            break
    console.print()
    for text in first:
        console.print(text, soft_wrap=True)
    for line in [*table, *last]:
        for text in wrapped(line, console):
            console.print(text, soft_wrap=True)


def _fitting(answer: Answer, console: Console, room: int) -> tuple[list[Text], bool]:
    """As much of the first finding as fits, and whether all of it does.

    Evidence without a place is left out first, from the third sentence on, then the gain.
    """
    found: Finding | None = answer.findings[0] if answer.findings and not answer.refused else None
    whole = True
    while True:
        lines = list(verdict(answer)) if found is None else list(finding_lines(found, first=True))
        if len(answer.findings) > 1:
            others = "; ".join(finding.title.partition(":")[0].rstrip(".") for finding in answer.findings[1:])
            lines.append(Line(Text(others), 2, "Also", "dim"))
        texts = [text for line in lines for text in wrapped(line, console)]
        if len(texts) <= room or found is None:
            break
        whole = False
        placeless = [each for each in found.evidence[2 if found.gain else 1 :] if not PLACE.search(each)]
        if placeless:
            evidence = tuple(each for each in found.evidence if each != placeless[-1])
            found = msgspec.structs.replace(found, evidence=evidence)
        elif found.gain:
            found = msgspec.structs.replace(found, gain="")
        elif len(found.evidence) > 1:
            found = msgspec.structs.replace(found, evidence=found.evidence[:-1])
        else:
            break
    return texts[: max(room, 1)], whole


def _table(answer: Answer, rank: RankAnswer | None, rows: int) -> Iterator[Line]:
    """A table of the time in few lines: the parts of a step, or tasks."""
    if rank is None:
        yield from without_steps(answer)
        return
    yield Line(Text(facts_of_steps(answer, rank), "dim"))
    yield from parts(rank.shares, rows)
    yield from _where(answer, rank)


def text_of(answer: Answer) -> str:
    """The answer as plain text, as wide as the terminal."""
    text = StringIO()
    width = get_terminal_size((120, 24)).columns
    console = Console(file=text, color_system=None, highlight=False, width=width, force_jupyter=False)
    show(answer, console)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def lines(answer: Answer) -> Iterator[Line]:
    """The whole answer."""
    rank = shown_rank(answer)
    head = Text(printable(answer.path), "dim")
    if rank is not None:
        head.append(f"   {facts_of_steps(answer, rank)}")
    yield Line(head, 0)
    yield Line(Text(), 0)
    if answer.refused or not answer.findings:
        yield from verdict(answer)
    for number, finding in enumerate(answer.findings[:MOST_SHOWN]):
        yield from finding_lines(finding, first=number == 0)
    for finding in answer.findings[MOST_SHOWN:]:
        yield Line(Text(short_places(printable(finding.title))), 2, "also:")
    if rank is not None and rank.statistics is not None:
        yield Line(Text(), 0)
        yield from parts(rank.shares, MOST_PARTS)
        yield Line(Text(), 0)
        yield from _where(answer, rank)
        slow = rank.statistics
        if slow.slowest_ns > 1.3 * slow.p50:
            yield Line(Text(f"Slowest step {slow.slowest}: {human_time(slow.slowest_ns)}, {slow.slowest_why}"))
        around = [("startup", rank.startup_ns), ("shutdown", rank.shutdown_ns)]
        shown = [f"{name} {human_time(ns)}" for name, ns in around if ns >= SHOWN_FROM_NS]
        if shown:
            yield Line(Text(f"Beside steps: {', '.join(shown)}"))
    for number, text in enumerate(rank.saved if rank is not None else ()):
        yield Line(Text(printable(text)), 2, " " if number else "Saved")
    yield from without_steps(answer)
    yield from _pipelines(answer, rank)
    yield from _device(answer)
    if rank is not None and rank.collectives:
        yield Line(Text(collectives_text(rank.collectives)), 2, "Collectives", "bold")
    yield from _flops_and_memory(answer, rank)
    if answer.layout is not None:
        yield Line(Text(printable(str(answer.layout))), 2, "Layout")
        if answer.layout.sharding:
            yield Line(Text(shorten(printable(answer.layout.sharding_text), MOST_SHARDING)), 2, "Sharding")
    if answer.unknown:
        yield Line(Text("; ".join(answer.unknown), "dim"), 2, "Not known", "dim")
    if answer.trust:
        yield Line(Text(answer.trust, "dim"), 2, "Trust", "dim")


def short_places(text: str) -> str:
    """The text with the files of places, `(/path/of/file.py:12)`, as people read them."""
    return PLACE.sub(lambda found: f"({shown_file(found[1])}:{found[2]})", text)


def shown_rank(answer: Answer) -> RankAnswer | None:
    """The rank whose steps are shown: the one that the verdict is about, else the one that stands for all; `None` without steps."""
    about = answer.findings[0].ranks[:1] if answer.findings else ()
    return next((rank for rank in answer.ranks if rank.rank in about and rank.has_steps), None) or next(
        (rank for rank in answer.ranks if rank.has_steps), None
    )


def facts_of_steps(answer: Answer, rank: RankAnswer) -> str:
    """The numbers of a rank's steps, on one line."""
    facts = rank.statistics
    assert facts is not None
    several = len(answer.ranks) > 1
    whose = f"{processes([each.rank for each in answer.ranks])} · " if several else ""
    number = f"rank {rank.rank}: " if several and rank.rank is not None else ""
    judged = f", {facts.steady:,} judged" if facts.steady < facts.steps else ""
    return (
        f"{whose}{number}{human_count(facts.steps, 'step')}{judged} · median {human_time(facts.p50)} "
        f"(p95 {human_time(facts.p95)}) · mean {facts.rate:,.1f} steps/s"
    )


def wrapped(line: Line, console: Console) -> list[Text]:
    """The lines of the terminal that it takes."""
    label = "" if not line.label else f"{line.label:<{_LABEL}} " if len(line.label) <= _LABEL else f"{line.label}  "
    width = max(console.width - line.indent - len(label), _NARROWEST)
    texts: list[Text] = []
    for number, text in enumerate(line.text.wrap(console, width)):
        text.rstrip()
        start = Text(" " * line.indent)
        start.append(label if number == 0 else " " * len(label), line.style)
        texts.append(start.append_text(text) if text.plain else Text())
    return texts or [Text()]


def verdict(answer: Answer) -> Iterator[Line]:
    """The verdict of an answer without findings."""
    yield Line(Text(short_places(printable(answer.verdict)), "bold" if answer.refused else "bold green"))
    if answer.refused:
        yield Line(Text(answer.refused), 5)


def finding_lines(finding: Finding, *, first: bool) -> Iterator[Line]:
    """A finding with its evidence; the first is red."""
    title = short_places(printable(finding.title)), "bold red" if first else "bold yellow"
    yield Line(Text.assemble(title, (f"   {finding.certainty}", "dim")))
    for evidence in finding.evidence:
        yield Line(Text(short_places(printable(evidence))), 5)
    if finding.action:
        yield Line(Text(short_places(printable(finding.action))), 2, "Try", "bold")
    if finding.gain:
        yield Line(Text(printable(finding.gain)), 2, "Gain")


def parts(shares: tuple[Share, ...], rows: int) -> Iterator[Line]:
    """The parts of a step, the longest first, each on a line with its bar; the last line has what is left."""
    found = sorted((share for share in shares if share.share >= LEAST), key=lambda share: -share.ns)
    if len(found) > rows:
        found = found[: rows - 1]
    others = [share for share in shares if share not in found]
    rest = Share(_REST, sum(each.ns for each in others), sum(each.share for each in others))
    found += [rest] if rest.share >= LEAST else []
    widest = max((columns(printable(each.name)) for each in found), default=0)
    longest = max((each.ns for each in found), default=1.0)
    for each in found:
        name = printable(each.name)
        text = Text(name + " " * (widest - columns(name)))
        text.append(f"  {human_time(each.ns):>6}  {each.share:>4.0%}  ")
        text.append("█" * max(round(BAR * each.ns / longest), 1), "blue")
        yield Line(text, 5)


def without_steps(answer: Answer) -> Iterator[Line]:
    """The activity of a process without steps: its asyncio tasks, a line for each name, or where its samples are."""
    rank = next((rank for rank in answer.ranks if (rank.tasks or rank.places) and not rank.has_steps), None)
    if rank is None:
        return
    if rank.places:
        yield from _where(answer, rank)
        return
    shown = rank.tasks[:MOST_TASK_NAMES]
    names = [f"{each.count:,} × {shorten(printable(each.name), MOST_NAME)}" for each in shown]
    widest = max(map(columns, names))
    for number, (name, each) in enumerate(zip(names, shown, strict=True)):
        ready = f", ready for {human_time(each.ready)} at most" if each.ready > each.running // 10 else ""
        where = f", {each.place.share:.0%} of it in {short_places(printable(str(each.place)))}" if each.place else ""
        text = f"{name}{' ' * (widest - columns(name))}  ran {human_time(each.running)}{ready}, waited {human_time(each.waiting)}{where}"
        yield Line(Text(text), 2, " " if number else "Tasks")


def _where(answer: Answer, rank: RankAnswer) -> Iterator[Line]:
    """The places with most samples, where no finding has one."""
    if any(finding.places for finding in answer.findings):
        return
    places = [f"{place.share:.0%} {printable(short_places(str(place)))}" for place in rank.places]
    if places:
        yield Line(Text(f"samples of the stack: {', '.join(places)}"), 2, "Where")


def _flops_and_memory(answer: Answer, rank: RankAnswer | None) -> Iterator[Line]:
    """Lines on operations and memory of the rank that is shown, or of the first rank that has some."""
    ranks = (*([rank] if rank else []), *answer.ranks)
    flops = next((each.flops for each in ranks if each.flops is not None), None)
    if flops is not None:
        yield Line(Text(printable(flops_text(flops))), 2, "FLOPs", "bold")
    memory = next((each.memory for each in ranks if each.memory), ())
    for number, one in enumerate(memory[:MOST_MEMORIES]):
        yield Line(Text(printable(memory_text(one))), 2, " " if number else "Memory", "bold")


def _pipelines(answer: Answer, rank: RankAnswer | None) -> Iterator[Line]:
    """The data pipelines of the rank that is shown, or of the first that has some.

    Those without a queue are left out: a DataLoader without workers has nothing but its wait, which is a part of the step.
    """
    shown = next(
        (each for each in (*([rank] if rank else []), *answer.ranks) if any(map(_has_queue, each.pipelines))), None
    )
    if shown is None:
        return
    whose = f" on rank {shown.rank}" if shown.rank is not None and len(answer.ranks) > 1 else ""
    evidence = {text for finding in answer.findings[:MOST_SHOWN] for text in finding.evidence}
    loader = any(finding.id.startswith("input-bound") for finding in answer.findings[:MOST_SHOWN])
    for pipeline in filter(_has_queue, shown.pipelines):
        yield from _pipeline(pipeline, whose, evidence, loader and pipeline.source == TORCH)
    if shown.more_pipelines:
        yield Line(Text(f"{human_count(shown.more_pipelines, 'more data pipeline')} not shown"), 2, " ")


def _has_queue(pipeline: PipelineAnswer) -> bool:
    return any(operator.capacity for operator in pipeline.operators)


def _pipeline(pipeline: PipelineAnswer, whose: str, evidence: set[str], advised: bool) -> Iterator[Line]:
    """A data pipeline: how long the loop waits for a batch, the slowest operator, advice that no finding has given, all operators.

    Args:
        evidence: sentences of findings.
        advised: whether a finding has advice on it.
    """
    waited = (
        ""
        if pipeline.waited_ns is None
        else f"; the loop waited {human_time(pipeline.waited_ns)} for a batch on average"
    )
    busy = "" if pipeline.machine_use is None else f"; the processors are {_percent(pipeline.machine_use)} busy"
    slowest = f"; the slowest operator is {pipeline.bottleneck}" if pipeline.bottleneck else ""
    yield Line(Text(printable(f"pipeline of {pipeline.source}{whose}{waited}{busy}{slowest}")), 2, "Data", "bold")
    for each in pipeline.advice:
        if each.text not in evidence and not (advised and each.action):
            yield Line(Text(printable(str(each))), 2, " ")
    head = [Column("operator", right=False), Column("workers"), Column("processor"), Column("in queue", right=False)]
    head += [Column("filled"), Column("empty")]
    rows = [
        [
            shorten(printable(operator.name), OPERATOR_COLUMNS),
            f"{operator.workers:,}",
            _percent(operator.used_per_worker),
            "–"
            if operator.queued is None or not operator.capacity
            else f"{operator.queued:.1f} of {operator.capacity:,}",
            _percent(operator.filled),
            _percent(operator.empty),
        ]
        for operator in pipeline.operators[:MOST_OPERATORS]
    ]
    for row in text_table(head, rows).splitlines():
        yield Line(Text(row), 2, " ")
    more = len(pipeline.operators) - MOST_OPERATORS
    if more > 0:
        yield Line(Text(f"{human_count(more, 'more operator')} not shown"), 2, " ")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}%"


def _device(answer: Answer) -> Iterator[Line]:
    """The activity of the device that idles most."""
    found = idlest(answer.ranks)
    if found is None:
        return
    rank, device = found
    every = [each for one in answer.ranks for each in one.devices]
    whose = f" of rank {rank.rank}" if rank.rank is not None and len(answer.ranks) > 1 else ""
    least = (
        f"; of {len(every)} devices the busiest idles {min(each.idle for each in every):.0%}" if len(every) > 1 else ""
    )
    yield Line(
        Text(f"{printable(device.name)}{whose} idles {device.idle:.0%} of the time: it {use_of(device)}{least}"),
        2,
        "Device",
        "bold",
    )
    # The finding has reported it.
    if device.meanwhile and not any(finding.id == "device-idle" for finding in answer.findings[:MOST_SHOWN]):
        yield Line(Text(f"while it idled, the host was in: {meanwhile_of(device)}"), 13)
    if device.kernels:
        kernels = " · ".join(
            f"{shorten(printable(each.name), MOST_NAME)} {human_time(each.ns)} in {each.count:,}"
            for each in device.kernels[:MOST_KERNELS]
        )
        yield Line(Text(f"kernels with the most time, summed over streams: {kernels}"), 13)
