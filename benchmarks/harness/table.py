"""The table: for the terminal while the run goes on, and in Markdown."""

from __future__ import annotations

from benchmarks.harness.report import Outcome, Report
from benchmarks.harness.rounds import Measured
from benchmarks.harness.row import Tool

COLUMNS = {Tool.TORCH: "torch", Tool.VIZTRACER: "VizTracer", Tool.OPENTELEMETRY: "OpenTelemetry", Tool.NVTX: "nvtx"}


def lines(outcome: Outcome) -> str:
    """A row for the terminal."""
    shown = [f"{outcome.key}: {outcome.title.replace('`', '')}"]
    for measured in outcome.measured:
        name = measured.tool if measured.tool is Tool.STEPSCOPE else f"{measured.tool} {measured.label}"
        text = f"  {name:<52} {_value(measured, outcome.unit)}"
        if measured.tool is Tool.STEPSCOPE:
            text += f"   {_budget(outcome)}: {_met(outcome)}" if outcome.budget is not None else ""
        elif measured.label in outcome.ratios:
            text += f"   {_ratio(outcome.ratios[measured.label])}"
        shown.append(text)
    return "\n".join(shown)


def markdown(report: Report) -> str:
    """The whole table."""
    head = ["what", "stepscope", "baseline", "budget", "met", *COLUMNS.values(), "not run, cited"]
    rows = [head, ["---"] * len(head), *(_cells(outcome) for outcome in report.outcomes)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def notes(report: Report) -> str:
    """Further facts, by row, as a Markdown list."""
    items: list[str] = []
    for outcome in report.outcomes:
        facts = outcome.own.facts if outcome.own else {}
        if facts:
            items.append(f"- {outcome.key}: " + ", ".join(f"{name} {figure(value)}" for name, value in facts.items()))
    return "\n".join(items)


def _cells(outcome: Outcome) -> list[str]:
    own = outcome.own
    baseline = own.baseline if own else None
    cells = [
        outcome.title,
        "" if own is None else _value(own, outcome.unit),
        "" if baseline is None else figure(baseline),
        _budget(outcome),
        _met(outcome),
    ]
    peers = ["<br>".join(_peer(outcome, peer) for peer in outcome.peers if peer.tool is tool) for tool in COLUMNS]
    return [*cells, *peers, outcome.cited]


def _peer(outcome: Outcome, peer: Measured) -> str:
    ratio = outcome.ratios.get(peer.label)
    return f"{peer.label}: {_value(peer, outcome.unit)}" + (f" **{_ratio(ratio)}**" if ratio is not None else "")


def _value(measured: Measured, unit: str) -> str:
    if measured.median is None:
        return f"not run: {measured.why_not}"
    failed = f"; then {measured.why_not}" if measured.why_not else ""
    return spread(measured.values, measured.median, unit) + failed


def _ratio(ratio: float) -> str:
    return f"×{figure(ratio)}"


def _budget(outcome: Outcome) -> str:
    if outcome.budget is None:
        return ""
    return f"{'≥' if outcome.more_is_better else '≤'} {figure(outcome.budget)} {outcome.unit}"


def _met(outcome: Outcome) -> str:
    return "" if outcome.met is None else "yes" if outcome.met else "**no**"


def figure(value: float) -> str:
    """Three significant digits, without exponents: `0.0312`, `4.56`, `111`, `13,464`."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.0005:
        return f"{value:.1e}"
    if size < 1:
        return f"{value:.3g}"
    if size < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if size < 100 else f"{value:,.0f}"


def spread(values: list[float], middle: float, unit: str) -> str:
    """Median, smallest and largest: `111 ns (108–161)`."""
    if len(values) < 2:
        return f"{figure(middle)} {unit}"
    return f"{figure(middle)} {unit} ({figure(min(values))}–{figure(max(values))})"
