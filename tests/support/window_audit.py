"""The accounts of a window: whether what its ledger says adds up."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.windows.window import Window


def audit_window(window: Window) -> list[str]:
    """Every account in the ledger of a window that does not balance, in words; empty if all do."""
    return audit_ledger(f"window {window.index}", window.ledger)


def audit_ledger(whose: str, ledger: Ledger) -> list[str]:
    """The same of any ledger."""
    found: list[str] = []
    for name, source in ledger.sources.items():
        if not source.balanced():
            found.append(f"{whose}, {name}: produced {source.produced:,}, which is not what is accounted for: {source}")
        found += _below_zero(f"{whose}, {name}", source.accepted, source.outside, source.superseded, source.dropped)
    for name, output in ledger.outputs.items():
        if output.offered != output.exported + sum(output.dropped.values()) + output.in_flight:
            found.append(f"{whose} at {name}: offered {output.offered:,}, which is not what is accounted for: {output}")
        found += _below_zero(f"{whose} at {name}", output.exported, output.in_flight, 0, output.dropped)
    offers = sorted({output.offered for output in ledger.outputs.values()})
    if len(offers) > 1:
        found.append(f"{whose}: exporters were offered different numbers of events, {offers}")
    return found


def _below_zero(what: str, first: int, second: int, third: int, dropped: Mapping[str, int]) -> list[str]:
    return [f"{what}: an account is below zero"] if min(first, second, third, *dropped.values(), 0) < 0 else []
