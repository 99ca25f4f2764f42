"""The answer on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from shutil import get_terminal_size

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from stepscope.analysis.devices import MOST_NAME, idlest, meanwhile_of, use_of
from stepscope.analysis.explain import largest
from stepscope.analysis.findings import Answer, Finding, Share
from stepscope.runtime.table import human_count, human_time, printable, shorten

BAR = 24
"""Columns of the longest bar."""
MOST_KERNELS = 3
MOST_SHOWN = 3
"""Findings that are shown with their evidence; the others are named."""


def show(answer: Answer, console: Console) -> None:
    """Writes the answer."""
    for line, indent in lines(answer):
        console.print(Padding(line, (0, 0, 0, indent)))


def text_of(answer: Answer) -> str:
    """The answer as plain text, as wide as the terminal."""
    text = StringIO()
    width = get_terminal_size((120, 24)).columns
    console = Console(file=text, color_system=None, highlight=False, width=width, force_jupyter=False)
    show(answer, console)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


MOST_LINES = 12
"""Lines of the answer at the end of a run."""


def ending(answer: Answer, console: Console) -> None:
    """Writes the beginning of the answer, for the end of a run: the verdict, its evidence, where the time goes, and trust."""
    short = msgspec.structs.replace(answer, findings=answer.findings[:1])
    written = [each for each in lines(short) if each[0].plain]
    for line, indent in written[1:] if len(written) <= MOST_LINES else [*written[1 : MOST_LINES - 1], written[-1]]:
        console.print(Padding(line, (0, 0, 0, indent)))
    if len(answer.findings) > 1:
        others = ", ".join(finding.id for finding in answer.findings[1:])
        console.print(
            Padding(Text(f"More       {others}: stepscope explain {printable(answer.path)}", "dim"), (0, 0, 0, 2))
        )


def lines(answer: Answer) -> Iterator[tuple[Text, int]]:
    """Lines of text, each with its indentation."""
    head = Text(f"stepscope explain {printable(answer.path)}", "dim")
    rank = largest(answer.ranks)
    if rank is not None and rank.statistics is not None:
        facts = rank.statistics
        head.append(
            f"   {human_count(facts.steps, 'step')} · {human_time(facts.p50)} a step (p95 {human_time(facts.p95)}) · "
            f"{facts.rate:,.1f} steps/s · {human_count(len(answer.ranks), 'process' if len(answer.ranks) == 1 else 'processe')}"
        )
    yield head, 0
    yield Text(), 0
    if answer.refused:
        yield Text(answer.verdict, "bold"), 2
        yield Text(answer.refused), 5
    elif not answer.findings:
        yield Text(answer.verdict, "bold green"), 2
    for number, finding in enumerate(answer.findings[:MOST_SHOWN]):
        yield from _finding(finding, first=number == 0)
    for finding in answer.findings[MOST_SHOWN:]:
        yield Text(f"also: {printable(finding.title)}"), 2
    if rank is not None and rank.shares:
        yield Text(), 0
        yield _bars(rank.shares), 5
        slow = rank.statistics
        if slow is not None and slow.slowest_ns > 1.3 * slow.p50:
            yield Text(f"Slowest step {slow.slowest}: {human_time(slow.slowest_ns)}, {slow.slowest_why}"), 2
    yield from _device(answer)
    if answer.unknown:
        yield Text(f"Not known  {'; '.join(answer.unknown)}", "dim"), 2
    if answer.trust:
        yield Text(f"Trust      {answer.trust}", "dim"), 2


def _finding(finding: Finding, *, first: bool) -> Iterator[tuple[Text, int]]:
    title = Text(printable(finding.title), "bold red" if first else "bold yellow")
    title.append(f"   {finding.certainty}", "dim")
    yield title, 2
    for evidence in finding.evidence:
        yield Text(printable(evidence)), 5
    if finding.action:
        line = Text("Try    ", "bold")
        line.append(printable(finding.action), "not bold")
        yield line, 2
    if finding.gain:
        yield Text(f"Gain   {printable(finding.gain)}"), 2


def _device(answer: Answer) -> Iterator[tuple[Text, int]]:
    """Of the device that idles most."""
    found = idlest(answer.ranks)
    if found is None:
        return
    rank, device = found
    every = [each for one in answer.ranks for each in one.devices]
    whose = f" of rank {rank.rank}" if rank.rank is not None and len(answer.ranks) > 1 else ""
    least = (
        f"; of {len(every)} devices the busiest idles {min(each.idle for each in every):.0%}" if len(every) > 1 else ""
    )
    line = Text("Device     ", "bold")
    line.append(
        f"{printable(device.name)}{whose} idles {device.idle:.0%} of the time: it {use_of(device)}{least}", "not bold"
    )
    yield line, 2
    # The finding has said it.
    if device.meanwhile and not any(finding.id == "device-idle" for finding in answer.findings[:MOST_SHOWN]):
        yield Text(f"while it idled, the host was in: {meanwhile_of(device)}"), 13
    if device.kernels:
        kernels = " · ".join(
            f"{shorten(printable(each.name), MOST_NAME)} {human_time(each.ns)} in {each.count:,}"
            for each in device.kernels[:MOST_KERNELS]
        )
        yield Text(f"kernels with the most time, summed over streams: {kernels}"), 13


def _bars(shares: tuple[Share, ...]) -> Text:
    text = Text()
    widest = max(share.ns for share in shares) or 1.0
    for share in shares:
        if share.share < 0.005:
            continue
        text.append(f"{printable(share.name)} {human_time(share.ns)} ")
        text.append("█" * round(BAR * share.ns / widest), "blue")
        text.append("  ")
    return text
